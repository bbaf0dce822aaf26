"""Kernels that are right up to a size, or except at an edge of the parameters: an index that wraps beyond it, a last
element that is never written, an argument that is misread there alone.

Kernels that are wrong only for partial requests need a process of their own: `tests/field/requests.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import gt, le
from typing import Any

import numpy as np

from conformance.operators import CONVOLUTIONS, FAMILIES, OPERATORS, ORDINARY, Arrays, Operator
from conformance.operators.spatial import RANKS, Extents, is_padded, spans
from conformance.operators.table import names_of
from tests.calibration.kernels.kernel import Mutant, Run, exact
from tests.calibration.kernels.structure import Paths, both, on_paths

Size = Callable[[Any], int]
When = Callable[[Any], bool]

AXES = {"images": 0, "channels": 1, "rows": -2, "columns": -1, "planes": -3}
RANKS_OF = {"5x5": (2,), "rows": (2, 3), "row": (2, 3), "above": (2, 3), "planes": (3,), "plane": (3,)}
"""Word in a name -> the numbers of dimensions that have such an axis; a name without such a word is for all."""
PATHS: dict[str, When] = {
    "1x1": lambda g: g.groups == 1 and {*g.window} == {1},
    "3x3": lambda g: g.groups == 1 and {*g.window} == {3},
    "unpadded 3x3": lambda g: g.groups == 1 and {*g.window} == {3} and not is_padded(g.padding),
    "depthwise": lambda g: g.groups == g.c > 1,
    "grouped": lambda g: 1 < g.groups < g.c,
}
SIZED = {name: family for name, family in FAMILIES.items() if "sizes" not in family.lacks and name != "conv_transpose"}
"""Families whose tables have problems of every size and edge."""
COUNTED = tuple(name for name in ORDINARY if "sizes" not in FAMILIES[OPERATORS[name].family].lacks)
"""Operators whose tables have long axes."""


def data_shape(operators: tuple[str, ...], geometry: Any) -> tuple[int, ...]:
    """Return the shape of the input that the sum runs over, of the first of the operators that takes the geometry."""
    return next(
        OPERATORS[name].inputs(geometry)[OPERATORS[name].data].shape
        for name in operators
        if OPERATORS[name].family == geometry.family
    )


def wrapped(axis: int, bits: int) -> Run:
    """Return a kernel that holds positions on an axis of the data in `bits` bits."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        data = inputs[operator.data]
        places = np.arange(data.shape[axis]) % (1 << bits)
        return exact(operator, geometry, inputs | {operator.data: np.take(data, places, axis)}, dtype)

    return run


