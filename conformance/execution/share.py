"""Share of the ranking that an implementation runs: the lines that it takes, from the first on, within its budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice, product
from typing import NamedTuple

from conformance.dtypes import DTYPES, ordinary
from conformance.execution.declared import MAX_PATHS, SPREAD, Declared, Path, candidates, paths
from conformance.execution.selection import Selection
from conformance.implementations.implementation import Implementation
from conformance.layouts import is_optional, rank_of
from conformance.operators import FAMILIES, OPERATORS, takes
from conformance.operators.family import Brought
from conformance.problems import Problem, Variant, at_level, of_family
from conformance.problems.parameters import cost
from conformance.problems.ranking import PROGRAMS, SMOKE_CASES, Row
from conformance.problems.table import applies, exact_distribution, usual_distribution
from conformance.storage import parse, repeats

NATURAL, ABSORBED = "natural", "absorbed"
ENOUGH_RESULTS = 64
"""Results of a problem that is chosen for natural inputs: its image then has a bright and a dark half."""
LONGEST_SPAN = 1 << 20
"""Longest span of sums in an exact reference on natural inputs, for slices of at least 16 bits."""
SMALL = 1 << 16
"""Most elements of a problem that is run on a distribution which the rows have on no problem that a kernel takes."""
BESIDE_OTHERS = 24
"""Problems of ordinary dtypes that a kernel of 8 bits alone, beside others, is run on."""

TAIL = Brought(
    lambda geometry: (
        geometry.n > 4 and geometry.n % 4 != 0 and min((geometry.c, *geometry.window, *geometry.output_size)) > 1
    )
)
"""Cases with the tail of a batch, which are brought forward for every family."""
VIEWS = (
    ("other-format",),
    ("crop", "strided"),
    ("channels", "chunk"),
    ("rows", "transposed"),
    ("far-rows",),
    ("reversed",),
    ("expanded", "expanded-channels"),
    ("expanded-columns", "expanded-all"),
    ("expanded-batch",),
    ("offset-1", "offset-2", "offset-4"),
    ("align-16",),
)
"""Kinds of storage that the same mistakes read wrongly: at smoke each operand lies in one of every group."""


class Budget(NamedTuple):
    """Most cases and programs of one operator; None if there is no limit."""

    cases: int | None = None
    programs: int | None = None


def budget(implementation: Implementation, level: str, programs: int | None) -> Budget:
    """Return the budget that a level gives an implementation; `programs` replaces the level's own number."""
    cases = SMOKE_CASES if level in ("smoke", "huge") else None
    if programs is None and implementation.compiles_per_shape:
        programs = PROGRAMS.get("smoke" if level == "huge" else level)
    return Budget(None if programs is not None else cases, programs)


class Rows(NamedTuple):
    """Rows of an operator, in order; how many are of the level asked for, and how many of level standard: an
    implementation that takes little of the level goes through all of them."""

    rows: Sequence[Row]
    listed: int
    usual: int
    by_size: Sequence[int]
    """Places of the usual rows, small problems first."""

    @classmethod
    def of(cls, rows: Sequence[Row], listed: int, usual: int) -> Rows:
        """Return rows that are sorted by size once, for all implementations."""
        return cls(rows, listed, usual, sorted(range(usual), key=lambda place: cost(rows[place][0].geometry)[1]))


