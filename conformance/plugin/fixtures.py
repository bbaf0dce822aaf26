"""Fixtures that suites call: each is a function that turns one task into a verdict, a record and a test outcome."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any
from unittest import SkipTest

import pytest

from conformance.engine.perform import perform
from conformance.engine.tasks import Task
from conformance.execution.remote import Raised
from conformance.execution.status import Verdict
from conformance.execution.trial import Absence, Trial
from conformance.implementations.errors import MAX_MESSAGE, described, of_the_suite
from conformance.plugin.collection import task_of
from conformance.plugin.hooks import RUN, publish
from conformance.results.schema import Record


@pytest.fixture
def verify(request: pytest.FixtureRequest) -> Callable[[Any], None]:
    """Compare the results of a case with its exact reference."""
    return lambda case: _carry_out(request, case)


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """Make the behaviour check of this name on a case."""
    return lambda name, case: _carry_out(request, case, name)


@pytest.fixture
def train(request: pytest.FixtureRequest) -> Callable[[Any], None]:
    """Train a network through an implementation, every call verified."""
    return lambda training: _carry_out(request, training)


@pytest.fixture
def measure_time(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[Trial | Absence], None]:
    """Verify a case and, only if it passes, time the kernel on inputs that are new to it."""
    hooks = request.config.stash[RUN]
    timing, workers = hooks.collection.timing, hooks.run.workers
    assert timing is not None  # a benchmark was collected

    def run(case: Trial | Absence) -> None:
        timing.is_asked = benchmark.skipped = True  # an unused benchmark is not an error
        if isinstance(case, Absence):
            _carry_out(request, case)
            return
        verdict, measured = timing.verdict(request.node.nodeid, case, benchmark.enabled)
        if workers is not None:
            workers.conclude(case.implementation, verdict)
        record = Task("", case).record(verdict)
        benchmark.skipped = measured is None
        publish(request.node, record)
        _tell(request, verdict, record)
        timing.verified = True
        if measured is not None:
            timing.add(measured, benchmark, record)

    return run


def _carry_out(request: pytest.FixtureRequest, subject: Any, check: str = "") -> None:
    """Publish the records of a task, and turn its verdict into the test's outcome."""
    run = request.config.stash[RUN].run
    task = Task(getattr(task_of(request.node), "suite", ""), subject, check)
    performed = perform(task, run.workers, run.claims)
    publish(request.node, *filter(None, (performed.beside, performed.record)))
    _tell(request, performed.verdict, performed.record)


def _tell(request: pytest.FixtureRequest, verdict: Verdict, record: Record) -> None:
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
