"""Every kernel with the types it is compiled for, so that all of them can be compiled before any is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import conv_bn, direct, igemm, pool, reduce, tiled
from .plan import CHOICES, MOST_WIDE, SHAPES, TARGETS, Patch, Tile
from .storage import FORMATS, FP32, FP64, Format
from .target import types


class Specialisation(NamedTuple):
    """A kernel's function and the signature of a launch."""

    name: str
    function: Callable[..., Any]
    signature: Any


INTEGER = types.int64
TABLE = types.UniTuple(types.UniTuple(INTEGER, 4), 5)


def _integers(count: int) -> Any:
    return types.UniTuple(INTEGER, count)


def _array(of: Format) -> Any:
    return types.Array(of.element, 1, "C")


def _wide(stored: Format) -> Format:
    return FP64 if stored is FP64 else FP32


def _named(kernel: Any, arguments: tuple[Any, ...], *what: object) -> Specialisation:
    name = " ".join(str(part) for part in (kernel.py_func.__name__, *what))
    return Specialisation(name, kernel.py_func, types.void(*arguments))


def pairs() -> list[tuple[Format, Format]]:
    """Formats of operands and result: the same, partial sums or z of halves, and gradients of a z."""
    found = []
    for stored in FORMATS.values():
        wide = _wide(stored)
        found += [(stored, stored), (stored, wide), (wide, stored)]
    return list(dict.fromkeys(found))


def tiles(stored: Format) -> list[Tile]:
    """Those of the table that the accumulators of a format fit into."""
    return [c.tile for c in CHOICES if stored is not FP64 or c.tile.results <= MOST_WIDE]


def patches() -> list[Patch]:
    """Those of the table for a window of three rows, and the least."""
    shapes = [(*shape, 3) for _, *shape in SHAPES] + [(1, 32, 1, 1)]
    return [Patch(*shape, targets) for shape in shapes for targets in (1, TARGETS)]


def products(stored: Format, result: Format) -> Iterator[Specialisation]:
    """The three kernels of convolution."""
    arrays = _array(result), *[_array(stored)] * 3
    what = f"{stored.name} to {result.name}"
    yield _named(direct.kernel(stored, result), (*arrays, TABLE, TABLE, _integers(9), _integers(4)), what)
    for tile in tiles(stored):
        kernel = igemm.kernel(stored, result, tile)
        yield _named(kernel, (*arrays, TABLE, TABLE, _integers(9), _integers(7)), what, tile)
    for patch in patches():
        for family in (tiled.gather_kernel, tiled.scatter_kernel):
            kernel = family(stored, result, patch)
            yield _named(kernel, (*arrays, TABLE, TABLE, _integers(9), _integers(9), _integers(4)), what, patch)


def sums(stored: Format) -> Iterator[Specialisation]:
    """Reductions and what is done element by element."""
    wide, four = _wide(stored), _integers(4)
    partials = reduce._partials_kernel(wide, stored)
    yield _named(partials, (_array(stored), _array(wide), INTEGER, INTEGER), stored.name)
    channels = reduce._channels_kernel(reduce.itself, stored, stored, wide)
    arrays = _array(wide), _array(stored), _array(stored), _array(wide)
    yield _named(channels, (*arrays, four, four, four, _integers(5)), stored.name)
    for backward in (False, True):
        kernel = pool._kernel(stored, backward)
        shape = _integers(6), _integers(6), four, four, four, _integers(2)
        yield _named(kernel, (_array(stored), _array(stored), *shape), stored.name, backward)


def normalisation(stored: Format) -> Iterator[Specialisation]:
    """What batch normalisation adds."""
    wide, four, vector = _wide(stored), _integers(4), _array(FP64)
    for term in (conv_bn._deviation, conv_bn._square, conv_bn._covariance):
        kernel = reduce._channels_kernel(term, wide, stored, FP64)
        arrays = vector, _array(wide), _array(stored), vector
        yield _named(kernel, (*arrays, four, four, four, _integers(5)), stored.name, term.__name__)
    for result, both in ((stored, False), (wide, True)):
        kernel = conv_bn._affine_kernel(wide, stored, result, both)
        arrays = _array(result), _array(wide), _array(stored)
        yield _named(kernel, (*arrays, *[vector] * 4, *[four] * 4), stored.name, both)


def every() -> Iterator[Specialisation]:
    """All of them."""
    for pair in pairs():
        yield from products(*pair)
    for stored in FORMATS.values():
        yield from sums(stored)
        yield from normalisation(stored)
