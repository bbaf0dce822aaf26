"""`python -m tests.calibration rank`: puts the programs of the tables in an order in which the first ones detect most.

Greedily, the case that brings most for its price is next: known-bad kernels that few of those before it detect, pairs
of features that none before it has, a new geometry, a kernel in a dtype, a layout and a number of dimensions that it
could hide in. Kernels alone would overfit to ours: beyond a hundred programs that is worse than chance. Pairs alone are
no better than chance either. With a pair at 0.05 and halves of our own classes of mistakes, by
which weights were chosen, the first 50 cases detect 73 to 94% of the other half, of a drawn order 65 to 86%; of kernels
that others wrote the order detects more than a drawn one within twenty cases, and no more after that.

Which known-bad kernels a case detects: references are computed once a case. A kernel that many cases detect says
nothing more after a few of them: it runs until so many cases of a dtype and a number of dimensions have detected it.
"""

from __future__ import annotations

import argparse
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, groupby, product
from typing import NamedTuple

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
"""Cases of a dtype and a number of dimensions."""
AFFORDABLE = 1 << 20
"""Multiply-adds of a case, by the measure of `conformance mutation`: the few that cost more took most of the time."""
DEAREST = 1 << 24
"""The same of a case on which only those run that no other case detects."""
SHARES = 2
"""Parts into which an operator's mutants are divided; each part computes its expectations anew."""


class Kill(NamedTuple):
    """A known-bad kernel of an operator, by its place in the collection."""

    operator: str
    mutant: int


class TensorKey(NamedTuple):
    """What decides what a kernel computes, whatever the layout."""

    descriptor: str
    dtype: str
    distribution: str


Kills = dict[TensorKey, set[Kill]]


def kills(family: str, cases: Iterable[tuple[Problem, Variant]], jobs: int = JOBS, enough: int = ENOUGH) -> Kills:
    """Of the cases of a family, in the order given, what each detects in any of the family's operators. Cases beyond
    what a campaign affords detect nothing here."""
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
    recipes = [Recipe(OPERATORS[name], *case, SEED) for case in cases if OPERATORS[name].defined(case[0], case[1])]
    counts = Counter[tuple[int, str, int]]()
    found: Kills = {}
    for recipe in (recipe for recipe in recipes if cost(recipe) <= AFFORDABLE):
        rank = recipe.geometry.rank
        waiting = [i for i in indices if counts[i, recipe.dtype, rank] < enough]
        detected = _detected(recipe, waiting)
        counts.update((i, recipe.dtype, rank) for i in detected)
        found[_tensors(recipe)] = {Kill(name, i) for i in detected}
    seen = {(i, rank) for i, _, rank in counts}
    dear = sorted((recipe for recipe in recipes if AFFORDABLE < cost(recipe) <= DEAREST), key=cost)
    for recipe in dear:  # what only these detect, in a number of dimensions
        rank = recipe.geometry.rank
        detected = _detected(recipe, [i for i in indices if (i, rank) not in seen])
        seen.update((i, rank) for i in detected)
        found[_tensors(recipe)] = {Kill(name, i) for i in detected}
    return found


def _tensors(recipe: Recipe) -> TensorKey:
    return TensorKey(recipe.geometry.descriptor, recipe.dtype, recipe.distribution)


def _detected(recipe: Recipe, indices: Sequence[int]) -> list[int]:
    """Those of the mutants that fail on the recipe."""
    mutants = [(i, MUTANTS[i]) for i in indices if is_judged(MUTANTS[i], recipe)]
    return [number for number, checks in differing(mutants, recipe) if checks] if mutants else []


KILLS = (1.0, 0.5, 0.25)
"""What a kernel is worth that no case before detects, one case, two cases."""
PAIR, CELL, GEOMETRY = 0.1, 0.1, 0.5
"""What a pair of features is worth, a kernel in a new dtype, layout and number of dimensions, a new geometry."""
SAME_PROGRAM = 0.3
"""The price of a case of a program that runs anyway; that of a new one is 1."""
CHEAP = 1 << 20
"""Multiply-adds that double the price."""
HEADING = """\
# The order in which cases run, the most powerful first: a program a line, and the distributions of its inputs; `stored`
# are its cases with operands that lie otherwise in memory.
# Written by `python -m tests.calibration rank {family}`; not edited by hand.
"""


