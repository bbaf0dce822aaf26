"""Kernels with a special path that forgets something: a library has one for 1x1 windows, for depthwise layers, ...

Each is right wherever its path is not taken, so that only a table which combines the two can detect it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from conformance.calibration.known_bad.base import Mutant
from conformance.calibration.known_bad.structure import planted
from conformance.diagnosis.mistakes import LIBRARY, Mistake, operators_of
from conformance.operators import CONVOLUTIONS, ConvGeometry

_PARAMETERS = (
    "stride ignored",
    "strides swapped",
    "dilation ignored",
    "dilations swapped",
    "padding ignored",
    "padding swapped between H and W",
    "padding mirrored (before and after exchanged)",
)
_OTHERS = ("bias (dbias) missing", "image n uses image n-1")
_KERNEL = ("kernel flipped in H and W", "kernel transposed (R and S swapped)")
_GROUPS = ("group off by one", "input channels interleaved over groups")
_NO_DILATION = tuple(name for name in _PARAMETERS if "dilation" not in name)

_PATHS: dict[str, tuple[Callable[[ConvGeometry], bool], tuple[str, ...]]] = {
    "pointwise": (lambda g: g.r == g.s == 1, (*_NO_DILATION, *_OTHERS, *_GROUPS)),
    "one-axis window": (lambda g: (g.r == 1) != (g.s == 1), (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)),
    "even window": (lambda g: g.r % 2 == 0 or g.s % 2 == 0, (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)),
    "large window": (lambda g: max(g.r, g.s) >= 5, (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)),
    "depthwise": (lambda g: 1 < g.groups == g.c, (*_PARAMETERS, *_OTHERS, *_KERNEL, "group off by one")),
    "grouped": (lambda g: 1 < g.groups < g.c, (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)),
    "strided": (lambda g: max(g.stride) > 1, (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)),
    "dilated": (lambda g: max(g.dilation) > 1, (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)),
    "strided and dilated": (
        lambda g: max(g.stride) > 1 and max(g.dilation) > 1,
        (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS),
    ),
    "unpadded": (lambda g: g.padding == ((0, 0), (0, 0)), (*_PARAMETERS[:4], *_OTHERS, *_KERNEL, *_GROUPS)),
    "single image": (lambda g: g.n == 1, (*_PARAMETERS, _OTHERS[0], *_KERNEL, *_GROUPS)),
    "wide channels": (lambda g: g.c >= 64 or g.k >= 64, (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)),
    "odd channels": (lambda g: g.c // g.groups % 4 > 0, (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)),
}
"""Path -> when it is taken, and the mistakes that it can make."""


def _forgetful() -> Iterator[Mutant]:
    known = {mistake.name: mistake for mistake in LIBRARY}
    for path, (taken, names) in _PATHS.items():
        yield from (_on_path(path, taken, known[name]) for name in names)


def _on_path(path: str, taken: Callable[[ConvGeometry], bool], mistake: Mistake) -> Mutant:
    mutant = planted(mistake)
    when = _both(taken, mistake.when)
    operators = tuple(operator for operator in operators_of(mistake) if operator in CONVOLUTIONS)
    name = f"{mistake.name}, on the {path} path"
    return replace(mutant, name=name, family="paths", operators=operators, when=when)


def _both(
    first: Callable[[ConvGeometry], bool], second: Callable[[ConvGeometry], bool]
) -> Callable[[ConvGeometry], bool]:
    return lambda geometry: first(geometry) and second(geometry)


PATHS: tuple[Mutant, ...] = tuple(_forgetful())
