"""Mistakes that are made at an edge of the parameters alone, such as a window larger than the image.

What is asked for alone needs a process of its own: `tests/field/requests.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import gt, le
from typing import Any

from conformance.operators import CONVOLUTIONS, OPERATORS
from conformance.operators.known_kernels.kernel import Mutant, exact
from conformance.operators.known_kernels.sizes import AVERAGE, CONV, CONV_BN, MAXIMUM, unwritten
from conformance.operators.known_kernels.structure import Paths, on_paths
from conformance.operators.spatial import Extents, is_padded, spans


def rooms(g: Any) -> Extents:
    """Size of the padded image."""
    return tuple(size + sum(sides) for size, sides in zip(g.size, g.padding, strict=True))


def _everywhere(holds: Callable[..., bool], *values: Extents) -> bool:
    """Whether it holds on every axis, of which these are numbers."""
    return all(map(holds, *values))


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
CEIL = {
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
    for operators, edges in (
        (CONV, EDGES_OF_WINDOWS | DILATED | GROUPED),
        (CONV_BN, EDGES_OF_WINDOWS | DILATED | GROUPED),
        (AVERAGE, EDGES_OF_WINDOWS | CEIL | DIVISOR),
        (MAXIMUM, EDGES_OF_WINDOWS | DILATED | CEIL),
    ):
        for name, when in edges.items():
            text = f"last element not written, {name}, {OPERATORS[operators[0]].family}"
            yield Mutant(text, "edges", unwritten, operators=operators, when=when, base=exact)


KNOWN_BAD: tuple[Mutant, ...] = (
    *_unwritten(),
    *on_paths(_MISTAKES, CONVOLUTIONS, "edges", "{mistake}, at the edge: {path}"),
)
