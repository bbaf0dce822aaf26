"""Mistakes that poolings share: windows of other sizes, at other places, with too few positions, or too many windows.

A mistake about which elements take part only says which positions of the window it keeps; each family computes with
those positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.image_mistakes import FURTHER_WINDOWS, TILES, within_tiles
from conformance.operators.mistakes import (
    Compute,
    D,
    H,
    InapplicableError,
    Mistake,
    Sees,
    W,
    everywhere,
    misread,
    on_axis,
    swapped,
)
from conformance.operators.spatial import Extents, Index, fitted, spans

Kept = Callable[[Any], np.ndarray]
"""Geometry -> mask [R, S] of the positions of the window that take part."""


def _repacked(sees: Sees) -> Compute:
    """Return the mistake that packs y (dy) in rows of the length that the kernel sees, within the existing buffer."""
    return misread(sees, y=lambda y, g: packed(y, sees(g).y.shape))


def packed(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    out = np.zeros(math.prod(shape), array.dtype)
    kept = min(array.size, out.size)
    out[:kept] = array.reshape(-1)[:kept]
    return out.reshape(shape)


def _undropped(operator: Operator, g: Any, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute y (dx) with y (dy) laid out as if it also held the windows behind the image, which ceil mode drops."""
    sizes = zip(g.size, spans(g), g.stride, g.padding, strict=True)
    wide = [-(-(size + sum(sides) - window) // stride) + 1 for size, window, stride, sides in sizes]
    if not g.ceil_mode or wide == list(g.output_size):
        raise InapplicableError
    shape = (g.n, g.c, *wide)
    if "dy" not in inputs:
        return {"y": packed(fitted(operator.reference(g, inputs, dtype)["y"], shape), g.y.shape)}
    return operator.reference(g, inputs | {"dy": fitted(packed(inputs["dy"], shape), g.y.shape)}, dtype)


def reached(g: Any) -> Extents:
    """Return the extents of the image up to the end of the last window."""
    sizes = zip(g.size, spans(g), g.stride, g.padding, g.output_size, strict=True)
    return tuple(min(size, (count - 1) * u + span - sides[0]) for size, span, u, sides, count in sizes)


def _remainder_in_front(x: np.ndarray, g: Any) -> np.ndarray:
    if reached(g) == g.size:
        raise InapplicableError
    back = tuple(rows - size for rows, size in zip(reached(g), g.size, strict=True))
    return np.roll(x, back, tuple(range(2, x.ndim)))


def _in_mode(g: Any, *, ceil: bool) -> Any:
    if g.ceil_mode == ceil:
        raise InapplicableError
    return replace(g, ceil_mode=ceil)


_WINDOWS: dict[str, Compute] = {
    "window swapped between H and W": misread(lambda g: replace(g, window=swapped(g.window)), rank=2),
    "window of H used for both axes": misread(lambda g: replace(g, window=everywhere(g.window, H))),
    "window of W used for both axes": misread(lambda g: replace(g, window=everywhere(g.window, W))),
    "window one row too large": misread(lambda g: replace(g, window=on_axis(g.window, H, lambda r: r + 1))),
    "window one column too large": misread(lambda g: replace(g, window=on_axis(g.window, W, lambda s: s + 1))),
    "window taken for the stride": misread(lambda g: replace(g, stride=g.window)),
    "stride taken for the window": misread(lambda g: replace(g, window=g.stride)),
    "floor instead of ceil": misread(lambda g: _in_mode(g, ceil=False)),
    "floor instead of ceil, y (dy) packed for it": _repacked(lambda g: _in_mode(g, ceil=False)),
    "ceil instead of floor, y (dy) packed for it": _repacked(lambda g: _in_mode(g, ceil=True)),
    "ceil mode keeps windows that start behind the image": _undropped,
    "remainder of the stride in front": misread(x=_remainder_in_front),
    "window exchanged between D and W": misread(lambda g: replace(g, window=g.window[::-1]), rank=3),
    "window of D used for every axis": misread(lambda g: replace(g, window=everywhere(g.window, D))),
    "window one plane too large": misread(lambda g: replace(g, window=on_axis(g.window, D, lambda t: t + 1))),
}


def _all_but(index: int, axis: int | None = None) -> Kept:
    """Keep all positions except those at an index of an axis; without `axis`, all but the position that has this index
    on every axis."""

    def kept(g: Any) -> np.ndarray:
        if axis is not None and -axis > g.rank:
            raise InapplicableError
        seen = np.ones(g.window, bool)
        where: Index = (index,) * g.rank if axis is None else (..., index, *[slice(None)] * (-axis - 1))
        seen[where] = False
        return seen

    return kept


def _only(half: int) -> Kept:
    """Keep one position, given in halves of the window: 0 is the first, 1 the middle one."""

    def kept(g: Any) -> np.ndarray:
        seen = np.zeros(g.window, bool)
        seen[tuple(half * extent // 2 for extent in g.window)] = True
        return seen

    return kept


def _in_tiles(tile: int) -> Kept:
    return lambda g: within_tiles(np.ones(g.window, bool), tuple(range(g.rank)), tile)


POSITIONS: dict[str, Kept] = {
    "first row of the window left out": _all_but(0, H),
    "last row of the window left out": _all_but(-1, H),
    "first column of the window left out": _all_but(0, W),
    "last column of the window left out": _all_but(-1, W),
    "first position of the window left out": _all_but(0),
    "last position of the window left out": _all_but(-1),
    "first position of the window only": _only(0),
    "middle of the window only": _only(1),
    "first plane of the window left out": _all_but(0, D),
    "last plane of the window left out": _all_but(-1, D),
    **{f"tail of the window beyond tiles of {tile} dropped": _in_tiles(tile) for tile in TILES},
}

POOL_WINDOWS = tuple(Mistake(name, "pooling", compute) for name, compute in _WINDOWS.items())


def _columns_first(g: Any) -> Any:
    """Return the geometry with the values of every parameter in reverse: W before H."""
    pairs = {field.name for field in fields(g)} & {"window", "stride", "padding", "dilation"}
    return replace(g, **{name: getattr(g, name)[::-1] for name in pairs})


POOL_FURTHER = (
    Mistake("window, strides and padding swapped", "pooling", misread(_columns_first)),
    Mistake("ceil instead of floor", "pooling", misread(lambda g: _in_mode(g, ceil=True))),
    *FURTHER_WINDOWS,
)
