"""From a failure to the smallest one of the same kind: fewer calls first, then smaller parameters.

Cases are shrunk, and not the choices that they were drawn by: a kernel with a state fails on a case or not, depending on
the calls before it, and only a search that starts a process when it needs one can tell which of these matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from conformance.dtypes import STORAGE
from conformance.operators import FAMILIES, GeometryError
from conformance.problems import LAYOUTS, Variant
from conformance.problems.parameters import SIMPLEST, Parameters, geometry, parameters
from conformance.problems.regressions import Row
from conformance.problems.table import applies

Rows = tuple[Row, ...]
"""Calls in one process; the last one fails."""


def shrunk(failing: Rows, fails: Callable[[Rows], bool]) -> Rows:
    """The smallest that still fails. `fails` answers False when there is no time left."""
    tried = {failing}
    best = failing

    def better(candidate: Rows) -> bool:
        nonlocal best
        if candidate in tried:
            return False
        tried.add(candidate)
        if fails(candidate):
            best = candidate
            return True
        return False

    length = 1
    while length < len(best) and not better(best[-length:]):  # the shortest end of a long history
        length *= 2
    moved = True
    while moved:
        moved = any(better(best[:place] + best[place + 1 :]) for place in range(len(best) - 1))
        for place in reversed(range(len(best))):
            while any(better((*best[:place], one, *best[place + 1 :])) for one in simpler(best[place])):
                moved = True
    return best


def simpler(row: Row) -> Iterator[Row]:
    """Cases that are simpler in one or two things, those that save most first."""
    known, variant = FAMILIES[row.geometry.family], row.variant
    for dtype in [*STORAGE][: [*STORAGE].index(variant.dtype)]:
        if applies(variant.distribution, dtype):
            yield replace(row, variant=replace(variant, dtype=dtype))
    for layout in LAYOUTS[: LAYOUTS.index(variant.layout)]:
        yield replace(row, variant=replace(variant, layout=layout))
    for name in known.distributions[: known.distributions.index(variant.distribution)]:
        if applies(name, variant.dtype):
            yield replace(row, variant=replace(variant, distribution=name))
    for field in [*Variant.__dataclass_fields__][3:]:
        if getattr(variant, field):
            yield replace(row, variant=replace(variant, **{field: ""}))
    if row.seed:
        yield replace(row, seed=0)
    now, goal = parameters(row.geometry), SIMPLEST[row.geometry.family]
    for changed in _lower(now, goal):
        try:
            made = geometry(row.geometry.family, changed)
        except GeometryError:
            continue
        yield replace(row, geometry=made)


def _lower(now: Parameters, goal: Parameters) -> Iterator[Parameters]:
    """One parameter, or two at once, at its simplest value, half way to it, and one step."""
    far = [name for name in now if now[name] != goal[name]]
    for count in (1, 2):
        for names in combinations(far, count):
            yield now | {name: goal[name] for name in names}
        for names in combinations(far, count):
            yield now | {name: (now[name] + goal[name]) // 2 for name in names}
        for names in combinations(far, count):
            yield now | {name: now[name] + (1 if now[name] < goal[name] else -1) for name in names}
