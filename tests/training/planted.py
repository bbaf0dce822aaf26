"""Implementations to train through, right unless a test plants something, and a small network."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from conformance import Implementation, numpy_arrays
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


@cache
def on_torch() -> Implementation:
    """Kernels on torch tensors, in every dtype and both layouts."""
    return registry.load([IMPLS / "torch_native"]).implementations["torch-cpu"]


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
