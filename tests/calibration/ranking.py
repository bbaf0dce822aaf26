"""`python -m tests.calibration rank`: puts the programs of the tables in an order in which the first ones detect most.

The order is greedy: the next case is the one that adds most for its price, which is known-bad kernels that few earlier
cases detect, pairs of features that no earlier case has, a new geometry, and a kernel in a dtype, a layout and a number
of dimensions that it could hide in. An order by kernels alone would overfit to ours: beyond a hundred programs it is
worse than chance. An order by pairs alone is no better than chance either. With a pair at 0.05 and halves of our own
classes of mistakes, by which weights were chosen, the first 50 cases detect 73 to 94% of the other half, those of a
drawn order 65 to 86%; of kernels that others wrote it detects more than a drawn one within twenty cases, not later.

Dtypes whose filters have a format of their own are ranked apart, and their programs are put evenly among the others,
which keep their order: what a kernel of int8 alone runs is no other because there are problems in uint8.

To find which known-bad kernels a case detects, references are computed once a case. A kernel that many cases detect
gives no information after a few: it runs until `ENOUGH` cases of a dtype and a number of dimensions have detected it.
"""

from __future__ import annotations

import argparse
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from itertools import chain, groupby, product
from typing import NamedTuple

from conformance.dtypes import FILTERS
from conformance.inputs import Recipe
from conformance.inputs.manifest import SEED
from conformance.inputs.recipes import progress
from conformance.layouts import layouts_of
from conformance.operators import FAMILIES, OPERATORS
from conformance.problems import PROBLEMS, Problem, Variant
from conformance.problems.features import SAME_AXIS, of_geometry, pairs
from conformance.problems.ranking import FULL, RANKING, SMOKE_CASES, STORED
from conformance.resources import of_family
from tests.calibration.known_kernels import MUTANTS
from tests.calibration.mutation import JOBS, cost, differing, is_judged

ENOUGH = 12
"""Number of cases of a dtype and a number of dimensions."""
AFFORDABLE = 1 << 20
"""Multiply-adds of a case, by the measure of `conformance mutation`: the few that cost more took most of the time."""
DEAREST = 1 << 24
"""Multiply-adds of a case on which only the kernels run that no cheaper case detects."""
SHARES = 2
"""Parts into which an operator's mutants are divided; each part computes its expectations anew."""


class Kill(NamedTuple):
    """A known-bad kernel of an operator, by its place in the collection."""

    operator: str
    mutant: int


class TensorKey(NamedTuple):
    """Parameters that determine what a kernel computes, whatever the layout."""

    descriptor: str
    dtype: str
    distribution: str


Kills = dict[TensorKey, set[Kill]]


def kills(family: str, cases: Iterable[tuple[Problem, Variant]], jobs: int = JOBS, enough: int = ENOUGH) -> Kills:
    """Return which kernels each case of a family detects, in any of its operators; cases are in the order given. Cases
    beyond the budget of a campaign detect none here."""
    geometries = {(p.geometry, v.dtype, v.distribution): None for p, v in cases}
    tasks = []
    for operator in FAMILIES[family].operators:
        mine = [i for i, mutant in enumerate(MUTANTS) if operator.name in mutant.operators]
        tasks += [(operator.name, mine[i::SHARES], [*geometries], enough) for i in range(SHARES)]
    found: defaultdict[TensorKey, set[Kill]] = defaultdict(set)
    with ProcessPoolExecutor(jobs) as pool:
        for part in progress(pool.map(_share, tasks), len(tasks), f"parts of mutants of {family}"):
            for tensors, mutants in part.items():
                found[tensors] |= mutants
    return dict(found)


def _share(task: tuple[str, Sequence[int], Sequence[tuple[object, str, str]], int]) -> Kills:
    name, indices, cases, enough = task
    operator = OPERATORS[name]
    recipes = [
        Recipe(operator.on(g), dtype, how, SEED)
        for g, dtype, how in cases
        if operator.defined(g, dtype) and operator.determines(g, how)
    ]
    counts = Counter[tuple[int, str, int]]()
    found: Kills = {}
    for recipe in (recipe for recipe in recipes if cost(recipe) <= AFFORDABLE):
        rank = recipe.workload.geometry.rank
        waiting = [i for i in indices if counts[i, recipe.dtype, rank] < enough]
        detected = _detected(recipe, waiting)
        counts.update((i, recipe.dtype, rank) for i in detected)
        found[_tensors(recipe)] = {Kill(name, i) for i in detected}
    seen = {(i, rank) for i, _, rank in counts}
    dear = sorted((recipe for recipe in recipes if AFFORDABLE < cost(recipe) <= DEAREST), key=cost)
    for recipe in dear:  # expensive recipes run only kernels not yet detected in their number of dimensions
        rank = recipe.workload.geometry.rank
        detected = _detected(recipe, [i for i in indices if (i, rank) not in seen])
        seen.update((i, rank) for i in detected)
        found[_tensors(recipe)] = {Kill(name, i) for i in detected}
    return found


