"""Known-bad and known-good kernels of tests/field/storage.py, in processes of their own, on the cases of storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conformance.dtypes import DTYPES
from conformance.execution.case import Case
from conformance.execution.plan import Plan
from conformance.execution.process import Limits
from conformance.execution.selection import Selection
from conformance.execution.status import Verdict
from conformance.execution.verify import verify
from conformance.execution.workers import Workers
from conformance.implementations.implementation import Implementation
from conformance.inputs import DISTRIBUTIONS
from conformance.operators import OPERATORS
from conformance.problems import LAYOUTS, PROBLEMS
from tests.field import storage

Run = tuple[Plan, Workers, dict[str, Implementation]]
GOOD = ("conv_backward_weight", "max_pool_backward")
"""Operators that known-good kernels are tried on; all implementations here are known-good kernels too."""
FILE = Path(storage.__file__)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    every = (tuple(OPERATORS), DTYPES, LAYOUTS, tuple(DISTRIBUTIONS))
    with Workers(Limits()) as workers:
        plan = Plan(Selection((), (FILE,), "standard", PROBLEMS, *every, 0, "auto"), FILE.parent, {}, workers)
        yield plan, workers, dict(plan.registry.implementations)


def verdicts(run: Run, name: str, operators: Iterable[str] = OPERATORS) -> Iterator[tuple[Case, Verdict]]:
    plan, workers, every = run
    plan.registry.implementations = {name: every[name]}
    for operator in operators:
        for case in plan.cases(operator, None):
            if isinstance(case, Case) and case.variant.storage:
                verdict = verify(case)
                workers.conclude(case.implementation, verdict)
                yield case, verdict


@pytest.mark.parametrize("name", [name for name in storage.NAMES if name.startswith("bad-")])
def test_known_bad_kernel_is_detected(run: Run, name: str):
    found = (verdict.reason for _, verdict in verdicts(run, name) if verdict.status in ("fail", "error"))
    reason = next(found)
    assert "only with" in reason or reason.startswith("raised ")


@pytest.mark.parametrize("name", [name for name in storage.NAMES if name.startswith("good-")])
def test_known_good_kernel_is_not(run: Run, name: str):
    found = {(verdict.status, verdict.reason[:80]) for _, verdict in verdicts(run, name, GOOD)}
    assert {status for status, _ in found} <= {"pass", "unsupported"}, found
    # torch accumulates 16-bit gradients in 16 bits where the processor has no instructions for them
    refused = {reason for status, reason in found if status == "unsupported"}
    assert {r for r in refused if not r.startswith(("refuses ", "the declared contract allows zeros"))} == set()
