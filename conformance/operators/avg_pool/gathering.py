"""Both directions of average pooling as sums of gathered terms, so that an algorithm is only an order of a sum.

    out[n, c, i, j] = sum_{a,b} terms[a, b, n, c, i, j] / divisors[a, b, i, j]

and likewise on one axis or three. Terms that are padding, or windows that do not exist, are zeros, which no order of a
sum can tell from absent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from conformance.operators import Arrays, Operator, PoolGeometry

Axis = tuple[np.ndarray, np.ndarray]
"""What an output of one axis adds up, [terms, outputs]: indices into the data, and whether there is such a term."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The terms as float64 [A, B, N, C, rows, columns]; their divisors, and these by axis, as floats.

    divisors   [A, B, rows, columns]
    by_axis    [A, rows] and [B, columns], with divisors as their products
    common     whether all terms of an output have the same divisor
    """

    terms: np.ndarray
    divisors: np.ndarray
    by_axis: tuple[np.ndarray, ...]
    common: bool

    @property
    def shares(self) -> np.ndarray:
        """The divisors as they broadcast to the terms."""
        return np.expand_dims(self.divisors, (len(self.by_axis), len(self.by_axis) + 1))


def gathered(operator: Operator, geometry: PoolGeometry, inputs: Arrays) -> Gathered:
    """What the operator adds up."""
    rank, forward = geometry.rank, operator.name == "avg_pool_forward"
    axes = [_WAYS[operator.name](geometry, axis) for axis in range(rank)]
    picked, by_axis = inputs[operator.data].astype(np.float64), _by_axis(geometry)
    for axis in reversed(range(rank)):
        picked = picked.take(axes[axis][0], 2 + axis)
    terms_first = (*range(2, 2 + 2 * rank, 2), 0, 1, *range(3, 3 + 2 * rank, 2))
    inside = np.expand_dims(_outer([inside for _, inside in axes]), (rank, rank + 1))
    shares = tuple(one[None] if forward else one[places] for one, (places, _) in zip(by_axis, axes, strict=True))
    return Gathered(
        np.ascontiguousarray(np.where(inside, picked.transpose(terms_first), 0.0)),
        _outer(shares), shares, forward or np.unique(geometry.divisors).size == 1,
    )  # fmt: skip


def _outer(by_axis: Sequence[np.ndarray]) -> np.ndarray:
    """The products of arrays [terms, outputs], one for each axis: all terms' axes, then all outputs'."""
    rank = len(by_axis)
    found = (
        array.reshape([extent if place == axis else 1 for extent in array.shape for place in range(rank)])
        for axis, array in enumerate(by_axis)
    )
    return reduce(np.multiply, found)


def _by_axis(geometry: PoolGeometry) -> list[np.ndarray]:
    """Divisors as products of one for each axis."""
    if geometry.divisor_override is not None:
        first, *others = geometry.output_size
        return [np.full(first, float(geometry.divisor_override)), *map(np.ones, others)]
    axes = zip(geometry.size, geometry.window, geometry.stride, geometry.padding, strict=True)
    alone = (replace(geometry, size=(n,), window=(taps,), stride=(u,), padding=(p,)) for n, taps, u, p in axes)
    return [one.divisors.astype(np.float64) for one in alone]


def _forward(g: PoolGeometry, axis: int) -> Axis:
    """The window of every output."""
    size, window, outputs = g.size[axis], g.window[axis], g.output_size[axis]
    places = np.arange(outputs) * g.stride[axis] - g.padding[axis][0] + np.arange(window)[:, None]
    return np.clip(places, 0, size - 1), (places >= 0) & (places < size)


def _backward(g: PoolGeometry, axis: int) -> Axis:
    """The windows that hold every element, the last one first."""
    size, window, stride, outputs = g.size[axis], g.window[axis], g.stride[axis], g.output_size[axis]
    places = np.arange(size) + g.padding[axis][0]
    holding = places // stride - np.arange(-(-window // stride))[:, None]
    inside = (holding >= 0) & (holding < outputs) & (places - holding * stride < window)
    return np.clip(holding, 0, outputs - 1), inside


_WAYS: dict[str, Callable[[PoolGeometry, int], Axis]] = {"avg_pool_forward": _forward, "avg_pool_backward": _backward}
