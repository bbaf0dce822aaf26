"""Known-bad and known-good contracts of tests/field/contracts.py, in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
from conformance.operators import OPERATORS, ORDINARY
from conformance.problems import LAYOUTS, PROBLEMS
from tests.field import contracts

Run = tuple[Plan, Workers, dict[str, Implementation]]
FILE = Path(contracts.__file__)
BAD = [name for name in contracts.NAMES if name.startswith("bad-")]
GOOD = [name for name in contracts.NAMES if name.startswith("good-")]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    every = (tuple(OPERATORS), DTYPES, LAYOUTS, tuple(DISTRIBUTIONS))
    with Workers(Limits()) as workers:
        plan = Plan(Selection((), (FILE,), "smoke", PROBLEMS, *every, 0, "auto"), FILE.parent, {}, workers)
        yield plan, workers, dict(plan.registry.implementations)


def verdicts(run: Run, name: str, operator: str) -> Iterator[Verdict]:
    plan, workers, every = run
    plan.registry.implementations = {name: every[name]}
    for case in plan.required(Verified(plan.ranked, operator)):
        if isinstance(case, Case):
            verdict = verify(case)
            workers.conclude(case.implementation, verdict)
            yield verdict


def first_failure(run: Run, name: str, operator: str) -> str:
    return next(verdict.reason for verdict in verdicts(run, name, operator) if verdict.status == "fail")


@pytest.mark.parametrize("name", BAD)
def test_known_bad_contract_is_detected(run: Run, name: str):
    operator = "conv_backward_weight" if name == "bad-last-result-is-zero" else "conv_forward"
    failed = (verdict.reason for verdict in verdicts(run, name, operator) if verdict.status == "fail")
    refused = (reason.startswith("refuses these values") for reason in failed)
    assert any(refused) if "refuses" in name else not next(refused)


@pytest.mark.parametrize("operator", ORDINARY)
def test_zeros_are_detected(run: Run, operator: str):
    assert first_failure(run, "bad-zeros", operator)


TURNS = ("conv_backward_weight", "conv_bn_backward", "avg_pool_forward")
"""Operators beside conv_forward that known-good contracts are tried on, by turns."""


@pytest.mark.parametrize(
    ("name", "operator"),
    [(name, tried) for i, name in enumerate(GOOD) for tried in ("conv_forward", TURNS[i % len(TURNS)])],
)
def test_known_good_contract_is_not(run: Run, name: str, operator: str):
    found = {verdict.status: verdict.reason for verdict in verdicts(run, name, operator)}
    assert found.keys() <= {"pass", "unsupported"}
    assert "pass" in found


def test_a_refusal_at_run_time_is_told_from_a_declared_one(run: Run):
    found = verdicts(run, "good-refuses-strides", "conv_forward")
    assert {verdict.refused for verdict in found if verdict.reason == "strides of two"} == {True}
    assert not any(verdict.refused for verdict in verdicts(run, "good-tf32", "conv_bn_inference"))
