"""Mistakes that families share: correct products of the wrong elements of an image, or of too few elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.mistakes import (
    Change,
    Compute,
    D,
    H,
    InapplicableError,
    Mistake,
    Sees,
    W,
    channels_last,
    everywhere,
    misread,
    on_axis,
    rolled,
    swapped,
    zeroed,
)
from conformance.operators.spatial import Extents, is_padded, unpadded

TILES = (4, 8, 16, 32, 64, 128)

T = TypeVar("T")

_MISREAD_IMAGES: dict[str, Compute] = {
    "image transposed (H and W swapped)": misread(
        lambda g: replace(g, size=swapped(g.size)), rank=2, x=lambda x, g: x.swapaxes(H, W)
    ),
    "image strides of H and W swapped": misread(
        rank=2, x=lambda x, g: x.reshape(g.n, g.c, *swapped(g.size)).swapaxes(H, W)
    ),
    "image read as NHWC instead of NCHW": misread(x=lambda x, g: channels_last(x, g.x.shape)),
    "y (dy) laid out as NHWC instead of NCHW": misread(y=lambda y, g: channels_last(y, g.y.shape)),
    "image n uses image n-1": misread(x=rolled(0)),
    "image n uses image n+1": misread(x=rolled(0, -1)),
    "every image uses image 0": misread(x=lambda x, g: np.repeat(x[:1], g.n, axis=0)),
    "output channels rotated by one": misread(y=rolled(1)),
    "output channels rotated back by one": misread(y=rolled(1, -1)),
    "input channels rotated back by one": misread(x=rolled(1, -1)),
    "input channels rotated by one": misread(x=rolled(1)),
    "last row of y (dy) left out": misread(rank=2, y=zeroed(..., -1, slice(None))),
    "last column of y (dy) left out": misread(y=zeroed(..., -1)),
    "first row of y (dy) left out": misread(rank=2, y=zeroed(..., 0, slice(None))),
    "last output channel left out": misread(y=zeroed(slice(None), -1)),
    "last image left out": misread(y=zeroed(-1)),
    "last row of x (dx) left out": misread(rank=2, x=zeroed(..., -1, slice(None))),
    "last column of x (dx) left out": misread(x=zeroed(..., -1)),
    "last input channel left out": misread(x=zeroed(slice(None), -1)),
    "image transposed (D and H swapped)": misread(
        lambda g: replace(g, size=(g.h, g.d, g.w)), rank=3, x=lambda x, g: x.swapaxes(D, H)
    ),
    "last plane of y (dy) left out": misread(rank=3, y=zeroed(slice(None), slice(None), -1)),
    "first plane of y (dy) left out": misread(rank=3, y=zeroed(slice(None), slice(None), 0)),
    "last plane of x (dx) left out": misread(rank=3, x=zeroed(slice(None), slice(None), -1)),
    "every plane of the image uses the first": misread(
        rank=3, x=lambda x, g: np.repeat(x[:, :, :1], x.shape[2], axis=2)
    ),
}


def enlarged(g: Any) -> Any:
    """Return the geometry of an unpadded image that already contains the border which `filled` adds."""
    size = tuple(extent + sum(sides) for extent, sides in zip(g.size, g.padding, strict=True))
    return replace(g, size=size, padding=unpadded(g.rank))


def filled(mode: Any) -> Change:
    """Return a change that pads x with something else than zero: numpy's `wrap`, `reflect` or `edge`."""

    def change(x: np.ndarray, g: Any) -> np.ndarray:
        if not is_padded(g.padding):
            raise InapplicableError
        return np.pad(x, ((0, 0), (0, 0), *g.padding), mode=mode)

    return change


def _padded(g: Any, axis: int, before: int = 0, after: int = 0) -> Any:
    """Change the padding of one axis by `before` and `after`. Raises GeometryError if a side becomes negative."""
    return replace(g, padding=on_axis(g.padding, axis, lambda sides: (sides[0] + before, sides[1] + after)))


def _with_padding(change: Callable[[tuple[int, int]], tuple[int, int]]) -> Sees:
    """Return the geometry that a kernel sees if it changes the padding (before, after) of every axis."""
    return lambda g: replace(g, padding=tuple(map(change, g.padding)))


