"""Average pooling in one to three dimensions, forward and backward; the formula is for two dimensions.

    y[n,c,p,q] = sum_{r,s} x[n, c, p*u + r - top, q*v + s - left] / divisor[p,q]

Sizes and divisors are those of torch.nn.AvgPool2d, with a padding of its own on each side: `pooling_geometry`. The
divisor is the number of positions inside the padded image, or inside the image alone (`count_include_pad=False`), or a
constant.

The references round once: sums of fixed-point data are exact, and gradients of different divisors are brought to their
least common multiple before they are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.operators import double_double
from conformance.operators.avg_pool.geometry import PoolGeometry
from conformance.operators.base import (
    INTEGER_TENSORS,
    WINDOW_BEYOND_IMAGE,
    Arrays,
    ErrorModel,
    Given,
    Homogeneous,
    Operator,
    PrefixSums,
    WorkedExample,
    invalid_parameters,
)
from conformance.operators.double_double import Double
from conformance.operators.family import LINEAR, Family, Storages
from conformance.operators.pooling import scattered, window_sums
from conformance.operators.sparse import Nonzero, Places, added, elements_of, read, windows_of, within
from conformance.operators.spatial import padded, taps_per_input


class _Pool(Operator):
    """Base of average pooling's two directions."""

    family = "avg_pool"
    keywords: tuple[str, ...] = (
        "kernel_size",
        "stride",
        "padding",
        "ceil_mode",
        "count_include_pad",
        "divisor_override",
        "layout",
    )
    invalid = WINDOW_BEYOND_IMAGE | INTEGER_TENSORS | invalid_parameters(keywords)

    def error_model(self, geometry: PoolGeometry, terms: dict[str, int], span: int, fan_out: int) -> ErrorModel:
        """Return the error model. Integers divided by powers of two are exact. A divisor that the problem gives has
        one reciprocal; a separable kernel has one for each axis; reciprocals of powers of two are not rounded."""
        divisors = geometry.distinct_divisors
        return ErrorModel(
            terms=terms,
            span=span,
            exact_on_integers=not np.any(divisors & (divisors - 1)),
            divisor=geometry.common_multiple,
            constants=geometry.rounded_reciprocals,
            shared_constant=divisors.size == 1,
            error_fan_out=fan_out,
        )

    def flops(self, geometry: PoolGeometry) -> int:
        """Count an addition for every position of every window."""
        return geometry.y.size * math.prod(geometry.window)


Largest = Callable[[np.ndarray], np.ndarray]
"""Takes images [N, C, ...], and returns the largest prefix sum of each, [N, C, 1, ...]."""


