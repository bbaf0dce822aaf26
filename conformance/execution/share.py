"""How much of the ranking an implementation runs: what it takes of it, from the first line on, until its budget is
used up."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from conformance.dtypes import DTYPES
from conformance.execution.case import takes_case
from conformance.execution.selection import Selection
from conformance.implementations.implementation import Implementation
from conformance.layouts import is_optional, rank_of
from conformance.operators import takes
from conformance.problems import PROBLEMS, Problem, Variant
from conformance.problems.ranking import PROGRAMS, SMOKE_CASES, Row
from conformance.problems.table import applies

Takes = Callable[[Problem, Variant], bool]


class Budget(NamedTuple):
    """Of one operator; None where there is no limit. `extra` is the percentage of what is left that runs as well, drawn
    from `seed`."""

    cases: int | None = None
    programs: int | None = None
    extra: float = 0
    seed: str = ""

    def draws(self, problem: Problem, variant: Variant) -> bool:
        """Whether a program beyond the budget is run all the same."""
        text = f"{self.seed} {problem.name} {variant.dtype} {variant.layout}"
        return zlib.crc32(text.encode()) % 10_000 < 100 * self.extra


def budget(one: Implementation, level: str, programs: int | None, extra: float = 0, seed: str = "") -> Budget:
    """What a level gives an implementation; `programs` stands for the level's own number."""
    cases = SMOKE_CASES if level in ("smoke", "huge") else None
    if programs is None and one.compiles_per_shape:
        programs = PROGRAMS.get("smoke" if level == "huge" else level)
    return Budget(None if programs is not None else cases, programs, extra, seed)


def share(
    one: Implementation,
    operator: str,
    rows: Sequence[Row],
    listed: int,
    given: Budget,
    takes: Takes,
    wanted: Callable[[str, str], bool] = lambda dtype, layout: True,
) -> list[list[Variant]]:
    """The variants of every row that are required of an implementation. The first `listed` rows are those of the level:
    of them also what it does not take, which is said. Whoever takes little of them goes on behind them.

    A problem that the rows have in no dtype and layout of a kernel is run in one that it declares and that is `wanted`:
    rows take dtypes and layouts in turn, and a kernel of one pair would miss most shapes.
    """
    kernels = [kernel for kernel in one.kernels if kernel.operator == operator]
    every = dict.fromkeys((dtype, layout) for k in kernels for layout in k.layouts for dtype in k.dtypes)
    declared = [pair for pair in every if wanted(*pair)]
    offered: dict[str, set[tuple[str, str]]] = {}
    for problem, variants in rows:
        offered.setdefault(problem.name, set()).update((v.dtype, v.layout) for v in variants)
    found: list[list[Variant]] = []
    spent, seen, programs = 0, set[tuple[str, str, str]](), set[tuple[str, str, str]]()
    substituted = set[tuple[str, Variant]]()
    for place, (problem, variants) in enumerate(rows):
        row: list[Variant] = []
        found.append(row)
        asked = [v for v in variants if wanted(v.dtype, v.layout)]
        seen.update((problem.name, v.dtype, v.layout) for v in asked)
        within = place < listed and (given.programs is None or len(seen) <= given.programs)
        instead = [] if offered[problem.name] & {*declared} else _instead(problem, variants, declared, place)
        for variant in (*asked, *instead):
            if not takes(problem, variant):
                if within and variant not in instead:
                    row.append(variant)
                continue
            if variant in instead:
                if (problem.name, variant) in substituted:
                    continue
                substituted.add((problem.name, variant))
            program = problem.name, variant.dtype, variant.layout
            full = (given.cases is not None and spent >= given.cases) or (
                given.programs is not None and program not in programs and len(programs) >= given.programs
            )
            if not full or given.draws(problem, variant):
                row.append(variant)
            if not full:
                programs.add(program)
                spent += 1
    return found


def _instead(
    problem: Problem, variants: Sequence[Variant], declared: Sequence[tuple[str, str]], place: int
) -> list[Variant]:
    """The same distributions in a dtype and layout of the kernel's own, of which rows have one after the other. What is
    run in 8 bits has values for these, and tables of its own."""
    rank = problem.geometry.rank
    own = [(dtype, layout) for dtype, layout in declared if rank_of(layout) == rank and dtype in DTYPES]
    plain = [v for v in variants if v.dtype in DTYPES and not (v.storage or is_optional(v.layout))]
    if not own or not plain:
        return []
    dtype, layout = own[place % len(own)]
    return [
        Variant(dtype, layout, name) for name in dict.fromkeys(v.distribution for v in plain) if applies(name, dtype)
    ]


class Ranked:
    """The rows of a selection by operator, and the share that each implementation has in them."""

    def __init__(self, selection: Selection) -> None:
        self._asked = selection
        self._rows: dict[str, tuple[list[Row], int]] = {}
        self._shares: dict[tuple[str, str], list[list[Variant]]] = {}

    @cached_property
    def _every(self) -> list[Row]:
        return [*self._asked.rows()]

    @cached_property
    def _behind(self) -> list[Row]:
        """What stands behind a level that counts cases, for those who take little of it."""
        counted = self._asked.problems is PROBLEMS and self._asked.level in ("smoke", "huge")
        return [*replace(self._asked, level="standard").rows()] if counted else []

    def rows(self, operator: str) -> tuple[list[Row], int]:
        """What an operator has, in order, and how many rows of that are of the level asked for."""
        if operator not in self._rows:
            own = [*_suited(operator, self._every)]
            named = {(problem.name, variant) for problem, variants in own for variant in variants}
            behind = _suited(operator, self._behind)
            left = ((p, tuple(v for v in variants if (p.name, v) not in named)) for p, variants in behind)
            self._rows[operator] = [*own, *(row for row in left if row[1])], len(own)
        return self._rows[operator]

    def asked_for(self, rows: Iterable[Row]) -> list[Row]:
        """What of rows is in a dtype and layout that are asked for."""
        return [(p, found) for p, variants in rows if (found := tuple(filter(self._asked.includes, variants)))]

    def share(self, one: Implementation, operator: str) -> list[list[Variant]]:
        """What is required of an implementation of every row of an operator: all of a problem that is given by hand."""
        key, asked = (one.name, operator), self._asked

        def taken(problem: Problem, variant: Variant) -> bool:
            return variant.suits(operator, problem.geometry) and takes_case(one, operator, problem, variant)

        if key not in self._shares:
            rows, listed = self.rows(operator)
            if asked.problems is not PROBLEMS:
                self._shares[key] = [[*filter(asked.includes, variants)] for _, variants in rows]
            else:
                given = budget(one, asked.level, asked.programs, *asked.extra)
                self._shares[key] = share(one, operator, rows, listed, given, taken, asked.wants)
        return self._shares[key]


def _suited(operator: str, rows: Iterable[Row]) -> Iterator[Row]:
    """What of rows an operator has."""
    for problem, variants in rows:
        suited = takes(operator, problem.geometry) and [v for v in variants if v.suits(operator, problem.geometry)]
        if suited:
            yield problem, tuple(suited)
