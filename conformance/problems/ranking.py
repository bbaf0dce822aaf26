"""The order of the cases, the most powerful first, and the part of it that each level runs.

`operators/FAMILY/ranking.txt` is written by `python -m tests.calibration rank`. A line is a program (a problem in a
dtype and a layout) and the distributions of its inputs, or `stored` for its cases with a storage; a program can have
several lines. Levels are prefixes of that list: smoke is part of standard and standard of
full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, zip_longest
from typing import NamedTuple

from conformance.dtypes import FILTERS
from conformance.operators import FAMILIES
from conformance.problems.table import LEVELS, Problem, Variant
from conformance.resources import of_family

RANKING = "ranking.txt"
FULL, STORED = "full", "stored"
"""FULL: line below which programs add nothing to the programs above it. STORED: word for cases with a storage."""
SMOKE_CASES = 100
"""Most cases of an operator at level smoke, for kernels that take no time to compile."""
PROGRAMS = {"smoke": 20, "standard": 100}
"""Level -> most programs of an operator, for implementations that compile each; at other levels all programs."""

Row = tuple[Problem, tuple[Variant, ...]]
"""A problem and some of its variants; the variants of a ranking line have the same dtype and layout."""


class RankedProgram(NamedTuple):
    """A ranking line: some cases of a program, and the lowest level that runs them."""

    name: str
    dtype: str
    layout: str
    words: frozenset[str]
    level: str

    def variants(self, problem: Problem) -> tuple[Variant, ...]:
        """Return the problem's variants that the line names."""
        alike = (v for v in problem.variants if (v.dtype, v.layout) == (self.dtype, self.layout))
        return tuple(v for v in alike if (STORED if v.storage else v.distribution) in self.words)


@cache
def lines(family: str) -> tuple[RankedProgram, ...]:
    """Return the ranking of a family; empty if it has none."""
    file, level, cases = of_family(family, RANKING), "smoke", 0
    programs = []
    for text in file.read_text("utf-8").splitlines() if file.exists() else ():
        if text == FULL:
            level = FULL
        elif text and not text.startswith("#"):
            name, dtype, layout, *words = text.split()
            # those with filters of their own stand among the others, and must take no other case out of smoke
            cases += 0 if dtype in FILTERS else len(words)
            # cases with a storage, which are many, stand behind smoke even where a family has few others
            beyond = cases > SMOKE_CASES or STORED in words
            level = "standard" if level == "smoke" and beyond else level
            programs.append(RankedProgram(name, dtype, layout, frozenset(words), level))
    return tuple(programs)


def ranked(problems: Iterable[Problem], included: Iterable[str]) -> Iterator[Row]:
    """Yield the rows that belong to the levels `included`, families in turn. Variants that are in no ranking come last,
    at the level of their problem."""
    by_family: dict[str, dict[str, Problem]] = {family: {} for family in FAMILIES}
    for problem in problems:
        by_family[problem.geometry.family][problem.name] = problem
    levels = frozenset(included)
    by_turns = [_of_family(family, named, levels) for family, named in by_family.items() if named]
    yield from (row for row in chain.from_iterable(zip_longest(*by_turns)) if row is not None)


def _of_family(family: str, problems: dict[str, Problem], levels: frozenset[str]) -> Iterator[Row]:
    placed: dict[str, set[Variant]] = {name: set() for name in problems}
    for line in (line for line in lines(family) if line.name in problems):
        variants = line.variants(problems[line.name])
        placed[line.name].update(variants)
        if variants and line.level in levels:
            yield problems[line.name], variants
    for name, problem in problems.items():
        rest = tuple(variant for variant in problem.variants if variant not in placed[name])
        if rest and problem.level in levels:
            yield problem, rest


def at_level(problems: Iterable[Problem], level: str) -> Iterator[Row]:
    """Yield the rows that a level runs, in order; `huge` runs smoke and the rows that no other level runs."""
    return ranked(problems, ("smoke", "huge") if level == "huge" else LEVELS[: LEVELS.index(level) + 1])
