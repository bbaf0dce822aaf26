"""Sizes, parameters and divisors of an average pooling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np

from conformance.operators.descriptor import NEGATED_FLAG, Field, by_rank
from conformance.operators.pooling_geometry import CEIL, Pooled, laid_out, pooling_fields
from conformance.operators.spatial import (
    WINDOW,
    Extents,
    GeometryError,
    Padding,
    require_windows,
    unpadded,
)

LARGEST_MULTIPLE = 1 << 18
"""Largest common multiple of a problem's divisors that leaves room for data in an exact float64 sum."""
TOO_MANY = f"the divisors have a common multiple beyond {LARGEST_MULTIPLE}; set div, or drop valid1"
MAX_DISTINCT = 1 << 10
"""Largest number of distinct divisors on an axis: no number up to LARGEST_MULTIPLE is a multiple of more."""
MAX_EDGE = 1 << 20
"""Largest number of windows at an edge that are counted one by one."""

DIVISORS = (
    Field("valid", "divide by the positions inside the image (0 or 1)", NEGATED_FLAG, "count_include_pad", True),
    Field("div", "divisor", attribute="divisor_override", default=None),
)


def _ascending(numbers: np.ndarray) -> np.ndarray:
    """Return distinct numbers in their order; np.unique would import np.ma at the start of every run."""
    ordered = np.sort(numbers, axis=None)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


@dataclass(frozen=True)
class PoolGeometry(Pooled):
    """Sizes and parameters of one average pooling in one to three dimensions. Raises GeometryError for values
    that no pooling can have. A padding of () is none.

    For the attributes derived from them, see `conformance.operators.pooling_geometry.laid_out`.
    """

    PREFIX = "pool"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = by_rank(lambda rank: (*pooling_fields(rank), CEIL, *DIVISORS))
    family: ClassVar[str] = "avg_pool"

    n: int
    c: int
    size: Extents
    window: Extents
    stride: Extents
    padding: Padding = ()
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None

    def __post_init__(self) -> None:
        vars(self).update(padding=self.padding or unpadded(self.rank))
        require_windows(self, divisor=1 if self.divisor_override is None else self.divisor_override)
        for name, window, sides in zip(WINDOW[self.rank], self.window, self.padding, strict=True):
            if max(sides) >= window:
                raise GeometryError(f"padding is {max(sides)}; it must be less than the window, {name}{window}")
        vars(self).update(laid_out(self))
        if self.common_multiple > LARGEST_MULTIPLE:
            raise GeometryError(TOO_MANY)

    @property
    def dilation(self) -> Extents:
        """1 on every axis: average pooling has no dilation."""
        return (1,) * self.rank

    @cached_property
    def divisors(self) -> np.ndarray:
        """Divisor of every output, an integer array of the output's size."""
        if self.divisor_override is not None:
            return np.full(self.output_size, self.divisor_override)
        axes = (self.counted(axis, np.arange(count)) for axis, count in enumerate(self.output_size))
        return np.asarray(reduce(np.multiply.outer, axes))

    @property
    def rounded_reciprocals(self) -> int:
        """Number of factors of the divisors (one for each axis) with reciprocals that no binary format holds."""
        override = self.divisor_override
        factors = self._distinct if override is None else [np.array(override)]
        return sum(bool(np.any(divisors & (divisors - 1))) for divisors in factors)

    @cached_property
    def common_multiple(self) -> int:
        """Least common multiple of all divisors."""
        return math.lcm(*self.distinct_divisors.tolist())

    @cached_property
    def distinct_divisors(self) -> np.ndarray:
        """Distinct divisors, ascending."""
        if self.divisor_override is not None:
            return np.array([self.divisor_override])
        return _ascending(reduce(np.multiply.outer, self._distinct))

    @cached_property
    def _distinct(self) -> list[np.ndarray]:
        """Distinct counts of positions on each axis."""
        return [self._distinct_along(axis) for axis in range(self.rank)]

    def _distinct_along(self, axis: int) -> np.ndarray:
        """Return the distinct counts of positions on an axis. Raises GeometryError if they are too many or too large.

        Windows between the edges share one count and are not visited: an image may be too large for any memory.
        """
        count, window = self.output_size[axis], self.window[axis]
        edge = 2 * (window // self.stride[axis]) + 2  # windows that may reach beyond the image, on each side
        if min(count, edge) <= MAX_EDGE:
            ends = np.arange(min(count, edge + 1)), np.arange(max(count - edge, 0), count)
            counts = _ascending(self.counted(axis, np.concatenate(ends)))
            if counts.size <= MAX_DISTINCT and counts[-1] <= LARGEST_MULTIPLE:
                return counts
        raise GeometryError(TOO_MANY)

    def counted(self, axis: int, windows: np.ndarray) -> np.ndarray:
        """Count the positions of these windows along one axis that enter the divisor."""
        size, window, (before, after) = self.size[axis], self.window[axis], self.padding[axis]
        starts = windows * self.stride[axis] - before
        low, high = (-before, size + after) if self.count_include_pad else (0, size)
        return np.minimum(starts + window, high) - np.maximum(starts, low)
