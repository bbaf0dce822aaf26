"""How much of the ranking an implementation runs: what it takes of it, from the first line on, until its budget is
used up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

from conformance.dtypes import DTYPES, ordinary
from conformance.execution.declared import MAX_PATHS, SPREAD, Declared, Path, candidates, paths
from conformance.execution.selection import Selection
from conformance.implementations.implementation import Implementation
from conformance.layouts import is_optional, rank_of
from conformance.operators import FAMILIES, OPERATORS, takes
from conformance.problems import Problem, Variant, at_level, of_family
from conformance.problems.parameters import cost
from conformance.problems.ranking import PROGRAMS, SMOKE_CASES, Row
from conformance.problems.table import applies
from conformance.storage import parse

NATURAL = "natural"
ENOUGH_RESULTS = 64
"""Of a problem on natural inputs: one whose image has a bright and a dark half."""
LONGEST_SPAN = 1 << 20
"""Of sums in an exact reference on natural inputs: slices of at least 16 bits."""
SMALL = 1 << 16
"""Elements of a problem that is run on inputs which the rows have on none that a kernel takes."""


class Brought(NamedTuple):
    """Cases that are brought forward: what holds of their problems, and of their variants."""

    problems: Callable[[Any], bool]
    variants: Callable[[Variant], bool] = lambda _: True


AT_SMOKE: tuple[Brought, ...] = (
    Brought(
        lambda geometry: geometry.family == "conv_bn" and geometry.count > 1000,
        lambda variant: variant.distribution == "shifted",
    ),
    # whole numbers repeat within a window
    Brought(
        lambda geometry: (
            geometry.family == "max_pool" and geometry.window == (2, 2) and min(*geometry.output_size, geometry.c) > 1
        ),
        lambda variant: variant.distribution == "integer" and variant.layout == "nhwc",
    ),
    Brought(
        lambda geometry: (
            geometry.n > 4 and geometry.n % 4 != 0 and min(geometry.c, *geometry.window, *geometry.output_size) > 1
        )
    ),
)
"""What a kernel that takes it meets at smoke, though the ranking has it further down: statistics of shifted data beyond
the blocks that sums are made of, ties in the commonest window of max pooling in channels last, and the tail of a
batch."""
VIEWS = (
    ("other-format",),
    ("crop", "strided"),
    ("channels", "chunk"),
    ("rows", "far-rows", "transposed"),
    ("reversed",),
    ("expanded", "expanded-channels"),
    ("expanded-columns", "expanded-all"),
    ("offset-1", "offset-2", "offset-4"),
    ("align-16",),
)
"""Kinds of storage that the same mistakes read wrongly: at smoke each operand lies in one of each."""


class Budget(NamedTuple):
    """Of one operator; None where there is no limit."""

    cases: int | None = None
    programs: int | None = None


def budget(one: Implementation, level: str, programs: int | None) -> Budget:
    """What a level gives an implementation; `programs` stands for the level's own number."""
    cases = SMOKE_CASES if level in ("smoke", "huge") else None
    if programs is None and one.compiles_per_shape:
        programs = PROGRAMS.get("smoke" if level == "huge" else level)
    return Budget(None if programs is not None else cases, programs)


class Rows(NamedTuple):
    """Of an operator, in order. How many are of the level asked for, and how many of level standard: whoever takes
    little of the level goes through all."""

    rows: Sequence[Row]
    listed: int
    usual: int
    by_size: Sequence[int]
    """The places of the usual ones, small ones first."""

    @classmethod
    def of(cls, rows: Sequence[Row], listed: int, usual: int) -> Rows:
        """Return rows that are sorted by size once, for all implementations."""
        return cls(rows, listed, usual, sorted(range(usual), key=lambda place: cost(rows[place][0].geometry)[1]))