_MISREAD_WINDOWS: dict[str, Sees] = {
    "strides swapped": lambda g: replace(g, stride=g.stride[::-1]),
    "stride ignored": lambda g: replace(g, stride=(1,) * g.rank),
    "stride of H used for both axes": lambda g: replace(g, stride=everywhere(g.stride, H)),
    "stride of W used for both axes": lambda g: replace(g, stride=everywhere(g.stride, W)),
    "padding swapped between H and W": lambda g: replace(g, padding=swapped(g.padding)),
    "padding mirrored (before and after exchanged)": _with_padding(lambda sides: (sides[1], sides[0])),
    "padding all after": _with_padding(lambda sides: (0, sum(sides))),
    "padding all before": _with_padding(lambda sides: (sum(sides), 0)),
    "padding ignored": lambda g: replace(g, padding=unpadded(g.rank)),
    "padding of H one too large before": lambda g: _padded(g, H, before=1),
    "padding of W one too large before": lambda g: _padded(g, W, before=1),
    "padding of H one too small before": lambda g: _padded(g, H, before=-1, after=1),
    "padding of W one too small before": lambda g: _padded(g, W, before=-1, after=1),
    "padding of H one too small after": lambda g: _padded(g, H, after=-1),
    "padding of W one too small after": lambda g: _padded(g, W, after=-1),
    "stride of D used for every axis": lambda g: replace(g, stride=everywhere(g.stride, D)),
    "stride of D and H exchanged": lambda g: replace(g, stride=_first_two(g.stride)),
    "padding exchanged between D and H": lambda g: replace(g, padding=_first_two(g.padding)),
    "padding exchanged between D and W": lambda g: replace(g, padding=_need(g.padding, 3)[::-1]),
    "padding of D one too large before": lambda g: _padded(g, D, before=1),
    "padding of D one too small before": lambda g: _padded(g, D, before=-1, after=1),
    "padding of D one too small after": lambda g: _padded(g, D, after=-1),
}


def _need(values: tuple[T, ...], rank: int) -> tuple[T, ...]:
    if len(values) < rank:
        raise InapplicableError
    return values


def _first_two(values: tuple[T, ...]) -> tuple[T, ...]:
    """Exchange the values of D and H. Raises InapplicableError for fewer than three axes."""
    first, second, third = _need(values, 3)
    return second, first, third


_MISREAD_DILATIONS: dict[str, Sees] = {
    "dilations swapped": lambda g: replace(g, dilation=g.dilation[::-1]),
    "dilation ignored": lambda g: replace(g, dilation=(1,) * g.rank),
    "dilation of H used for both axes": lambda g: replace(g, dilation=everywhere(g.dilation, H)),
    "dilation of W used for both axes": lambda g: replace(g, dilation=everywhere(g.dilation, W)),
    "stride and dilation exchanged": lambda g: replace(g, stride=g.dilation, dilation=g.stride),
    "dilation of D used for every axis": lambda g: replace(g, dilation=everywhere(g.dilation, D)),
    "dilation of D and H exchanged": lambda g: replace(g, dilation=_first_two(g.dilation)),
}


