"""`python -m tests.calibration mutation`: how many known-bad kernels the judge detects, and what detects them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from conformance.exit_codes import ExitCode
from conformance.inputs import DISTRIBUTIONS, Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.inputs.recipes import progress
from conformance.operators import OPERATORS, Arrays, takes
from conformance.operators.spatial import EVERY_RANK
from conformance.problems import PROBLEMS, at_level
from conformance.problems.table import SPARSE
from conformance.results import units
from conformance.results.schema import Part
from tests.calibration import field
from tests.calibration.false_alarms import positive
from tests.calibration.field import Examined
from tests.calibration.kernels.kernel import Mutant, Run, same
from tests.calibration.known_kernels import KINDS, MUTANTS, computed, judgements

AFFORDABLE = 1 << 23
"""Most multiply-adds of a problem: a mutant that is wrong is wrong on small ones too."""
ELEMENT = 8
"""Number of multiply-adds that take as long as to draw, round and judge an element."""
STATISTICS = {"bound": "worst error / bound", "rms": "rms", "gain": "gain z", "offset": "offset z"}
PARTS = (*(name for name in DISTRIBUTIONS if name != SPARSE), *STATISTICS)
"""Parts of the suite that can be switched off to show that they are needed; sparse inputs belong to level `huge`, which
no campaign runs."""
JOBS = 2
SHARES = 4
"""Parts into which an operator's mutants are divided; each part computes its expectations anew."""


@dataclass(slots=True)
class MutantOutcome:
    """A mutant on an operator: where it was detected first, and the checks that failed there.

    differs   whether it was seen to compute anything else than its good kernel
    """

    mutant: str
    family: str
    operator: str
    where: str = ""
    checks: tuple[str, ...] = ()
    differs: bool = False

    @property
    def detected(self) -> bool:
        return bool(self.checks)

    def __str__(self) -> str:
        return f"{self.mutant} ({self.family}) in {self.operator}"


T = TypeVar("T")
Rows = Sequence[tuple[str, Recipe]]


def rows(operator: str, level: str, names: Iterable[str] = (), rank: int | None = None) -> Rows:
    """Return problem names and recipes of a level that are small enough, layouts apart, the cheapest first; optionally
    of some problems, or of a number of dimensions, only."""
    chosen = frozenset(names)
    found: dict[Recipe, str] = {}
    for problem, variants in at_level(PROBLEMS, level):
        wanted = takes(operator, problem.geometry) and (not chosen or problem.name in chosen)
        wanted = wanted and rank in (None, problem.geometry.rank)
        if wanted and OPERATORS[operator].flops(problem.geometry) < 2 * AFFORDABLE:
            for variant in (one for one in variants if OPERATORS[operator].defined(problem.geometry, one.dtype)):
                recipe = Recipe(OPERATORS[operator].on(problem.geometry), variant.dtype, variant.distribution, SEED)
                found.setdefault(recipe, problem.name)
    # a mutant is run until it is detected: all of them on a batch of 70,001 images took minutes
    return sorted(((name, recipe) for recipe, name in found.items()), key=lambda row: cost(row[1]))


def cost(recipe: Recipe) -> int:
    """Return the cost in multiply-adds, that of the tensors' elements included: some problems have many and compute
    little."""
    operator, geometry = recipe.workload.operator, recipe.workload.geometry
    tensors = (*operator.inputs(geometry).values(), *operator.outputs(geometry).values())
    return operator.flops(geometry) // 2 + ELEMENT * sum(tensor.size for tensor in tensors)


def outcomes(
    mutants: Iterable[Mutant], operator: str, rows: Rows, without: frozenset[str] = frozenset()
) -> list[MutantOutcome]:
    """Return the outcome of every mutant on the rows of one operator, each run until it is detected."""
    pairs = [
        (mutant, MutantOutcome(mutant.name, mutant.family, operator))
        for mutant in mutants
        if operator in mutant.operators
    ]
    for name, recipe in rows:
        concerned = [(m, o) for m, o in pairs if not o.detected and is_judged(m, recipe)]
        if not concerned:
            continue
        for outcome, checks in differing([(outcome, mutant) for mutant, outcome in concerned], recipe, without):
            outcome.differs = True
            if recipe.distribution not in without:
                outcome.checks, outcome.where = checks, f"{recipe.distribution} {recipe.dtype} {name}"
    return [outcome for _, outcome in pairs]


def differing(
    mutants: Iterable[tuple[T, Mutant]], recipe: Recipe, without: frozenset[str] = frozenset()
) -> Iterator[tuple[T, tuple[str, ...]]]:
    """Yield the mutants that differ from their good kernels here, with the checks that their outputs fail. The others
    cannot be told from their good kernels."""
    expected, good = Expectation(recipe), dict[Run, Arrays]()
    for key, mutant in mutants:
        if mutant.base not in good:
            good[mutant.base] = computed(mutant.base, expected)
        outputs = computed(mutant.run, expected)
        if not same(outputs, good[mutant.base]):
            yield key, failed_checks(mutant, expected, outputs, without)


def is_judged(mutant: Mutant, recipe: Recipe) -> bool:
    """Return whether a mutant exists on a recipe and is not exempt there."""
    if mutant.contract.exempts(recipe.distribution, recipe.dtype):
        return False
    return mutant.applies(recipe.workload.operator.name, recipe.workload.geometry, recipe.dtype)


