"""Timing what was verified: the `measure_time` fixture, the table at the end of a run, and its exit status."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from typing import Any

import msgspec
import pytest

from conformance.execution.case import Absence, Case
from conformance.execution.status import Verdict
from conformance.execution.verify import verify
from conformance.exit_codes import ExitCode
from conformance.plugin.fixtures import conclude as conclude_test
from conformance.plugin.progress import SIGN, duration
from conformance.results import build
from conformance.results.schema import Record
from conformance.timing import machine, table
from conformance.timing.measurement import Measurement
from conformance.timing.run import DEFAULT_VISITS, Run, TimedKernel, time_all, visits

NAME = "conformance-timing"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "kernel conformance")
    group.addoption("--order", type=int, metavar="N", help="time in the order of an earlier run (default: random)")
    group.addoption(
        "--visits", type=visits, default=DEFAULT_VISITS, metavar="N",
        help="times that a run comes back to each kernel to time it (default: %(default)s)",
    )  # fmt: skip


class TimingPlugin:
    """What a run has timed. Registered by the session with the first benchmark that is collected."""

    def __init__(self, config: pytest.Config) -> None:
        order = config.getoption("--order")
        self.config = config
        self.order = random.SystemRandom().randrange(10**6) if order is None else order
        """Seed of the order."""
        self.run = Run([])
        self.asked = self.verified = self.interrupted = False
        self._subjects: dict[str, TimedKernel] = {}
        """Test -> its kernel, in the order of the table."""
        self._begun = False
        self._visited, self._started = 0, 0.0
        self._said: float | None = None
        self._extras: list[tuple[Measurement, dict[str, Any]]] = []
        """What was handed to pytest-benchmark."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> Iterator[None]:
        """When all other plugins are done: what they have deselected is not timed."""
        yield
        for item in (item for item in items if item.get_closest_marker("benchmarks") is not None):
            if isinstance(case := item.callspec.params["case"], Case):
                self._subjects[item.nodeid] = TimedKernel(case)

    def verdict(self, test: str, case: Case, enabled: bool) -> tuple[Verdict, Measurement | None]:
        """On a test's case, with its time. The first test that asks has all of them verified and timed, in rounds,
        unless pytest-benchmark was told to time nothing.

        Ctrl-C ends the timing: tests whose kernels were reached have a verdict, and what was timed of them counts.
        """
        subject = self._subjects[test]
        if not enabled:
            return verify(case), None
        if not self._begun:
            self._begun = True
            self.run.subjects = list(self._subjects.values())
            session: Any = self.config.pluginmanager.get_plugin("conformance-session")
            if session.workers is not None:
                session.workers.keep_all()
            try:
                time_all(self.run, self.config.getoption("--visits"), self.order, session.workers, self._report)
            except KeyboardInterrupt:
                self.interrupted = True
        if subject.verdict is None:
            pytest.skip("not reached before the run was interrupted")
        return subject.verdict, subject.time

    def _report(self, number: int, subject: TimedKernel) -> None:
        """Now and then a line that says how far it is, where pytest's own progress stands still."""
        now, visits = time.monotonic(), self.config.getoption("--visits")
        start = self._said is None
        self._visited += 1
        if self._said is None:
            self._started = now
        elif now - self._said < SIGN:
            return
        total = visits * len(self.run.subjects)
        left = "" if start else f", {duration((now - self._started) / self._visited * (total - self._visited))} left"
        self._said = now
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        if reporter is not None and self.config.get_verbosity() >= 0:
            with capture.global_and_fixture_disabled() if capture else nullcontext():
                reporter.ensure_newline()
                reporter.write_line(f"timing, round {number} of {visits}: visit {self._visited:,} of {total:,}{left}")

    def add(self, found: Measurement, benchmark: Any, record: Record) -> None:
        """Hand a time to pytest-benchmark.

        It counts rounds that have been timed already, by a clock that shows what the rotation's did: it cannot be given
        a device's time, nor rounds whose results are looked at before they count.
        """
        benchmark.group = f"{found.case.operator.name} {found.case.problem.name}"
        benchmark.extra_info.update(msgspec.to_builtins(record))
        benchmark._timer = chain.from_iterable((0.0, seconds) for seconds in found.rounds).__next__
        benchmark.pedantic(lambda: None, rounds=len(found.rounds))
        self._extras.append((found, benchmark.extra_info))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """All is known now, and pytest-benchmark has not written its file yet."""
        ratios, state = self.run.ratios, self.run.state
        best = {found.key: found for found in self.run.times}
        for found, extra in self._extras:
            extra.update(best[found.key].record(ratios.get(found.key), state))
        return (yield)

    @property
    def status(self) -> ExitCode:
        """Of a run in which nothing else went wrong: 2 after an interrupt, 3 on a machine that was unusable, 5 where
        times were asked for and nothing could be verified."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.asked and not self.verified:
            return ExitCode.NOTHING
        return ExitCode.INTERNAL if self._extras and self.run.state.state == "unusable" else ExitCode.GOOD

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Times, rates, ratios to torch on the same device, findings, and whether to believe them."""
        times = self.run.times
        if not times:
            return
        terminalreporter.section("speed of what was verified")
        threads = {name: count for found in times for name, count in found.threads.items()}
        terminalreporter.write_line(f"threads: {machine.threads_text(threads)}; order: --order {self.order}")
        for device, known in self.run.ceilings.items():
            terminalreporter.write_line(f"ceilings of {device}: {known}")
        for line in table.suite_table(self.run, terminalreporter._tw.fullwidth - 1):
            terminalreporter.write_line(line)


@pytest.fixture
def measure_time(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[Case | Absence], None]:
    """A function that verifies a case and, only if it passes, times the kernel on inputs that are new to it."""
    timing: Any = request.config.pluginmanager.get_plugin(NAME)

    def run(case: Case | Absence) -> None:
        timing.asked = True
        found: Measurement | None = None
        if isinstance(case, Absence):
            verdict = Verdict(case.status, case.reason)
            record: Record = build.absence_record(case)
        else:
            verdict, found = timing.verdict(request.node.nodeid, case, benchmark.enabled)
            record = build.record(case, verdict)
        benchmark.skipped = found is None  # nothing is wrong with a benchmark that was not used
        conclude_test(request, verdict, record)
        timing.verified = True
        if found is not None:
            timing.add(found, benchmark, record)

    return run