def share(
    declared: Declared, of: Rows, given: Budget, wanted: Callable[[str, str], bool] = lambda dtype, layout: True
) -> list[list[Variant]]:
    """The variants of every row that are required of an implementation: of those of the level also what it does not
    take, which is said. Behind them whoever takes little of the level goes on.

    A problem that rows have in no dtype and layout of a kernel is run in one that it declares and that is `wanted`:
    rows take dtypes and layouts in turn, and a kernel of one pair would miss most shapes. One with `spread` is run in
    those of the kernel in turn: nearly every layer of a network was in fp32 and channels first. Inputs that rows have
    on no problem that the kernel takes are run on the first that it does: one for 1x1 windows alone would meet no
    subnormal number, and one that flushes them would pass. Natural inputs are run in every dtype and number of
    dimensions, or a kernel that is right on numbers of few bits alone would pass in the others. The rows of level
    standard are asked by themselves: a kernel failed at standard and passed at full, where the table had the problem in
    its dtype with other inputs.
    """
    rows, listed, usual, _ = of
    pairs = [pair for pair in declared.pairs if wanted(*pair)]
    offered = [_offered(rows[:usual])] * usual + [_offered(rows)] * (len(rows) - usual)
    found: list[list[Variant]] = []
    first: list[tuple[Problem, Variant]] = []
    spent, seen, programs = 0, set[tuple[str, str, str]](), set[tuple[str, str, str]]()
    substituted, run, turns = set[tuple[str, Variant]](), set[str](), Counter[int]()
    natural = NaturalCases(declared.operator, rows)
    for place, (problem, variants) in enumerate(rows):
        row: list[Variant] = []
        found.append(row)
        spread: Sequence[Variant] = ()
        if place < usual and problem.spread in pairs:
            spread = _spread(declared, problem, variants, pairs, offered[place][problem.name], turns)
            variants = spread or variants
        asked = [v for v in variants if wanted(v.dtype, v.layout)]
        seen.update((problem.name, v.dtype, v.layout) for v in asked)
        within = place < listed and (given.programs is None or len(seen) <= given.programs)
        instead = [] if offered[place][problem.name] & {*pairs} else _instead(problem, variants, pairs, place)
        for variant in (*asked, *instead):
            if not (variant.suits(declared.operator, problem.geometry) and declared.takes(problem, variant)):
                if within and variant not in instead:
                    row.append(variant)
                continue
            if (problem.name, variant) in substituted:
                continue
            if place < usual:  # whether this level has room for it or not, so that every level adds the same
                run.add(variant.distribution)
            if variant in instead or variant in spread:
                substituted.add((problem.name, variant))
            program = problem.name, variant.dtype, variant.layout
            full = (given.cases is not None and spent >= given.cases) or (
                given.programs is not None and program not in programs and len(programs) >= given.programs
            )
            if not full:
                row.append(variant)
                programs.add(program)
                spent += 1
                first += [(problem, variant)] if spent <= SMOKE_CASES else []
            # whoever compiles each program meets natural inputs on one that runs anyway
            if place < usual and (given.programs is None or program in programs):
                natural.offer(place, problem, variant)

    def bring(place: int, variant: Variant) -> None:
        """Add a case to a row, and take it out of those behind, which are lines of the ranking that only higher levels
        have."""
        for (problem, _), row in zip(rows[place:], found[place:], strict=True):
            if problem.name == rows[place][0].name and variant in row:
                row.remove(variant)
        found[place].append(variant)

    if given.programs is None:
        by_size = [(place, rows[place]) for place in of.by_size]
        forward = chain(_brought_forward(declared, by_size, pairs, first), _views(declared, by_size, pairs, first))
        for place, variant in forward:
            if variant not in found[place]:
                bring(place, variant)
                natural.offer(place, rows[place][0], variant)
    if given.programs is None and run:
        for place, variant in _further(declared, rows[:usual], pairs, run):
            bring(place, variant)
            natural.offer(place, rows[place][0], variant)
    for place, variant in natural.chosen:
        bring(place, variant)
    return found


