"""Mistakes of average pooling: position and number of windows, elements that are added up, and divisors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from conformance.operators.avg_pool.geometry import PoolGeometry
from conformance.operators.base import Arrays, Operator
from conformance.operators.image_mistakes import IMAGES, TAILS, WINDOWS, enlarged, filled
from conformance.operators.mistakes import (
    ROUNDING,
    Change,
    Compute,
    H,
    InapplicableError,
    Misread,
    Mistake,
    Sees,
    W,
    in_format_of,
    of_neighbours,
    on_axis,
    on_outputs,
)
from conformance.operators.pooling import scattered, window_sums
from conformance.operators.pooling_mistakes import POOL_FURTHER, POOL_WINDOWS, POSITIONS, Kept, packed, reached
from conformance.operators.spatial import Extents, padded, taps

FORWARD, BACKWARD = "avg_pool_forward", "avg_pool_backward"

Counts = Callable[[PoolGeometry], np.ndarray]
"""Geometry -> divisors, an array of the output's size."""


def _divisors(g: PoolGeometry) -> np.ndarray:
    return g.divisors


def apart(sees: Sees = lambda geometry: geometry, counts: Counts = _divisors, **changes: Change) -> Compute:
    """Return the mistake that sums over the windows that the kernel sees and divides by `counts`.

    Gradients are scaled to the divisors' common multiple, as in the reference, and divided once.
    """
    sums = Misread(lambda geometry: replace(sees(geometry), divisor_override=1), changes)

    def compute(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        divisors = counts(g)
        if operator.name == FORWARD:
            return {"y": sums(operator, g, inputs, dtype)["y"] / divisors}
        multiple = math.lcm(*np.unique(divisors).tolist())
        if multiple > 1 << 53:  # not exact in float64; the multiple of a problem's own divisors is smaller
            raise InapplicableError
        dy = inputs["dy"].astype(dtype) * (multiple // divisors)
        return {"dx": sums(operator, g, {"dy": dy}, dtype)["dx"] / multiple}

    return compute


def _without_remainder(g: PoolGeometry) -> PoolGeometry:
    """Return the geometry with the image that y alone implies."""
    size = reached(g)
    if size[-1] == g.w or min(size) < 1:
        raise InapplicableError
    return replace(g, size=size, padding=tuple((before, 0) for before, _ in g.padding))


def _some(kept: Kept) -> Compute:
    """Return the mistake that sums some positions of the window only, but divides by the full divisor."""

    def compute(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        seen = [place for place, keep in zip(taps(g), kept(g).flat, strict=True) if keep]
        if operator.name == BACKWARD:
            return {"dx": scattered(g, shares(g, inputs, dtype), seen) / g.common_multiple}
        image = padded(inputs["x"].astype(dtype), g.overhang, np.dtype(dtype))
        return {"y": window_sums(g, image, seen) / g.divisors}

    return compute


def shares(g: PoolGeometry, inputs: Arrays, dtype: Any = np.float64) -> np.ndarray:
    """Return dy divided by its divisors, in units of 1 / (the divisors' common multiple)."""
    return inputs["dy"].astype(dtype) * (g.common_multiple // g.divisors)


def _largest(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute the maximum over the window, including the padding's zeros."""
    image = padded(inputs["x"].astype(dtype), g.overhang, np.dtype(dtype))
    return {"y": np.max([image[place] for place in taps(g)], axis=0)}


_ADDED: dict[str, Compute] = {
    "x (dx) packed as if the stride left no remainder": apart(
        _without_remainder, x=lambda x, g: packed(x, _without_remainder(g).x.shape)
    ),
    "average over circular padding": apart(enlarged, x=filled("wrap")),
    "average over reflected padding": apart(enlarged, x=filled("reflect")),
    "average over the repeated edge in place of padding": apart(enlarged, x=filled("edge")),
    **{name: _some(kept) for name, kept in POSITIONS.items()},
}


def _counted(g: PoolGeometry, low: Extents, high: Sequence[int | None]) -> np.ndarray:
    """Count the positions of each window from `low` to below `high` (None: its end), relative to the image."""
    axes = zip(g.window, g.stride, g.padding, g.output_size, low, high, strict=True)
    return np.maximum(reduce(np.multiply.outer, [_along(*axis) for axis in axes]), 1)


def _along(window: int, stride: int, sides: tuple[int, int], count: int, low: int, high: int | None) -> np.ndarray:
    starts = np.arange(count) * stride - sides[0]
    ends = starts + window if high is None else np.minimum(starts + window, high)
    return ends - np.maximum(starts, low)


def _before(g: PoolGeometry) -> Extents:
    return tuple(-before for before, _ in g.padding)


def _after(g: PoolGeometry) -> Extents:
    return tuple(size + after for size, (_, after) in zip(g.size, g.padding, strict=True))


def _zeros(g: PoolGeometry) -> Extents:
    return (0,) * g.rank


def _not_counted(axis: int) -> Counts:
    """Return divisors that do not count the padding of one axis."""

    def counts(g: PoolGeometry) -> np.ndarray:
        low, high = on_axis(_before(g), axis, lambda _: 0), on_axis(_after(g), axis, lambda _: g.size[axis])
        return _counted(g, low, high)

    return counts


def _beyond(axis: int) -> Counts:
    """Return divisors that, along one axis, also count positions beyond the padded image (windows of ceil mode)."""
    return lambda g: _counted(g, _before(g), on_axis(_after(g), axis, lambda _: None))


def _squared(axis: int, power: Callable[[PoolGeometry], int]) -> Counts:
    """Return the divisors that are a power of the window's extent on one axis."""

    def number(g: PoolGeometry) -> int:
        if -axis > g.rank:
            raise InapplicableError
        return int(g.window[axis] ** power(g))

    return _all(number)


def _all(number: Callable[[PoolGeometry], int]) -> Counts:
    """Return divisors that are one number for every window."""
    return lambda g: np.full(g.output_size, number(g))


def _of_window(place: int) -> Counts:
    """Use the divisor of one window (0: the first, 1: the middle one) for every window."""
    return lambda g: np.full(g.output_size, g.divisors.flat[place * g.divisors.size // 2])


def _transposed(g: PoolGeometry) -> np.ndarray:
    return np.resize(g.divisors.T, g.output_size)


_COUNTED: dict[str, Counts] = {
    "padding counted": lambda g: _counted(g, _before(g), _after(g)),
    "padding not counted": lambda g: _counted(g, _zeros(g), g.size),
    "padding before not counted": lambda g: _counted(g, _zeros(g), _after(g)),
    "padding after not counted": lambda g: _counted(g, _before(g), g.size),
    "padding of H not counted": _not_counted(H),
    "padding of W not counted": _not_counted(W),
    "window size for the divisor (R*S)": _all(lambda g: math.prod(g.window)),
    "positions beyond the image counted, padding before not": lambda g: _counted(g, _zeros(g), (None,) * g.rank),
    "positions beyond the padded image counted along H": _beyond(H),
    "positions beyond the padded image counted along W": _beyond(W),
    "last position counted before the image's end": lambda g: _counted(g, _zeros(g), [size - 1 for size in g.size]),
    "divisor by rows of the window only": _squared(H, lambda g: 1),
    "divisor by columns of the window only": _squared(W, lambda g: 1),
    "divisor of a square window, R*R": _squared(H, lambda g: g.rank),
    "divisor of a square window, S*S": _squared(W, lambda g: g.rank),
    "divisor of the strides": _all(lambda g: math.prod(g.stride)),
    "divisor of the whole image": _all(lambda g: math.prod(g.size)),
    "divisor of the first window for every one": _of_window(0),
    "divisor of the middle window for every one": _of_window(1),
    "divisors transposed": _transposed,
    "divisor one too small": lambda g: np.maximum(g.divisors - 1, 1),
    "divisor one too large": lambda g: g.divisors + 1,
}
"""Mistakes of problems without a divisor; `_counted` returns at least 1, so that nothing is divided by zero."""


def _of_override(counts: Callable[[PoolGeometry, int], np.ndarray]) -> Counts:
    return lambda g: counts(g, g.divisor_override or 1)


_OVERRIDDEN: dict[str, Counts] = {
    "divisor override ignored": lambda g: replace(g, divisor_override=None).divisors,
    "divisor override applied twice": _of_override(lambda g, divisor: np.full(g.output_size, divisor**2)),
    "divisor override on top of the count": _of_override(
        lambda g, divisor: divisor * replace(g, divisor_override=None).divisors
    ),
    "divisor override on inner windows only": _of_override(
        lambda g, divisor: np.where(_counted(g, _zeros(g), g.size) == math.prod(g.window), divisor, math.prod(g.window))
    ),
}


def _overlapping(order: Callable[[list[Any]], list[Any]]) -> Compute:
    """Return the mistake that takes dx from one of the overlapping windows. The last tap is in the first window."""

    def compute(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        places = order(list(taps(g)))
        return {"dx": scattered(g, shares(g, inputs, dtype), places, lambda before, last: last) / g.common_multiple}

    return compute


def _holding(g: PoolGeometry) -> np.ndarray:
    """Count the windows that hold each element of an image."""
    plane = replace(g, n=1, c=1)
    return scattered(plane, np.ones(plane.y.shape), list(taps(plane)))[0, 0]


_GRADIENTS: dict[str, Compute] = {
    "dx of the last window where windows overlap": _overlapping(lambda places: places[::-1]),
    "dx of the first window where windows overlap": _overlapping(lambda places: places),
    "dx averaged over the windows that hold it": on_outputs(lambda dx, g: dx / np.maximum(_holding(g), 1), "dx"),
    "dx filled where no window is": on_outputs(
        lambda dx, g: np.where(_holding(g) == 0, of_neighbours(dx, g.rank), dx), "dx"
    ),
}


def _pooling() -> Iterator[Mistake]:
    for name, compute in _ADDED.items():
        yield Mistake(name, "pooling", compute)
    yield Mistake("maximum instead of average", "pooling", _largest, (FORWARD,))
    yield Mistake("sum instead of average", "divisor", apart(counts=_all(lambda g: 1)))
    for name, counts in _COUNTED.items():
        yield Mistake(name, "divisor", apart(counts=counts), when=lambda g: g.divisor_override is None)
    for name, counts in _OVERRIDDEN.items():
        yield Mistake(name, "divisor", apart(counts=counts), when=lambda g: g.divisor_override is not None)
    for name, compute in _GRADIENTS.items():
        yield Mistake(name, "gradients", compute, (BACKWARD,))


MISTAKES: tuple[Mistake, ...] = (*IMAGES, *POOL_WINDOWS, *WINDOWS, *TAILS, *_pooling())


def _rounded_sum(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    sums = operator.reference(replace(g, divisor_override=1), inputs, dtype)["y"]
    return {"y": in_format_of(inputs["x"], sums) / g.divisors}


def _rounded_reciprocals(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    sums = operator.reference(replace(g, divisor_override=1), inputs, dtype)["y"]
    return {"y": sums * in_format_of(inputs["x"], 1 / g.divisors)}


FURTHER: tuple[Mistake, ...] = (
    Mistake("sum rounded to the tensors' format before it is divided", ROUNDING, _rounded_sum, (FORWARD,)),
    Mistake("reciprocal of the divisor rounded to the tensors' format", ROUNDING, _rounded_reciprocals, (FORWARD,)),
    *POOL_FURTHER,
)
