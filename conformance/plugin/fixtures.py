"""What suites call: each fixture is a function that turns one case into a verdict, a record and a test outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.checks import CHECKS, check_behaviour
from conformance.execution.case import Absence, Case
from conformance.execution.status import Verdict
from conformance.execution.verify import verify as verify_case
from conformance.plugin.session import publish
from conformance.results import build
from conformance.results.schema import Record
from conformance.training.required import Training


@pytest.fixture
def verify(request: pytest.FixtureRequest) -> Callable[[Case | Absence], None]:
    """Compare the results of a case with its exact reference."""

    def run(case: Case | Absence) -> None:
        if isinstance(case, Absence):
            verdict = Verdict(case.status, case.reason)
            record: Record = build.absence_record(case)
        else:
            verdict = verify_case(case)
            record = build.record(case, verdict)
        conclude(request, verdict, record)

    return run


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Callable[[str, Case | Absence], None]:
    """Make the behaviour check of this name on a case."""

    def run(name: str, case: Case | Absence) -> None:
        if isinstance(case, Absence):
            verdict = Verdict(case.status, case.reason)
        else:
            required = CHECKS[name]
            verdict = check_behaviour(case, required.check, of_right_kernels=required.of_right_kernels)
        conclude(request, verdict, build.behaviour_record(case, verdict, name))

    return run


@pytest.fixture
def train(request: pytest.FixtureRequest) -> Callable[[Training | Absence], None]:
    """Train a network through an implementation, every call verified."""

    def run(training: Training | Absence) -> None:
        if isinstance(training, Absence):
            verdict = Verdict(training.status, training.reason)
            record: Record = build.absence_record(training)
        else:
            from conformance.training.train import verify_training  # torch is needed from here on

            verdict, record = verify_training(training)
        conclude(request, verdict, record)

    return run


def conclude(request: pytest.FixtureRequest, verdict: Verdict, record: Record) -> None:
    """Hand the record to whoever counts and writes, and turn the verdict into the test's outcome."""
    publish(request.node, record)
    if verdict.status in ("fail", "error"):
        pytest.fail(f"{verdict.status.upper()}: {verdict.reason}\nreproduce: {record.command}", pytrace=False)
    if verdict.status == "waived":
        pytest.xfail(verdict.explanation)
    if verdict.status in ("unsupported", "unavailable"):
        pytest.skip(verdict.reason)
