"""`python -m conformance mutation`: how many of the known-bad kernels the judge detects, and what detects them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from conformance.calibration.known_bad import FAMILIES, MUTANTS, Mutant
from conformance.calibration.subject import judgements
from conformance.inputs import DISTRIBUTIONS, Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.operators import OPERATORS, takes
from conformance.problems import PROBLEMS, Problem, at_level

AFFORDABLE = 1 << 23
"""Multiply-adds of a problem: what a mutant does wrong it does wrong on small ones."""
STATISTICS = {"bound": "worst error / bound", "rms": "rms", "gain": "gain z", "offset": "offset z"}
PARTS = (*DISTRIBUTIONS, *STATISTICS)
"""What can be switched off to see that it is needed."""
JOBS = 2
SHARES = 4
"""Parts into which an operator's mutants are divided; each part computes its expectations anew."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant on an operator: the problem, distribution and checks that detected it first."""

    mutant: str
    family: str
    operator: str
    problem: str = ""
    dtype: str = ""
    distribution: str = ""
    checks: tuple[str, ...] = ()
    differs: bool = False
    """Whether it was seen to compute anything else than its good kernel."""

    @property
    def killed(self) -> bool:
        """Whether the judge detected it."""
        return bool(self.checks)

    @property
    def counts(self) -> bool:
        """Whether it was ever wrong at all."""
        return self.killed or self.differs


@dataclass(slots=True, eq=False)
class _Suspect:
    """A mutant not yet detected."""

    mutant: Mutant
    differs: bool = False


Rows = Sequence[tuple[str, Recipe]]


def rows(operator: str, level: str, names: Iterable[str] = ()) -> Rows:
    """Problem names and recipes of a level that are small enough, layouts apart; optionally of some problems only."""
    chosen = frozenset(names)
    found: dict[Recipe, str] = {}
    for problem, variants in at_level(PROBLEMS, level):
        wanted = takes(operator, problem.geometry) and (not chosen or problem.name in chosen)
        if wanted and _small(operator, problem):
            for variant in variants:
                recipe = Recipe(OPERATORS[operator], problem.geometry, variant.dtype, variant.distribution, SEED)
                found.setdefault(recipe, problem.name)
    return [(name, recipe) for recipe, name in found.items()]


def _small(operator: str, problem: Problem) -> bool:
    return OPERATORS[operator].flops(problem.geometry) < 2 * AFFORDABLE


def try_all(mutants: Iterable[Mutant], operator: str, rows: Rows, without: frozenset[str] = frozenset()) -> list[Trial]:
    """Every mutant on the rows of one operator, each until it is detected."""
    suspects = [_Suspect(mutant) for mutant in mutants if operator in mutant.operators]
    done: list[Trial] = []
    for name, recipe in rows:
        concerned = [s for s in suspects if s.mutant.applies(operator, recipe.geometry, recipe.dtype)]
        if not concerned:
            continue
        expected = Expectation(recipe)
        for suspect in concerned:
            checks = detections(suspect, expected, without)
            if checks:
                suspects.remove(suspect)
                done.append(_trial(suspect, operator, name, recipe, checks))
    return done + [_trial(suspect, operator) for suspect in suspects]


def _trial(
    suspect: _Suspect, operator: str, problem: str = "", recipe: Recipe | None = None, checks: tuple[str, ...] = ()
) -> Trial:
    mutant = suspect.mutant
    dtype, distribution = (recipe.dtype, recipe.distribution) if recipe else ("", "")
    return Trial(mutant.name, mutant.family, operator, problem, dtype, distribution, checks, suspect.differs)


