"""The kernels that a class of torch modules is: make one with a problem's arguments, give it its weights, call it.

In every call there are two modules of the class. One is fresh. The other one is kept for the next problem with the same
arguments, and has been called with other weights before: what a module packs once, in `__init__` or at its first call,
is wrong then. Its results are returned; a fresh one that differs from it by more than rounding is a failure.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.implementations.modules import layers
from conformance.implementations.modules.switches import unchanged
from conformance.layouts import layouts_of

KEPT = 4
"""Modules that each thread keeps."""
OTHER = 0.5
"""Every weight of the first call."""
OF_NORMALISATION = ("c", "k", "eps", "momentum", "affine")
"""Of a batch norm without a convolution."""
FILL = {"bias": 0.0, "gamma": 1.0, "beta": 0.0}
"""What stands in a module for a parameter that the problem has not."""
CALLED = {
    "running_mean": ("mean",),
    "running_var": ("var",),
    "gamma": ("gamma|scale", r"(bn|norm).*weight", "weight$"),
    "beta": ("beta|shift", r"(bn|norm).*bias", "bias$"),
    "bias": ("conv.*bias", "bias", ""),
}
"""What numbers of each channel are called in a module, the clearest name first."""
Compute = Callable[[nn.Module], tuple[torch.Tensor, ...]]
Told = Mapping[str, Any]
"""The keyword arguments of a kernel."""
Weights = dict[str, Any]
"""By name: `weight` and those of CALLED; None for what the problem has not."""


class Kernels:
    """The kernels of one class. `on_import` is what the import of its file has changed."""

    def __init__(self, maker: layers.Maker, on_import: list[str], dtype: str) -> None:
        self._maker, self._on_import, self._dtype = maker, on_import, dtype
        self._family, self._rank = maker.layer.family, maker.layer.rank
        self._alone = maker.alone
        self._words = OF_NORMALISATION if self._alone else layers.WORDS[self._family]
        self._local = threading.local()

    def offer(self, one: Implementation) -> None:
        """Add them to an implementation."""
        gradients = {"backward_data": self.data_gradient, "backward_weight": self.weight_gradient}
        kernels: dict[str, Callable[..., Any]] = {
            "conv": {"forward": self.convolve, **gradients},
            "conv_transpose": {"forward": self.convolve, **gradients},
            "conv_bn": {"forward": self.train, "inference": self.infer, "backward": self.train_backward},
            "avg_pool": {"forward": self.pool, "backward": self.average_gradient},
            "max_pool": {"forward": self.pool, "backward": self.maximum_gradient},
        }[self._family]
        dtypes = ("fp32",) if self._family == "conv_bn" else (self._dtype,)  # whose statistics are fp32
        layouts = layouts_of(self._rank)[:1]
        for direction, kernel in kernels.items():
            operator = f"{self._family}_{direction}"
            one.implements(operator, dtypes=dtypes, layouts=layouts, when=self.expresses)(kernel)

    def expresses(self, geometry: Any) -> bool:
        """Whether `__init__` can say what a problem is. No module is asked for an empty batch."""
        if not geometry.n or getattr(geometry, "eps_outside", False):
            return False
        try:
            arguments = self._arguments({word: getattr(geometry, word) for word in self._words})
        except Unsupported:
            return False
        if "pool" not in self._family:
            return True
        try:  # torch asks for more than that every window holds an element
            with torch.device("meta"):
                y = self._maker.reference(**arguments)(torch.empty(geometry.x.shape))
        except Exception:
            return False
        return tuple(y.shape) == geometry.y.shape

    def _arguments(self, values: layers.Values) -> dict[str, Any]:
        """Of `__init__`. Raises Unsupported."""
        values = {word: values[word] for word in self._words if word in values}
        if any(before != after for before, after in values.get("padding", ())):
            raise Unsupported("padding differs between the sides of an axis")
        if "padding" in values:
            values["padding"] = tuple(before for before, _ in values["padding"])
        return self._maker.express(values)

    # the operators

    def convolve(self, x: Any, w: Any, bias: Any, **told: Any) -> Any:
        """conv_forward, conv_transpose_forward."""
        values = self._values(told, w, bias=bias is not None)
        rounding = _rounding(w, x, w)
        return self._called(values, {"weight": w, "bias": bias}, lambda module: (module(x),), w, rounding)[0]

    def data_gradient(self, dy: Any, w: Any, **told: Any) -> Any:
        """conv_backward_data, conv_transpose_backward_data."""
        values = self._values(told, w, bias=False)
        size = told.get("input_size") or _size_before(dy, w, told)
        x = dy.new_zeros(dy.shape[0], values["c"], *size)
        weights = {"weight": w, "bias": None}
        return self._called(values, weights, lambda module: _gradients(module, x, dy), w, _rounding(w, dy, w))[0]

    def weight_gradient(self, x: Any, dy: Any, *, with_bias: Any, kernel_size: Any, **told: Any) -> Any:
        """conv_backward_weight, conv_transpose_backward_weight."""
        groups, (outer, inner) = told["groups"], (dy.shape[1], x.shape[1])
        outer, inner = (inner, outer) if self._family == "conv_transpose" else (outer, inner)
        w = dy.new_zeros(outer, inner // groups, *kernel_size)
        weights = {"weight": w, "bias": dy.new_zeros(dy.shape[1]) if with_bias else None}
        asked = ["weight", "bias"] if with_bias else ["weight"]

        def compute(module: nn.Module) -> tuple[torch.Tensor, ...]:
            _, *found = _gradients(module, x, dy, _leaves(module, asked))
            return tuple(one.reshape(weights[name].shape) for name, one in zip(asked, found, strict=True))

        found = self._called(self._values(told, w, bias=with_bias), weights, compute, dy, _rounding(dy, x, dy))
        return found if with_bias else found[0]

    def train(
        self, x: Any, w: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, **told: Any
    ) -> Any:  # fmt: skip
        """conv_bn_forward. Modules do not return the statistics of the batch: they are computed here."""
        weights = _of_pair(w, gamma, beta, running_mean, running_var)
        z = _convolution(x.double(), w.double(), told)
        places = (0, *range(2, z.dim()))
        statistics = z.mean(places).to(w.dtype), z.var(places, unbiased=False).to(w.dtype)

        def compute(module: nn.Module) -> tuple[torch.Tensor, ...]:
            y = module.train()(self._convolved(x, w, told))
            moved = _leaves(module, ["running_mean", "running_var"]) if running_mean is not None else ()
            return y, *statistics, *(one.detach().reshape(-1).clone() for one in moved)

        values = self._values(told, w, affine=gamma is not None)
        return self._called(values, weights, compute, w, _rounding(w, x, w, told["eps"], gamma))

    def infer(
        self, x: Any, w: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, **told: Any
    ) -> Any:  # fmt: skip
        """conv_bn_inference."""
        weights = _of_pair(w, gamma, beta, running_mean, running_var)
        values = self._values(told, w, affine=gamma is not None)

        def compute(module: nn.Module) -> tuple[torch.Tensor, ...]:
            return (module.eval()(self._convolved(x, w, told)),)

        return self._called(values, weights, compute, w, _rounding(w, x, w, told["eps"], gamma))[0]

    def train_backward(self, dy: Any, x: Any, w: Any, gamma: Any, **told: Any) -> Any:
        """conv_bn_backward."""
        weights = _of_pair(w, gamma, None if gamma is None else torch.zeros_like(gamma))
        asked = ["weight"] if gamma is None else ["weight", "gamma", "beta"]

        def compute(module: nn.Module) -> tuple[torch.Tensor, ...]:
            module.train()
            if self._alone:
                leaves = [w.detach().clone(), *_leaves(module, asked[1:])]
                dx, *found = _gradients(lambda x: module(_convolution(x, leaves[0], told)), x, dy, leaves)
            else:
                dx, *found = _gradients(module, x, dy, _leaves(module, asked))
            return dx, *(one.reshape(weights[name].shape) for name, one in zip(asked, found, strict=True))

        values = self._values(told, w, affine=gamma is not None)
        return self._called(values, weights, compute, w, math.inf)

    def pool(self, x: Any, **told: Any) -> Any:
        """avg_pool_forward, max_pool_forward."""
        return self._called(self._pooling(told, x), {}, lambda module: (module(x),), x, _rounding_of_pool(told, x))[0]

    def average_gradient(self, dy: Any, *, input_size: Any, **told: Any) -> Any:
        """avg_pool_backward."""
        x = dy.new_zeros(*dy.shape[:2], *input_size)
        rounding = _rounding_of_pool(told, dy)
        return self._called(self._pooling(told, x), {}, lambda module: _gradients(module, x, dy), x, rounding)[0]

    def maximum_gradient(self, dy: Any, x: Any, **told: Any) -> Any:
        """max_pool_backward."""
        rounding = _rounding_of_pool(told, dy)
        return self._called(self._pooling(told, x), {}, lambda module: _gradients(module, x, dy), x, rounding)[0]

    def _values(self, told: Told, w: torch.Tensor, **more: Any) -> layers.Values:
        outer, inner = w.shape[0], w.shape[1] * told["groups"]
        c, k = (outer, inner) if self._family == "conv_transpose" else (inner, outer)
        if self._family == "conv_bn":
            more["bias"] = False
            c = k if self._alone else c
        return {**told, "c": c, "k": k, "window": tuple(w.shape[2:]), **more}

    def _pooling(self, told: Told, x: torch.Tensor) -> layers.Values:
        return {**told, "c": x.shape[1], "window": told["kernel_size"]}

    def _convolved(self, x: Any, w: Any, told: Told) -> Any:
        """What a module is called with: of a batch norm alone, torch's convolution."""
        return _convolution(x, w, told) if self._alone else x

    # calls

    def _called(
        self, values: layers.Values, weights: Weights, compute: Compute, like: torch.Tensor, rounding: float
    ) -> tuple[torch.Tensor, ...]:
        """What the kept module computes. Raises KernelFailure where a fresh one differs by more than `rounding`, and
        where a switch of torch has changed; Unsupported where a module refuses in words."""
        arguments = self._arguments(values)
        if self._alone:
            weights = {name: value for name, value in weights.items() if name not in ("weight", "bias")}
        kept: OrderedDict[str, nn.Module] = self._local.__dict__.setdefault("kept", OrderedDict())
        key = repr((arguments, sorted(weights), like.dtype))
        with unchanged(self._on_import), torch.no_grad():
            try:
                if key not in kept:
                    module = self._made(arguments, weights, values, like)
                    _put(module, {n: None if v is None else torch.full_like(v, OTHER) for n, v in weights.items()})
                    compute(module)
                    kept[key] = module
                    while len(kept) > KEPT:
                        kept.popitem(last=False)
                kept.move_to_end(key)
                fresh = self._made(arguments, weights, values, like)
                _put(fresh, weights)
                first = compute(fresh)
                _put(kept[key], weights)
                found = compute(kept[key])
            except (NotImplementedError, ValueError, AssertionError) as refusal:
                if not str(refusal).strip():
                    raise
                raise Unsupported(f"refuses: {refusal}") from None
        _require_same(first, found, rounding)
        return found

    def _made(
        self, arguments: Mapping[str, Any], weights: Weights, values: layers.Values, like: torch.Tensor
    ) -> nn.Module:
        module = self._maker.make(arguments).to(device=like.device, dtype=like.dtype)
        # before a call adds what it packs
        object.__setattr__(module, "_conformance", _tensors_for(module, weights, values.get("k", 0)))
        return module


