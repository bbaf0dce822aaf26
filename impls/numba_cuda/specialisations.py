"""Every kernel with the types it is compiled for, so that all of them can be compiled before any is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import conv_bn, direct, igemm, pool, reduce, tiled
from .plan import CHOICES, MAX_WIDE, SHAPES, TARGETS, Patch
from .storage import FORMATS, FP32, FP64, Format
from .target import types


class Specialisation(NamedTuple):
    name: str
    function: Callable[..., Any]
    signature: Any


INTEGER = types.int64
RANKS = {2: (), 3: ("3-D",)}
"""Number of axes of space -> mark of it in a name: an image of one axis is a row of two."""


def _table(rank: int) -> Any:
    return types.UniTuple(types.UniTuple(INTEGER, rank + 2), rank + 3)


def _integers(count: int) -> Any:
    return types.UniTuple(INTEGER, count)


def _array(of: Format) -> Any:
    return types.Array(of.element, 1, "C")


def _wide(stored: Format) -> Format:
    return FP64 if stored is FP64 else FP32


def _named(kernel: Any, arguments: tuple[Any, ...], *what: object) -> Specialisation:
    name = " ".join(str(part) for part in (kernel.py_func.__name__, *what))
    return Specialisation(name, kernel.py_func, types.void(*arguments))


def products(stored: Format, result: Format) -> Iterator[Specialisation]:
    """Yield the kernels of convolution, for every tile that accumulators fit into, and for patches of a window of three
    rows and the smallest."""
    arrays = _array(result), *[_array(stored)] * 3
    arguments = *arrays, *[_table(2)] * 2, _integers(9)
    what = f"{stored.name} to {result.name}"
    yield _named(direct.kernel(stored, result), (*arguments, _integers(4)), what)
    for _, _, tile in CHOICES:
        for rank, name in RANKS.items() if stored is not FP64 or tile.results <= MAX_WIDE else ():
            parameters = *arrays, *[_table(rank)] * 2, _integers(7 + rank), _integers(7)
            yield _named(igemm.kernel(stored, result, tile, rank), parameters, what, tile, *name)
    for shape in (*((*shape, 3) for _, *shape in SHAPES), (1, 32, 1, 1)):
        for patch in (Patch(*shape, 1), Patch(*shape, TARGETS)):
            for family in (tiled.gather_kernel, tiled.scatter_kernel):
                kernel = family(stored, result, patch)
                yield _named(kernel, (*arguments, _integers(9), _integers(4)), what, patch)


def sums(stored: Format) -> Iterator[Specialisation]:
    array, wide, four = _array(stored), _wide(stored), _integers(4)
    partials = reduce._partials_kernel(wide, stored)
    yield _named(partials, (array, _array(wide), INTEGER, INTEGER), stored.name)
    for rank, name in RANKS.items():
        channels = reduce._channels_kernel(reduce.itself, stored, stored, wide, rank)
        forms = *[_integers(rank + 2)] * 3, _integers(5)
        yield _named(channels, (_array(wide), array, array, _array(wide), *forms), stored.name, *name)
    for backward in (False, True):
        shape = _integers(6), _integers(6), four, four, four, _integers(2)
        yield _named(pool._kernel(stored, backward), (array, array, *shape), stored.name, backward)


def normalisation(stored: Format) -> Iterator[Specialisation]:
    wide, vector = _wide(stored), _array(FP64)
    for rank, name in RANKS.items():
        form = _integers(rank + 2)
        for term in (conv_bn._deviation, conv_bn._square, conv_bn._covariance):
            kernel = reduce._channels_kernel(term, wide, stored, FP64, rank)
            arrays = vector, _array(wide), _array(stored), vector
            yield _named(kernel, (*arrays, *[form] * 3, _integers(5)), stored.name, term.__name__, *name)
        for result, both in ((stored, False), (wide, True)):
            kernel = conv_bn._affine_kernel(wide, stored, result, both, rank)
            arrays = _array(result), _array(wide), _array(stored)
            yield _named(kernel, (*arrays, *[vector] * 4, *[form] * 4, _integers(4)), stored.name, both, *name)


def every() -> Iterator[Specialisation]:
    """Yield all kernels: operands and result of one format; partial sums, or z, of halves; and gradients of a z."""
    pairs = [pair for s in FORMATS.values() for pair in ((s, s), (s, _wide(s)), (_wide(s), s))]
    for pair in dict.fromkeys(pairs):
        yield from products(*pair)
    for stored in FORMATS.values():
        yield from sums(stored)
        yield from normalisation(stored)
