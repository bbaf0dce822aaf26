"""Timing of verified kernels: their calls in rounds, the table at the end of a run, and its exit status."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from conformance.engine.progress import duration
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.exit_codes import ExitCode
from conformance.plugin.collection import task_of
from conformance.results.schema import Record
from conformance.timing import table
from conformance.timing.conditions import cores
from conformance.timing.measurement import Measurement
from conformance.timing.run import DEFAULT_VISITS, Run, TimedKernel, time_all

if TYPE_CHECKING:
    from conformance.engine.run import Run as Verified


SIGN = 10.0
"""Seconds between two lines of progress."""


class TimingRun:
    """The timing of a run; made when the first benchmark is collected."""

    def __init__(self, run: Verified, config: pytest.Config) -> None:
        self._workers, self._config = run.workers, config
        self.order = random.SystemRandom().randrange(10**6)
        """Seed of the order in which kernels are timed."""
        self.visits = config.getoption("--visits") or DEFAULT_VISITS
        self.run = Run([])
        self.is_asked = self.verified = self.interrupted = False
        self._subjects: dict[str, TimedKernel] = {}
        """Test -> the kernel that it times, in the order of the table."""
        self._begun = False
        self._visited, self._started = 0, 0.0
        self._reported: float | None = None
        self._extras: list[tuple[Measurement, dict[str, Any]]] = []
        """Times that were handed to pytest-benchmark, each with pytest-benchmark's dictionary of extra information."""

    def take(self, items: Iterable[Any]) -> None:
        """Take the tests to time when all are collected: tests that other plugins have deselected are not timed."""
        for item in items:
            task = task_of(item)
            if item.get_closest_marker("benchmarks") and task is not None and isinstance(task.subject, Trial):
                self._subjects[item.nodeid] = TimedKernel(task.subject)

    def verdict(self, test: str, trial: Trial, enabled: bool) -> tuple[Verdict, Measurement | None]:
        """Return the verdict on a test's case, with its time. For the first test, the kernels of all tests are verified
        and timed, in rounds, unless pytest-benchmark was told to time nothing.

        Ctrl-C ends the timing: tests whose kernels were reached have a verdict, and the times taken so far count.
        """
        subject = self._subjects[test]
        if not enabled:
            return verify(trial), None
        if not self._begun:
            self._begun = True
            self.run.subjects = list(self._subjects.values())
            workers = self._workers
            if workers is not None:
                workers.keep_all()
            try:
                time_all(self.run, self.visits, self.order, workers, self._report)
            except KeyboardInterrupt:
                self.interrupted = True
        if subject.verdict is None:
            pytest.skip("not reached before the run was interrupted")
        return subject.verdict, subject.time

    def _report(self, number: int, subject: TimedKernel) -> None:
        """Write a line of progress now and then, while pytest's own progress stands still."""
        now = time.monotonic()
        start = self._reported is None
        self._visited += 1
        if self._reported is None:
            self._started = now
        elif now - self._reported < SIGN:
            return
        total = self.visits * len(self.run.subjects)
        remaining = (
            "" if start else f", {duration((now - self._started) / self._visited * (total - self._visited))} left"
        )
        self._reported = now
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        if reporter is not None and self._config.get_verbosity() >= 0:
            with capture.global_and_fixture_disabled() if capture else nullcontext():
                reporter.ensure_newline()
                visit = f"visit {self._visited:,} of {total:,}"
                reporter.write_line(f"timing, round {number} of {self.visits}: {visit}{remaining}")

    def add(self, measurement: Measurement, benchmark: Any, record: Record) -> None:
        """Hand a time to pytest-benchmark.

        It counts rounds that have been timed already, with a clock that repeats their times: pytest-benchmark cannot
        read a device's clock, nor check a round's results before the round counts.
        """
        benchmark.group = f"{measurement.trial.operator.name} {measurement.trial.problem.name}"
        benchmark.extra_info.update(msgspec.to_builtins(record))
        benchmark._timer = chain.from_iterable((0.0, seconds) for seconds in measurement.rounds).__next__
        benchmark.pedantic(lambda: None, rounds=len(measurement.rounds))
        self._extras.append((measurement, benchmark.extra_info))

    def complete(self) -> None:
        """Complete the data of all benchmarks, which pytest-benchmark has not written to its file yet."""
        ratios, state = self.run.ratios, self.run.state
        best = {measurement.key: measurement for measurement in self.run.times}
        for measurement, extra in self._extras:
            extra.update(best[measurement.key].record(ratios.get(measurement.key), state))

    @property
    def status(self) -> ExitCode:
        """Exit status of a run in which nothing else went wrong: 2 after an interrupt, 3 if the machine was unusable, 5
        if times were asked for and nothing could be verified."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.is_asked and not self.verified:
            return ExitCode.NOTHING
        return ExitCode.INTERNAL if self._extras and self.run.state.state == "unusable" else ExitCode.GOOD

    def lines(self, width: int) -> Iterator[str]:
        """Yield times, rates, ratios to torch on the same device, findings, and whether to believe them."""
        counts = {name: count for measurement in self.run.times for name, count in measurement.threads.items()}
        threads = ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or f"{cores()} cores"
        yield f"threads: {threads}"
        for device, ceiling in self.run.ceilings.items():
            yield f"ceilings of {device}: {ceiling}"
        yield from table.suite_table(self.run, width)