def share(
    declared: Declared, of: Rows, allowance: Budget, wants: Callable[[str, str], bool] = lambda dtype, layout: True
) -> list[list[Variant]]:
    """Return the variants of every row that are required of an implementation; in rows of the level also variants that
    it does not take, which are reported. An implementation that takes little of the level goes on with the rows behind.

    If the rows have a problem in no dtype and layout of the kernel, it is run in one that the kernel declares and that
    is wanted: rows take dtypes and layouts in turn, and a kernel of one pair would miss most shapes. A problem with
    `spread` is run in the kernel's pairs in turn: nearly every layer of a network was in fp32 and channels first. A
    distribution that the rows have on no problem that the kernel takes is run on the first that it does: a kernel for
    1x1 windows alone would meet no subnormal number, and one that flushes them would pass. Terms that an accumulator
    absorbs are met in every dtype, in windows of one element and larger ones. Natural inputs are run in
    every dtype and number of dimensions, or a kernel that is right only on numbers of few bits would pass in the
    others. The rows of level standard are looked at by themselves: a kernel failed at standard and passed at full,
    where the table had the problem in its dtype with other inputs.
    """
    rows, listed, usual, _ = of
    pairs = [pair for pair in declared.pairs if wants(*pair)]
    plain = {*ordinary(dtype for dtype, _ in pairs)}
    replaceable = [pair for pair in pairs if pair[0] in plain]
    offered = [_offered(rows[:usual])] * usual + [_offered(rows)] * (len(rows) - usual)
    shares: list[list[Variant]] = []
    first: list[tuple[Problem, Variant]] = []
    spent, counted, programs = 0, set[tuple[str, str, str]](), set[tuple[str, str, str]]()
    substituted, met, turns = set[tuple[str, Variant]](), set[str](), Counter[int]()
    natural = NaturalCases(declared.operator, rows)
    for place, (problem, variants) in enumerate(rows):
        row: list[Variant] = []
        shares.append(row)
        spread: Sequence[Variant] = ()
        if place < usual and problem.spread in pairs:
            spread = _spread(declared, problem, variants, pairs, offered[place][problem.name], turns)
            variants = spread or variants
        included = [v for v in variants if wants(v.dtype, v.layout)]
        counted.update((problem.name, v.dtype, v.layout) for v in included)
        within = place < listed and (allowance.programs is None or len(counted) <= allowance.programs)
        instead = [] if offered[place][problem.name] & {*pairs} else _instead(problem, variants, replaceable, place)
        for variant in (*included, *instead):
            if not (variant.suits(declared.operator, problem.geometry) and declared.takes(problem, variant)):
                if within and variant not in instead:
                    row.append(variant)
                continue
            if (problem.name, variant) in substituted:
                continue
            if place < usual:  # whether this level has room for it or not, so that every level adds the same
                met.add(variant.distribution)
            if variant in instead or variant in spread:
                substituted.add((problem.name, variant))
            program = problem.name, variant.dtype, variant.layout
            full = (allowance.cases is not None and spent >= allowance.cases) or (
                allowance.programs is not None and program not in programs and len(programs) >= allowance.programs
            )
            if not full:
                row.append(variant)
                programs.add(program)
                spent += 1
                first += [(problem, variant)] if spent <= SMOKE_CASES else []
            # a kernel that compiles each program meets natural inputs on one that runs anyway
            if place < usual and (allowance.programs is None or program in programs):
                natural.offer(place, problem, variant)

    def bring(place: int, variant: Variant) -> None:
        """Add a case to a row, and take it out of those behind, lines of the ranking that only higher levels have."""
        for (problem, _), row in zip(rows[place:], shares[place:], strict=True):
            if problem.name == rows[place][0].name and variant in row:
                row.remove(variant)
        shares[place].append(variant)

    if allowance.programs is None:
        by_size = [(place, rows[place]) for place in of.by_size]
        forward = chain(
            _brought_forward(declared, by_size, replaceable, first), _views(declared, by_size, replaceable, first)
        )
        for place, variant in forward:
            if variant not in shares[place]:
                bring(place, variant)
                natural.offer(place, rows[place][0], variant)
    if allowance.programs is None and met:
        further = (
            _further(declared, rows[:usual], pairs, met),
            _absorbed(declared, rows[:usual], pairs),
            _beside_others(declared, rows[:usual], wants),
        )
        for place, variant in chain(*further):
            bring(place, variant)
            natural.offer(place, rows[place][0], variant)
    for place, variant in natural.chosen:
        bring(place, variant)
    return shares


class NaturalCases:
    """Natural inputs for every dtype and number of dimensions that a kernel is run in: on the first problem with more
    than a few results, or else on the one that has most. Every level chooses the same ones."""

    def __init__(self, operator: str, rows: Sequence[Row]) -> None:
        self._operator = OPERATORS[operator]
        self._is_asked = any(v.distribution == NATURAL for _, variants in rows for v in variants)
        self._results: dict[tuple[str, int], int] = {}
        self._chosen: dict[tuple[str, int], tuple[int, Variant]] = {}

    def offer(self, place: int, problem: Problem, variant: Variant) -> None:
        """Take a problem that a kernel is run on, in this dtype and layout, if it is better than the last one."""
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
        """Places of rows, each with the variant that is added there."""
        yield from self._chosen.values()


