"""Progress of a run, and what a user should know before its end.

There is no estimate of the time left: problems grow and checks come last, so that the pace until then was wrong by more
than a factor of two at 51 of 114 places of six runs, and a hundredfold in one.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.engine.pool import Counted
from conformance.engine.tasks import Task
from conformance.execution.trial import Trial
from conformance.explaining import explaining
from conformance.failure import without_numbers
from conformance.reporting.failures import signature
from conformance.reporting.groups import described
from conformance.reporting.table import many
from conformance.results.schema import Record

FEW = 8
"""Cases of an implementation that end alike, after which a line says so; as many crashes end its part of the run."""


class Progress:
    """Counts verdicts, and says what is worth a line while other cases run. `tests` is their number, 0 if it is not
    known."""

    def __init__(self) -> None:
        self.tests = self.done = self.failed = 0
        self._same: dict[str, tuple[tuple[str, ...], int]] = {}
        """Implementation -> how all its cases have ended so far, empty if that differs, and their number."""
        self._now = ""
        self.fleet: Counted | None = None
        """Units and devices of a run on several machines."""

    def begin(self, task: Task) -> None:
        """Note the case that is being verified."""
        trial, self._now = task.subject, ""
        if isinstance(trial, Trial):
            self._now = f", now {trial.operator.name} {trial.problem.geometry.descriptor} {task.check}".rstrip()

    def add(self, record: Record) -> list[str]:
        """Count a verdict, and return lines on it: on the first failure, and if an implementation's cases end alike."""
        self.done += 1
        is_wrong = record.status in ("fail", "error")
        self.failed += is_wrong
        lines: list[str] = []
        with explaining(f"{record.implementation} {record.operator}", lambda line, _: lines.append(line)):
            if is_wrong and self.failed == 1 and record.operator:  # a file that cannot be used comes last
                lines += first_failure(record)
            lines += self._always(record)
        return lines

    def _always(self, record: Record) -> Iterator[str]:
        """Yield once how every case of an implementation has ended, if they end alike: its device may not be here, and
        a run takes minutes."""
        how: tuple[str, ...] = ("refused", without_numbers(record.headline)) if record.refused else ()
        if record.status == "error":
            how = signature(record)
        first, cases = self._same.get(record.implementation, (how, 0))
        self._same[record.implementation] = (how if how == first else (), cases + 1)
        if how and how == first and cases + 1 == FEW:
            refused = "refused when called: " * record.refused
            yield f"{record.implementation}: in each of its first {FEW} cases: {refused}{record.headline}"

    def text(self, seconds: float) -> str:
        """Return how many tests are done, how many of them failed, and what is being verified."""
        fleet = self.fleet
        units = f", {fleet.done:,}/{fleet.units:,} units, {many(fleet.devices, 'device')} at work" if fleet else ""
        return f"{self.counts}{units}, {duration(seconds)}{self._now}"

    @property
    def counts(self) -> str:
        """Number of tests done, and of those that failed."""
        of = f"/{self.tests:,}" if self.tests else " done"
        return f"{self.done:,}{of}" + (f", {self.failed:,} failed" if self.failed else "")


def first_failure(record: Record) -> Iterator[str]:
    """Yield a failure in two lines: the problem, which can be as large as they come, once, and no contract."""
    what = record.headline.partition(" (contract: ")[0]
    yield f"{record.status.upper()} {record.implementation} {record.operator}: {what}"
    yield f"reproduce: {record.command}" if record.command else f"case: {described(record)}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
