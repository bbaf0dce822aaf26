"""How long a run will take, said before its first test where another run has shown it, and then how far it is.

No time that is left: problems grow and checks come last, so that the pace until then was wrong by more than a factor of
two at 51 of 114 places of six runs, and a hundredfold in one."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.reporting.table import many
from conformance.results.reading import RecordError, verdicts
from conformance.results.schema import Record

PICTURE, SIGN, SIGNS = 0.1, 30.0, 10
"""Seconds between two writings of the line, since more are not seen; without a terminal, seconds between two lines, and
how many there are at most."""


class Progress:
    """One line, which is written over on a terminal; elsewhere few, of runs that take long. With `-v` pytest writes a
    line for each test instead; with `-q` there is nothing."""

    def __init__(self, config: pytest.Config) -> None:
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._reporter = reporter
        self._shown = reporter is not None and config.get_verbosity() == 0
        self._live = (
            self._shown
            and reporter.isatty()
            and not os.environ.get("CI")
            and config.getoption("capture") != "no"  # what kernels print would stand in the line
        )
        self._done = self._failed = self._signs = 0
        self._said = time.monotonic()

    def take_the_place_of_letters(self) -> None:
        """No path of a file is written, which no letters would follow."""
        if self._shown:
            self._reporter.showfspath = False

    def add(self, record: Record, tests: int | None) -> None:
        """Count a verdict; `tests` is how many there are, and 0 where pytest shows how far the run is."""
        now = time.monotonic()
        self._done += 1
        self._failed += record.status in ("fail", "error")
        if not tests or not self._shown:
            return
        if self._live and (now - self._said >= PICTURE or self._done == tests):
            self._reporter.rewrite(self.text(tests), erase=True)
            self._reporter.currentfspath = -2  # whoever writes a line begins a new one
            self._said = now
        elif not self._live and now - self._said >= SIGN and self._done * SIGNS // tests > self._signs:
            self._signs = self._done * SIGNS // tests
            self._reporter.write_line(self.text(tests))
            self._said = now

    def text(self, tests: int) -> str:
        """Tests done, and how many of them failed."""
        return f"{self._done:,}/{tests:,}" + (f", {self._failed:,} failed" if self._failed else "")


def estimate(path: Path, tests: int) -> str:
    """How long tests will take at the mean of the cases that an earlier run's records hold. Raises pytest.UsageError
    where the file cannot be read."""
    try:
        found = [record for _, record in verdicts(path)]
    except RecordError as error:
        raise pytest.UsageError(f"--pace {error}") from None
    seconds = [record.seconds["total"] for record in found if "total" in record.seconds]
    if not seconds:
        return f"estimate: none, because {path.name} has no case that ran"
    mean = statistics.fmean(seconds)
    pace = f"{mean:.2g} s each, as the {many(len(seconds), 'case')} of {path.name} took on average"
    return f"estimate: {many(tests, 'test')}, {pace}: {duration(mean * tests)}"


def duration(seconds: float) -> str:
    """In the two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