def _tensors(recipe: Recipe) -> TensorKey:
    return TensorKey(recipe.workload.geometry.descriptor, recipe.dtype, recipe.distribution)


def _detected(recipe: Recipe, indices: Sequence[int]) -> list[int]:
    """Return the mutants that fail on the recipe."""
    mutants = [(i, MUTANTS[i]) for i in indices if is_judged(MUTANTS[i], recipe)]
    return [number for number, checks in differing(mutants, recipe) if checks] if mutants else []


KILLS = (1.0, 0.5, 0.25)
"""Values of a kernel that no case before, one case, or two cases detect."""
PAIR, CELL, GEOMETRY = 0.1, 0.1, 0.5
"""Values of a pair of features; of a kernel in a new dtype, layout and number of dimensions; of a new geometry."""
SAME_PROGRAM = 0.3
"""Price of a case whose program runs anyway; that of a new program is 1."""
CHEAP = 1 << 20
"""Multiply-adds that double the price."""
HEADING = """\
# The order in which cases run, the most powerful first: a program a line, and the distributions of its inputs; `stored`
# are its cases with operands that lie otherwise in memory.
# Written by `python -m tests.calibration rank {family}`; not edited by hand.
"""


class Candidate(NamedTuple):
    """A case, with its kernels, features and price."""

    problem: Problem
    variant: Variant
    price: float
    kills: frozenset[Kill]
    pairs: frozenset[tuple[str, ...]]

    @property
    def program(self) -> tuple[str, str, str]:
        return self.problem.name, self.variant.dtype, self.variant.layout

    def cells(self) -> Iterator[tuple[Kill, str, str, int]]:
        """Return the combinations of kernel, dtype, layout and number of dimensions that the case covers."""
        return ((k, self.variant.dtype, self.variant.layout, self.problem.geometry.rank) for k in self.kills)


class Covered:
    """Kernels, places, geometries and pairs of features that the cases chosen so far cover."""

    def __init__(self) -> None:
        self._kills: Counter[Kill] = Counter()
        self._cells = set[tuple[Kill, str, str, int]]()
        self._pairs = set[tuple[str, ...]]()
        self._geometries = set[object]()
        self._programs = set[tuple[str, str, str]]()

    def needs(self, one: Candidate) -> float:
        """Return the value that a case would add to those a level must have: kernels in their places, and
        geometries."""
        kernels = sum(KILLS[self._kills[kill]] for kill in one.kills if self._kills[kill] < len(KILLS))
        cells = sum(cell not in self._cells for cell in one.cells())
        return kernels + CELL * cells + GEOMETRY * (one.problem.geometry not in self._geometries)

    def value(self, one: Candidate) -> float:
        """Return the value that a case would add, pairs of features included."""
        return self.needs(one) + PAIR * len(one.pairs - self._pairs)

    def price(self, one: Candidate) -> float:
        return one.price * (SAME_PROGRAM if one.program in self._programs else 1.0)

    def add(self, one: Candidate) -> None:
        self._kills.update(one.kills)
        self._cells.update(one.cells())
        self._pairs |= one.pairs
        self._geometries.add(one.problem.geometry)
        self._programs.add(one.program)


