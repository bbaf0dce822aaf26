"""The autograd bridge: a convolution whose forward and gradients all come from an implementation's kernels."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.operators.conv.geometry import ConvGeometry
from conformance.training.exchange import Direction, Observer, Place, Role
from conformance.training.kernels import Kernels, on_host


class TwiceError(NotImplementedError):
    """The gradient of a gradient was requested."""


@dataclass(slots=True, eq=False)
class Site:
    """One layer of a network: its name, its kernels, and the observer of their calls."""

    kernels: Kernels
    what: str
    """Configuration of the layer in words."""
    transposed: bool = False
    name: str = ""
    """Path of the layer in the model."""
    observer: Observer | None = field(default=None, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Site:
        """Copy the site of a layer: it calls the same kernels, and has no observer yet."""
        return replace(copy.copy(self), observer=None)

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" if self.name else self.what

    def call(self, role: Role, direction: Direction, geometry: ConvGeometry, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return the results of a kernel, after the observer has seen them."""
        what = f"{self} ({geometry.descriptor})"
        if self.observer is None:
            return self.kernels.call(direction, geometry, tensors, what).outputs
        place = Place(self.observer.when, self.name, self.what, role, direction, geometry.descriptor)
        self.observer.begins(place)
        call = self.kernels.call(direction, geometry, tensors, what)
        self.observer.returned(place, on_host(call))
        return call.outputs

    def forward(self, geometry: ConvGeometry, image: Any, w: Any, bias: Any) -> Any:
        """Return the layer's output. A transposed convolution is the backward-data of the convolution `geometry`."""
        if self.transposed:
            return self.call("forward", "conv_backward_data", geometry, {"dy": image, "w": w})["dx"]
        return self.call("forward", "conv_forward", geometry, {"x": image, "w": w, "bias": bias})["y"]

    def backward_data(self, geometry: ConvGeometry, gradient: Any, w: Any) -> Any:
        geometry = replace(geometry, bias=False)
        if self.transposed:
            return self.call("backward-data", "conv_forward", geometry, {"x": gradient, "w": w, "bias": None})["y"]
        return self.call("backward-data", "conv_backward_data", geometry, {"dy": gradient, "w": w})["dx"]

    def backward_weight(self, geometry: ConvGeometry, image: Any, gradient: Any) -> tuple[Any, Any]:
        """Return the gradients in weight and bias; the latter is None where `geometry` has no bias."""
        x, dy = (gradient, image) if self.transposed else (image, gradient)
        gradients = self.call("backward-weight", "conv_backward_weight", geometry, {"x": x, "dy": dy})
        return gradients["dw"], gradients.get("dbias")


@contextmanager
def observed(model: Any, observer: Observer) -> Iterator[None]:
    """Show every kernel call of a model's layers to an observer, each layer named by its path in the model, until the
    block ends. Raises ValueError where no layer goes through kernels."""
    sites = {path: part.site for path, part in model.named_modules() if isinstance(getattr(part, "site", None), Site)}
    if not sites:
        raise ValueError("the model has no layer that goes through kernels; replace_convolutions(model, ...) first")
    for path, site in sites.items():
        site.name, site.observer = path, observer
    try:
        yield
    finally:
        for site in sites.values():
            site.observer = None


class _Gradients(torch.autograd.Function):
    """The gradients, as a function of their own, so that differentiating them raises an error that says why it
    fails."""

    @staticmethod
    def forward(
        ctx: Any, site: Site, geometry: ConvGeometry, needed: tuple[bool, ...], gradient: Any, image: Any, w: Any
    ) -> Any:
        ctx.site = site
        dx = site.backward_data(geometry, gradient, w) if needed[0] else None
        geometry = replace(geometry, bias=needed[2])
        dw, dbias = site.backward_weight(geometry, image, gradient) if any(needed[1:]) else (None, None)
        return dx, dw, dbias

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise TwiceError(
            f"{ctx.site}: the gradient of a gradient is not available through kernels; "
            "use torch's own layer where create_graph=True is differentiated again"
        )


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, site: Site, geometry: ConvGeometry, image: Any, w: Any, bias: Any) -> Any:
        ctx.site, ctx.geometry = site, geometry
        ctx.save_for_backward(image, w)
        return site.forward(geometry, image, w, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        image, w = ctx.saved_tensors
        needed = tuple(ctx.needs_input_grad[2:])
        return None, None, *_Gradients.apply(ctx.site, ctx.geometry, needed, gradient, image, w)


def convolution(site: Site, geometry: ConvGeometry, image: Any, w: Any, bias: Any = None) -> Any:
    """Compute a differentiable convolution (or, at a transposed site, its transpose) through the site's kernels.

    Raises RefusedError before anything is computed if a kernel is missing that this call or its gradients need.
    """
    training = torch.is_grad_enabled()
    needs_data = training and image.requires_grad
    needs_weight = training and (w.requires_grad or (bias is not None and bias.requires_grad))
    forward, data = ("conv_forward", "conv_backward_data")[:: -1 if site.transposed else 1]
    for direction, needed in ((forward, True), (data, needs_data), ("conv_backward_weight", needs_weight)):
        if needed:
            problem = replace(geometry, bias=False) if direction == "conv_backward_data" else geometry
            site.kernels.find(direction, problem, image.dtype, f"{site} ({geometry.descriptor})")
    return _Convolution.apply(site, geometry, image, w, bias)
