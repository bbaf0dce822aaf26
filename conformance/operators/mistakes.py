"""What a known mistake is: an exact computation of the wrong thing, made from the operator's own reference.

And those mistakes that families share: the right products of the wrong elements of an image, or too few of them.

Most mistakes are a kernel that sees other parameters than it was given, or that reads or writes a tensor in another
order. Such a kernel is the reference on a mutated geometry and rearranged inputs; an output is rearranged by the
adjoint, so that one statement covers all directions of an operator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.spatial import RANKS, Extents, GeometryError, spans, unpadded

TILES = (4, 8, 16, 32, 64, 128)

T = TypeVar("T")
Compute = Callable[[Operator, Any, Arrays, Any], Arrays]
"""(operator, geometry, inputs, dtype) -> outputs computed in dtype."""
Sees = Callable[[Any], Any]
"""From a geometry to the one that the kernel takes it for."""
Change = Callable[[np.ndarray, Any], np.ndarray]
"""Moves, copies or zeroes elements of a tensor. It never computes with them, so that it can be applied to indices."""

_ROLES = {"x": "x", "dx": "x", "w": "w", "dw": "w", "y": "y", "dy": "y", "bias": "bias", "dbias": "bias"}


AXES_NAMED = {
    3: re.compile(r"\b(D|T|plane)\b"),
    2: re.compile(r"\b(H|rows?|axes|transposed|column-major|every column apart|R\*R|(strides|dilations) swapped)\b"),
}
"""Number of dimensions -> what the name of a mistake has that does not exist in fewer."""


class InapplicableError(Exception):
    """The mistake does not exist on this problem."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong computation with a name that completes the sentence "likely cause: ...".

    Of those operators in whose family it is listed, it can be one of all, or of `operators` only.
    """

    name: str
    kind: str
    compute: Compute
    operators: tuple[str, ...] = ()
    when: Callable[[Any], bool] = lambda geometry: True

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of dimensions that it exists in: those that have the axes which its name speaks of."""
        named = next((least for least, axes in AXES_NAMED.items() if axes.search(self.name)), 1)
        least = max(named, self.compute.rank) if isinstance(self.compute, Misread) else named
        return tuple(rank for rank in RANKS if rank >= least)

    def outputs(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: Any = np.float64) -> Arrays | None:
        """What a kernel with this mistake computes; None where the mistake does not exist."""
        return self._attempted(self.compute, operator, geometry, inputs, dtype)

    def read_beyond(self, operator: Operator, geometry: Any, inputs: Arrays) -> Arrays | None:
        """The same of a kernel that makes all of y (or takes all of dy) with the windows that it sees, those beyond
        the image too; None where that is no difference."""
        if not isinstance(self.compute, Misread):
            return None
        return self._attempted(self.compute.beyond, operator, geometry, inputs)

    def taken_for(self, operator: Operator, geometry: Any) -> tuple[Any, ...]:
        """The geometries that a kernel with this mistake may take a problem for, if it chooses sizes by itself."""
        if not isinstance(self.compute, Misread):
            return ()
        return self._attempted(self.compute.taken_for, operator, geometry) or ()

    def outputs_as(self, operator: Operator, geometry: Any, seen: Any, inputs: Arrays) -> Arrays | None:
        """The outputs of such a kernel, in the shapes of one of the geometries of `taken_for`; None where the mistake
        does not exist."""
        if not isinstance(self.compute, Misread):
            return None
        return self._attempted(self.compute.computed, operator, geometry, seen, inputs)

    def _attempted(self, compute: Callable[..., T], operator: Operator, geometry: Any, *rest: Any) -> T | None:
        if (self.operators and operator.name not in self.operators) or not self.when(geometry):
            return None
        if geometry.rank not in self.ranks:
            return None
        try:
            with np.errstate(all="ignore"):
                return compute(operator, geometry, *rest)
        except (GeometryError, InapplicableError):
            return None