def ordered(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates in their order, and apart those that add nothing which a level must have.

    The value of a case only shrinks as others are chosen (the sum is submodular: Nemhauser, Wolsey and Fisher 1978), so
    that an old value is a bound, and few have to be computed anew.
    """
    covered = Covered()
    heap = [(-covered.value(one) / (one.price * SAME_PROGRAM), place) for place, one in enumerate(candidates)]
    heapq.heapify(heap)
    chosen: list[Candidate] = []
    rest: list[Candidate] = []
    while heap:
        _, place = heapq.heappop(heap)
        one = candidates[place]
        worth = covered.value(one) / covered.price(one)
        if heap and worth < -heap[0][0]:
            heapq.heappush(heap, (-worth, place))
            continue
        (chosen if covered.needs(one) else rest).append(one)
        covered.add(one)
    return chosen, rest


def candidates(family: str, cases: Iterable[tuple[Problem, Variant]], found: Kills) -> list[Candidate]:
    """Return the cases with their values; `found` are the kernels that they detect."""
    made = []
    for problem, variant in cases:
        geometry = problem.geometry
        key = TensorKey(geometry.descriptor, variant.dtype, variant.distribution)
        features = of_geometry(geometry)
        single = {feature for feature in features if SAME_AXIS not in feature}
        place = variant.dtype, "last" if variant.layout == layouts_of(geometry.rank)[1] else variant.layout
        both = frozenset(chain(pairs(single), ((f,) for f in features - single), product(place, single)))
        recipes = (
            Recipe(one.on(geometry), variant.dtype, variant.distribution, SEED) for one in FAMILIES[family].operators
        )
        price = 1 + max(map(cost, recipes)) / CHEAP
        made.append(Candidate(problem, variant, price, frozenset(found.get(key, ())), both))
    return made


def plain_cases(family: str, of_filters: bool = False) -> list[tuple[Problem, Variant]]:
    """Return the cases that are ranked together: the tables up to level standard, without storage, in an order in which
    each problem adds as many new features as it can. Kernels that many cases detect are counted on the first of these.
    `of_filters` are those in dtypes whose filters have a format of their own."""
    listed = [p for p in PROBLEMS if p.geometry.family == family and p.level == "standard"]
    plain = {p: [v for v in p.variants if not v.storage and (v.dtype in FILTERS) == of_filters] for p in listed}
    bare = [
        Candidate(p, variants[0], 1, frozenset(), frozenset(pairs(of_geometry(p.geometry))))
        for p, variants in plain.items()
        if variants
    ]
    first, rest = ordered(bare)
    return [(one.problem, v) for one in (*first, *rest) for v in plain[one.problem]]


def evenly(first: Sequence[Candidate], second: Sequence[Candidate]) -> list[Candidate]:
    """Return both lists in their orders, with the programs of the second put evenly among those of the first."""
    programs = [[[*cases] for _, cases in groupby(part, key=lambda one: one.program)] for part in (first, second)]
    placed = [((i + 1) / len(part), turn, cases) for turn, part in enumerate(programs) for i, cases in enumerate(part)]
    return [*chain.from_iterable(cases for *_, cases in sorted(placed, key=lambda one: one[:2]))]


def lines(chosen: Sequence[Candidate], rest: Sequence[Candidate]) -> Iterator[str]:
    """Yield the lines of a ranking. Cases with a storage stand behind level smoke, with the first line of their
    program, and those of no other program at the end of standard."""
    waiting = dict.fromkeys(
        (one.name, v.dtype, v.layout) for one in dict.fromkeys(c.problem for c in (*chosen, *rest))
        for v in one.variants if v.storage
    )  # fmt: skip
    early: list[tuple[str, str, str]] = []
    spent = 0
    for program, cases in groupby(chosen, key=lambda one: one.program):
        words = [one.variant.distribution for one in cases]
        spent += len(words)
        if spent <= SMOKE_CASES:
            early.append(program)
        else:
            for one in dict.fromkeys(early):
                if one in waiting:
                    del waiting[one]
                    yield " ".join((*one, STORED))
            early = []
            if program in waiting:
                del waiting[program]
                words.append(STORED)
        yield " ".join((*program, *words))
    for program in waiting:
        yield " ".join((*program, STORED))
    yield FULL
    for program, cases in groupby(rest, key=lambda one: one.program):
        yield " ".join((*program, *(one.variant.distribution for one in cases)))


def declare(parser: argparse.ArgumentParser) -> None:
    """Put the cases of operator families in the order of their power, anew; writes their ranking.txt."""
    known = ", ".join(FAMILIES)
    parser.add_argument("family", nargs="*", type=_family, metavar="FAMILY", help=f"{known}; default: all")
    parser.set_defaults(run=_command)


def _family(text: str) -> str:
    if text not in FAMILIES:
        raise argparse.ArgumentTypeError(f"{text} is no family; choices: {', '.join(FAMILIES)}")
    return text


def _command(arguments: argparse.Namespace) -> int:
    for family in arguments.family or FAMILIES:
        parts = [plain_cases(family), plain_cases(family, of_filters=True)]
        ranked = [ordered(candidates(family, cases, kills(family, cases, JOBS))) for cases in parts if cases]
        chosen, rest = (reduce(evenly, part) for part in zip(*ranked, strict=True))
        text = "\n".join(lines(chosen, rest))
        of_family(family, RANKING).write_text(f"{HEADING.format(family=family)}{text}\n", "utf-8")
        print(f"{family}: {len(chosen)} cases of standard, {len(rest)} more at full")
    return 0
