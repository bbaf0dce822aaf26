"""What a known mistake is: an exact computation of the wrong thing, made from the operator's own reference.

Most mistakes are a kernel that sees other parameters than it was given, or that reads or writes a tensor in another
order. Such a kernel is the reference on a mutated geometry and rearranged inputs; an output is rearranged by the
adjoint, so that one statement covers all directions of an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operators import Arrays, GeometryError, Operator

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = "conv_forward", "conv_backward_data", "conv_backward_weight"
CONVOLUTIONS = (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT)
CONVOLVING = (*CONVOLUTIONS, "conv_bn_forward", "conv_bn_backward", "conv_bn_inference")
"""Operators with a convolution in them, whose reference can be asked for on other parameters."""

POOLING = ("avg_pool_forward", "avg_pool_backward")

Compute = Callable[[Operator, Any, Arrays, Any], Arrays]
"""(operator, geometry, inputs, dtype) -> outputs computed in dtype."""
Sees = Callable[[Any], Any]
"""From a geometry to the one that the kernel takes it for."""
Change = Callable[[np.ndarray, Any], np.ndarray]
"""Moves, copies or zeroes elements of a tensor. It never computes with them, so that it can be applied to indices."""

_ROLES = {"x": "x", "dx": "x", "w": "w", "dw": "w", "y": "y", "dy": "y", "bias": "bias", "dbias": "bias"}


class InapplicableError(Exception):
    """The mistake does not exist on this problem."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong computation with a name that completes the sentence "likely cause: ..."."""

    name: str
    family: str
    compute: Compute
    operators: tuple[str, ...] = CONVOLUTIONS
    when: Callable[[Any], bool] = lambda geometry: True

    def outputs(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: Any = np.float64) -> Arrays | None:
        """What a kernel with this mistake computes; None where the mistake does not exist."""
        if operator.name not in self.operators or not self.when(geometry):
            return None
        try:
            with np.errstate(all="ignore"):
                return self.compute(operator, geometry, inputs, dtype)
        except (GeometryError, InapplicableError):
            return None


def misread(sees: Sees = lambda geometry: geometry, **changes: Change) -> Compute:
    """The reference on the geometry that the kernel sees; `changes` rearrange x, w, y or bias, in or out."""

    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        seen = sees(geometry)
        changed = {name: changes.get(_ROLES.get(name, name), _same)(array, geometry) for name, array in inputs.items()}
        given = {name: fitted(changed[name], tensor.shape) for name, tensor in operator.inputs(seen).items()}
        found = operator.reference(seen, given, dtype)
        return {
            name: restored(found[name], changes.get(_ROLES.get(name, name)), tensor.shape, geometry)
            for name, tensor in operator.outputs(geometry).items()
        }

    return compute


def _same(array: np.ndarray, _: Any) -> np.ndarray:
    return array


def fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array cropped and filled with zeros to `shape`, aligned at the first elements."""
    if array.shape == shape:
        return array
    out = np.zeros(shape, array.dtype)
    kept = tuple(slice(min(pair)) for pair in zip(array.shape, shape, strict=True))
    out[kept] = array[kept]
    return out


def restored(found: np.ndarray, change: Change | None, shape: tuple[int, ...], geometry: Any) -> np.ndarray:
    """The adjoint of `fitted(change(...))`: every element of `found` added where the change takes it from."""
    if change is None:
        return fitted(found, shape)
    size = int(np.prod(shape))
    places = change(np.arange(1, size + 1).reshape(shape), geometry)
    sums = np.bincount(fitted(places, found.shape).reshape(-1), found.reshape(-1), size + 1)
    return sums[1:].reshape(shape).astype(found.dtype)


def zeroed(*where: Any) -> Change:
    """The tensor with zeros at an index such as `..., -1`."""

    def change(array: np.ndarray, _: Any) -> np.ndarray:
        out = array.copy()
        out[where] = 0
        return out

    return change


def rolled(axis: int, by: int = 1) -> Change:
    """The tensor rotated along an axis."""
    return lambda array, _: np.roll(array, by, axis)


def on_outputs(change: Change, *names: str) -> Compute:
    """The reference with something done to the outputs of these names."""

    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        outputs = operator.reference(geometry, inputs, dtype)
        present = [name for name in names if name in outputs]
        return outputs | {name: change(outputs[name], geometry).astype(outputs[name].dtype) for name in present}

    return compute