class NaturalCases:
    """Natural inputs for every dtype and number of dimensions that a kernel is run in: on the first problem with more
    than a few results, or else on the one that has most. Whatever level asks, the same are chosen."""

    def __init__(self, operator: str, rows: Sequence[Row]) -> None:
        self._operator = OPERATORS[operator]
        self._is_asked = any(v.distribution == NATURAL for _, variants in rows for v in variants)
        self._results: dict[tuple[str, int], int] = {}
        self._chosen: dict[tuple[str, int], tuple[int, Variant]] = {}

    def offer(self, place: int, problem: Problem, variant: Variant) -> None:
        """Take a problem that a kernel is run on, in this dtype and layout, if it is better than what there is."""
        cell = variant.dtype, problem.geometry.rank
        most = self._results.get(cell, 0)
        if not self._is_asked or most >= ENOUGH_RESULTS or not applies(NATURAL, variant.dtype):
            return
        geometry, natural = problem.geometry, Variant(variant.dtype, variant.layout, NATURAL)
        # a reference on these inputs is computed in slices: of a large problem, or of long sums, it would take seconds
        flops, elements = cost(geometry)
        is_affordable = (
            flops <= 1 << 24 and elements <= 1 << 19 and self._operator.errors(geometry).span <= LONGEST_SPAN
        )
        if geometry.y.size > most and is_affordable and natural.suits(self._operator.name, geometry):
            self._results[cell] = geometry.y.size
            self._chosen[cell] = place, natural

    @property
    def chosen(self) -> Iterator[tuple[int, Variant]]:
        """The place of a row and its variant."""
        yield from self._chosen.values()


def _spread(
    declared: Declared,
    problem: Problem,
    variants: Sequence[Variant],
    pairs: Sequence[tuple[str, str]],
    offered: set[tuple[str, str]],
    turns: Counter[int],
) -> tuple[Variant, ...]:
    """A row's variants, of which those in the problem's `spread` are in the next dtype and layout of `pairs` that the
    kernel takes them in and that rows do not have (`offered`); empty where there are none to change. `turns` counts
    such rows by their number of dimensions."""
    moved = [v for v in variants if (v.dtype, v.layout) == problem.spread and not v.storage]
    able = [
        pair
        for pair in pairs
        if rank_of(pair[1]) == problem.geometry.rank and pair[0] in DTYPES and not is_optional(pair[1])
        if pair == problem.spread or pair not in offered
        if all(declared.takes(problem, replace(v, dtype=pair[0], layout=pair[1])) for v in moved)
    ]
    if not moved or not able:
        return ()
    dtype, layout = able[turns[problem.geometry.rank] % len(able)]
    turns[problem.geometry.rank] += 1
    return tuple(replace(v, dtype=dtype, layout=layout) if v in moved else v for v in variants)


def _brought_forward(
    declared: Declared,
    by_size: Sequence[tuple[int, Row]],
    pairs: Sequence[tuple[str, str]],
    first: Sequence[tuple[Problem, Variant]],
) -> Iterator[tuple[int, Variant]]:
    """Cases of `AT_SMOKE` of which none is among the `first`, those of smoke: of the rows with their places, small ones
    before others, or else of a row's problem in a dtype and layout of the kernel. The same at each level."""
    for brought in AT_SMOKE:
        if any(brought.problems(problem.geometry) and brought.variants(variant) for problem, variant in first):
            continue
        rows = [
            (place, problem, variants) for place, (problem, variants) in by_size if brought.problems(problem.geometry)
        ]
        of_rows = ((place, problem, variant) for place, problem, variants in rows for variant in variants)
        of_kernel = (
            (place, problem, Variant(dtype, layout, name))
            for place, problem, _ in rows
            for dtype, layout in pairs
            for name in FAMILIES[problem.geometry.family].distributions
            if dtype in DTYPES and rank_of(layout) == problem.geometry.rank and applies(name, dtype)
        )
        suited = (
            (place, variant)
            for place, problem, variant in chain(of_rows, of_kernel)
            if brought.variants(variant) and _is_suited(declared, problem, variant, pairs)
        )
        yield from islice(suited, 1)


