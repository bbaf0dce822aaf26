"""Mistakes of index: the right products of the wrong elements, or too few of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.diagnosis.base import (
    BACKWARD_DATA,
    BACKWARD_WEIGHT,
    CONVOLVING,
    FORWARD,
    POOLING,
    Compute,
    InapplicableError,
    Mistake,
    Sees,
    misread,
    rolled,
    zeroed,
)
from conformance.operators import Arrays, ConvGeometry, Operator

TILES = (4, 8, 16, 32, 64, 128)

_MISREAD_KERNELS: dict[str, Compute] = {
    "kernel flipped in H": misread(w=lambda w, g: w[:, :, ::-1]),
    "kernel flipped in W": misread(w=lambda w, g: w[..., ::-1]),
    "kernel flipped in H and W": misread(w=lambda w, g: w[:, :, ::-1, ::-1]),
    "kernel transposed (R and S swapped)": misread(lambda g: replace(g, r=g.s, s=g.r), w=lambda w, g: w.swapaxes(2, 3)),
    "kernel strides of R and S swapped": misread(
        w=lambda w, g: w.reshape(*w.shape[:2], g.s, g.r).swapaxes(2, 3),
    ),
    "kernel read as KRSC instead of KCRS": misread(
        w=lambda w, g: w.reshape(g.k, g.r, g.s, -1).transpose(0, 3, 1, 2),
    ),
    "kernel rotated by one in H": misread(w=rolled(2)),
    "kernel rotated by one in W": misread(w=rolled(3)),
    "K and C of the kernel exchanged": misread(w=lambda w, g: _exchanged(w, g)),
    "last row of the kernel left out": misread(w=zeroed(..., -1, slice(None))),
    "last column of the kernel left out": misread(w=zeroed(..., -1)),
    "last tap of the kernel left out": misread(w=zeroed(..., -1, -1)),
}

_MISREAD_IMAGES: dict[str, Compute] = {
    "image transposed (H and W swapped)": misread(lambda g: replace(g, h=g.w, w=g.h), x=lambda x, g: x.swapaxes(2, 3)),
    "image strides of H and W swapped": misread(x=lambda x, g: x.reshape(g.n, g.c, g.w, g.h).swapaxes(2, 3)),
    "image read as NHWC instead of NCHW": misread(
        x=lambda x, g: x.reshape(g.n, g.h, g.w, g.c).transpose(0, 3, 1, 2),
    ),
    "y (dy) laid out as NHWC instead of NCHW": misread(
        y=lambda y, g: y.reshape(g.n, *g.output_size, -1).transpose(0, 3, 1, 2),
    ),
    "image n uses image n-1": misread(x=rolled(0)),
    "image n uses image n+1": misread(x=rolled(0, -1)),
    "every image uses image 0": misread(x=lambda x, g: np.repeat(x[:1], g.n, axis=0)),
    "output channels rotated by one": misread(y=rolled(1)),
    "output channels rotated back by one": misread(y=rolled(1, -1)),
    "input channels rotated back by one": misread(x=rolled(1, -1)),
    "input channels rotated by one": misread(x=rolled(1)),
    "last row of y (dy) left out": misread(y=zeroed(..., -1, slice(None))),
    "last column of y (dy) left out": misread(y=zeroed(..., -1)),
    "first row of y (dy) left out": misread(y=zeroed(..., 0, slice(None))),
    "last output channel left out": misread(y=zeroed(slice(None), -1)),
    "last image left out": misread(y=zeroed(-1)),
    "last row of x (dx) left out": misread(x=zeroed(..., -1, slice(None))),
    "last column of x (dx) left out": misread(x=zeroed(..., -1)),
    "last input channel left out": misread(x=zeroed(slice(None), -1)),
}


def _exchanged(w: np.ndarray, g: ConvGeometry) -> np.ndarray:
    if g.k != g.c:
        raise InapplicableError
    grouped = w.reshape(g.groups, g.k // g.groups, g.c // g.groups, g.r, g.s)
    return grouped.swapaxes(1, 2).reshape(w.shape)


def _padded(g: Any, top: int = 0, bottom: int = 0, left: int = 0, right: int = 0) -> Any:
    """Padding changed by so much; a side that is asked to give more than it has is a GeometryError."""
    (t, b), (le, ri) = g.padding
    return replace(g, padding=((t + top, b + bottom), (le + left, ri + right)))


_MISREAD_WINDOWS: dict[str, Sees] = {
    "strides swapped": lambda g: replace(g, stride=g.stride[::-1]),
    "stride ignored": lambda g: replace(g, stride=(1, 1)),
    "stride of H used for both axes": lambda g: replace(g, stride=(g.stride[0],) * 2),
    "stride of W used for both axes": lambda g: replace(g, stride=(g.stride[1],) * 2),
    "padding swapped between H and W": lambda g: replace(g, padding=g.padding[::-1]),
    "padding mirrored (before and after exchanged)": lambda g: replace(
        g, padding=(g.padding[0][::-1], g.padding[1][::-1])
    ),
    "padding all after": lambda g: replace(g, padding=((0, sum(g.padding[0])), (0, sum(g.padding[1])))),
    "padding all before": lambda g: replace(g, padding=((sum(g.padding[0]), 0), (sum(g.padding[1]), 0))),
    "padding ignored": lambda g: replace(g, padding=((0, 0), (0, 0))),
    "padding of H one too large before": lambda g: _padded(g, top=1),
    "padding of W one too large before": lambda g: _padded(g, left=1),
    "padding of H one too small before": lambda g: _padded(g, top=-1, bottom=1),
    "padding of W one too small before": lambda g: _padded(g, left=-1, right=1),
    "padding of H one too small after": lambda g: _padded(g, bottom=-1),
    "padding of W one too small after": lambda g: _padded(g, right=-1),
}

_MISREAD_DILATIONS: dict[str, Sees] = {
    "dilations swapped": lambda g: replace(g, dilation=g.dilation[::-1]),
    "dilation ignored": lambda g: replace(g, dilation=(1, 1)),
    "dilation of H used for both axes": lambda g: replace(g, dilation=(g.dilation[0],) * 2),
    "dilation of W used for both axes": lambda g: replace(g, dilation=(g.dilation[1],) * 2),
    "stride and dilation exchanged": lambda g: replace(g, stride=g.dilation, dilation=g.stride),
}


def _filled(mode: Any) -> Compute:
    """Padding with something else than zero: the kernel sees an unpadded image that is already enlarged."""

    def enlarged(g: ConvGeometry) -> ConvGeometry:
        return replace(g, h=g.h + sum(g.padding[0]), w=g.w + sum(g.padding[1]), padding=((0, 0), (0, 0)))

    def change(x: np.ndarray, g: ConvGeometry) -> np.ndarray:
        if g.padding == ((0, 0), (0, 0)):
            raise InapplicableError
        return np.pad(x, ((0, 0), (0, 0), *g.padding), mode=mode)

    return misread(enlarged, x=change)


_FILLED: dict[str, Compute] = {
    "padding circular instead of zero": _filled("wrap"),
    "padding reflected instead of zero": _filled("reflect"),
    "padding repeats the edge instead of zero": _filled("edge"),
}

Where = Mapping[str, tuple[str, tuple[int, ...]]]

_CHANNELS: Where = {
    **{FORWARD: ("y", (1,)), BACKWARD_DATA: ("dx", (1,)), BACKWARD_WEIGHT: ("dw", (0,))},
    **{"avg_pool_forward": ("y", (1,)), "avg_pool_backward": ("dx", (1,))},
}
_PLACES: Where = {
    **{FORWARD: ("y", (2, 3)), BACKWARD_DATA: ("dx", (2, 3)), BACKWARD_WEIGHT: ("dw", (1, 2, 3))},
    **{"avg_pool_forward": ("y", (2, 3)), "avg_pool_backward": ("dx", (2, 3))},
}
_SUMMED: Where = {FORWARD: ("w", (2, 3, 4)), BACKWARD_DATA: ("w", (1, 3, 4)), BACKWARD_WEIGHT: ("dy", (0, 2, 3))}
"""Operator -> tensor and axes; w is seen as [G, K/g, C/g, R, S]."""


def within_tiles(array: np.ndarray, axes: tuple[int, ...], tile: int) -> np.ndarray:
    """Zeros beyond the last full tile of the flattened axes. Raises InapplicableError if all tiles are full."""
    extents = [array.shape[axis] for axis in axes]
    count = math.prod(extents)
    if count < tile or count % tile == 0:
        raise InapplicableError
    kept = (np.arange(count) < count // tile * tile).reshape(extents)
    others = tuple(axis for axis in range(array.ndim) if axis not in axes)
    return np.where(np.expand_dims(kept, others), array, np.zeros((), array.dtype))


def _tail_of_output(where: Where, tile: int) -> Compute:
    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        name, axes = where[operator.name]
        within_tiles(np.empty(operator.outputs(geometry)[name].shape, bool), axes, tile)
        outputs = operator.reference(geometry, inputs, dtype)
        return outputs | {name: within_tiles(outputs[name], axes, tile)}

    return compute


def _tail_of_sum(tile: int) -> Compute:
    def compute(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        name, axes = _SUMMED[operator.name]
        array, g = inputs[name], geometry
        seen = array.reshape(g.groups, g.k // g.groups, g.c // g.groups, g.r, g.s) if name == "w" else array
        kept = within_tiles(seen, axes, tile).reshape(array.shape)
        outputs = operator.reference(geometry, inputs | {name: kept}, dtype)
        if "dbias" in outputs:
            outputs["dbias"] = array.sum(axis=(0, 2, 3), dtype=dtype)
        return outputs

    return compute


def _tails() -> Iterator[Mistake]:
    for tile in TILES:
        yield Mistake(
            f"tail of the channels beyond tiles of {tile} dropped",
            "index",
            _tail_of_output(_CHANNELS, tile),
            tuple(_CHANNELS),
        )
        yield Mistake(
            f"tail of the places beyond tiles of {tile} dropped",
            "index",
            _tail_of_output(_PLACES, tile),
            tuple(_PLACES),
        )
        yield Mistake(f"tail of the sum beyond tiles of {tile} dropped", "index", _tail_of_sum(tile))


_WITH_WINDOWS = (*CONVOLVING, *POOLING)

INDEX: tuple[Mistake, ...] = (
    *(Mistake(name, "index", compute, CONVOLVING) for name, compute in _MISREAD_KERNELS.items()),
    *(Mistake(name, "index", compute, _WITH_WINDOWS) for name, compute in _MISREAD_IMAGES.items()),
    *(Mistake(name, "index", misread(sees), _WITH_WINDOWS) for name, sees in _MISREAD_WINDOWS.items()),
    *(Mistake(name, "index", misread(sees), CONVOLVING) for name, sees in _MISREAD_DILATIONS.items()),
    *(Mistake(name, "index", compute, CONVOLVING) for name, compute in _FILLED.items()),
    *_tails(),
)
