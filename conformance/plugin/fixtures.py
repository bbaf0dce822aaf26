"""What suites call: each fixture is a function that turns one case into a verdict, a record and a test outcome."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from typing import Any
from unittest import SkipTest

import pytest
from msgspec.structs import replace

from conformance.checks import CHECKS, check_behaviour
from conformance.checks.sample import NotChecked
from conformance.execution.case import Absence, Case
from conformance.execution.remote import Raised
from conformance.execution.status import Verdict
from conformance.execution.verify import verify as verify_case
from conformance.execution.workers import printed
from conformance.implementations.errors import MAX_MESSAGE, described, of_the_suite
from conformance.plugin.recording import BESIDE, PROPERTY, publish
from conformance.plugin.session import SESSION
from conformance.reporting.modules import is_own
from conformance.results import build
from conformance.results.claims_file import enforced
from conformance.results.schema import Record
from conformance.timing.beside_torch import beside_torch
from conformance.training.training_demand import Training


@pytest.fixture
def verify(request: pytest.FixtureRequest) -> Callable[[Case | Absence], None]:
    """Compare the results of a case with its exact reference."""

    def run(case: Case | Absence) -> None:
        if isinstance(case, Absence):
            _conclude_absence(request, case)
        else:
            verdict = verify_case(case)
            record = build.record(case, verdict)
            if is_own(record):
                record = replace(record, module_time=beside_torch(case, verdict))
            _conclude(request, verdict, record)

    return run


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Callable[[str, Case | Absence], None]:
    """Make the behaviour check of this name on a case."""

    def run(name: str, case: Case | Absence) -> None:
        if isinstance(case, Absence):
            _conclude_absence(request, case, name)
        else:
            required = CHECKS[name]
            verdict = check_behaviour(case, required.check, of_right_kernels=required.of_right_kernels)
            if verdict.alone:
                publish(request.node, build.record(*verdict.alone), BESIDE)
            _conclude(request, verdict, build.behaviour_record(case, verdict, name))

    return run


@pytest.fixture
def train(request: pytest.FixtureRequest) -> Callable[[Training | Absence], None]:
    """Train a network through an implementation, every call verified."""

    def run(training: Training | Absence) -> None:
        if isinstance(training, Absence):
            _conclude_absence(request, training)
        else:
            from conformance.training.train import verify_training  # torch is needed from here on

            _conclude(request, *verify_training(training))

    return run


@pytest.fixture
def measure_time(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[Case | Absence], None]:
    """Verify a case and, only if it passes, time the kernel on inputs that are new to it."""
    timing = request.config.stash[SESSION].timing
    assert timing is not None  # since a benchmark was collected

    def run(case: Case | Absence) -> None:
        timing.asked = benchmark.skipped = True  # nothing is wrong with a benchmark that was not used
        if isinstance(case, Absence):
            _conclude_absence(request, case)
            return
        verdict, found = timing.verdict(request.node.nodeid, case, benchmark.enabled)
        record = build.record(case, verdict)
        benchmark.skipped = found is None
        _conclude(request, verdict, record)
        timing.verified = True
        if found is not None:
            timing.add(found, benchmark, record)

    return run


def _conclude_absence(request: pytest.FixtureRequest, absence: Absence, check: str = "") -> None:
    """The same where there is nothing to run."""
    verdict = Verdict(absence.status, absence.reason, absence.failure)
    _conclude(request, verdict, build.absence_record(absence, check))


def _conclude(request: pytest.FixtureRequest, verdict: Verdict, record: Record) -> None:
    """Hand the record to whoever counts and writes, and turn the verdict into the test's outcome.

    What is claimed and unsupported fails; benchmarks compare times alone.
    """
    session = request.config.stash[SESSION]
    case = request.node.callspec.params["case"]
    timed = request.node.get_closest_marker("benchmarks") is not None
    if session.workers is not None and not isinstance(case, Absence):
        session.workers.conclude(case.implementation, verdict)
        if (lines := printed(case.implementation)) and verdict.status in ("fail", "error"):
            record = replace(record, printed=lines)
        if not timed:  # a process that is timed keeps its pages
            session.workers.limit_growth(case.implementation)
    if not timed and not isinstance(verdict.refusal, NotChecked):  # another check has failed
        record = enforced(record, session.plan.claims)
        verdict.status, verdict.reason, verdict.failure = record.status, record.reason, record.failure
    publish(request.node, record)
    raised = verdict.exception
    if (
        verdict.status == "error"
        and isinstance(raised, Exception)
        and not isinstance(raised, (SkipTest, Raised))
        and len(described(raised)) < MAX_MESSAGE
    ):
        *_, (last, _) = traceback.walk_tb(raised.__traceback__)
        if not of_the_suite(last.f_code.co_filename):
            raise raised  # the kernel's own traceback, and the debugger stops there
    if verdict.status in ("fail", "error"):
        quiet = request.config.getoption("tbstyle") in ("no", "line")
        shown = "" if quiet or raised is None else getattr(raised, "traceback", "")
        again = f"\nreproduce: {record.command}" if record.command else ""
        pytest.fail(f"{shown}{verdict.status.upper()}: {record.explanation}{again}", pytrace=False)
    if verdict.status == "waived":
        pytest.xfail(verdict.explanation)
    if verdict.status in ("unsupported", "unavailable"):
        pytest.skip(verdict.reason)


def shown_from_the_kernel_on(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report, which shows what a kernel raised from the kernel on, and in short unless `--tb` says otherwise. The
    calls above it go before pytest makes the report: to write them down took most of a run of what always raises."""
    raised = call.excinfo
    ours = any(name == PROPERTY for name, _ in item.user_properties)
    if raised is None or not ours or not isinstance(raised.value, Exception):  # pytest's own outcomes are none
        return (yield)
    inside = [of_the_suite(entry.path) for entry in raised.traceback]
    if True in inside and not inside[-1]:
        raised.traceback = raised.traceback[len(inside) - inside[::-1].index(True) :]
    report = yield
    asked = item.config.getoption("tbstyle")
    style: Any = "short" if asked == "auto" else asked
    report.longrepr = raised.getrepr(style=style, showlocals=item.config.getoption("showlocals"), funcargs=True)
    return report