def _views(
    declared: Declared,
    by_size: Sequence[tuple[int, Row]],
    pairs: Sequence[tuple[str, str]],
    first: Sequence[tuple[Problem, Variant]],
) -> Iterator[tuple[int, Variant]]:
    """Cases whose operands lie in `VIEWS` that they lie in nowhere among the `first`: of the rows with their places the
    one that adds most, the smallest of equal ones, until none adds any. The same at each level."""
    seen = {view for problem, variant in first for view in _views_of(problem, variant)}
    stored = [
        (place, variant, _views_of(problem, variant))
        for place, (problem, variants) in by_size
        for variant in variants
        if variant.storage and _is_suited(declared, problem, variant, pairs)
    ]
    while stored := [(place, variant, views) for place, variant, views in stored if views - seen]:
        place, variant, views = max(stored, key=lambda one: len(one[2] - seen))
        seen |= views
        yield place, variant


@cache
def _views_of(problem: Problem, variant: Variant) -> frozenset[tuple[str, int]]:
    """The operands that lie in one of `VIEWS`, each with the number of that; none where an axis has one element, whose
    stride says nothing."""
    if min(problem.geometry.n, problem.geometry.c, *problem.geometry.size) == 1:
        return frozenset()
    return frozenset(
        (operand, number)
        for operand, kind in parse(variant.storage).items()
        for number, kinds in enumerate(VIEWS)
        if kind in kinds
    )