def within_tiles(array: np.ndarray, axes: tuple[int, ...], tile: int) -> np.ndarray:
    """Zero the elements beyond the last full tile of the flattened axes. Raises InapplicableError if there are none, or
    if no tile is full."""
    extents = [array.shape[axis] for axis in axes]
    count = math.prod(extents)
    if count < tile or count % tile == 0:
        raise InapplicableError
    kept = (np.arange(count) < count // tile * tile).reshape(extents)
    others = tuple(axis for axis in range(array.ndim) if axis not in axes)
    return np.where(np.expand_dims(kept, others), array, np.zeros((), array.dtype))


def tails_of_output() -> Iterator[Mistake]:
    """Yield mistakes that drop the tail of the main output's channels (axis 1; axis 0 of a filter) or of its places."""

    def tail(tile: int, of_channels: bool) -> Compute:
        def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
            (name, tensor), *_ = operator.outputs(geometry).items()
            channel = 0 if tensor.is_filter else 1
            axes = (channel,) if of_channels else tuple(range(channel + 1, len(tensor.shape)))
            within_tiles(np.empty(tensor.shape, bool), axes, tile)
            outputs = operator.reference(geometry, inputs, dtype)
            return outputs | {name: within_tiles(outputs[name], axes, tile)}

        return compute

    for tile in TILES:
        yield Mistake(f"tail of the channels beyond tiles of {tile} dropped", "index", tail(tile, True))
        yield Mistake(f"tail of the places beyond tiles of {tile} dropped", "index", tail(tile, False))


IMAGES = tuple(Mistake(name, "index", compute) for name, compute in _MISREAD_IMAGES.items())
WINDOWS = tuple(Mistake(name, "index", misread(sees)) for name, sees in _MISREAD_WINDOWS.items())
DILATIONS = tuple(Mistake(name, "index", misread(sees)) for name, sees in _MISREAD_DILATIONS.items())
TAILS = tuple(tails_of_output())


def _one(_: int) -> int:
    return 1


def _none(_: tuple[int, int]) -> tuple[int, int]:
    return 0, 0


def _mirrored(g: Any, axis: int) -> Any:
    return replace(g, padding=on_axis(g.padding, axis, lambda sides: sides[::-1]))


def _more(values: Extents) -> Extents:
    return tuple(value + 1 for value in values)


def _last(array: np.ndarray, g: Any) -> np.ndarray:
    """Zero the last element, as a loop over all elements does that ends one too early."""
    return zeroed(*[-1] * array.ndim)(array, g)


_FURTHER_IMAGES: dict[str, Compute] = {
    "last place of y (dy) left out": misread(rank=2, y=lambda y, g: zeroed(..., *[-1] * g.rank)(y, g)),
    "last element of y (dy) left out": misread(y=_last),
    "last element of x (dx) left out": misread(x=_last),
}

_FURTHER_WINDOWS: dict[str, Sees] = {
    "strides and padding swapped": lambda g: replace(g, stride=g.stride[::-1], padding=g.padding[::-1]),
    "stride and padding ignored": lambda g: replace(g, stride=(1,) * g.rank, padding=((0, 0),) * g.rank),
    "stride of H ignored": lambda g: replace(g, stride=on_axis(g.stride, H, _one)),
    "stride of W ignored": lambda g: replace(g, stride=on_axis(g.stride, W, _one)),
    "stride one too large": lambda g: replace(g, stride=_more(g.stride)),
    "stride of H one too large": lambda g: replace(g, stride=on_axis(g.stride, H, lambda u: u + 1)),
    "stride of W one too large": lambda g: replace(g, stride=on_axis(g.stride, W, lambda u: u + 1)),
    "padding of H mirrored (before and after exchanged)": lambda g: _mirrored(g, H),
    "padding of W mirrored (before and after exchanged)": lambda g: _mirrored(g, W),
    "padding before ignored": _with_padding(lambda sides: (0, sides[1])),
    "padding after ignored": _with_padding(lambda sides: (sides[0], 0)),
    "padding of H ignored": lambda g: replace(g, padding=on_axis(g.padding, H, _none)),
    "padding of W ignored": lambda g: replace(g, padding=on_axis(g.padding, W, _none)),
    "padding of H used for both axes": lambda g: replace(g, padding=everywhere(g.padding, H)),
    "padding of W used for both axes": lambda g: replace(g, padding=everywhere(g.padding, W)),
    "padding before used on both sides": _with_padding(lambda sides: (sides[0], sides[0])),
    "padding after used on both sides": _with_padding(lambda sides: (sides[1], sides[1])),
    "padding split evenly, the odd one after": _with_padding(lambda sides: (sum(sides) // 2, -(-sum(sides) // 2))),
    "padding one too large": _with_padding(lambda sides: (sides[0] + 1, sides[1] + 1)),
    "padding one too small": _with_padding(lambda sides: (sides[0] - 1, sides[1] - 1)),
    "padding of H one too large after": lambda g: _padded(g, H, after=1),
    "padding of W one too large after": lambda g: _padded(g, W, after=1),
    "stride of H used for D": lambda g: replace(g, stride=on_axis(g.stride, D, lambda _: g.stride[H])),
    "padding of H used for D": lambda g: replace(g, padding=on_axis(g.padding, D, lambda _: g.padding[H])),
    "stride of D ignored": lambda g: replace(g, stride=on_axis(g.stride, D, _one)),
    "stride of D one too large": lambda g: replace(g, stride=on_axis(g.stride, D, lambda u: u + 1)),
    "padding of D mirrored (before and after exchanged)": lambda g: _mirrored(g, D),
    "padding of D ignored": lambda g: replace(g, padding=on_axis(g.padding, D, _none)),
    "padding of D used for every axis": lambda g: replace(g, padding=everywhere(g.padding, D)),
    "padding of D one too large after": lambda g: _padded(g, D, after=1),
}

_FURTHER_DILATIONS: dict[str, Sees] = {
    "strides, padding and dilations swapped": lambda g: replace(
        g, stride=g.stride[::-1], padding=g.padding[::-1], dilation=g.dilation[::-1]
    ),
    "stride and dilation ignored": lambda g: replace(g, stride=(1,) * g.rank, dilation=(1,) * g.rank),
    "padding and dilation ignored": lambda g: replace(g, padding=((0, 0),) * g.rank, dilation=(1,) * g.rank),
    "stride, padding and dilation ignored": lambda g: replace(
        g, stride=(1,) * g.rank, padding=((0, 0),) * g.rank, dilation=(1,) * g.rank
    ),
    "dilation of H ignored": lambda g: replace(g, dilation=on_axis(g.dilation, H, _one)),
    "dilation of W ignored": lambda g: replace(g, dilation=on_axis(g.dilation, W, _one)),
    "dilation one too large": lambda g: replace(g, dilation=_more(g.dilation)),
    "dilation of H used for D": lambda g: replace(g, dilation=on_axis(g.dilation, D, lambda _: g.dilation[H])),
    "dilation of D ignored": lambda g: replace(g, dilation=on_axis(g.dilation, D, _one)),
}

FURTHER_IMAGES = tuple(Mistake(name, "index", compute) for name, compute in _FURTHER_IMAGES.items())
FURTHER_WINDOWS = tuple(Mistake(name, "index", misread(sees)) for name, sees in _FURTHER_WINDOWS.items())
FURTHER_DILATIONS = tuple(Mistake(name, "index", misread(sees)) for name, sees in _FURTHER_DILATIONS.items())