@dataclass(frozen=True, slots=True, eq=False)
class Misread:
    """The reference on the geometry that the kernel sees; `changes` rearrange x, w, y or bias, in or out. It exists in
    `rank` dimensions and more."""

    sees: Sees
    changes: Mapping[str, Change]
    rank: int = 1

    def __call__(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        """The outputs as they lie in buffers of the right shapes."""
        return self._restored(operator, geometry, self.computed(operator, geometry, self.sees(geometry), inputs, dtype))

    def computed(self, operator: Operator, geometry: Any, seen: Any, inputs: Arrays, dtype: Any = np.float64) -> Arrays:
        """The outputs in the shapes of the geometry that the problem is taken for."""
        changed = dict(inputs)
        for name in inputs:
            if change := self._change(name):
                changed[name] = change(inputs[name], geometry)
        given = {name: fitted(changed[name], tensor.shape) for name, tensor in operator.inputs(seen).items()}
        return operator.reference(seen, given, dtype)

    def beyond(self, operator: Operator, geometry: Any, inputs: Arrays) -> Arrays:
        """The outputs where as many windows are taken as there are. Raises InapplicableError where that is the same."""
        seen = self.sees(geometry)
        if seen.output_size == geometry.output_size:
            raise InapplicableError
        spanned = spanning(seen, geometry.output_size)
        return self._restored(operator, geometry, self.computed(operator, geometry, spanned, inputs))

    def taken_for(self, operator: Operator, geometry: Any) -> tuple[Any, ...]:
        """What the kernel sees; for a gradient also with the image, or the window, whose size dy implies."""
        if any(self._change(name) for name in operator.outputs(geometry)):
            return ()
        seen = self.sees(geometry)
        if "dy" not in operator.arguments or hasattr(seen, "reaching"):
            return (seen,)
        moved = [
            (p - 1) * u - sum(sides)
            for p, u, sides in zip(geometry.output_size, seen.stride, seen.padding, strict=True)
        ]
        image = tuple(first + span for first, span in zip(moved, spans(seen), strict=True))
        axes = zip(seen.size, moved, seen.dilation, strict=True)
        window = tuple((size - first - 1) // d + 1 for size, first, d in axes)
        found = [seen]
        for sizes in ({"size": image}, {"window": window}):
            with suppress(GeometryError):
                found.append(replace(seen, **sizes))
        return tuple(found)

    def _change(self, name: str) -> Change | None:
        return self.changes.get(_ROLES.get(name, name))

    def _restored(self, operator: Operator, geometry: Any, found: Arrays) -> Arrays:
        return {
            name: restored(found[name], self._change(name), tensor.shape, geometry)
            for name, tensor in operator.outputs(geometry).items()
        }


def misread(sees: Sees = lambda geometry: geometry, *, rank: int = 1, **changes: Change) -> Misread:
    """The mistake of a kernel that sees other parameters, or tensors in another order."""
    return Misread(sees, changes, rank)


H, W, D = -2, -1, -3
"""Axes of an image or a window, counted from the last."""


def on_axis(values: tuple[T, ...], axis: int, change: Callable[[T], T]) -> tuple[T, ...]:
    """Values of every axis, one of them changed. Raises InapplicableError where there is no such axis."""
    if -axis > len(values):
        raise InapplicableError
    return tuple(change(value) if place == len(values) + axis else value for place, value in enumerate(values))


def everywhere(values: tuple[T, ...], axis: int) -> tuple[T, ...]:
    """One axis's value on every one."""
    if -axis > len(values):
        raise InapplicableError
    return (values[axis],) * len(values)


def swapped(values: tuple[T, ...]) -> tuple[T, ...]:
    """Those of the last two axes exchanged; of a single one nothing."""
    return values if len(values) < 2 else (*values[:-2], values[-1], values[-2])


def spanning(g: Any, size: Extents) -> Any:
    """The geometry with windows for an output of this size, padded as far as they reach and no further.

    Of a pooling, which has no windows of padding alone, as many as begin in the image. A transposed convolution has its
    windows in the output, which is cropped at its end.
    """
    if hasattr(g, "reaching"):
        return g.reaching(size)
    sizes, padding = [], []
    for extent, count, span, stride, (before, _) in zip(g.size, size, spans(g), g.stride, g.padding, strict=True):
        if hasattr(g, "ceil_mode"):
            count = min(count, -(-(extent + before) // stride))
        end = (count - 1) * stride + span - before
        sizes.append(min(extent, end))
        padding.append((before, max(0, end - extent)))
    return replace(g, size=tuple(sizes), padding=tuple(padding))


def fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array cropped and filled with zeros to `shape`, aligned at the first elements."""
    if array.shape == shape:
        return array
    out = np.zeros(shape, array.dtype)
    kept = tuple(slice(min(pair)) for pair in zip(array.shape, shape, strict=True))
    out[kept] = array[kept]
    return out


def restored(found: np.ndarray, change: Change | None, shape: tuple[int, ...], geometry: Any) -> np.ndarray:
    """The adjoint of `fitted(change(...))`: every element of `found` added where the change takes it from."""
    if change is None:
        return fitted(found, shape)
    size = int(np.prod(shape))
    places = change(np.arange(1, size + 1).reshape(shape), geometry)
    sums = np.bincount(fitted(places, found.shape).reshape(-1), found.reshape(-1), size + 1)
    return sums[1:].reshape(shape).astype(found.dtype)


def zeroed(*where: Any) -> Change:
    """The tensor with zeros at an index such as `..., -1`."""

    def change(array: np.ndarray, _: Any) -> np.ndarray:
        out = array.copy()
        out[where] = 0
        return out

    return change


def rolled(axis: int, by: int = 1) -> Change:
    """The tensor rotated along an axis."""
    return lambda array, _: np.roll(array, by, axis)


def of_neighbours(dx: np.ndarray, rank: int) -> np.ndarray:
    """What the elements before, on the last axis and the one before it, add up to."""
    found: np.ndarray = np.roll(dx, 1, -1) + (np.roll(dx, 1, -2) if rank > 1 else 0)
    return found


def on_outputs(change: Change, *names: str) -> Compute:
    """The reference with something done to the outputs of these names."""

    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        outputs = operator.reference(geometry, inputs, dtype)
        present = [name for name in names if name in outputs]
        return outputs | {name: change(outputs[name], geometry).astype(outputs[name].dtype) for name in present}

    return compute


def channels_last(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A buffer of [N, C, H, W] (`shape`) taken for one of [N, H, W, C]."""
    n, c, *size = shape
    return np.moveaxis(array.reshape(n, *size, c), -1, 1)


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


def _padded(g: Any, axis: int, before: int = 0, after: int = 0) -> Any:
    """Padding of an axis changed by so much; a side that is asked to give more than it has is a GeometryError."""
    return replace(g, padding=on_axis(g.padding, axis, lambda sides: (sides[0] + before, sides[1] + after)))


def _with_padding(change: Callable[[tuple[int, int]], tuple[int, int]]) -> Sees:
    """The sides of every axis changed."""
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
    """Those of D and H exchanged."""
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
    """Zeros beyond the last full tile of the flattened axes. Raises InapplicableError if all tiles are full."""
    extents = [array.shape[axis] for axis in axes]
    count = math.prod(extents)
    if count < tile or count % tile == 0:
        raise InapplicableError
    kept = (np.arange(count) < count // tile * tile).reshape(extents)
    others = tuple(axis for axis in range(array.ndim) if axis not in axes)
    return np.where(np.expand_dims(kept, others), array, np.zeros((), array.dtype))


def tails_of_output() -> Iterator[Mistake]:
    """Of the main output's channels, which are its second axis (the first one of a filter), and of its places."""

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
    """What a loop over all elements leaves out that ends one too early."""
    return zeroed(*[-1] * array.ndim)(array, g)


_FURTHER_IMAGES: dict[str, Compute] = {
    "last place of y (dy) left out": misread(rank=2, y=lambda y, g: zeroed(..., *[-1] * g.rank)(y, g)),
    "last element of y (dy) left out": misread(y=_last),
    "last element of x (dx) left out": misread(x=_last),
}

_FURTHER_WINDOWS: dict[str, Sees] = {
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
    "dilation of H ignored": lambda g: replace(g, dilation=on_axis(g.dilation, H, _one)),
    "dilation of W ignored": lambda g: replace(g, dilation=on_axis(g.dilation, W, _one)),
    "dilation one too large": lambda g: replace(g, dilation=_more(g.dilation)),
    "dilation of H used for D": lambda g: replace(g, dilation=on_axis(g.dilation, D, lambda _: g.dilation[H])),
    "dilation of D ignored": lambda g: replace(g, dilation=on_axis(g.dilation, D, _one)),
}

FURTHER_IMAGES = tuple(Mistake(name, "index", compute) for name, compute in _FURTHER_IMAGES.items())
FURTHER_WINDOWS = tuple(Mistake(name, "index", misread(sees)) for name, sees in _FURTHER_WINDOWS.items())
FURTHER_DILATIONS = tuple(Mistake(name, "index", misread(sees)) for name, sees in _FURTHER_DILATIONS.items())
