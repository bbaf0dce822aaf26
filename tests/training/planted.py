"""Implementations to train through, right unless a test plants something, and a small network."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from conformance import Implementation, numpy_arrays, torch_arrays
from conformance.implementations import registry
from conformance.resources import IMPLS
from conformance.training.tables import DIRECTIONS
from tests import kernels

__all__ = ["DIRECTIONS", "numpy_direct", "on_torch", "planted", "spoiled"]


def planted(name: str = "acme", when: Any = None, **changed: Any) -> Implementation:
    """fp32 kernels in NumPy, of which those in `changed` are others; None leaves one out."""
    implementation = Implementation(name, arrays=numpy_arrays())
    for direction in DIRECTIONS:
        kernel = changed.get(direction, getattr(kernels, direction))
        if kernel is not None:
            implementation.implements(direction, when=when)(kernel)
    return implementation


@cache
def numpy_direct() -> Implementation:
    """The plainest of `impls/`, in every dtype."""
    return registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]


def on_torch() -> Implementation:
    """Kernels on torch tensors, in fp32 and fp64 and both layouts."""
    import torch
    from torch.nn.functional import conv2d

    def shown(tensor: Any, layout: str) -> Any:
        return tensor if layout == "nchw" else tensor.permute(0, 3, 1, 2)

    def stored(tensor: Any, layout: str) -> Any:
        return tensor if layout == "nchw" else tensor.permute(0, 2, 3, 1)

    def forward(x, w, bias, *, stride, padding, dilation, groups, layout):
        (top, bottom), (left, right) = padding
        x = torch.nn.functional.pad(shown(x, layout), (left, right, top, bottom))
        return stored(conv2d(x, shown(w, layout), bias, stride, 0, dilation, groups), layout)

    def differentiated(y: Any, shape: tuple[int, ...], dy: Any) -> Any:
        with torch.enable_grad():
            variable = torch.zeros(shape, dtype=dy.dtype, requires_grad=True)
            return torch.autograd.grad(y(variable), variable, dy)[0]

    def backward_data(dy, w, *, input_size, groups, layout, **rest):
        c = shown(w, layout).shape[1] * groups
        shape = (len(dy), c, *input_size) if layout == "nchw" else (len(dy), *input_size, c)
        return differentiated(lambda x: forward(x, w, None, groups=groups, layout=layout, **rest), shape, dy)

    def backward_weight(x, dy, *, kernel_size, with_bias, groups, layout, **rest):
        k, c = shown(dy, layout).shape[1], shown(x, layout).shape[1] // groups
        shape = (k, c, *kernel_size) if layout == "nchw" else (k, *kernel_size, c)
        dw = differentiated(lambda w: forward(x, w, None, groups=groups, layout=layout, **rest), shape, dy)
        return (dw, shown(dy, layout).sum((0, 2, 3))) if with_bias else dw

    implementation = Implementation("on-torch", arrays=torch_arrays("cpu"))
    for direction, kernel in zip(DIRECTIONS, (forward, backward_data, backward_weight), strict=True):
        implementation.implements(direction, dtypes=("fp32", "fp64"), layouts=("nchw", "nhwc"))(kernel)  # type: ignore[arg-type]
    return implementation


Spoil = Callable[[np.ndarray], np.ndarray]


def spoiled(direction: str, after: Spoil | None = None, before: Spoil | None = None) -> Callable[..., Any]:
    """A right kernel with something done to its first result, or to all that it is given."""
    right = getattr(kernels, direction)

    def kernel(*inputs, layout, **parameters):
        given = [array if array is None or before is None else before(array) for array in inputs]
        found = right(*given, **parameters)
        if after is None:
            return found
        return (after(found[0]), *found[1:]) if isinstance(found, tuple) else after(found)

    return kernel