def prefix_sums(
    counts: Sequence[int],
    extents: Sequence[int],
    largest_of: Callable[[Largest, Given], Arrays],
) -> dict[str, PrefixSums]:
    """Return what errors depend on where results are differences of prefix sums; `largest_of` applies a function of
    images [N, C, ...] to what is added up, and returns results' sizes by output.

    In D dimensions, `counts` are the numbers in a result along each axis, `extents` those in an image; T is the product
    of the counts along the other axes. Along an axis, a result is the sum of T differences of two prefix sums of at
    most L numbers: 2L roundings of u times T prefix sums, whether these are added one after the other or in a tree. Two
    more for the difference and two for a reciprocal, of a window of up to two prefix sums. Axes may follow each other,
    so that their roundings add up.

    A prefix sum along some axes only is a difference of up to 2^(D-1) entries of the summed-area table, and a result of
    2^D. Along an axis it depends on T sums of L numbers at each end: 2^D T L roundings of u times the largest entry;
    2^D more for its own additions and two for each axis' reciprocal, of up to 2^D entries.
    """
    beside = [math.prod(counts) // count for count in counts]
    axes = range(-len(counts), 0)
    corners, lines = 2 ** len(counts), sum(map(math.prod, zip(beside, extents, strict=True)))

    largest = partial(_largest_of_lines, axes, beside), partial(_largest_of_table, axes)
    return {
        "running-sums": PrefixSums(sum(2 * (extent + 2) for extent in extents), partial(largest_of, largest[0])),
        "summed-area": PrefixSums(corners * (lines + corners + 2 * len(counts)), partial(largest_of, largest[1])),
    }


def _largest_of_lines(axes: Sequence[int], beside: Sequence[int], values: np.ndarray) -> np.ndarray:
    """Return the largest sum of T prefix sums along an axis."""
    lines = [count * np.abs(np.cumsum(values, axis)) for axis, count in zip(axes, beside, strict=True)]
    return np.max(lines, axis=(0, *axes))[(..., *[None] * len(axes))]


def _largest_of_table(axes: Sequence[int], values: np.ndarray) -> np.ndarray:
    """Return the largest entry of the summed-area table."""
    for axis in axes:
        values = np.cumsum(values, axis)
    return np.max(np.abs(values), axis=tuple(axes), keepdims=True)


def _largest_average(geometry: Any, of: Largest, inputs: Given) -> Arrays:
    return {"y": of(inputs["x"].astype(np.float64)) / geometry.divisors}


def _largest_share(geometry: Any, of: Largest, inputs: Given) -> Arrays:
    return {"dx": of(inputs["dy"].astype(np.float64) / geometry.divisors)}


def _divisors(g: Any, windows: Sequence[np.ndarray]) -> np.ndarray:
    if g.divisor_override is not None:
        return np.full(windows[0].shape, float(g.divisor_override))
    return np.asarray(math.prod(g.counted(axis, place) for axis, place in enumerate(windows)), np.float64)


def _sparse_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, *place) = read(inputs["x"], places["x"])
    parts = []
    for _, window, ok in windows_of(g, place):
        shared = values[ok] / _divisors(g, within(window, ok))
        parts.append((np.ravel_multi_index((n, c, *window), g.y.shape, "clip")[ok], shared))
    return added(parts)


def _sparse_backward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, *place) = read(inputs["dy"], places["dy"])
    shares = values / _divisors(g, place)
    return added(
        [
            (np.ravel_multi_index((n, c, *element), g.x.shape, "clip")[ok], shares[ok])
            for _, element, ok in elements_of(g, place)
        ]
    )