def _spread(
    declared: Declared,
    problem: Problem,
    variants: Sequence[Variant],
    pairs: Sequence[tuple[str, str]],
    offered: set[tuple[str, str]],
    turns: Counter[int],
) -> tuple[Variant, ...]:
    """Return a row's variants, of which those in the problem's `spread` are moved to the next dtype and layout of
    `pairs` that the kernel takes them in and that rows do not have (`offered`); empty if there are none to move.
    `turns` counts rows with moved variants by their number of dimensions."""
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
    """Yield cases that are brought forward and of which none is among the `first`, those of smoke: from the rows with
    their places, small ones first, or else a row's problem in a dtype and layout of the kernel, on a distribution of
    the rows. They are the same at each level."""
    family = FAMILIES[OPERATORS[declared.operator].family]
    distributions = {variant.distribution for _, (_, variants) in by_size for variant in variants}
    for brought in (*family.at_smoke, TAIL):
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
            for name in family.distributions
            if name in distributions
            if rank_of(layout) == problem.geometry.rank and applies(name, dtype)
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
    """Yield cases with operands in `VIEWS` that these operands do not have among the `first`: from the rows with their
    places, the one that adds most, the smallest of equal ones, until none adds any. They are the same at each level.
    The tables have views in ordinary dtypes; a kernel of 8 bits alone meets them in its own."""
    covered = {view for problem, variant in first for view in _views_of(problem, variant)}
    stored = [
        (place, taken, _views_of(problem, taken))
        for place, (problem, variants) in by_size
        for variant in variants
        if variant.storage and (taken := _in_format_of(variant, problem, pairs))
        if _is_suited(declared, problem, taken, pairs)
    ]
    while stored := [(place, variant, views) for place, variant, views in stored if views - covered]:
        place, variant, views = max(stored, key=lambda candidate: len(candidate[2] - covered))
        covered |= views
        yield place, variant


def _in_format_of(variant: Variant, problem: Problem, pairs: Sequence[tuple[str, str]]) -> Variant | None:
    """Return a variant with a storage in a dtype of the kernel, if that has none of the ordinary dtypes; None if the
    kernel has not the layout."""
    if any(dtype in DTYPES for dtype, _ in pairs) or variant.dtype not in DTYPES:
        return variant
    dtype = next((dtype for dtype, layout in pairs if layout == variant.layout), None)
    if dtype is None:
        return None
    family = problem.geometry.family
    is_exact = repeats(variant.storage)
    return replace(
        variant,
        dtype=dtype,
        distribution=exact_distribution(family) if is_exact else usual_distribution(family, dtype),
    )


@cache
def _views_of(problem: Problem, variant: Variant) -> frozenset[tuple[str, int]]:
    """Return the operands that lie in one of `VIEWS`, each with the number of that group; empty if an axis has one
    element, whose stride says nothing."""
    if min(problem.geometry.n, problem.geometry.c, *problem.geometry.size) == 1:
        return frozenset()
    return frozenset(
        (operand, number)
        for operand, kind in parse(variant.storage).items()
        for number, kinds in enumerate(VIEWS)
        if kind in kinds
    )


