"""Cases that were judged, and problems near a failing one that differ from it in one respect.

If such a problem fails too, the difference does not matter; if it passes, it does. These problems decide between the
conditions that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import gt
from typing import Any

from conformance.diagnosis.traits import Traits, of_case
from conformance.layouts import layouts_of
from conformance.operators import Geometry, GeometryError
from conformance.operators.spatial import IMAGE, WINDOW
from conformance.problems import Variant
from conformance.problems.drawn import THIN
from conformance.problems.features import Axis, axes
from conformance.problems.parameters import SIMPLEST, cost, geometry, parameters

NEAR = 5
"""Number of smallest failing cases near which problems are made."""
KINDS = ("p", "u", "d", "dil")
"""Letters of the parameters that are several numbers: padding, strides, dilations."""
SIZES = ("n", "c", "k", "d", "h", "w")
"""Parameters that a kernel may divide into blocks."""
MULTIPLE = 4
"""Factor that enlarges a size, to see that a case does not fail because of it; multiples of a block stay multiples."""
PARTS = (12, 24, 48)
"""Sizes that are multiples of 4, 8 and 16, but not of the next power of two."""
BLOCK = 256
"""Number of outputs along an axis that is a multiple of every usual block."""


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A case with its traits; `failed` is its verdict, and False for a case that has not run."""

    geometry: Any
    variant: Variant
    failed: bool
    traits: Traits = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", of_case(self.geometry, self.variant))

    @property
    def size(self) -> tuple[int, int]:
        """Sort key: a case with a short descriptor, which has few parameters, is small."""
        return len(self.geometry.descriptor), cost(self.geometry)[1]


def is_empty(geometry: Geometry) -> bool:
    """Return whether a problem has no results that could be wrong."""
    return bool(geometry.n == 0)


def hides(geometry: Any) -> bool:
    """Return whether a problem hides nearly every mistake in results: one with an empty batch, without channels, or in
    which no window meets the image."""
    return is_empty(geometry) or not geometry.c or not all(map(_meets, axes(geometry)))


