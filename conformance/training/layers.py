"""torch.nn.Conv2d and ConvTranspose2d through an implementation's kernels, with torch's parameters and names."""

from __future__ import annotations

from typing import Any

import torch

from conformance.implementations.implementation import Implementation, ImplementationError
from conformance.operators.base import Tensor
from conformance.operators.conv.geometry import ConvGeometry
from conformance.training.bridge import Site, convolution
from conformance.training.exchange import RefusedError
from conformance.training.kernels import Kernels


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d, computed by `implementation`. Raises RefusedError for configurations without a kernel."""

    site: Site

    def __init__(self, *sizes: Any, implementation: Implementation, layout: str = "nchw", **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.site = _site(self, implementation, layout)

    def forward(self, x: Any) -> Any:
        """Convolve x[N,C,H,W] or [C,H,W] to y[N,K,P,Q] or [K,P,Q]."""
        if x.dim() == 3:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        _require_same(self, x)
        return convolution(self.site, _geometry(self, x), x, self.weight, self.bias)


class ConvTranspose2d(torch.nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d: its forward is backward-data of a convolution, its gradients the other two directions.

    The kernels add no bias in that direction; torch adds it.
    """

    site: Site

    def __init__(self, *sizes: Any, implementation: Implementation, layout: str = "nchw", **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.site = _site(self, implementation, layout)

    def forward(self, x: Any, output_size: list[int] | None = None) -> Any:
        """Convolve x[N,C,H,W] or [C,H,W] to y[N,K,P,Q] or [K,P,Q]."""
        if x.dim() == 3:
            return self.forward(x.unsqueeze(0), output_size).squeeze(0)
        _require_same(self, x)
        more = self._output_padding(x, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation)
        y = convolution(self.site, _transposed_geometry(self, x, more), x, self.weight)
        return y if self.bias is None else y + self.bias[:, None, None]


REPLACED: dict[type, type] = {torch.nn.Conv2d: Conv2d, torch.nn.ConvTranspose2d: ConvTranspose2d}


def replace_convolutions(module: Any, implementation: Implementation, layout: str = "nchw") -> Any:
    """Send every two-dimensional convolution of a model through `implementation`; return the model.

    The model is changed in place, so that parameters, hooks, optimisers and shared layers stay as they are. Raises
    RefusedError, which names the layer, before anything is changed.
    """
    sites = []
    for path, part in module.named_modules():
        if not isinstance(part, torch.nn.modules.conv._ConvNd) or isinstance(part, tuple(REPLACED.values())):
            continue
        if type(part) not in REPLACED:
            raise RefusedError(
                f"{path or 'the model'}: {type(part).__name__} cannot be replaced; "
                f"only {' and '.join(kind.__name__ for kind in REPLACED)} of torch.nn can, not their subclasses"
            )
        sites.append((part, _site(part, implementation, layout, path)))
    for part, site in sites:
        part.__class__, part.site = REPLACED[type(part)], site
    return module


def _site(module: Any, implementation: Implementation, layout: str, name: str = "") -> Site:
    """Return the site of a layer. Raises RefusedError if the kernels cannot compute the layer on any input."""
    transposed = isinstance(module, torch.nn.ConvTranspose2d)
    text = (
        f"{'ConvTranspose2d' if transposed else 'Conv2d'} {module.in_channels}->{module.out_channels} "
        f"{'x'.join(map(str, module.kernel_size))}, stride {module.stride}, padding {module.padding}, "
        f"dilation {module.dilation}, groups {module.groups}, {'no bias' if module.bias is None else 'bias'}, "
        f"{str(module.weight.dtype).removeprefix('torch.')}"
    )
    site = Site(Kernels(implementation, layout), text, transposed, name)
    if module.padding_mode != "zeros":
        raise RefusedError(f"{site}: padding_mode={module.padding_mode!r}; kernels pad with zeros and nothing else")
    forward = "conv_backward_data" if transposed else "conv_forward"
    for direction in (forward, "conv_backward_weight"):
        try:
            site.kernels.find(direction, LayerGeometry(module), module.weight.dtype, str(site))
        except ImplementationError as problem:
            if not isinstance(problem.__cause__, NotKnownYet):
                raise
    return site


class NotKnownYet(Exception):
    """A predicate asked for a property that depends on the input."""


class LayerGeometry:
    """The part of a layer's geometry that is known before the layer has seen an input, for the `when=` of a kernel."""

    def __init__(self, module: Any) -> None:
        transposed = isinstance(module, torch.nn.ConvTranspose2d)
        self.k, in_group, self.r, self.s = module.weight.shape
        self.window, self.rank = (self.r, self.s), 2
        self.c = in_group * module.groups
        self.stride, self.dilation, self.groups = module.stride, module.dilation, module.groups
        self.padding = _padding(module)
        self.bias = module.bias is not None and not transposed
        self.filter = Tensor("KCRS", tuple(module.weight.shape))

    def __getattr__(self, name: str) -> Any:
        raise NotKnownYet(name)


def _padding(module: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return ((top, bottom), (left, right)); `same` may be asymmetric."""
    if isinstance(module, torch.nn.ConvTranspose2d):
        rows, columns = module.padding
        return (rows, rows), (columns, columns)
    left, right, top, bottom = module._reversed_padding_repeated_twice
    return (top, bottom), (left, right)


def _require_same(module: Any, x: Any) -> None:
    if x.dtype != module.weight.dtype or x.device != module.weight.device:
        raise RefusedError(
            f"{module.site}: the input is {x.dtype} on {x.device}, the weight {module.weight.dtype} on "
            f"{module.weight.device}; kernels take one dtype on one device (autocast does not reach them)"
        )
    if x.dim() != 4 or x.shape[1] != module.in_channels:
        raise ValueError(
            f"{module.site}: the input has shape {tuple(x.shape)}; expected [N, {module.in_channels}, H, W]"
        )


def _geometry(module: Any, x: Any) -> ConvGeometry:
    n, c, *size = x.shape
    parameters = _parameters(module) | {"bias": module.bias is not None}
    return ConvGeometry(n, c, tuple(size), module.out_channels, module.kernel_size, **parameters)


def _transposed_geometry(module: Any, x: Any, more: list[int]) -> ConvGeometry:
    """Return the convolution from the layer's output to its input; `more` is torch's output_padding."""
    n, k, *counts = x.shape
    size = tuple(
        (count - 1) * u - 2 * pad + d * (window - 1) + 1 + extra
        for count, u, pad, d, window, extra in zip(
            counts, module.stride, module.padding, module.dilation, module.kernel_size, more, strict=True
        )
    )
    return ConvGeometry(n, module.out_channels, size, k, module.kernel_size, **_parameters(module))


def _parameters(module: Any) -> dict[str, Any]:
    names = ("stride", "dilation", "groups")
    return {"padding": _padding(module), **{name: getattr(module, name) for name in names}}