class AvgPoolForward(_Pool):
    """x[N,C,H,W] -> y[N,C,P,Q]."""

    name, data, operand = "avg_pool_forward", "x", "x"
    arguments, returns = ("x",), ("y",)
    homogeneous = Homogeneous(("x",), ("y",))
    gradients = ("avg_pool_backward",)
    sparse = (("y", _sparse_forward),)
    worked_example = WorkedExample(
        "pool n1 c2 h6 w6 r2 s2", {"x": np.arange(72.0).reshape(1, 2, 6, 6)}, "on consecutive numbers"
    )
    """From the NKI tutorial on average pooling. Averages are multiples of 1/2 below 72: exact in every format,
    including bf16."""

    def errors(self, geometry: PoolGeometry) -> ErrorModel:
        """Count the window's elements, and one more rounding for the division. The windows that hold an element may
        share its quotient, or its sum with another element."""
        window = math.prod(geometry.window)
        model = self.error_model(geometry, {"y": window + 1}, window, taps_per_input(geometry))
        counts = [*map(min, geometry.window, geometry.size)]
        return replace(model, prefix_sums=prefix_sums(counts, geometry.size, partial(_largest_average, geometry)))

    def reference(self, geometry: PoolGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Divide the exact sum over the window once."""
        return {"y": _window_sums(geometry, inputs["x"].astype(dtype)) / geometry.divisors.astype(dtype)}

    def exact(self, geometry: PoolGeometry, inputs: Arrays) -> dict[str, Double]:
        total = double_double.linear(partial(_window_sums, geometry), [inputs["x"]], self.errors(geometry).span)
        return {"y": double_double.divided(total, geometry.divisors)}

    def magnitude(self, geometry: PoolGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return s2 = sqrt(sum of squares) / divisor."""
        squares = _window_sums(geometry, np.square(inputs["x"].astype(dtype)))
        return {"y": np.sqrt(squares) / geometry.divisors.astype(dtype)}


class AvgPoolBackward(_Pool):
    """dy[N,C,P,Q] -> dx[N,C,H,W]."""

    name, data, operand = "avg_pool_backward", "dy", "dy"
    arguments, returns = ("dy",), ("dx",)
    keywords = (*_Pool.keywords, "input_size")
    homogeneous = Homogeneous(("dy",), ("dx",))
    sparse = (("dx", _sparse_backward),)

    def errors(self, geometry: PoolGeometry) -> ErrorModel:
        """Count the windows that hold an element, and one more rounding for the division. The span is in units of the
        divisors' least common multiple. All elements of a window get the same share."""
        holding = taps_per_input(geometry)
        elements = math.prod(map(min, geometry.window, geometry.size))
        model = self.error_model(geometry, {"dx": holding + 1}, holding * geometry.common_multiple, elements)
        windows = zip(geometry.window, geometry.stride, geometry.output_size, strict=True)
        counts = [min(-(-window // stride), count) for window, stride, count in windows]
        extents = [*map(max, geometry.size, geometry.output_size)]
        return replace(model, prefix_sums=prefix_sums(counts, extents, partial(_largest_share, geometry)))

    def reference(self, geometry: PoolGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Add dy, scaled to the least common multiple of all divisors, at its elements of x; divide once."""
        return {"dx": _multiples(geometry, inputs["dy"].astype(dtype)) / np.dtype(dtype).type(geometry.common_multiple)}

    def exact(self, geometry: PoolGeometry, inputs: Arrays) -> dict[str, Double]:
        total = double_double.linear(partial(_multiples, geometry), [inputs["dy"]], self.errors(geometry).span)
        return {"dx": double_double.divided(total, float(geometry.common_multiple))}

    def magnitude(self, geometry: PoolGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return s2 = sqrt(sum of (dy/divisor)^2)."""
        shares = np.square(inputs["dy"].astype(dtype) / geometry.divisors.astype(dtype))
        return {"dx": np.sqrt(scattered(geometry, shares))}


def _multiples(geometry: PoolGeometry, dy: np.ndarray) -> np.ndarray:
    """Return dx times the least common multiple of all divisors."""
    shares = dy * (geometry.common_multiple // geometry.divisors).astype(dy.dtype)
    return scattered(geometry, shares)


def _window_sums(geometry: PoolGeometry, x: np.ndarray) -> np.ndarray:
    return window_sums(geometry, padded(x, geometry.overhang, x.dtype))


FAMILY = Family(
    geometry=PoolGeometry,
    operators=(AvgPoolForward(), AvgPoolBackward()),
    distributions=(*LINEAR, "large", "absorbed"),
    place=2,
    storages=Storages(
        everywhere=("pool.3x3s2-padded", "pool.row", "pool.overlap", "pool.gaps", "pool.by-axis"),
        large=("resnet-d.shortcut", "densenet.transition"),
        odd=("pool.batch1-channel1",),
        one_channel="pool.batch1-channel1",
        one_image=("pool.tiles-4",),
        once={1: ("pool.rank1", "pool.rank1-ceil"), 3: ("pool.rank3", "pool.rank3-2x2x2")},
    ),
    equal_shapes=("pool n3 c4 h5 w5 r3 s3 u2 p1:0x0:1 valid1", "pool n2 c6 h6 w6 r3 s3 u1 p1"),
    partial=("pool n2 c5 h9 w8 r3 s3 u2 p1", "pool n2 c6 h5 w5 r5 s5"),
    unreached=("pool n2 c3 h7 w8 r2 s2 u3",),
    goldens=(
        "avg_pool_forward pool.tutorial bf16 integer",
        "avg_pool_forward pool.3x3s2-ceil fp32 fixed",
        "avg_pool_backward pool.valid fp32 fixed",
    ),
    timed=("networks.reduced", "networks"),
)