def _is_suited(declared: Declared, problem: Problem, variant: Variant, pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether a kernel takes a case, in one of the `pairs` of dtype and layout that are asked for."""
    return (
        (variant.dtype, variant.layout) in pairs
        and variant.suits(declared.operator, problem.geometry)
        and declared.takes(problem, variant)
        and not declared.lacks(variant)
    )


def _further(
    declared: Declared, rows: Sequence[Row], pairs: Sequence[tuple[str, str]], run: set[str]
) -> Iterator[tuple[int, Variant]]:
    """Distributions of the rows that are not among `run`, each on the first small problem that a kernel takes in one of
    its dtypes and layouts, which take turns."""
    names = sorted({v.distribution for _, variants in rows for v in variants if v.dtype in DTYPES})
    for turn, name in enumerate(name for name in names if name not in run):
        own = [Variant(dtype, layout, name) for dtype, layout in pairs if dtype in DTYPES and applies(name, dtype)]
        own = own[turn % len(own) :] + own[: turn % len(own)] if own else []
        suited = (
            (place, variant)
            for place, (problem, _) in enumerate(rows)
            if cost(problem.geometry)[1] <= SMALL
            for variant in own
            if rank_of(variant.layout) == problem.geometry.rank and _is_suited(declared, problem, variant, pairs)
        )
        yield from islice(suited, 1)


def _offered(rows: Iterable[Row]) -> dict[str, set[tuple[str, str]]]:
    """Name of a problem -> the dtypes and layouts that rows have it in."""
    found: dict[str, set[tuple[str, str]]] = {}
    for problem, variants in rows:
        found.setdefault(problem.name, set()).update((v.dtype, v.layout) for v in variants)
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
    """The rows of a selection, and what an implementation runs of them. Each is computed once."""

    def __init__(self, asked: Selection) -> None:
        self.asked = asked
        self.rows, self.share = cache(self._rows), cache(self._share)
        self.small, self.paths, self.spread = cache(self._small), cache(self._paths), cache(self._spread)
        self._programs = cache(self._candidates)
        self._at_level = cache(lambda family, level: [*replace(asked, level=level).rows(family)])
        self._declared: dict[tuple[str, str], Declared] = {}

    def declared(self, one: Implementation, operator: str) -> Declared:
        """What an implementation declares of an operator; its predicates have been asked about every row."""
        key = one.name, operator
        if key not in self._declared:
            rows = self.rows(operator).rows
            self._declared[key] = Declared(one, operator, [problem.geometry for problem, _ in rows])
        return self._declared[key]

    def _suited(self, operator: str, level: str) -> list[Row]:
        """What of a level an operator has."""
        rows = self._at_level(OPERATORS[operator].family, level)
        every = ((p, variants) for p, variants in rows if takes(operator, p.geometry))
        suited = ((p, tuple(v for v in variants if v.suits(operator, p.geometry))) for p, variants in every)
        return [row for row in suited if row[1]]

    def _rows(self, operator: str) -> Rows:
        """What an operator has. The rows of level standard come first, whatever level is asked for that has them."""
        level, own = self.asked.level, self._suited(operator, self.asked.level)
        if not self.asked.is_of_tables:
            return Rows.of(own, len(own), len(own))
        standard = own if level == "standard" else self._suited(operator, "standard")
        first = standard if level in ("standard", "full") else _left(own, _left(own, standard))
        rows = [*first, *_left(own, first)]
        listed, usual = len(rows), len(first)
        if level in ("smoke", "huge"):
            rows += _left(standard, rows)
            usual = len(rows) if level == "smoke" else usual
        return Rows.of(rows, listed, usual)

    def _share(self, declared: Declared) -> list[list[Variant]]:
        """What is required of an implementation of every row of an operator: all of a problem that is given by hand."""
        asked, rows = self.asked, self.rows(declared.operator)
        if not asked.is_of_tables:
            return [[*filter(asked.includes, variants)] for _, variants in rows.rows]
        given = budget(declared.implementation, asked.level, asked.programs)
        return share(declared, rows, given, asked.wants)

    def _small(self, family: str) -> list[Problem]:
        """Where behaviour is checked, in dtypes and on inputs of its own: up to level standard at least."""
        level = "standard" if self.asked.level in ("smoke", "huge") else self.asked.level
        every = at_level(of_family(self.asked.problems, family), level)
        return [*{problem.name: problem for problem, _ in every}.values()]

    def _paths(self, declared: Declared) -> list[Path]:
        """What the behaviour of a kernel is checked on: in the layouts asked for, and in others if it has no plain one;
        two dozen checks ask for the same."""
        return self._covering(declared, MAX_PATHS)

    def _spread(self, declared: Declared) -> list[Path]:
        """The paths that checks take in turn which are each made on a few. Where a call on a new shape takes a
        compiler's or a simulator's time they are those of the other checks."""
        one = declared.implementation
        if one.compiles_per_shape or bool(getattr(one.arrays, "stands_for", ())):
            return self.paths(declared)
        return self._covering(declared, SPREAD)

    def _covering(self, declared: Declared, by_level: Mapping[str, int]) -> list[Path]:
        return paths(self._programs(declared), by_level.get(self.asked.level, by_level["smoke"]))

    def _candidates(self, declared: Declared) -> dict[int, list[Path]]:
        asked, own = self.asked, declared.layouts
        dtypes = behaviour_dtypes(asked, declared.operator)
        layouts = own if asked.every_layout and all(map(is_optional, own)) else asked.layouts
        problems = self.small(OPERATORS[declared.operator].family)
        return candidates(declared, problems, lambda dtype, layout: dtype in dtypes and layout in layouts)


def behaviour_dtypes(asked: Selection, operator: str) -> tuple[str, ...]:
    """In which dtypes behaviour is checked."""
    return ordinary(dtype for dtype in asked.dtypes if dtype in OPERATORS[operator].dtypes)


def _left(rows: Iterable[Row], known: Iterable[Row]) -> list[Row]:
    """What of rows others do not have."""
    named = {(problem.name, variant) for problem, variants in known for variant in variants}
    left = ((p, tuple(v for v in variants if (p.name, v) not in named)) for p, variants in rows)
    return [row for row in left if row[1]]
