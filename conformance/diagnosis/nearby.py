"""Cases that were judged, and problems near a failing one that differ from it in one thing.

A problem that fails still shows what does not matter, one that passes what does: they decide what a condition leaves
open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import gt
from typing import Any

from conformance.diagnosis.traits import Traits, of_case
from conformance.layouts import layouts_of
from conformance.operators import GeometryError
from conformance.operators.spatial import IMAGE, WINDOW
from conformance.problems import Variant
from conformance.problems.drawn import THIN
from conformance.problems.features import Axis, axes
from conformance.problems.parameters import SIMPLEST, cost, geometry, parameters

NEAR = 5
"""The smallest failing cases, near which problems are made."""
KINDS = ("p", "u", "d", "dil")
"""Parameters of several numbers: padding, strides, dilations."""
SIZES = ("n", "c", "k", "d", "h", "w")
"""Parameters that a kernel may divide into blocks."""
MULTIPLE = 4
"""Times a size to see that it is not what a case fails by; a multiple of a block stays one."""
PARTS = (12, 24, 48)
"""Sizes that are whole blocks of a half, and none of the next one."""
BLOCK = 256
"""Outputs along an axis that are whole blocks of every usual size."""


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A case that was judged."""

    geometry: Any
    variant: Variant
    failed: bool
    traits: Traits = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", of_case(self.geometry, self.variant))

    @property
    def size(self) -> tuple[int, int]:
        """A short descriptor, of few parameters, is small."""
        return len(self.geometry.descriptor), cost(self.geometry)[1]


def is_empty(geometry: Any) -> bool:
    """Whether there are no results that could be wrong."""
    return bool(geometry.n == 0)


def hides(geometry: Any) -> bool:
    """Whether a problem hides nearly every mistake in results: of an empty batch, without channels, or where no window
    meets the image."""
    return is_empty(geometry) or not geometry.c or not all(map(_meets, axes(geometry)))