def _meets(axis: Axis) -> bool:
    for first in range(-axis.before, axis.span - axis.before, axis.dilation):
        # the first and the last window whose tap here is in the image
        least, most = max(0, -(first // axis.stride)), min(axis.outputs - 1, (axis.size - 1 - first) // axis.stride)
        if least <= most:
            return True
    return False


def plainest(failing: Iterable[Tried]) -> list[Tried]:
    """Return the smallest cases, and the smallest of each number of dimensions that is not among them: with a single
    axis nothing shows whether a mistake concerns that axis alone."""
    ordered = sorted(failing, key=lambda case: case.size)
    ranks = {case.geometry.rank: case for case in reversed(ordered)}
    return list(dict.fromkeys([*ordered[:NEAR], *ranks.values()]))


def kinds_of(geometry: Any) -> list[list[str]]:
    """Return names of parameters that belong together: each kind, the sizes of the image, the sizes of the window."""
    kinds = [[name for name in parameters(geometry) if name.rstrip("0123456789") == kind != name] for kind in KINDS]
    return [*kinds, [*IMAGE[geometry.rank]], [*WINDOW[geometry.rank]]]


def _axes_exchanged(geometry: Any) -> dict[str, int]:
    """Return parameters with the last two axes exchanged: a condition on one of the two does not hold on the other."""
    values, rank = parameters(geometry), geometry.rank
    if rank < 2:
        return values
    pairs = [(names[rank - 2], names[rank - 1]) for names in (IMAGE[rank], WINDOW[rank])]
    pairs += [(f"{kind}{rank - 2}", f"{kind}{rank - 1}") for kind in ("u", "dil", "d", "o")]
    pairs += [(f"p{2 * rank - 4}", f"p{2 * rank - 2}"), (f"p{2 * rank - 3}", f"p{2 * rank - 1}")]
    there = [pair for pair in pairs if pair[0] in values]
    return {first: values[other] for first, other in there} | {other: values[first] for first, other in there}


def _whole_blocks(geometry: Any) -> Iterator[dict[str, int]]:
    """Yield changes that make sizes, and outputs along an axis, whole blocks: without a tail a kernel may pass."""
    values = parameters(geometry)
    for name in SIZES:
        if values.get(name, 0) > 1:
            yield from ({name: size} for size in (_power(values[name]), *PARTS))
    for name, outputs, stride in zip(IMAGE[geometry.rank], geometry.output_size, geometry.stride, strict=True):
        for whole in (_power(outputs), BLOCK):
            yield {name: max(1, values[name] + (whole - outputs) * stride)}


def _power(size: int) -> int:
    """Return the smallest power of two that is not less than a size."""
    return 1 << max(0, size - 1).bit_length()


def changed(case: Tried, change: dict[str, int]) -> Tried | None:
    """Return a case with other parameters; None if they are the same, no such problem exists, or it is large: 256 rows
    of a long image took three minutes."""
    values = parameters(case.geometry)
    try:
        problem = geometry(case.geometry.family, values | change) if values | change != values else None
    except GeometryError:
        return None
    allowed = (max(thin, size + size // 4) for thin, size in zip(THIN, cost(case.geometry), strict=True))
    if problem is None or any(map(gt, cost(problem), allowed)):
        return None
    return Tried(problem, case.variant, failed=False)


def flattened(case: Tried) -> Tried | None:
    """Return a case in one dimension, as along its last axis; None if it has but one, or no such problem exists."""
    family, rank, values = case.geometry.family, case.geometry.rank, parameters(case.geometry)
    if rank < 2:
        return None
    flat = dict(SIMPLEST[family, 1])
    for name in flat:
        letter = name.rstrip("0123456789")
        if letter == name:
            flat[name] = values[name]
            continue
        last = int(name.removeprefix(letter)) + (rank - 1) * (2 if letter == "p" else 1)
        flat[name] = values[f"{'dil' if letter == 'd' and rank == 3 else letter}{last}"]  # d is the depth of an image
    try:
        problem = geometry(family, flat)
    except GeometryError:
        return None
    layouts = layouts_of(rank)
    if case.variant.layout not in layouts:
        return None
    layout = layouts_of(1)[layouts.index(case.variant.layout)]
    return Tried(problem, replace(case.variant, layout=layout), failed=False)


def toggled(failing: Tried, dtypes: Iterable[str]) -> Iterator[Tried]:
    """Yield the case in other dtypes and layouts; then the problem with one parameter, or all of a kind such as the
    strides, at the simplest value, with those of a kind equal to the first, with one parameter increased, with the axes
    exchanged, and with whole blocks."""
    for dtype in sorted({*dtypes} - {failing.variant.dtype}):
        yield Tried(failing.geometry, replace(failing.variant, dtype=dtype), failed=False)
    for layout in sorted({*layouts_of(failing.geometry.rank)} - {failing.variant.layout}):
        yield Tried(failing.geometry, replace(failing.variant, layout=layout), failed=False)
    values = parameters(failing.geometry)
    kinds, goal = kinds_of(failing.geometry), SIMPLEST[failing.geometry.family, failing.geometry.rank]
    sides = [[f"p{2 * axis}", f"p{2 * axis + 1}"] for axis in range(failing.geometry.rank)]
    changes = [{name: goal[name] for name in names} for names in (*kinds, *sides, *([name] for name in values))]
    changes += [dict.fromkeys(names, values[names[0]]) for names in kinds if names]
    # equal parameters stay equal: a window that is as large as the image, or as the stride
    equal = [[name for name in values if values[name] == value] for value in {*values.values()} if value > 1]
    changes += [{name: values[name] + 1 for name in names} for names in (*equal, *([name] for name in values))]
    changes += [{name: values[name] * MULTIPLE} for name in SIZES if name in values]
    changes += [_axes_exchanged(failing.geometry), *_whole_blocks(failing.geometry)]
    if "g" in values:  # all channels in groups of one; one group with a single output; one with a single channel
        channels, outputs = values["c"] * values["g"], values["k"] * values["g"]
        shares = ((1, 1, channels), (channels, 1, 1), (1, outputs, 1))
        changes += [dict(zip("ckg", share, strict=True)) for share in shares]
    for case in (changed(failing, change) for change in changes):
        if case is not None:
            yield case
