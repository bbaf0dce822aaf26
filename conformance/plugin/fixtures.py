"""What suites call: each fixture is a function that turns one case into a verdict, a record and a test outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.checks import CHECKS, check_behaviour
from conformance.execution.case import Absence, Case
from conformance.execution.status import Verdict
from conformance.execution.verify import verify as verify_case
from conformance.plugin.session import publish
from conformance.results import build
from conformance.results.claims import enforced
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
            verdict = check_behaviour(case, CHECKS[name].check)
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
    """Hand the record to whoever counts and writes, and turn the verdict into the test's outcome.

    What is claimed and unsupported fails; benchmarks compare times alone.
    """
    if not request.node.get_closest_marker("benchmarks"):
        session: Any = request.config.pluginmanager.get_plugin("conformance-session")
        record = enforced(record, session.plan.claims)
        verdict.status, verdict.reason = record.status, record.reason
    publish(request.node, record)
    if verdict.status in ("fail", "error"):
        again = f"\nreproduce: {record.command}" if record.command else ""
        pytest.fail(f"{verdict.status.upper()}: {verdict.reason}{again}", pytrace=False)
    if verdict.status == "waived":
        pytest.xfail(verdict.explanation)
    if verdict.status in ("unsupported", "unavailable"):
        pytest.skip(verdict.reason)
