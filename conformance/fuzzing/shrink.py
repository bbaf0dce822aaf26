"""Shrinking a failure to the smallest one of the same kind: fewer calls first, then smaller parameters.

Cases are shrunk, not the choices that they were drawn by: whether a kernel with a state fails on a case depends on the
calls before it, and only a search that starts a process when it needs one can tell which of these matter.

Hypothesis, with a strategy of integers, was compared on ten known-bad kernels and two seeds: both found all, and shrank
them alike (median distance from the simplest problem 5 here, 4.5 there), in 30 s of the processor here and 129 s there.
Of a kernel that caches by too few parameters, the two calls were found after 37 and 30 starts of a process here; there
after 316, and for the other seed in none of 1,115. It would have replaced some 600 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

from conformance.layouts import layouts_of
from conformance.operators import FAMILIES, OPERATORS, GeometryError
from conformance.problems.case import Case
from conformance.problems.parameters import SIMPLEST, Parameters, geometry, parameters
from conformance.problems.table import applies
from conformance.storage import parse, written

Rows = tuple[Case, ...]
"""Calls in one process; the last one fails."""


def shrunk(failing: Rows, fails: Callable[[Rows], bool]) -> Rows:
    """Return the smallest calls that still fail. `fails` answers False when there is no time left."""
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
    while length < len(best) and not better(best[-length:]):  # find the shortest failing end of a long history
        length *= 2
    moved = True
    while moved:
        moved = False
        while len(best) > 1 and any(better(rows) for rows in (*_dropped(best), *_together(best))):
            moved = True
        for place in reversed(range(len(best))):
            while any(better((*best[:place], row, *best[place + 1 :])) for row in simpler(best[place])):
                moved = True
    return best


def _dropped(rows: Rows) -> Iterator[Rows]:
    for place in range(len(rows) - 1):
        yield rows[:place] + rows[place + 1 :]


def _together(rows: Rows) -> Iterator[Rows]:
    """Yield the calls with one change made in all of them, since a parameter that they share cannot change in one."""
    families = [row.geometry.family for row in rows]
    if len({*families}) > 1:
        return
    for change in _lower(rows[-1], (1,)):
        with suppress(GeometryError):
            yield tuple(_with(row, change) for row in rows)


def _with(row: Case, change: Parameters) -> Case:
    """Return the case with other parameters. Raises GeometryError."""
    changed = geometry(row.geometry.family, parameters(row.geometry) | change)
    return replace(row, problem=changed.descriptor)


def simpler(row: Case) -> Iterator[Case]:
    """Yield cases that are simpler in one or two things, those that save most first."""
    family, variant = FAMILIES[row.geometry.family], row.variant
    dtypes = OPERATORS[row.operator].dtypes
    for dtype in dtypes[: dtypes.index(variant.dtype)]:
        if applies(variant.distribution, dtype, variant.storage):
            yield replace(row, dtype=dtype)
    plain = layouts_of(row.geometry.rank)
    for layout in plain[: plain.index(variant.layout)] if variant.layout in plain else plain:
        yield replace(row, layout=layout)
    for name in family.distributions[: family.distributions.index(variant.distribution)]:
        if applies(name, variant.dtype, variant.storage):
            yield replace(row, distribution=name)
    if kinds := parse(variant.storage):
        for fewer in ({}, *({name: kind} for name, kind in kinds.items())):
            yield replace(row, storage=written(fewer))
    if row.seed:
        yield replace(row, seed=0)
    for change in _lower(row, (1, 2)):
        with suppress(GeometryError):
            yield _with(row, change)


def _lower(row: Case, counts: tuple[int, ...]) -> Iterator[Parameters]:
    """Yield changes of as many parameters at once as `counts` says: to their simplest values, half way there, and one
    step closer. A single one also by steps of 2, 4, 8, ..., so that a remainder is kept."""
    now, goal = parameters(row.geometry), SIMPLEST[row.geometry.family, row.geometry.rank]
    far = {name: goal[name] - now[name] for name in now if now[name] != goal[name]}
    for count in counts:
        for names in combinations(far, count):
            yield {name: goal[name] for name in names}
        for names in combinations(far, count):
            yield {name: now[name] + far[name] // 2 for name in names}
        for exponent in range(max(map(abs, far.values()), default=0).bit_length() if count == 1 else 1):
            step = 1 << exponent
            for names in combinations((name for name in far if abs(far[name]) >= step), count):
                yield {name: now[name] + (step if far[name] > 0 else -step) for name in names}