def _meets(axis: Axis) -> bool:
    for first in range(-axis.before, axis.span - axis.before, axis.dilation):
        # the first and the last window whose tap here is in the image
        least, most = max(0, -(first // axis.stride)), min(axis.outputs - 1, (axis.size - 1 - first) // axis.stride)
        if least <= most:
            return True
    return False


def plainest(failing: Iterable[Tried]) -> list[Tried]:
    """The smallest cases, and the smallest of each number of dimensions that is not among them: with one axis nothing
    tells whether a mistake is one of that axis."""
    ordered = sorted(failing, key=lambda one: one.size)
    ranks = {one.geometry.rank: one for one in reversed(ordered)}
    return list(dict.fromkeys([*ordered[:NEAR], *ranks.values()]))


def kinds_of(geometry: Any) -> list[list[str]]:
    """Parameters of several numbers, by their names."""
    kinds = [[name for name in parameters(geometry) if name.rstrip("0123456789") == kind != name] for kind in KINDS]
    return [*kinds, [*IMAGE[geometry.rank]], [*WINDOW[geometry.rank]]]


def _axes_exchanged(geometry: Any) -> dict[str, int]:
    """The last two axes in each other's place: a condition on one of them is none on the other."""
    own, rank = parameters(geometry), geometry.rank
    if rank == 1:
        return own
    pairs = [(names[rank - 2], names[rank - 1]) for names in (IMAGE[rank], WINDOW[rank])]
    pairs += [(f"{kind}{rank - 2}", f"{kind}{rank - 1}") for kind in ("u", "dil", "d", "o")]
    pairs += [(f"p{2 * rank - 4}", f"p{2 * rank - 2}"), (f"p{2 * rank - 3}", f"p{2 * rank - 1}")]
    there = [pair for pair in pairs if pair[0] in own]
    return {one: own[other] for one, other in there} | {other: own[one] for one, other in there}


def _whole_blocks(geometry: Any) -> Iterator[dict[str, int]]:
    """Sizes, and outputs along an axis, that are whole blocks, which a tail that is lost needs to pass."""
    own = parameters(geometry)
    for name in SIZES:
        if own.get(name, 0) > 1:
            yield from ({name: size} for size in (_power(own[name]), *PARTS))
    for name, outputs, stride in zip(IMAGE[geometry.rank], geometry.output_size, geometry.stride, strict=True):
        for whole in (_power(outputs), BLOCK):
            yield {name: max(1, own[name] + (whole - outputs) * stride)}


def _power(size: int) -> int:
    """The power of two that is not less."""
    return 1 << max(0, size - 1).bit_length()


def changed(one: Tried, change: dict[str, int]) -> Tried | None:
    """A case with other parameters; None where they are the same, or there is no such problem, or it is large: 256 rows
    of a long image took three minutes."""
    own = parameters(one.geometry)
    try:
        made = geometry(one.geometry.family, own | change) if own | change != own else None
    except GeometryError:
        return None
    allowed = (max(thin, its + its // 4) for thin, its in zip(THIN, cost(one.geometry), strict=True))
    if made is None or any(map(gt, cost(made), allowed)):
        return None
    return Tried(made, one.variant, failed=False)


def flattened(one: Tried) -> Tried | None:
    """A case in one dimension, as it is along its last axis; None where it has but one, or there is no such problem."""
    family, rank, own = one.geometry.family, one.geometry.rank, parameters(one.geometry)
    found = dict(SIMPLEST[family, 1])
    for name in found:
        letter = name.rstrip("0123456789")
        if letter == name:
            found[name] = own[name]
            continue
        last = int(name.removeprefix(letter)) + (rank - 1) * (2 if letter == "p" else 1)
        found[name] = own[f"{'dil' if letter == 'd' and rank == 3 else letter}{last}"]  # d is the depth of an image
    try:
        made = geometry(family, found) if rank > 1 else None
    except GeometryError:
        return None
    layouts = layouts_of(rank)
    if made is None or one.variant.layout not in layouts:
        return None
    layout = layouts_of(1)[layouts.index(one.variant.layout)]
    return Tried(made, replace(one.variant, layout=layout), failed=False)


def toggled(failing: Tried, dtypes: Iterable[str]) -> Iterator[Tried]:
    """The problem with one parameter at its simplest value or one more, or those of a kind, such as all strides, or
    these as the first of them is; with whole blocks. First of all the case in another dtype or layout."""
    for dtype in sorted({*dtypes} - {failing.variant.dtype}):
        yield Tried(failing.geometry, replace(failing.variant, dtype=dtype), failed=False)
    for layout in sorted({*layouts_of(failing.geometry.rank)} - {failing.variant.layout}):
        yield Tried(failing.geometry, replace(failing.variant, layout=layout), failed=False)
    own = parameters(failing.geometry)
    kinds, goal = kinds_of(failing.geometry), SIMPLEST[failing.geometry.family, failing.geometry.rank]
    sides = [[f"p{2 * axis}", f"p{2 * axis + 1}"] for axis in range(failing.geometry.rank)]
    changes = [{name: goal[name] for name in names} for names in (*kinds, *sides, *([name] for name in own))]
    changes += [dict.fromkeys(names, own[names[0]]) for names in kinds if names]
    # what is equal stays equal: a window that is the image, or the stride
    equal = [[name for name in own if own[name] == value] for value in {*own.values()} if value > 1]
    changes += [{name: own[name] + 1 for name in names} for names in (*equal, *([name] for name in own))]
    changes += [{name: own[name] * MULTIPLE} for name in SIZES if name in own]
    changes += [_axes_exchanged(failing.geometry), *_whole_blocks(failing.geometry)]
    if "g" in own:  # as many channels in groups of one each, and channels or outputs alone
        channels, outputs = own["c"] * own["g"], own["k"] * own["g"]
        shares = ((1, 1, channels), (channels, 1, 1), (1, outputs, 1))
        changes += [dict(zip("ckg", share, strict=True)) for share in shares]
    for made in (changed(failing, change) for change in changes):
        if made is not None:
            yield made