def _of_pair(w: Any, gamma: Any, beta: Any, running_mean: Any = None, running_var: Any = None) -> Weights:
    return {
        "weight": w,
        "running_mean": running_mean,
        "running_var": running_var,
        "gamma": gamma,
        "beta": beta,
        "bias": None,
    }


def _tensors_for(module: nn.Module, weights: Weights, channels: int) -> dict[str, torch.Tensor]:
    """What weights are copied to, by shape and name: parameters before buffers before plain attributes. Raises
    Unsupported where there is none for the filters."""
    plain = {
        f"{prefix}.{name}": value
        for prefix, one in module.named_modules()
        for name, value in vars(one).items()
        if isinstance(value, torch.Tensor)
    }
    left = {**plain, **dict(module.named_buffers()), **dict(module.named_parameters())}
    left = dict(reversed(left.items()))
    found: dict[str, torch.Tensor] = {}
    if "weight" in weights:
        shape = weights["weight"].shape
        fitting = [n for n, one in left.items() if one.shape == shape]
        bare = [extent for extent in shape if extent > 1]
        fitting = fitting or [n for n, one in left.items() if [e for e in one.shape if e > 1] == bare and "weight" in n]
        if not fitting:
            raise Unsupported(f"has no parameter of the filters' shape, {tuple(shape)}")
        found["weight"] = left.pop(next((n for n in fitting if "weight" in n), fitting[0]))
    for name in (name for name in CALLED if name in weights):
        fitting = [n for n, one in left.items() if one.numel() == channels and one.dim()]
        for pattern in CALLED[name]:
            if chosen := next((n for n in fitting if re.search(pattern, n.lower())), None):
                found[name] = left.pop(chosen)
                break
    return found


