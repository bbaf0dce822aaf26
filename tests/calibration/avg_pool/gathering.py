"""Both directions of average pooling as sums of gathered terms, so that an algorithm is only an order of a sum.

    out[n, c, i, j] = sum_{a,b} terms[a, b, n, c, i, j] / divisors[a, b, i, j]

and likewise on one axis or three. Terms that are padding, or windows that do not exist, are zeros, which no order of a
sum can tell from absent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from conformance.operators import Arrays, Operator, PoolGeometry

Axis = tuple[np.ndarray, np.ndarray]
"""Terms of an output of one axis, [terms, outputs]: indices into the data, and whether there is such a term."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Terms as float64 [A, B, N, C, rows, columns]; their divisors as floats [A, B, rows, columns]; and whether all
    terms of an output have the same divisor."""

    terms: np.ndarray
    divisors: np.ndarray
    common: bool

    @property
    def shares(self) -> np.ndarray:
        """Divisors in a shape that broadcasts to the terms."""
        rank = self.divisors.ndim // 2
        return np.expand_dims(self.divisors, (rank, rank + 1))


def gathered(operator: Operator, geometry: PoolGeometry, inputs: Arrays) -> Gathered:
    """Return the terms that the operator adds up, with their divisors."""
    rank, forward = geometry.rank, operator.name == "avg_pool_forward"
    axes = [_WAYS[operator.name](geometry, axis) for axis in range(rank)]
    terms = _picked(inputs[operator.data].astype(np.float64), axes)
    inside = reduce(np.logical_and, (_spread(inside, axis, rank) for axis, (_, inside) in enumerate(axes)))
    divisors = geometry.divisors.astype(np.float64)
    divisors = divisors[(None,) * rank] if forward else _picked(divisors, axes)
    common = forward or np.unique(geometry.divisors).size == 1
    return Gathered(np.ascontiguousarray(np.where(inside, terms, 0.0)), divisors, common)


def _picked(array: np.ndarray, axes: Sequence[Axis]) -> np.ndarray:
    """Pick elements of [..., rows, columns] at the places of every term: [A, B, ..., rows, columns]."""
    rank, lead = len(axes), array.ndim - len(axes)
    for axis in reversed(range(rank)):
        array = array.take(axes[axis][0], lead + axis)
    terms, outputs = range(lead, array.ndim, 2), range(lead + 1, array.ndim, 2)
    return array.transpose(*terms, *range(lead), *outputs)


def _spread(inside: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Return [terms, outputs] of an axis in a shape that broadcasts to the terms."""
    shape = [1] * (2 * rank + 2)
    shape[axis], shape[rank + 2 + axis] = inside.shape
    return inside.reshape(shape)


def _forward(g: PoolGeometry, axis: int) -> Axis:
    """Return the places of every output's window along an axis, and which of them lie in the image."""
    size, window, outputs = g.size[axis], g.window[axis], g.output_size[axis]
    places = np.arange(outputs) * g.stride[axis] - g.padding[axis][0] + np.arange(window)[:, None]
    return np.clip(places, 0, size - 1), (places >= 0) & (places < size)


def _backward(g: PoolGeometry, axis: int) -> Axis:
    """Return the windows along an axis that hold every element, the last one first, and which of them exist."""
    size, window, stride, outputs = g.size[axis], g.window[axis], g.stride[axis], g.output_size[axis]
    places = np.arange(size) + g.padding[axis][0]
    holding = places // stride - np.arange(-(-window // stride))[:, None]
    inside = (holding >= 0) & (holding < outputs) & (places - holding * stride < window)
    return np.clip(holding, 0, outputs - 1), inside


_WAYS: dict[str, Callable[[PoolGeometry, int], Axis]] = {"avg_pool_forward": _forward, "avg_pool_backward": _backward}