class Candidate(NamedTuple):
    """A case, and what it brings."""

    problem: Problem
    variant: Variant
    price: float
    kills: frozenset[Kill]
    pairs: frozenset[tuple[str, ...]]

    @property
    def program(self) -> tuple[str, str, str]:
        return self.problem.name, self.variant.dtype, self.variant.layout

    def cells(self) -> Iterator[tuple[Kill, str, str, int]]:
        """The places in which a kernel is met here."""
        return ((k, self.variant.dtype, self.variant.layout, self.problem.geometry.rank) for k in self.kills)


class Covered:
    """What the cases chosen so far have brought."""

    def __init__(self) -> None:
        self._kills: Counter[Kill] = Counter()
        self._cells = set[tuple[Kill, str, str, int]]()
        self._pairs = set[tuple[str, ...]]()
        self._geometries = set[object]()
        self._programs = set[tuple[str, str, str]]()

    def needs(self, one: Candidate) -> float:
        """What a case would add that a level must have: kernels in their places, and geometries."""
        kernels = sum(KILLS[self._kills[kill]] for kill in one.kills if self._kills[kill] < len(KILLS))
        cells = sum(cell not in self._cells for cell in one.cells())
        return kernels + CELL * cells + GEOMETRY * (one.problem.geometry not in self._geometries)

    def value(self, one: Candidate) -> float:
        """The same with pairs of features."""
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
    """The candidates in their order; those that add nothing which a level must have are apart.

    What a case brings only shrinks as others are chosen (the sum is submodular: Nemhauser, Wolsey and Fisher 1978), so
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
    """The cases with what they bring; `found` are the kernels that they detect."""
    made = []
    for problem, variant in cases:
        geometry = problem.geometry
        key = TensorKey(geometry.descriptor, variant.dtype, variant.distribution)
        features = of_geometry(geometry)
        single = {feature for feature in features if SAME_AXIS not in feature}
        place = variant.dtype, "last" if variant.layout == layouts_of(geometry.rank)[1] else variant.layout
        both = frozenset(chain(pairs(single), ((f,) for f in features - single), product(place, single)))
        recipes = (
            Recipe(one, geometry, variant.dtype, variant.distribution, SEED) for one in FAMILIES[family].operators
        )
        price = 1 + max(map(cost, recipes)) / CHEAP
        made.append(Candidate(problem, variant, price, frozenset(found.get(key, ())), both))
    return made


def plain_cases(family: str) -> list[tuple[Problem, Variant]]:
    """What is ranked: the tables up to level standard, without storage, in an order in which each problem brings as
    many new features as it can. Kernels that many cases detect are counted on the first of these."""
    geometries = [p for p in PROBLEMS if p.geometry.family == family and p.level == "standard"]
    bare = [Candidate(p, p.variants[0], 1, frozenset(), frozenset(pairs(of_geometry(p.geometry)))) for p in geometries]
    first, rest = ordered(bare)
    return [(one.problem, v) for one in (*first, *rest) for v in one.problem.variants if not v.storage]


def lines(chosen: Sequence[Candidate], rest: Sequence[Candidate]) -> Iterator[str]:
    """The lines of a ranking. Cases with a storage stand behind level smoke, with the first line of their program, and
    those of no other program at the end of standard."""
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
        cases = plain_cases(family)
        chosen, rest = ordered(candidates(family, cases, kills(family, cases, JOBS)))
        text = "\n".join(lines(chosen, rest))
        of_family(family, RANKING).write_text(f"{HEADING.format(family=family)}{text}\n", "utf-8")
        print(f"{family}: {len(chosen)} cases of standard, {len(rest)} more at full")
    return 0