def _put(module: nn.Module, weights: Weights) -> None:
    for name, tensor in _places(module).items():
        if (value := weights[name]) is not None:
            tensor.copy_(value.reshape(tensor.shape))
        elif name in FILL:
            tensor.fill_(FILL[name])


def _places(module: nn.Module) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = vars(module)["_conformance"]
    return found


def _leaves(module: nn.Module, names: Sequence[str]) -> list[torch.Tensor]:
    """Tensors of a module. Raises KernelFailure for what it has not."""
    places = _places(module)
    if lacking := [name for name in names if name not in places]:
        raise KernelFailure(f"the module has no {', '.join(lacking)}")
    return [places[name] for name in names]


def _gradients(
    forward: Callable[[Any], Any], x: torch.Tensor, dy: torch.Tensor, leaves: Sequence[torch.Tensor] = ()
) -> tuple[torch.Tensor, ...]:
    """dx and the gradients of leaves, by autograd. Raises Unsupported where there is none, KernelFailure where it
    leaves something out."""
    with torch.enable_grad():
        given = [x.detach().clone().requires_grad_(), *(one.requires_grad_() for one in leaves)]
        y = forward(given[0])
        if not y.requires_grad:
            raise Unsupported("has no backward: autograd does not go through it")
        if y.shape != dy.shape:
            raise KernelFailure(f"y has shape {tuple(y.shape)}; expected {tuple(dy.shape)}")
        # of a copy: the gradient of a bias may be dy itself
        found = torch.autograd.grad(y, given, dy.clone(), allow_unused=True)
    if any(one is None for one in found):
        raise KernelFailure("no gradient reaches one of x and the parameters")
    return found