def unwritten(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Leave the last element of the first output zero, or make it one where it is zero."""
    outputs = exact(operator, geometry, inputs, dtype)
    first = next(iter(outputs.values()))
    first.flat[-1] = not first.flat[-1]
    return outputs


def _ranks(name: str) -> tuple[int, ...]:
    return next((RANKS_OF[word] for word in name.split() if word in RANKS_OF), RANKS)


def _wrapping() -> Iterator[Mutant]:
    for name, axis in AXES.items():
        for bits in (8, 10, 15, 16):
            for operator in COUNTED:
                yield Mutant(
                    f"{name} counted in {bits} bits, {operator}", "sizes", wrapped(axis, bits), operators=(operator,),
                    when=_longer(operator, axis, bits), base=exact, ranks=_ranks(name),
                )  # fmt: skip
        for path, taken in PATHS.items():
            bits = 12 if axis == 1 and path in ("unpadded 3x3", "grouped") else 16
            yield Mutant(
                f"{name} counted in {bits} bits, {path} alone", "sizes", wrapped(axis, bits),
                operators=CONVOLUTIONS[:1], when=both(_longer(CONVOLUTIONS[0], axis, bits), taken), base=exact,
                ranks=_ranks(name),
            )  # fmt: skip


def _longer(operator: str, axis: int, bits: int) -> When:
    return lambda g: data_shape((operator,), g)[axis] > 1 << bits


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
_LIMITS: tuple[tuple[str, dict[str, Size], int], ...] = (
    ("stride", _STEPS, 1 << 8),
    ("dilation", _DILATION, 1 << 8),
    ("groups", _PRODUCTS, 1 << 16),
    ("size", _PLANES, 1 << 16),
    ("running", {"statistics": _PLANES["statistics"]}, 1 << 17),
)
"""The parameter that a family must have, sizes of problems, and the limit that a kernel forgets."""


def _remainder(rest: int) -> When:
    return lambda g: g.output_size[-1] > 16 and g.output_size[-1] % 16 == rest


def rooms(g: Any) -> Extents:
    """Return the size of the padded image."""
    return tuple(size + sum(sides) for size, sides in zip(g.size, g.padding, strict=True))


def _everywhere(holds: Callable[..., bool], *values: Extents) -> bool:
    """Return whether the condition holds on every axis; the values are numbers by axis."""
    return all(map(holds, *values))


def _dense(g: Any) -> bool:
    """Return whether every window is read, in one group."""
    return bool(g.groups == 1 and max(g.stride) == 1)


def _prime(size: int) -> bool:
    return size > 1 and all(size % divisor for divisor in range(2, int(size**0.5) + 1))


EDGES_OF_WINDOWS: dict[str, Callable[[Any], bool]] = {
    "window as large as the padded image": lambda g: is_padded(g.padding) and spans(g) == rooms(g),
    "window larger than the image": lambda g: _everywhere(gt, spans(g), g.size),
    "stride beyond a padded window": lambda g: min(map(sum, g.padding)) > 0 and _everywhere(gt, g.stride, spans(g)),
    "sizes all prime": lambda g: all(map(_prime, (*g.size, g.c))) and len({*g.size}) == g.rank,
    "padding on one side alone": lambda g: all(min(sides) == 0 < max(sides) for sides in g.padding),
}
DILATED = {
    "even window, dilated": lambda g: not any(taps % 2 for taps in g.window) and min(g.dilation) > 1,
    "window reaches beyond the image by dilation": lambda g: (
        _everywhere(le, g.window, g.size) and _everywhere(gt, spans(g), g.size)
    ),
}
GROUPED = {
    "grouped 1x1 image": lambda g: 1 < g.groups < g.c and max(g.size) == 1,
    "depthwise 1x1 image": lambda g: 1 < g.groups == g.c and max(g.size) == 1,
    "grouped 1x1 window": lambda g: 1 < g.groups < g.c and max(g.window) == 1,
}
SHAPES: dict[str, Callable[[Any], bool]] = {
    "1x1 of more than 100 channels, 8 over of 16, to 200 or more": lambda g: (
        _dense(g) and {*g.window} == {1} and g.c > 100 and g.c % 16 == 8 and g.k >= 200
    ),
    "one channel, one filter, one tap": lambda g: (
        g.c == g.k == max(g.window) == 1 and (g.family == "conv_bn" or g.bias)
    ),
    "5x5 on 27 and 28 pixels": lambda g: {*g.window} == {5} and {*g.size} <= {27, 28},
    "25 taps of 256 channels or more": lambda g: _dense(g) and math.prod(g.window) == 25 and g.c >= 256,
    "fully connected, of a batch that is no power of two": lambda g: (
        _dense(g) and {*g.window, *g.size} == {1} and g.c > 64 and g.n > 4 and bool(g.n & (g.n - 1))
    ),
}
"""Shapes of convolutions from bug reports that were in no table."""
CEIL = {
    "ceil mode with as much padding after as there can be, a window less one or more": lambda g: (
        g.ceil_mode and all(after >= span - 1 > 0 for (_, after), span in zip(g.padding, spans(g), strict=True))
    ),
    "ceil mode with padding on one side": lambda g: g.ceil_mode and any(before != after for before, after in g.padding),
    "ceil mode drops a window that starts in the padding": lambda g: (
        g.ceil_mode
        and any(
            -(-(room - extent) // stride) > size - 1
            for room, extent, stride, size in zip(rooms(g), spans(g), g.stride, g.output_size, strict=True)
        )
    ),
}
DIVISOR = {
    "divisor of one": lambda g: g.divisor_override == 1,
    "divisor with ceil mode": lambda g: g.divisor_override is not None and g.ceil_mode,
    "divisor, padding not counted": lambda g: g.divisor_override is not None and not g.count_include_pad,
    "padding not counted, in ceil mode": lambda g: not g.count_include_pad and g.ceil_mode,
}
_MISTAKES: Paths = {
    "grouped 1x1 image": (GROUPED["grouped 1x1 image"], ("group off by one", "image n uses image n-1")),
    "even dilated window": (DILATED["even window, dilated"], ("dilations swapped", "dilation ignored")),
    "window larger than the image": (
        EDGES_OF_WINDOWS["window larger than the image"],
        ("padding mirrored (before and after exchanged)",),
    ),
    "stride beyond a padded window": (
        EDGES_OF_WINDOWS["stride beyond a padded window"],
        ("strides swapped", "padding swapped between H and W"),
    ),
}


def _unwritten() -> Iterator[Mutant]:
    """Yield kernels with an unwritten element, for every family that has the parameter of the condition."""
    for attribute, sizes, limit in _LIMITS:
        beyond = {f"{name} beyond {limit}": _beyond(size, limit) for name, size in sizes.items()}
        yield from _unwritten_where("sizes", attribute, beyond)
    yield from _unwritten_where("sizes", "size", {f"one {name}": _is_one(size) for name, size in _ONES.items()})
    yield from _unwritten_where("sizes", "groups", SHAPES)
    yield from _unwritten_where("edges", "padding", EDGES_OF_WINDOWS)
    yield from _unwritten_where("edges", "dilation", DILATED)
    yield from _unwritten_where("edges", "groups", GROUPED)
    yield from _unwritten_where("edges", "ceil_mode", CEIL)
    yield from _unwritten_where("edges", "divisor_override", DIVISOR)
    for rest in range(16):  # the remainder of a vector of 16 columns
        yield Mutant(
            f"last element not written, {rest} columns over 16", "sizes", unwritten, operators=CONVOLUTIONS[:1],
            when=_remainder(rest), base=exact,
        )  # fmt: skip


def _unwritten_where(kind: str, attribute: str, conditions: dict[str, When]) -> Iterator[Mutant]:
    for family, known in SIZED.items():
        if any(field.attribute == attribute for field in known.geometry.FIELDS[2]):
            for name, when in conditions.items():
                text, operators = f"last element not written, {name}, {family}", names_of(family)
                yield Mutant(text, kind, unwritten, operators=operators, when=when, base=exact, ranks=_ranks(name))


KNOWN_BAD: tuple[Mutant, ...] = (
    *_wrapping(),
    *_unwritten(),
    *on_paths(_MISTAKES, CONVOLUTIONS, "edges", "{mistake}, at the edge: {path}"),
)
