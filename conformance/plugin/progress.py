"""How far a run is: a row for each implementation and operator, where pytest writes a letter for each test.

A row is written when the last of its tests has ended: on a terminal, into a file and in CI. On a terminal, those that
are not done stand below, with the time that is left. With `-v` pytest writes its line for each test instead; with `-q`
there is nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from conformance.plugin.outcome import ROW, record_of
from conformance.reporting import terminal
from conformance.results.schema import Record

NAME = "conformance-progress"
MAX_ROWS = 8
"""Unfinished rows that are shown."""
SECONDS, SIGN = 0.1, 30.0
"""Between two pictures, since more are not seen; without a terminal, between two lines that say how far it is."""


class RemainingTime:
    """Tests done, and seconds that the others will take: by test function, as far as these have run."""

    def __init__(self) -> None:
        self.total = 0
        self.left: Counter[str] = Counter()
        self.workers = 1
        self._running: dict[str, float] = {}
        """Seconds of the phases of a test so far."""
        self._ended: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def expect(self, names: Sequence[str]) -> None:
        """These tests are to run, and no others."""
        self.total, self.left = len(names), Counter(map(_function, names))

    def add(self, name: str, seconds: float) -> None:
        self._running[name] = self._running.get(name, 0.0) + seconds

    def end(self, name: str) -> None:
        function = _function(name)
        self.left[function] -= 1
        self._ended[function] += 1
        self._seconds[function] = self._seconds.get(function, 0.0) + self._running.pop(name, 0.0)

    @property
    def done(self) -> int:
        return self._ended.total()

    @property
    def remaining(self) -> float | None:
        """Seconds until all have ended; None before the first one has."""
        if not self._ended:
            return None
        mean = sum(self._seconds.values()) / self.done
        means = {name: self._seconds[name] / count for name, count in self._ended.items()}
        return sum(count * means.get(name, mean) for name, count in self.left.items()) / self.workers


class OperatorProgress:
    """The tests of an implementation on an operator."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.seconds = 0.0
        self.counts: Counter[str] = Counter()
        """Cases by status."""

    def add(self, record: Record, seconds: float) -> None:
        self.done += 1
        self.seconds += seconds
        self.counts[record.status] += record.cases

    @property
    def here(self) -> bool:
        """Whether anything could be run."""
        return bool(self.counts.keys() - {"unsupported", "unavailable"})


class Progress:
    """Writes finished rows between the outputs of pytest's own reporter, and draws the others below."""

    def __init__(self, reporter: pytest.TerminalReporter, live: bool) -> None:
        self._reporter = reporter
        self._width = reporter._tw.fullwidth - 1
        self._live = live
        self.estimate = RemainingTime()
        self.rows: dict[tuple[str, str], OperatorProgress] = {}
        """Unfinished."""
        self._own: set[str] = set()
        """Tests of this process whose letter and path are not written."""
        self._running = ""
        self._headed = False
        self._drawn = 0
        self._last = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All tests of this process; a controller has none of its own."""
        self._own = {item.nodeid for item in session.items if dict(item.user_properties).get(ROW)}
        if session.items:
            self.estimate.expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Workers all collect the same tests."""
        self.estimate.expect(ids)
        self.estimate.workers = len(node.nodemanager.specs) if hasattr(node, "nodemanager") else 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Iterator[None]:
        self._running = nodeid
        shown = self._reporter.showfspath
        if nodeid in self._own:
            self._reporter.showfspath = False
        else:
            self._clear()
        try:
            return (yield)
        finally:
            self._reporter.showfspath = shown
            self._draw()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Iterator[None]:
        self.estimate.add(report.nodeid, report.duration)
        record, total = record_of(report), dict(report.user_properties).get(ROW)
        if record is None or not isinstance(total, int):
            self._clear()
            return (yield)
        key = record.implementation, record.operator
        row = self.rows.setdefault(key, OperatorProgress(total))
        row.add(record, report.duration)
        if row.done == row.total:
            self._finish(key)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> Iterator[None]:
        self.estimate.end(nodeid)
        try:
            return (yield)
        finally:
            self._draw()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self) -> None:
        """What follows has the screen for itself."""
        self._clear()

    pytest_enter_pdb = pytest_keyboard_interrupt = pytest_internalerror = pytest_testnodedown

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Rows that have not come to their end, because the run has."""
        for key in list(self.rows):
            self._finish(key)
        self._clear()

    def _finish(self, key: tuple[str, str]) -> None:
        row = self.rows.pop(key)
        if not row.here:
            return  # the summary says so
        self._clear()
        self._reporter.ensure_newline()
        if not self._headed:
            write(self._reporter, terminal.heading(self._width))
            self._headed = True
        session: Any = self._reporter.config.pluginmanager.get_plugin("conformance-session")
        write(self._reporter, terminal.row(*key, row.counts + session.absences[key], self._width))
        if row.done < row.total:
            self._reporter.write_line(f"    not finished: {row.done} of {row.total} tests")

    def text(self) -> list[str]:
        """Lines of what is not done, without what would not fit."""
        lines = []
        for (implementation, operator), row in list(self.rows.items())[:MAX_ROWS]:
            failed = row.counts["fail"] + row.counts["error"]
            left = duration(row.seconds / row.done * (row.total - row.done) / self.estimate.workers)
            said = f"{row.done}/{row.total}, {failed} failed, {left} left"
            lines.append(terminal.names(implementation, operator, self._width) + said)
        lines.append(f"{self._sign}  {_case(self._running)}")
        return [line[: self._width] for line in lines]

    @property
    def _sign(self) -> str:
        estimate, remaining = self.estimate, self.estimate.remaining
        return f"{estimate.done}/{estimate.total}" + ("" if remaining is None else f", {duration(remaining)} left")

    def _draw(self) -> None:
        """On the lines below the one on which pytest has ended, if it has."""
        now = time.monotonic()
        if now - self._last < (SECONDS if self._live else SIGN) or self._reporter._tw.width_of_current_line:
            return
        if not self._live:
            self._reporter.write_line(self._sign)
            self._last = now
            return
        self._clear()
        lines = self.text()
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
        self._drawn, self._last = len(lines), now

    def _clear(self) -> None:
        if self._drawn:
            self._reporter.flush()
            sys.stderr.write(f"\x1b[{self._drawn}A\x1b[J")
            sys.stderr.flush()
            self._drawn = 0


def write(reporter: pytest.TerminalReporter, line: terminal.Line) -> None:
    """One line, colored where colors are wanted."""
    for text, color in line:
        reporter.write(text, **({color: True} if color else {}))
    reporter.write("\n")


def duration(seconds: float) -> str:
    """In the two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _function(name: str) -> str:
    return name.partition("[")[0]


def _case(name: str) -> str:
    """The part of a test's name in brackets, which begins with the implementation; else the name."""
    return name.partition("[")[2].removesuffix("]") or name.rpartition("::")[2]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """After pytest's reporter."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.get_verbosity() != 0:
        return
    live = (
        sys.stderr.isatty()
        and reporter.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
        and not os.environ.get("CI")
        and config.getoption("capture") != "no"  # what kernels print would stand in the picture
    )
    config.pluginmanager.register(Progress(reporter, live), NAME)