def _convolution(x: torch.Tensor, w: torch.Tensor, told: Told) -> torch.Tensor:
    """Torch's own, with padding by side."""
    sides = [side for pair in reversed(told["padding"]) for side in pair]
    function = {1: nn.functional.conv1d, 2: nn.functional.conv2d, 3: nn.functional.conv3d}[w.dim() - 2]
    padded = nn.functional.pad(x, sides) if any(sides) else x
    return function(padded, w, None, told["stride"], 0, told["dilation"], told["groups"])


def _size_before(dy: torch.Tensor, w: torch.Tensor, told: Told) -> list[int]:
    """Of the input of a transposed convolution, by what it returns."""
    axes = zip(
        dy.shape[2:],
        w.shape[2:],
        told["stride"],
        told["padding"],
        told["dilation"],
        told["output_padding"],
        strict=True,
    )
    return [(p + sum(sides) - d * (r - 1) - 1 - more) // u + 1 for p, r, u, sides, d, more in axes]


def _largest(one: torch.Tensor | None) -> float:
    return float(one.abs().max()) if one is not None and one.numel() else 1.0


def _rounding(
    summed: torch.Tensor, a: torch.Tensor, b: torch.Tensor, eps: float = 1.0, gamma: torch.Tensor | None = None
) -> float:
    """More than rounding can do to sums of products of a and b in any order: n^2 products, each as large as any, times
    the unit roundoff. n is at most what `summed` has for each of its channels."""
    n = summed.numel() // min(summed.shape[:2])
    return n * n * torch.finfo(a.dtype).eps * _largest(a) * _largest(b) * _largest(gamma) / math.sqrt(eps)


def _rounding_of_pool(told: Told, x: torch.Tensor) -> float:
    return math.prod(told["kernel_size"]) ** 2 * torch.finfo(x.dtype).eps * _largest(x)


def _require_same(fresh: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], rounding: float) -> None:
    """Raises KernelFailure."""
    kept_something = "a module that was called with other weights before differs from a fresh one: it keeps something"
    for one, other in zip(fresh, kept, strict=True):
        if one.shape != other.shape:
            raise KernelFailure(f"{kept_something}\nshapes {tuple(other.shape)} and {tuple(one.shape)}")
        difference = (one.detach().double() - other.detach().double()).abs()
        difference = difference[difference.isfinite()]
        if difference.numel() and float(difference.max()) > rounding:
            count = int((difference > rounding).sum())
            raise KernelFailure(
                f"{kept_something}\n{count:,} of {one.numel():,} elements, by up to {difference.max():.3g}"
            )
