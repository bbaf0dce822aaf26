"""Index expressions and masks of the Beta 1 API. Pages: "NKI Programming Model" and "NKI API Masking", Neuron SDK 2.26.

An expression is kept open, as NumPy's ogrid is: each variable has one axis, and `shape` says what it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any

import numpy as np

from .errors import refuse
from .indexing import Ints, integer

_NAMES = "pxyzw"
"""Of the axes of nl.mgrid."""


class Expression:
    """Integers over axes of a tile. `values` has size 1 along the axes that it does not depend on."""

    __slots__ = ("shape", "values")

    def __init__(self, values: np.ndarray, shape: Ints) -> None:
        self.values, self.shape = values, shape

    def _with(self, other: Any, function: Callable[..., np.ndarray]) -> tuple[np.ndarray, Ints]:
        if hasattr(other, "as_index"):  # offsets that are data
            other = other.as_index()
        if isinstance(other, Expression):
            return function(self.values, other.values), broadcast(self.shape, other.shape)
        if isinstance(other, np.integer):
            other = int(other)
        return function(self.values, integer(other, "a term of an index")), self.shape

    def __bool__(self) -> bool:
        """Page: "NKI Known Issues", Neuron SDK 2.26, on joining masks."""
        refuse(
            "tensor-value", "an index stands for many values; Python cannot branch on it; join masks by &, not `and`"
        )


class Index(Expression):
    """What nl.arange and nl.mgrid make, and sums of it."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Index:
        entries = key if isinstance(key, tuple) else (key,)
        if any(entry is not None and entry != slice(None) for entry in entries):
            refuse("index", f"an index is given axes by None and `:`, not by {key!r}")
        return Index(self.values[key], np.broadcast_to(self.values, self.shape)[key].shape)

    def __add__(self, other: Any) -> Index:
        return Index(*self._with(other, np.add))

    def __sub__(self, other: Any) -> Index:
        return Index(*self._with(other, np.subtract))

    def __rsub__(self, other: Any) -> Index:
        return Index(*self._with(other, lambda a, b: b - a))

    def __mul__(self, other: Any) -> Index:
        if isinstance(other, Expression):
            refuse("index-affine", "a product of two indices is not affine")
        return Index(*self._with(other, np.multiply))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Index:
        return self * -1

    def _compared(self, other: Any, function: Callable[..., np.ndarray]) -> Mask:
        return Mask(*self._with(other, function))

    __lt__ = partialmethod(_compared, function=np.less)
    __le__ = partialmethod(_compared, function=np.less_equal)
    __gt__ = partialmethod(_compared, function=np.greater)
    __ge__ = partialmethod(_compared, function=np.greater_equal)
    __eq__ = partialmethod(_compared, function=np.equal)
    __ne__ = partialmethod(_compared, function=np.not_equal)
    __hash__ = None  # type: ignore[assignment]


class Mask(Expression):
    """A comparison of indices, or several joined by &."""

    __slots__ = ()

    def _joined(self, other: Any, function: Callable[..., np.ndarray]) -> Mask:
        if isinstance(other, bool | np.bool_):
            return Mask(function(self.values, bool(other)), self.shape)
        if not isinstance(other, Mask):
            refuse("mask", f"{other!r} is no mask; join comparisons of indices")
        return Mask(function(self.values, other.values), broadcast(self.shape, other.shape))

    __and__ = __rand__ = partialmethod(_joined, function=np.logical_and)
    __or__ = partialmethod(_joined, function=np.logical_or)


def broadcast(*shapes: Ints) -> Ints:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        refuse("shape", f"shapes {', '.join(map(str, shapes))} do not broadcast")


def aligned(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    """Index expressions that broadcast as NumPy's do, or by their first dimensions.

    No page says what [:, None, None] beside [None, :, None, None] is. The vendor's own convolution indexes so when it
    keeps several images in a tile, and is right if both begin with the partitions.
    """
    shapes = [entry.shape for entry in entries if isinstance(entry, Index)]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        dims = max(map(len, shapes))
        longer = [
            entry[(slice(None),) * len(entry.shape) + (None,) * (dims - len(entry.shape))]
            if isinstance(entry, Index)
            else entry
            for entry in entries
        ]
        return tuple(longer)
    return entries


def executed(mask: Any, shape: Ints) -> np.ndarray | None:
    """Which elements of a tile an instruction runs on, None for all. A bool is known while the kernel is built."""
    if mask is None or mask is True:
        return None
    if mask is False:
        return np.zeros(shape, np.bool_)
    if isinstance(mask, np.ndarray) and mask.shape == shape:
        return mask
    if not isinstance(mask, Mask):
        refuse("mask", f"{mask!r} is no mask; compare indices")
    padded = (1,) * (len(shape) - len(mask.shape)) + mask.shape
    if len(padded) > len(shape) or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
        refuse("mask", f"a mask of {mask.shape} does not fit a tile of {shape}")
    return np.broadcast_to(mask.values, shape)


def arange(*bounds: int) -> Index:
    whole = [int(bound) if isinstance(bound, np.integer) else integer(bound, "a bound of arange") for bound in bounds]
    values = np.arange(*whole, dtype=np.int64)
    if not values.size:
        refuse("index", f"arange{bounds} is empty")
    return Index(values, values.shape)


class Grid:
    """What nl.mgrid[...] gives: its axes in order, also by the names p, x, y, z, w."""

    def __init__(self, axes: list[Index]) -> None:
        self._axes = axes
        for name, axis in zip(_NAMES, axes, strict=False):
            setattr(self, name, axis)

    def __iter__(self) -> Iterator[Index]:
        return iter(self._axes)

    def __getitem__(self, axis: int) -> Index:
        return self._axes[axis]


class MeshGrid:
    """nl.mgrid."""

    def __getitem__(self, key: Any) -> Grid:
        slices = key if isinstance(key, tuple) else (key,)
        lines = [arange(entry.start or 0, entry.stop, entry.step or 1).values for entry in slices]
        shape = tuple(line.size for line in lines)
        return Grid([Index(values, shape) for values in np.ix_(*lines)])
