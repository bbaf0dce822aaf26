"""Known-bad and known-good kernels of tests/field/storage.py, in processes of their own, on the cases of storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conformance.dtypes import DTYPES
from conformance.execution.case import Case
from conformance.execution.plan import Plan
from conformance.execution.process import Limits
from conformance.execution.required import Verified
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
ONLY = {"beta": "beta", "running-var": "running_var", "statistics": "running_mean", "gradient": "dy"}
"""Word in a known-bad kernel's name -> the operand that it spoils: operators without it have nothing to detect."""
KNOWN_GOOD = [name for name in storage.NAMES if name.startswith("good-")]
"""They take turns, so that every case is one of them's."""
FILE = Path(storage.__file__)
CASES = tuple(
    replace(problem, variants=stored)
    for problem in PROBLEMS
    if (stored := tuple(variant for variant in problem.variants if variant.storage))
)
"""The tables, without what is no case of storage: to plan all of these and to draw more took most of the time."""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    every = (tuple(OPERATORS), DTYPES, LAYOUTS, tuple(DISTRIBUTIONS))
    with Workers(Limits()) as workers:
        plan = Plan(Selection((), (FILE,), "standard", CASES, *every, 0, "auto"), FILE.parent, {}, workers)
        yield plan, workers, dict(plan.registry.implementations)


def verdicts(
    run: Run, name: str, operators: Iterable[str], first: int = 0, step: int = 1
) -> Iterator[tuple[Case, Verdict]]:
    plan, workers, every = run
    plan.registry.implementations = {name: every[name]}
    planned = chain.from_iterable(plan.required(Verified(plan.ranked, operator)) for operator in operators)
    stored = (case for case in planned if isinstance(case, Case) and case.variant.storage)
    for case in islice(stored, first, None, step):
        verdict = verify(case)
        workers.conclude(case.implementation, verdict)
        yield case, verdict


@pytest.mark.parametrize("name", [name for name in storage.NAMES if name.startswith("bad-")])
def test_known_bad_kernel_is_detected(run: Run, name: str):
    only = next((operand for word, operand in ONLY.items() if word in name), "")
    operators = [name for name, operator in OPERATORS.items() if not only or only in operator.arguments]
    found = (verdict.reason for _, verdict in verdicts(run, name, operators) if verdict.status in ("fail", "error"))
    reason = next(found)
    assert "only with" in reason or reason.startswith("raised ")


@pytest.mark.parametrize("name", KNOWN_GOOD)
def test_known_good_kernel_is_not(run: Run, name: str):
    taken = verdicts(run, name, GOOD, KNOWN_GOOD.index(name), len(KNOWN_GOOD))
    found = {(verdict.status, verdict.reason[:80]) for _, verdict in taken}
    assert {status for status, _ in found} <= {"pass", "unsupported"}, found
    # torch accumulates 16-bit gradients in 16 bits where the processor has no instructions for them
    refused = {reason for status, reason in found if status == "unsupported"}
    assert {r for r in refused if not r.startswith(("refuses ", "the declared contract allows zeros"))} == set()
