"""`python -m tests.calibration worse`: the judge on honest kernels, and on some that are one step worse than declared.

A limit is earned if a kernel that computes as the contract says passes, and one that is a step worse does not.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from conformance import Implementation
from conformance.execution.declared import Declared
from conformance.execution.selection import Selection
from conformance.execution.share import Ranked
from conformance.inputs import Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.inputs.recipes import progress
from conformance.layouts import LAYOUTS
from conformance.operators import OPERATORS, Arrays
from conformance.problems import PROBLEMS
from conformance.problems.table import DISTRIBUTIONS
from conformance.results import units
from conformance.results.schema import Part
from tests.calibration.false_alarms import positive
from tests.calibration.kernels.emulated import Emulated
from tests.calibration.kernels.kernel import KnownKernel, Run
from tests.calibration.known_kernels import computed, judgements
from tests.calibration.mutation import JOBS, cost
from tests.calibration.steps import HIDDEN, STEPS, Hidden, Row, Step

AFFORDABLE = 1 << 18
"""Most multiply-adds of a problem: sums are added one term after the other."""
ENOUGH = 3
"""Failed cases after which a step is told: it is not run on the rest of a part."""
SHARES = 4
"""Parts into which the cases of an operator and a dtype are divided."""


class Task(NamedTuple):
    """A part of the cases of an operator and a dtype."""

    operator: str
    dtype: str
    share: int


class Outcome(NamedTuple):
    """Numbers of cases; `reason`: why the step cannot be told, by formula."""

    failed: int
    run: int
    reason: str = ""

    def verdict(self, row: Row) -> str:
        """Return the words of the table, in capitals where the campaign fails."""
        if not row.step:
            return "FALSE ALARM" if self.failed else "passes"
        if self.reason:
            return "TOLD, BUT LISTED" if self.failed else f"not told: {self.reason}"
        return "told" if self.failed else "NOT TOLD"

    def as_expected(self, row: Row) -> bool:
        """Tell whether an honest kernel passed, or a step that is not listed, and no other one, was told."""
        return self.run > 0 and bool(self.failed) == (bool(row.step) and not self.reason)


def kernels(steps: Iterable[Step]) -> dict[Row, KnownKernel]:
    """Return the kernels of all rows, the honest one of each contract first."""
    table: dict[Row, KnownKernel] = {}
    for step in steps:
        for dtype in step.dtypes:
            for name, run in (("", Emulated(step.contract)), (step.name, step.kernel)):
                row = Row(step.operator, dtype, step.contract.declaration, name)
                table.setdefault(row, KnownKernel(name, "", run, step.contract, (step.operator,), dtypes=(dtype,)))
    return table


def judged(table: Mapping[Row, KnownKernel], recipes: Iterable[Recipe]) -> tuple[Counter[Row], Counter[Row]]:
    """Return the number of cases that each kernel failed, and of those that it was run on."""
    failed, run = Counter[Row](), Counter[Row]()
    for recipe in recipes:
        workload, expected = recipe.workload, Expectation(recipe)
        outputs: dict[Run, Arrays] = {}
        for row, kernel in table.items():
            applies = kernel.applies(workload.operator.name, workload.geometry, recipe.dtype)
            is_detected = bool(row.step) and failed[row] >= ENOUGH
            if is_detected or not applies or kernel.contract.exempts(recipe.distribution, recipe.dtype):
                continue
            if kernel.run not in outputs:
                outputs[kernel.run] = computed(kernel.run, expected)
            with np.errstate(all="ignore"):
                verdicts = judgements(kernel, expected, outputs=outputs[kernel.run], infer=False)
                failed[row] += not all(verdict.passed for verdict in verdicts)
            run[row] += 1
    return failed, run


def cases(operator: str, dtype: str) -> list[Recipe]:
    """Return the cases that level standard asks of a kernel in one dtype and every layout, the cheapest first, layouts
    and storage apart: those that are small enough."""
    kernel = Implementation("kernel")
    kernel.implements(operator, dtypes=(dtype,), layouts=LAYOUTS)(lambda *arrays: None)
    ranked = Ranked(
        Selection((), (), "standard", PROBLEMS, (operator,), (dtype,), LAYOUTS, DISTRIBUTIONS, SEED, "exact")
    )
    asked_of = ranked.rows(operator).rows
    share = ranked.share(Declared(kernel, operator, [problem.geometry for problem, _ in asked_of]))
    recipes = dict.fromkeys(
        Recipe(OPERATORS[operator].on(problem.geometry), dtype, variant.distribution, SEED)
        for (problem, _), variants in zip(asked_of, share, strict=True)
        for variant in variants
        if variant.dtype == dtype and OPERATORS[operator].flops(problem.geometry) < 2 * AFFORDABLE
    )
    return sorted(recipes, key=cost)


def outcomes(
    steps: Sequence[Step], counted: Iterable[tuple[Counter[Row], Counter[Row]]], hidden: Iterable[Hidden]
) -> dict[Row, Outcome]:
    """Return the outcome of every row that was counted, in the order of the steps."""
    failed, run = Counter[Row](), Counter[Row]()
    for failed_here, run_here in counted:
        failed.update(failed_here)
        run.update(run_here)
    reasons = {row: entry.reason for entry in hidden for row in entry.rows()}
    return {row: Outcome(failed[row], run[row], reasons.get(row, "")) for row in kernels(steps) if row in run}


def parts(
    operators: Collection[str], jobs: int, kept: Path | None, unit: Part | None = None
) -> Iterator[tuple[Counter[Row], Counter[Row]]]:
    """Yield what `judged` counts in each part of the cases, computed by `jobs` processes; parts that the file `kept`
    has are read from it, others are added to it."""
    pairs = dict.fromkeys((row.operator, row.dtype) for row in kernels(STEPS) if row.operator in operators)
    # a unit has all parts of a pair: a step may be told by a single case
    tasks = [Task(*pair, share) for pair in units.share(pairs, unit) for share in range(SHARES)]
    lines = kept.read_text("utf-8").splitlines() if kept and kept.exists() else []
    done = {Task(*task): counts for task, counts in map(json.loads, lines)}
    waiting = [task for task in tasks if task not in done]
    yield from (_counters(task, done[task]) for task in tasks if task in done)
    with ProcessPoolExecutor(jobs) as pool:
        counted = progress(pool.map(_share, waiting), len(waiting), "parts of cases")
        for task, counts in zip(waiting, counted, strict=True):
            if kept:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps([task, counts])}\n")
            yield _counters(task, counts)


def _share(task: Task) -> list[tuple[str, str, int, int]]:
    """Return (contract, step, cases failed, cases run) of every row of a part."""
    table = {row: kernel for row, kernel in kernels(STEPS).items() if (row.operator, row.dtype) == task[:2]}
    failed, run = judged(table, cases(task.operator, task.dtype)[task.share :: SHARES])
    return [(row.contract, row.step, failed[row], run[row]) for row in run]


def _counters(task: Task, counts: Iterable[tuple[str, str, int, int]]) -> tuple[Counter[Row], Counter[Row]]:
    table = {Row(task.operator, task.dtype, contract, step): numbers for contract, step, *numbers in counts}
    failed, run = (Counter({row: numbers[place] for row, numbers in table.items()}) for place in (0, 1))
    return failed, run


def report(table: Mapping[Row, Outcome]) -> Iterator[str]:
    """Yield the table, and how many rows are told, listed, and not as expected."""
    for row, outcome in table.items():
        what = f"{row.operator} {row.dtype} | {row.contract} | {row.step or 'honest'}"
        yield f"{what} | {outcome.failed:4} of {outcome.run:4} | {outcome.verdict(row)}"
    steps = {row: outcome for row, outcome in table.items() if row.step}
    detected, listed = sum(bool(o.failed) for o in steps.values()), sum(bool(o.reason) for o in steps.values())
    yield f"{len(table) - len(steps)} honest kernels; {len(steps)} a step worse: {detected} told, {listed} listed"
    yield from (f"NOT AS EXPECTED: {' | '.join(row)}" for row, outcome in table.items() if not outcome.as_expected(row))


def declare(parser: argparse.ArgumentParser) -> None:
    """Kernels that are one step worse than their contract; exits 1 if one is not told, or is told but listed."""
    operators = tuple(dict.fromkeys(step.operator for step in STEPS))
    parser.add_argument("--operator", action="append", choices=operators, help="only this operator's kernels")
    parser.add_argument("--jobs", type=positive, default=JOBS, metavar="N", help=f"processes (default: {JOBS})")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what is done, and go on from there")
    units.declare(parser, "pairs of operator and dtype")
    units.declare_cluster(parser)
    parser.set_defaults(run=lambda a: campaign(a.operator or operators, a.jobs, a.resume, units.read(a.unit)))


def campaign(operators: Collection[str], jobs: int, kept: Path | None, unit: Part | None = None) -> int:
    """Print the table, and return 1 if a row is not as expected."""
    table = outcomes(STEPS, parts(operators, jobs, kept, unit), HIDDEN)
    for line in report(table):
        print(line)
    return 0 if all(outcome.as_expected(row) for row, outcome in table.items()) else 1