def _is_suited(declared: Declared, problem: Problem, variant: Variant, pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether a kernel takes a case, in one of the `pairs` of dtype and layout that are asked for."""
    return (
        (variant.dtype, variant.layout) in pairs
        and variant.suits(declared.operator, problem.geometry)
        and declared.takes(problem, variant)
        and not declared.lacks(variant)
    )


def _further(
    declared: Declared, rows: Sequence[Row], pairs: Sequence[tuple[str, str]], met: set[str]
) -> Iterator[tuple[int, Variant]]:
    """Yield the rows' distributions that are not among those `met`, each on the first small problem that a kernel takes
    in one of its dtypes and layouts, which take turns."""
    names = sorted({v.distribution for _, variants in rows for v in variants} - met - {ABSORBED})
    for turn, name in enumerate(names):
        variants = [Variant(dtype, layout, name) for dtype, layout in pairs if applies(name, dtype)]
        variants = variants[turn % len(variants) :] + variants[: turn % len(variants)] if variants else []
        suited = (
            (place, variant)
            for place, (problem, _) in enumerate(rows)
            if cost(problem.geometry)[1] <= SMALL
            for variant in variants
            if rank_of(variant.layout) == problem.geometry.rank and _is_suited(declared, problem, variant, pairs)
        )
        yield from islice(suited, 1)


def _beside_others(
    declared: Declared, rows: Sequence[Row], wants: Callable[[str, str], bool]
) -> Iterator[tuple[int, Variant]]:
    """Yield the first problems for each kernel of 8 bits alone beside others of ordinary dtypes: it is a function of
    its own, for which the tables have few shapes."""
    if not any(dtype in DTYPES for dtype, _ in declared.pairs):
        return  # every row is replaced, see `_instead`
    offered = _offered(rows)
    for kernel in declared.kernels:
        if any(dtype in DTYPES for dtype in kernel.dtypes):
            continue
        pairs = [pair for pair in product(kernel.dtypes, kernel.layouts) if wants(*pair)]
        names, chosen = set[str](), 0
        for place, (problem, variants) in enumerate(rows):
            if chosen == BESIDE_OTHERS:
                break
            if problem.name in names or offered[problem.name] & {*pairs}:
                continue
            names.add(problem.name)
            suited = [v for v in _instead(problem, variants, pairs, chosen) if _is_suited(declared, problem, v, pairs)]
            for variant in suited[:1]:
                chosen += 1
                yield place, variant


def _absorbed(
    declared: Declared, rows: Sequence[Row], pairs: Sequence[tuple[str, str]]
) -> Iterator[tuple[int, Variant]]:
    """Yield absorbed terms in each dtype, on windows of one element and on larger ones, which may each have an
    accumulator of their own: on the small problem that a kernel takes with the longest sums, because a short one hides
    the bits that it loses. The problems that a table has them on come first."""
    if all(variant.distribution != ABSORBED for _, variants in rows for variant in variants):
        return
    operator = OPERATORS[declared.operator]
    adding = [
        (all(variant.distribution != ABSORBED for variant in problem.variants), -terms, place, problem)
        for place, (problem, _) in enumerate(rows)
        if cost(problem.geometry)[1] <= SMALL and (terms := operator.errors(problem.geometry).span) > 2
    ]
    candidates = [(place, problem) for *_, place, problem in sorted(adding, key=lambda ordered: ordered[:3])]
    for dtype in dict.fromkeys(dtype for dtype, _ in pairs if applies(ABSORBED, dtype)):
        for is_pointwise in (True, False):
            suited = (
                (place, variant)
                for place, problem in candidates
                if ({*problem.geometry.window} == {1}) == is_pointwise
                for variant in (Variant(dtype, layout, ABSORBED) for of_dtype, layout in pairs if of_dtype == dtype)
                if rank_of(variant.layout) == problem.geometry.rank and _is_suited(declared, problem, variant, pairs)
            )
            yield from islice(suited, 1)


def _offered(rows: Iterable[Row]) -> dict[str, set[tuple[str, str]]]:
    """Return name of a problem -> the dtypes and layouts that rows have it in."""
    pairs: dict[str, set[tuple[str, str]]] = {}
    for problem, variants in rows:
        pairs.setdefault(problem.name, set()).update((v.dtype, v.layout) for v in variants)
    return pairs


def _instead(
    problem: Problem, variants: Sequence[Variant], declared: Sequence[tuple[str, str]], place: int
) -> list[Variant]:
    """Return variants with the same distributions in a dtype and layout of the kernel, which take turns by row; with
    the usual one where the dtype has none of them. Variants in 8 bits are not replaced: their inputs have values for 8
    bits, and they have tables of their own."""
    rank = problem.geometry.rank
    pairs = [(dtype, layout) for dtype, layout in declared if rank_of(layout) == rank]
    plain = [v for v in variants if v.dtype in DTYPES and not (v.storage or is_optional(v.layout))]
    if not pairs or not plain:
        return []
    dtype, layout = pairs[place % len(pairs)]
    names = [name for name in dict.fromkeys(v.distribution for v in plain) if applies(name, dtype)]
    return [Variant(dtype, layout, name) for name in names or [usual_distribution(problem.geometry.family, dtype)]]


class Ranked:
    """Rows of a selection, and the share of them that an implementation runs. Each is computed once."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.rows, self.share = cache(self._rows), cache(self._share)
        self.small, self.paths, self.spread = cache(self._small), cache(self._paths), cache(self._spread)
        self.programs = cache(self._candidates)
        self._at_level = cache(lambda family, level: [*replace(selection, level=level).rows(family)])
        self._declared: dict[tuple[str, str], Declared] = {}

    def declared(self, implementation: Implementation, operator: str) -> Declared:
        """Return an implementation's declarations for an operator; its predicates have been asked about every row."""
        key = implementation.name, operator
        if key not in self._declared:
            rows = self.rows(operator).rows
            self._declared[key] = Declared(implementation, operator, [problem.geometry for problem, _ in rows])
        return self._declared[key]

    def _suited(self, operator: str, level: str) -> list[Row]:
        """Return the rows of a level that an operator takes."""
        rows = self._at_level(OPERATORS[operator].family, level)
        of_operator = ((p, variants) for p, variants in rows if takes(operator, p.geometry))
        suited = ((p, tuple(v for v in variants if v.suits(operator, p.geometry))) for p, variants in of_operator)
        return [row for row in suited if row[1]]

    def _rows(self, operator: str) -> Rows:
        """Return the rows of an operator. The rows of level standard come first, at every level that has them."""
        level, of_level = self.selection.level, self._suited(operator, self.selection.level)
        if not self.selection.is_of_tables:
            return Rows.of(of_level, len(of_level), len(of_level))
        standard = of_level if level == "standard" else self._suited(operator, "standard")
        first = standard if level in ("standard", "full") else _left(of_level, _left(of_level, standard))
        rows = [*first, *_left(of_level, first)]
        listed, usual = len(rows), len(first)
        if level in ("smoke", "huge"):
            rows += _left(standard, rows)
            usual = len(rows) if level == "smoke" else usual
        return Rows.of(rows, listed, usual)

    def _share(self, declared: Declared) -> list[list[Variant]]:
        """Return the variants of each row that are required of an implementation: all, of a problem given by hand."""
        selection, rows = self.selection, self.rows(declared.operator)
        if not selection.is_of_tables:
            return [[*filter(selection.includes, variants)] for _, variants in rows.rows]
        allowance = budget(declared.implementation, selection.level, selection.programs)
        return share(declared, rows, allowance, selection.wants)

    def _small(self, family: str) -> list[Problem]:
        """Return the problems on which behaviour is checked, with inputs of its own: up to level standard at least."""
        level = "standard" if self.selection.level in ("smoke", "huge") else self.selection.level
        rows = at_level(of_family(self.selection.problems, family), level)
        return [*{problem.name: problem for problem, _ in rows}.values()]

    def _paths(self, declared: Declared) -> list[Path]:
        """Return the paths on which a kernel's behaviour is checked: in the layouts asked for, and in others if it has
        no plain one; two dozen checks ask for the same."""
        return self._covering(declared, MAX_PATHS)

    def _spread(self, declared: Declared) -> list[Path]:
        """Return the paths for checks that are each made on only a few of them. If a call on a new shape takes a
        compiler's or a simulator's time, they are the paths of the other checks."""
        if self.is_slow(declared.implementation):
            return self.paths(declared)
        return self._covering(declared, SPREAD)

    @staticmethod
    def is_slow(implementation: Implementation) -> bool:
        """Return whether a call on a new shape takes a compiler's or a simulator's time."""
        return implementation.compiles_per_shape or bool(implementation.arrays.stands_for)

    def _covering(self, declared: Declared, by_level: Mapping[str, int]) -> list[Path]:
        return paths(self.programs(declared), by_level.get(self.selection.level, by_level["smoke"]))

    def _candidates(self, declared: Declared) -> dict[int, list[Path]]:
        selection, of_kernels = self.selection, declared.layouts
        dtypes = ordinary(dtype for dtype, layout in declared.pairs if selection.wants(dtype, layout))
        layouts = of_kernels if selection.every_layout and all(map(is_optional, of_kernels)) else selection.layouts
        problems = self.small(OPERATORS[declared.operator].family)
        return candidates(declared, problems, lambda dtype, layout: dtype in dtypes and layout in layouts)


def behaviour_dtypes(selection: Selection, operator: str) -> tuple[str, ...]:
    """Return the dtypes in which behaviour is checked."""
    return ordinary(dtype for dtype in selection.dtypes if dtype in OPERATORS[operator].dtypes)


def _left(rows: Iterable[Row], earlier: Iterable[Row]) -> list[Row]:
    """Return the rows without the variants that `earlier` rows have."""
    named = {(problem.name, variant) for problem, variants in earlier for variant in variants}
    remaining = ((p, tuple(v for v in variants if (p.name, v) not in named)) for p, variants in rows)
    return [row for row in remaining if row[1]]
