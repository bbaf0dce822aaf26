"""Which known-bad kernels each case of the tables detects: what the ranking of cases is computed from.

References are computed once a case. A kernel that many cases detect says nothing more after a few of them: it runs
until so many cases of a dtype and a number of dimensions have detected it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from conformance.calibration.known_kernels import MUTANTS
from conformance.calibration.mutation import JOBS, cost, differing, is_judged
from conformance.inputs import Recipe
from conformance.inputs.manifest import SEED
from conformance.inputs.recipes import progress
from conformance.operators import FAMILIES, OPERATORS
from conformance.problems import Problem, Variant

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
