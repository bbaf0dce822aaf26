"""Both directions of average pooling as sums of gathered terms, so that an algorithm is only an order of a sum.

    out[n, c, i, j] = sum_{a,b} terms[a, b, n, c, i, j] / divisors[a, b, i, j]

Terms that are padding, or windows that do not exist, are zeros, which no order of a sum can tell from absent ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from conformance.operators import Arrays, Operator, PoolGeometry

Axis = tuple[np.ndarray, np.ndarray]
"""What an output of one axis adds up, [terms, outputs]: indices into the data, and whether there is such a term."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The terms as float64 [A, B, N, C, rows, columns]; their divisors, and these by axis, as floats.

    divisors         [A, B, rows, columns]
    rows, columns    [A, rows] and [B, columns], with divisors as their products
    common           whether all terms of an output have the same divisor
    """

    terms: np.ndarray
    divisors: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    common: bool


def gathered(operator: Operator, geometry: PoolGeometry, inputs: Arrays) -> Gathered:
    """What the operator adds up."""
    of_axis = _WAYS[operator.name]
    (rows, in_rows), (columns, in_columns) = of_axis(geometry, 0), of_axis(geometry, 1)
    inside = in_rows[:, None, :, None] & in_columns[None, :, None, :]
    picked = inputs[operator.data].astype(np.float64)[..., rows[:, None, :, None], columns[None, :, None, :]]
    terms = np.where(inside, picked, 0.0).transpose(2, 3, 0, 1, 4, 5)
    by_rows, by_columns = by_axis(geometry)
    if operator.name == "avg_pool_forward":
        shares = by_rows[None], by_columns[None]
    else:
        shares = by_rows[rows], by_columns[columns]
    divisors = shares[0][:, None, :, None] * shares[1][None, :, None, :]
    common = operator.name == "avg_pool_forward" or np.unique(geometry.divisors).size == 1
    return Gathered(np.ascontiguousarray(terms), divisors, *shares, common)


def by_axis(geometry: PoolGeometry) -> tuple[np.ndarray, np.ndarray]:
    """Divisors as products of one for the row, [P], and one for the column, [Q]."""
    if geometry.divisor_override is not None:
        return np.full(geometry.output_size[0], float(geometry.divisor_override)), np.ones(geometry.output_size[1])
    (u, v), (rows, columns), none = geometry.stride, geometry.padding, (0, 0)
    tall = replace(geometry, w=1, s=1, stride=(u, 1), padding=(rows, none))
    wide = replace(geometry, h=1, r=1, stride=(1, v), padding=(none, columns))
    return tall.divisors[:, 0].astype(np.float64), wide.divisors[0].astype(np.float64)


def _forward(g: PoolGeometry, axis: int) -> Axis:
    """The window of every output."""
    size, window, outputs = (g.h, g.w)[axis], (g.r, g.s)[axis], g.output_size[axis]
    places = np.arange(outputs) * g.stride[axis] - g.padding[axis][0] + np.arange(window)[:, None]
    return np.clip(places, 0, size - 1), (places >= 0) & (places < size)


def _backward(g: PoolGeometry, axis: int) -> Axis:
    """The windows that hold every element, the last one first."""
    size, window, stride, outputs = (g.h, g.w)[axis], (g.r, g.s)[axis], g.stride[axis], g.output_size[axis]
    places = np.arange(size) + g.padding[axis][0]
    holding = places // stride - np.arange(-(-window // stride))[:, None]
    inside = (holding >= 0) & (holding < outputs) & (places - holding * stride < window)
    return np.clip(holding, 0, outputs - 1), inside


_WAYS: dict[str, Callable[[PoolGeometry, int], Axis]] = {"avg_pool_forward": _forward, "avg_pool_backward": _backward}
