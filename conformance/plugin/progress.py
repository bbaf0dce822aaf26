"""How far a run is: a line below pytest's own on a terminal, with what runs now and when all will be done.

Nobody reads it in a file or in a log, so it is drawn on a terminal only, and not where `CI` is set or `-q` is given.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

BELOW, ABOVE, CLEAR = "\n", "\x1b[A", "\x1b[K"
"""Terminal: to the next line, which scrolls where it must; back up; erase to the end of the line."""
COLUMN = "\x1b[{}G"
SHOWN = 0.05
"""Seconds a test must take on average for a line to be worth drawing."""


class Estimate:
    """Tests done, and seconds that the others will take: by test function, as far as these have run."""

    def __init__(self) -> None:
        self.total = 0
        self.left: Counter[str] = Counter()
        self.workers = 1
        self._seconds: dict[str, float] = {}
        self._ended: defaultdict[str, list[float]] = defaultdict(list)

    def expect(self, names: Sequence[str]) -> None:
        """These tests are to run, and no others."""
        self.total, self.left = len(names), Counter(map(_function, names))

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def end(self, name: str) -> None:
        self.left[_function(name)] -= 1
        self._ended[_function(name)].append(self._seconds.pop(name, 0.0))

    @property
    def done(self) -> int:
        return sum(map(len, self._ended.values()))

    @property
    def mean(self) -> float:
        """Seconds of a test so far."""
        every = [seconds for ended in self._ended.values() for seconds in ended]
        return statistics.fmean(every) if every else 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds until all have ended; None before the first one has."""
        if not self._ended:
            return None
        means = {name: statistics.fmean(ended) for name, ended in self._ended.items()}
        return sum(count * means.get(name, self.mean) for name, count in self.left.items()) / self.workers


class Progress:
    """Draws the line between the outputs of pytest's own reporter, which it leaves as they are."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._writer = reporter._tw
        self.estimate = Estimate()
        self._running: dict[str, None] = {}
        self._drawn = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All tests of this process; a controller has none of its own."""
        if session.items:
            self.estimate.expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Workers all collect the same tests."""
        self.estimate.expect(ids)
        self.estimate.workers = len(node.nodemanager.specs) if hasattr(node, "nodemanager") else 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Iterator[None]:
        self._running[nodeid] = None
        return (yield from self._redrawn())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Iterator[None]:
        self.estimate.add(report.nodeid, report.duration)
        return (yield from self._redrawn())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> Iterator[None]:
        self._running.pop(nodeid, None)
        self.estimate.end(nodeid)
        return (yield from self._redrawn())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """What follows has the screen for itself."""
        self._write("")

    def _redrawn(self) -> Iterator[None]:
        self._write("")
        try:
            return (yield)
        finally:
            if self.estimate.mean >= SHOWN:
                self._write(self.text)

    @property
    def text(self) -> str:
        """The line, without what would not fit."""
        found, remaining = self.estimate, self.estimate.remaining
        left = "" if remaining is None else f", {duration(remaining)} left"
        running = next(reversed(self._running), "")
        return f"{found.done}/{found.total}{left}  {_case(running)}"[: self._writer.fullwidth - 1]

    def _write(self, text: str) -> None:
        """Below the line on which pytest writes, and back to the column where it does."""
        if not (text or self._drawn):
            return
        self._writer.flush()
        back = ABOVE + COLUMN.format(self._writer.width_of_current_line + 1)
        sys.stderr.write(f"{BELOW}\r{CLEAR}{text}{back}")
        sys.stderr.flush()
        self._drawn = bool(text)


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
    """After pytest's reporter, where there is somebody to look."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or os.environ.get("CI") or config.get_verbosity() < 0:
        return
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        config.pluginmanager.register(Progress(reporter), "conformance-progress")