def detections(suspect: _Suspect, expected: Expectation, without: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The checks that fail, unless the mutant is its good kernel here. An distribution that is switched off detects
    nobody."""
    recipe = expected.recipe
    failed = () if recipe.distribution in without else _failed(suspect.mutant, expected, without)
    if suspect.differs and not failed:
        return ()
    if suspect.mutant.equivalent(recipe.operator, recipe.geometry, expected.inputs, recipe.dtype):
        return ()
    suspect.differs = True
    return failed


def _failed(mutant: Mutant, expected: Expectation, without: frozenset[str]) -> tuple[str, ...]:
    off = {STATISTICS[part] for part in without & STATISTICS.keys()}
    with np.errstate(all="ignore"):
        found = [check for judged in judgements(mutant, expected) for check in judged.checks]
    return tuple(dict.fromkeys(str(check) for check in found if not check.passed and check.name not in off))


def run(
    level: str,
    families: frozenset[str],
    without: frozenset[str] = frozenset(),
    operators: Iterable[str] = tuple(OPERATORS),
    jobs: int = JOBS,
) -> list[Trial]:
    """All mutants of the families (or of every one) on the operators, on several processes."""
    shares = [(level, without, *share) for operator in operators for share in _shares(operator, families)]
    with ProcessPoolExecutor(jobs) as pool:
        return [trial for part in pool.map(_share, shares) for trial in part]


def _shares(operator: str, families: frozenset[str]) -> Iterator[tuple[str, Sequence[int]]]:
    """An operator's mutants, as their places in the collection."""
    concerned = (i for i, mutant in enumerate(MUTANTS) if operator in mutant.operators)
    indices = [i for i in concerned if not families or MUTANTS[i].family in families]
    return ((operator, indices[i::SHARES]) for i in range(min(SHARES, len(indices))))


def _share(task: tuple[str, frozenset[str], str, Sequence[int]]) -> list[Trial]:
    level, without, operator, indices = task
    return try_all([MUTANTS[i] for i in indices], operator, rows(operator, level), without)


def score(trials: Iterable[Trial]) -> tuple[int, int]:
    """Convicted, and wrong at all."""
    counted = [trial for trial in trials if trial.counts]
    return sum(trial.killed for trial in counted), len(counted)


def lines(trials: Sequence[Trial]) -> Iterator[str]:
    """The table, the survivors, the score."""
    order = {mutant.name: place for place, mutant in enumerate(MUTANTS)}
    width = max(map(len, order))
    for trial in sorted(trials, key=lambda trial: (order[trial.mutant], trial.operator)):
        yield f"{trial.mutant:{width}} | {trial.family:9} | {trial.operator:20} | {_outcome(trial)}"
    yield ""
    for family in FAMILIES:
        killed, counted = score(trial for trial in trials if trial.family == family)
        names = {trial.mutant for trial in trials if trial.family == family}
        if names:
            yield f"{family:9} {len(names):4} mutants, {killed} of {counted} killed"
    yield from (f"SURVIVED: {t.mutant} ({t.family}) in {t.operator}" for t in trials if t.counts and not t.killed)
    yield from (f"NO CASE REACHES: {t.mutant} ({t.family}) in {t.operator}" for t in trials if not t.counts)
    killed, counted = score(trials)
    yield f"{len(trials) - counted} reached by no case"
    yield f"mutation score {killed}/{counted} = {killed / max(1, counted):.1%}"


def _outcome(trial: Trial) -> str:
    if trial.killed:
        return f"{trial.distribution} {trial.dtype}: {'; '.join(trial.checks)} | {trial.problem}"
    return "SURVIVED" if trial.counts else "reached by no case"


def declare(parser: argparse.ArgumentParser) -> None:
    """How many known-bad kernels the judge detects; exits 1 if one survives or is reached by no case."""
    parser.add_argument("--level", choices=("smoke", "standard"), default="standard", help="tables (default: standard)")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only these mutants")
    parser.add_argument("--operator", action="append", choices=tuple(OPERATORS), help="only this operator's mutants")
    parser.add_argument("--without", action="append", choices=PARTS, help="switch an distribution or a statistic off")
    parser.set_defaults(run=_command)


def _command(arguments: argparse.Namespace) -> int:
    families, without = frozenset(arguments.family or ()), frozenset(arguments.without or ())
    trials = run(arguments.level, families, without, arguments.operator or tuple(OPERATORS))
    for line in lines(trials):
        print(line)
    return 0 if arguments.level == "smoke" or all(trial.killed for trial in trials) else 1