def failed_checks(
    mutant: Mutant, expected: Expectation, outputs: Arrays, without: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Return the checks that a mutant's outputs fail, but for the statistics `without`; none where they pass."""
    off = {STATISTICS[part] for part in without & STATISTICS.keys()}
    with np.errstate(all="ignore"):
        judged = judgements(mutant, expected, outputs=outputs, infer=False)
        found = [check for one in judged for check in one.checks]
    return tuple(dict.fromkeys(str(check) for check in found if not check.passed and check.name not in off))


def run(
    level: str,
    families: frozenset[str],
    without: frozenset[str],
    operators: Iterable[str],
    jobs: int = JOBS,
    rank: int | None = None,
    unit: Part | None = None,
) -> list[MutantOutcome]:
    """Run all mutants of the families (or of every one) on the operators, on several processes; with `rank`, those that
    exist in so many dimensions, on the rows of these."""
    tasks = []
    for operator in operators:
        indices = [
            i
            for i, m in enumerate(MUTANTS)
            if operator in m.operators and (not families or m.family in families) and rank in (None, *m.ranks)
        ]
        tasks += [(level, without, operator, rank, indices[i::SHARES]) for i in range(min(SHARES, len(indices)))]
    tasks = [*units.share(tasks, unit)]
    with ProcessPoolExecutor(jobs) as pool:
        parts = progress(pool.map(_share, tasks), len(tasks), "parts of mutants")
        return [outcome for part in parts for outcome in part]


def _share(task: tuple[str, frozenset[str], str, int | None, Sequence[int]]) -> list[MutantOutcome]:
    level, without, operator, rank, indices = task
    return outcomes([MUTANTS[i] for i in indices], operator, rows(operator, level, rank=rank), without)


def score(found: Iterable[MutantOutcome]) -> tuple[int, int]:
    """Count the mutants that were detected, and those that ever computed a wrong result."""
    differing = [outcome for outcome in found if outcome.differs]
    return sum(outcome.detected for outcome in differing), len(differing)


def lines(found: Sequence[MutantOutcome], examined: Sequence[Examined] = ()) -> Iterator[str]:
    """Yield the table, the survivors, the score: of our own mutants, and of others' kernels by class of defect."""
    order = {mutant.name: place for place, mutant in enumerate(MUTANTS)}
    width = max(map(len, order))
    for o in sorted(found, key=lambda outcome: (order[outcome.mutant], outcome.operator)):
        text = f"{o.where}: {'; '.join(o.checks)}" if o.detected else "SURVIVED" if o.differs else "reached by no case"
        yield f"{o.mutant:{width}} | {o.family:9} | {o.operator:20} | {text}"
    for one in examined:
        yield f"{one.kernel:{width}} | {one.family:9} | {one.where or 'OK'}: {one.reason or f'{one.verdicts} verdicts'}"
    yield ""
    for family in dict.fromkeys((*KINDS, *(one.family for one in examined))):
        members = [outcome for outcome in found if outcome.family == family]
        others = [one for one in examined if one.family == family and not one.good]
        detected, counted = score(members)
        if members or others:
            mutants = (
                f"{len({o.mutant for o in members}):4} mutants, {detected} of {counted} detected" if members else ""
            )
            kernels = f"{len(others):4} of others, {sum(o.detected for o in others)} detected" if others else ""
            yield f"{family:16} {'; '.join(filter(None, (mutants, kernels)))}"
    yield from (f"SURVIVED: {outcome}" for outcome in found if outcome.differs and not outcome.detected)
    yield from (f"NO CASE REACHES: {outcome}" for outcome in found if not outcome.differs)
    detected, counted = score(found)
    yield f"{len(found) - counted} reached by no case"
    yield f"mutation score {detected}/{counted} = {detected / max(1, counted):.1%}"
    if examined:
        yield from (f"NOT AS EXPECTED: {one.kernel} ({one.family})" for one in examined if not one.as_expected)
        bad, good = ([one for one in examined if one.good == kind] for kind in (False, True))
        caught, alarms = (sum(one.detected for one in ones) for ones in (bad, good))
        yield f"others' known-bad kernels {caught}/{len(bad)} detected; {alarms} of {len(good)} known-good ones failed"


def declare(parser: argparse.ArgumentParser) -> None:
    """How many known-bad kernels are detected, by class; exits 1 if one survives or is reached by no case."""
    families = tuple(dict.fromkeys((*KINDS, *field.FAMILIES)))
    parser.add_argument("--level", choices=("smoke", "standard"), default="standard", help="tables (default: standard)")
    parser.add_argument("--kind", dest="family", action="append", choices=families, help="only this class of defects")
    parser.add_argument("--operator", action="append", choices=tuple(OPERATORS), help="only this operator's mutants")
    parser.add_argument("--rank", type=int, choices=EVERY_RANK, help="only problems of so many dimensions")
    parser.add_argument("--without", action="append", choices=PARTS, help="switch a distribution or a statistic off")
    parser.add_argument("--jobs", type=positive, default=JOBS, metavar="N", help=f"processes (default: {JOBS})")
    units.declare(parser, "parts")
    units.declare_cluster(parser)
    parser.set_defaults(run=_command)


def _command(arguments: argparse.Namespace) -> int:
    families, without = frozenset(arguments.family or ()), frozenset(arguments.without or ())
    unit, operators = units.read(arguments.unit), arguments.operator or tuple(OPERATORS)
    found = run(arguments.level, families, without, operators, arguments.jobs, arguments.rank, unit)
    examined: list[Examined] = []
    failed = ""
    if not (arguments.operator or arguments.rank or without):  # these options concern our own mutants alone
        try:
            files = [*units.share(field.files(families), unit)]
            examined = field.examine(files, arguments.level, arguments.jobs, thorough=bool(families))
        except RuntimeError as error:
            failed = str(error)
    for line in lines(found, examined):
        print(line)
    if failed:
        print(f"error: {failed}", file=sys.stderr)
        return ExitCode.UNUSABLE
    survived = not all(outcome.detected for outcome in found) or not all(one.as_expected for one in examined)
    return 1 if survived and arguments.level != "smoke" else 0
