"""Mistakes that poolings share: windows of other sizes, at other places, of too few positions, or too many of them.

A mistake of which elements take part says which positions of the window it keeps, for a family to compute with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.mistakes import (
    FURTHER_WINDOWS,
    TILES,
    Compute,
    InapplicableError,
    Mistake,
    Sees,
    fitted,
    misread,
    within_tiles,
)
from conformance.operators.spatial import Pair

Kept = Callable[[Any], np.ndarray]
"""Which positions of the window take part, [R, S]."""


def span(g: Any) -> Pair:
    """Rows and columns from the first position of a window to its last one."""
    return g.dilation[0] * (g.r - 1) + 1, g.dilation[1] * (g.s - 1) + 1


def _repacked(sees: Sees) -> Compute:
    """y (dy) in rows of the length that the kernel sees, one after the other in the buffer that there is."""
    return misread(sees, y=lambda y, g: packed(y, sees(g).y.shape))


def packed(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    out = np.zeros(math.prod(shape), array.dtype)
    kept = min(array.size, out.size)
    out[:kept] = array.reshape(-1)[:kept]
    return out.reshape(shape)


def _undropped(operator: Operator, g: Any, inputs: Arrays, dtype: Any) -> Arrays:
    """y (dy) with room for windows that start behind the image, which ceil mode drops."""
    sizes = zip((g.h, g.w), span(g), g.stride, g.padding, strict=True)
    wide = [-(-(size + sum(sides) - window) // stride) + 1 for size, window, stride, sides in sizes]
    if not g.ceil_mode or wide == list(g.output_size):
        raise InapplicableError
    shape = (g.n, g.c, *wide)
    if "dy" not in inputs:
        return {"y": packed(fitted(operator.reference(g, inputs, dtype)["y"], shape), g.y.shape)}
    return operator.reference(g, inputs | {"dy": fitted(packed(inputs["dy"], shape), g.y.shape)}, dtype)


def reached(g: Any) -> tuple[int, int]:
    """Rows and columns of the image less those behind the last window."""
    sizes = zip((g.h, g.w), span(g), g.stride, g.padding, g.output_size, strict=True)
    rows, columns = (min(size, (count - 1) * u + window - sides[0]) for size, window, u, sides, count in sizes)
    return rows, columns


def _remainder_in_front(x: np.ndarray, g: Any) -> np.ndarray:
    rows, columns = reached(g)
    if (rows, columns) == (g.h, g.w):
        raise InapplicableError
    return np.roll(x, (rows - g.h, columns - g.w), (2, 3))


def _in_mode(g: Any, *, ceil: bool) -> Any:
    if g.ceil_mode == ceil:
        raise InapplicableError
    return replace(g, ceil_mode=ceil)


_WINDOWS: dict[str, Compute] = {
    "window swapped between H and W": misread(lambda g: replace(g, r=g.s, s=g.r)),
    "window of H used for both axes": misread(lambda g: replace(g, s=g.r)),
    "window of W used for both axes": misread(lambda g: replace(g, r=g.s)),
    "window one row too large": misread(lambda g: replace(g, r=g.r + 1)),
    "window one column too large": misread(lambda g: replace(g, s=g.s + 1)),
    "window taken for the stride": misread(lambda g: replace(g, stride=(g.r, g.s))),
    "stride taken for the window": misread(lambda g: replace(g, r=g.stride[0], s=g.stride[1])),
    "floor instead of ceil": misread(lambda g: _in_mode(g, ceil=False)),
    "floor instead of ceil, y (dy) packed for it": _repacked(lambda g: _in_mode(g, ceil=False)),
    "ceil instead of floor, y (dy) packed for it": _repacked(lambda g: _in_mode(g, ceil=True)),
    "ceil mode keeps windows that start behind the image": _undropped,
    "remainder of the stride in front": misread(x=_remainder_in_front),
}


def _all_but(*where: Any) -> Kept:
    def kept(g: Any) -> np.ndarray:
        seen = np.ones((g.r, g.s), bool)
        seen[where] = False
        return seen

    return kept


def _only(row: int, column: int) -> Kept:
    """One position, given in halves of the window: 0 the first, 1 the one in the middle."""

    def kept(g: Any) -> np.ndarray:
        seen = np.zeros((g.r, g.s), bool)
        seen[row * g.r // 2, column * g.s // 2] = True
        return seen

    return kept


def _in_tiles(tile: int) -> Kept:
    return lambda g: within_tiles(np.ones((g.r, g.s), bool), (0, 1), tile)


POSITIONS: dict[str, Kept] = {
    "first row of the window left out": _all_but(0),
    "last row of the window left out": _all_but(-1),
    "first column of the window left out": _all_but(slice(None), 0),
    "last column of the window left out": _all_but(slice(None), -1),
    "first position of the window left out": _all_but(0, 0),
    "last position of the window left out": _all_but(-1, -1),
    "first position of the window only": _only(0, 0),
    "middle of the window only": _only(1, 1),
    **{f"tail of the window beyond tiles of {tile} dropped": _in_tiles(tile) for tile in TILES},
}

POOL_WINDOWS = tuple(Mistake(name, "pooling", compute) for name, compute in _WINDOWS.items())
FURTHER = (
    Mistake("ceil instead of floor", "pooling", misread(lambda g: _in_mode(g, ceil=True))),
    *FURTHER_WINDOWS,
)
