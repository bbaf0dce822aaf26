"""What a known mistake is: an exact computation of the wrong thing, made from the operator's own reference.

And those mistakes that families share: the right products of the wrong elements of an image, or too few of them.

Most mistakes are a kernel that sees other parameters than it was given, or that reads or writes a tensor in another
order. Such a kernel is the reference on a mutated geometry and rearranged inputs; an output is rearranged by the
adjoint, so that one statement covers all directions of an operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.spatial import UNPADDED, GeometryError, Pair

TILES = (4, 8, 16, 32, 64, 128)

T = TypeVar("T")
Compute = Callable[[Operator, Any, Arrays, Any], Arrays]
"""(operator, geometry, inputs, dtype) -> outputs computed in dtype."""
Sees = Callable[[Any], Any]
"""From a geometry to the one that the kernel takes it for."""
Change = Callable[[np.ndarray, Any], np.ndarray]
"""Moves, copies or zeroes elements of a tensor. It never computes with them, so that it can be applied to indices."""

_ROLES = {"x": "x", "dx": "x", "w": "w", "dw": "w", "y": "y", "dy": "y", "bias": "bias", "dbias": "bias"}


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
        try:
            with np.errstate(all="ignore"):
                return compute(operator, geometry, *rest)
        except (GeometryError, InapplicableError):
            return None


@dataclass(frozen=True, slots=True, eq=False)
class Misread:
    """The reference on the geometry that the kernel sees; `changes` rearrange x, w, y or bias, in or out."""

    sees: Sees
    changes: Mapping[str, Change]

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
        if "dy" not in operator.arguments:
            return (seen,)
        (p, q), (u, v), (d, e), (rows, columns) = geometry.output_size, seen.stride, seen.dilation, seen.padding
        top, left = (p - 1) * u - sum(rows), (q - 1) * v - sum(columns)
        image = {"h": top + d * (seen.r - 1) + 1, "w": left + e * (seen.s - 1) + 1}
        window = {"r": (seen.h - top - 1) // d + 1, "s": (seen.w - left - 1) // e + 1}
        found = [seen]
        for sizes in (image, window):
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


def misread(sees: Sees = lambda geometry: geometry, **changes: Change) -> Misread:
    """The mistake of a kernel that sees other parameters, or tensors in another order."""
    return Misread(sees, changes)


def spanning(g: Any, size: Pair) -> Any:
    """The geometry with windows for an output of this size, padded as far as they reach and no further.

    Of a pooling, which has no windows of padding alone, as many as begin in the image.
    """
    sizes, padding = [], []
    axes = zip((g.h, g.w), size, (g.r, g.s), g.stride, g.padding, g.dilation, strict=True)
    for extent, count, taps, stride, (before, _), dilation in axes:
        if hasattr(g, "ceil_mode"):
            count = min(count, -(-(extent + before) // stride))
        end = (count - 1) * stride + dilation * (taps - 1) + 1 - before
        sizes.append(min(extent, end))
        padding.append((before, max(0, end - extent)))
    return replace(g, h=sizes[0], w=sizes[1], padding=tuple(padding))


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


def on_outputs(change: Change, *names: str) -> Compute:
    """The reference with something done to the outputs of these names."""

    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        outputs = operator.reference(geometry, inputs, dtype)
        present = [name for name in names if name in outputs]
        return outputs | {name: change(outputs[name], geometry).astype(outputs[name].dtype) for name in present}

    return compute


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
    "padding ignored": lambda g: replace(g, padding=UNPADDED),
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
            channel = 0 if tensor.axes == "KCRS" else 1
            axes = (channel,) if of_channels else tuple(range(channel + 1, 4))
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

_FURTHER_WINDOWS: dict[str, Sees] = {
    "stride of H ignored": lambda g: replace(g, stride=(1, g.stride[1])),
    "stride of W ignored": lambda g: replace(g, stride=(g.stride[0], 1)),
    "stride one too large": lambda g: replace(g, stride=(g.stride[0] + 1, g.stride[1] + 1)),
    "stride of H one too large": lambda g: replace(g, stride=(g.stride[0] + 1, g.stride[1])),
    "stride of W one too large": lambda g: replace(g, stride=(g.stride[0], g.stride[1] + 1)),
    "padding before ignored": lambda g: replace(g, padding=tuple((0, after) for _, after in g.padding)),
    "padding after ignored": lambda g: replace(g, padding=tuple((before, 0) for before, _ in g.padding)),
    "padding of H ignored": lambda g: replace(g, padding=((0, 0), g.padding[1])),
    "padding of W ignored": lambda g: replace(g, padding=(g.padding[0], (0, 0))),
    "padding of H used for both axes": lambda g: replace(g, padding=(g.padding[0],) * 2),
    "padding of W used for both axes": lambda g: replace(g, padding=(g.padding[1],) * 2),
    "padding before used on both sides": lambda g: replace(g, padding=tuple((side, side) for side, _ in g.padding)),
    "padding after used on both sides": lambda g: replace(g, padding=tuple((side, side) for _, side in g.padding)),
    "padding one too large": lambda g: _padded(g, 1, 1, 1, 1),
    "padding one too small": lambda g: _padded(g, -1, -1, -1, -1),
    "padding of H one too large after": lambda g: _padded(g, bottom=1),
    "padding of W one too large after": lambda g: _padded(g, right=1),
}

_FURTHER_DILATIONS: dict[str, Sees] = {
    "dilation of H ignored": lambda g: replace(g, dilation=(1, g.dilation[1])),
    "dilation of W ignored": lambda g: replace(g, dilation=(g.dilation[0], 1)),
    "dilation one too large": lambda g: replace(g, dilation=(g.dilation[0] + 1, g.dilation[1] + 1)),
}

FURTHER_WINDOWS = tuple(Mistake(name, "index", misread(sees)) for name, sees in _FURTHER_WINDOWS.items())
FURTHER_DILATIONS = tuple(Mistake(name, "index", misread(sees)) for name, sees in _FURTHER_DILATIONS.items())
