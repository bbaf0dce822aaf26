"""Kernels that are right up to a size: an index that wraps beyond it, a last element that nobody writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from conformance.operators import CONVOLUTIONS, MAXIMA, NORMALISED, OPERATORS, ORDINARY, POOLINGS, Arrays, Operator
from conformance.operators.known_kernels.kernel import Mutant, Run, exact
from conformance.operators.spatial import RANKS, is_padded

Size = Callable[[Any], int]
When = Callable[[Any], bool]

AXES = {"images": 0, "channels": 1, "rows": -2, "columns": -1, "planes": -3}
RANKS_OF = {"rows": (2, 3), "row": (2, 3), "above": (2, 3), "planes": (3,), "plane": (3,)}
"""Word in a name -> the numbers of dimensions that have such an axis; others are in all."""
PATHS: dict[str, When] = {
    "1x1": lambda g: g.groups == 1 and {*g.window} == {1},
    "3x3": lambda g: g.groups == 1 and {*g.window} == {3},
    "unpadded 3x3": lambda g: g.groups == 1 and {*g.window} == {3} and not is_padded(g.padding),
    "depthwise": lambda g: g.groups == g.c > 1,
    "grouped": lambda g: 1 < g.groups < g.c,
}
CONV, CONV_BN, AVERAGE, MAXIMUM = CONVOLUTIONS, NORMALISED, POOLINGS, MAXIMA


def data_shape(operators: tuple[str, ...], geometry: Any) -> tuple[int, ...]:
    """Of the first of the operators that takes the geometry: the input that is spread over."""
    return next(
        OPERATORS[name].inputs(geometry)[OPERATORS[name].data].shape
        for name in operators
        if OPERATORS[name].family == geometry.family
    )


def wrapped(axis: int, bits: int) -> Run:
    """Positions on an axis of the data that are held in so many bits."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        data = inputs[operator.data]
        places = np.arange(data.shape[axis]) % (1 << bits)
        return exact(operator, geometry, inputs | {operator.data: np.take(data, places, axis)}, dtype)

    return run


def unwritten(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """The last element of the first output stays zero, or is one where it is zero."""
    outputs = exact(operator, geometry, inputs, dtype)
    first = next(iter(outputs.values()))
    first.flat[-1] = not first.flat[-1]
    return outputs


def _ranks(name: str) -> tuple[int, ...]:
    return next((RANKS_OF[word] for word in name.split() if word in RANKS_OF), RANKS)


def _wrapping() -> Iterator[Mutant]:
    for name, axis in AXES.items():
        for bits in (8, 10, 15, 16):
            for operator in ORDINARY:
                yield Mutant(
                    f"{name} counted in {bits} bits, {operator}", "sizes", wrapped(axis, bits), operators=(operator,),
                    when=_longer(operator, axis, bits), base=exact, ranks=_ranks(name),
                )  # fmt: skip
        for path, taken in PATHS.items():
            bits = 12 if axis == 1 and path in ("unpadded 3x3", "grouped") else 16
            yield Mutant(
                f"{name} counted in {bits} bits, {path} alone", "sizes", wrapped(axis, bits), operators=CONV[:1],
                when=_both(_longer(CONV[0], axis, bits), taken), base=exact, ranks=_ranks(name),
            )  # fmt: skip


def _longer(operator: str, axis: int, bits: int) -> When:
    return lambda g: data_shape((operator,), g)[axis] > 1 << bits


def _both(first: When, second: When) -> When:
    return lambda g: first(g) and second(g)


def _beyond(size: Size, limit: int) -> When:
    return lambda g: size(g) > limit


def _is_one(size: Size) -> When:
    return lambda g: size(g) == 1


_STEPS: dict[str, Size] = {
    "window rows": lambda g: g.r,
    "window columns": lambda g: g.s,
    "window": lambda g: math.prod(g.window),
    "stride of rows": lambda g: g.stride[-2],
    "stride of columns": lambda g: g.stride[-1],
    "padding above": lambda g: g.padding[-2][0],
    "padding on the right": lambda g: g.padding[-1][1],
}
_DILATION: dict[str, Size] = {
    "dilation of rows": lambda g: g.dilation[-2],
    "dilation of columns": lambda g: g.dilation[-1],
}
_PRODUCTS: dict[str, Size] = {
    "products of an element": lambda g: g.filter.size // g.k,
    "weights": lambda g: g.filter.size,
    "filters": lambda g: g.k,
    "groups": lambda g: g.groups,
}
_PLANES: dict[str, Size] = {
    "elements of an image": lambda g: math.prod(g.size),
    "images and channels": lambda g: g.n * g.c,
    "statistics": lambda g: g.y.size // g.y.shape[1],
}
_ONES: dict[str, Size] = {
    "image": lambda g: g.n, "channel": lambda g: g.c, "row": lambda g: g.h, "column": lambda g: g.w,
    "output row": lambda g: g.output_size[-2], "output column": lambda g: g.output_size[-1],
    "plane": lambda g: g.d, "output plane": lambda g: g.output_size[-3],
}  # fmt: skip
_LIMITS: tuple[tuple[tuple[str, ...], dict[str, Size], int], ...] = (
    (CONV, _STEPS | _DILATION, 1 << 8),
    (CONV_BN, _STEPS | _DILATION, 1 << 8),
    (AVERAGE, _STEPS, 1 << 8),
    (MAXIMUM, _STEPS | _DILATION, 1 << 8),
    (CONV, _PRODUCTS | _PLANES, 1 << 16),
    (CONV_BN, _PRODUCTS | _PLANES, 1 << 16),
    (CONV_BN, {"statistics": _PLANES["statistics"]}, 1 << 17),
    (AVERAGE, _PLANES, 1 << 16),
    (MAXIMUM, _PLANES, 1 << 16),
)


def _unwritten() -> Iterator[Mutant]:
    for operators, sizes, limit in _LIMITS:
        for name, size in sizes.items():
            text = f"last element not written, {name} beyond {limit}, {OPERATORS[operators[0]].family}"
            yield Mutant(
                text, "sizes", unwritten, operators=operators, when=_beyond(size, limit), base=exact,
                ranks=_ranks(name),
            )  # fmt: skip
    for operators in (CONV, CONV_BN, AVERAGE, MAXIMUM):
        for name, size in _ONES.items():
            text = f"last element not written, one {name}, {OPERATORS[operators[0]].family}"
            yield Mutant(
                text, "sizes", unwritten, operators=operators, when=_is_one(size), base=exact, ranks=_ranks(name)
            )
    for rest in range(16):  # the remainder of a vector of 16 columns
        yield Mutant(
            f"last element not written, {rest} columns over 16", "sizes", unwritten, operators=CONV[:1],
            when=_remainder(rest), base=exact,
        )  # fmt: skip


def _remainder(rest: int) -> When:
    return lambda g: g.output_size[-1] > 16 and g.output_size[-1] % 16 == rest


KNOWN_BAD: tuple[Mutant, ...] = (*_wrapping(), *_unwritten())
