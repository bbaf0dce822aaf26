"""How far a run is.

No time that is left: problems grow and checks come last, so that the pace until then was wrong by more than a factor of
two at 51 of 114 places of six runs, and a hundredfold in one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conformance.execution.case import Case
from conformance.explaining import explaining
from conformance.failure import without_numbers
from conformance.plugin import options
from conformance.plugin.entry import FOLDERS
from conformance.reporting.failures import signature
from conformance.reporting.groups import described
from conformance.reporting.terminal import harmless
from conformance.results.schema import Record

FEW = 8
"""Cases of an implementation that end alike, after which that is said; as many crashes end its part of the run."""
PICTURE, SECOND, SIGN = 0.1, 1.0, 10.0
"""Seconds between two writings of the line at least, since more are not seen; between two while nothing ends; without a
terminal, between two lines."""


class Progress:
    """One line, which is written over on a terminal; elsewhere a line now and then. With `-v` pytest writes a line for
    each test instead; with `-q` there is nothing.

    A thread writes it: one case may take minutes, in which no hook is called, and the first one comes when all workers
    have collected.
    """

    def __init__(self, config: pytest.Config) -> None:
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._reporter = reporter
        self._shown = reporter is not None and config.get_verbosity() == 0 and not config.option.collectonly
        self._live = (
            self._shown
            and reporter.isatty()
            and not os.environ.get("CI")
            and config.getoption("capture") != "no"  # what kernels print would stand in the line
        )
        self._done = self._failed = 0
        self._same: dict[str, tuple[tuple[str, ...], int]] = {}
        """Implementation -> how all its cases have ended so far, empty where that differs, and how many these are."""
        self._tests: int | None = None
        self._case = ""
        self._begun = self._said = time.monotonic()
        self._lock, self._over = threading.Lock(), threading.Event()
        # a kernel in this process may fork, and what is timed has signs of its own
        alone = options.in_process(config) or getattr(config.option, "benchmark_only", False)
        if self._shown and not alone and not hasattr(config, "workerinput") and _verifies(config):
            self._start(config)

    def _start(self, config: pytest.Config) -> None:
        """With a descriptor of its own: while a test runs, standard output is what is captured of it."""
        try:
            descriptor = os.dup(self._reporter._tw._file.fileno())
        except (OSError, ValueError):  # no file
            return
        thread = threading.Thread(target=self._watch, args=(descriptor,), daemon=True)

        def stop() -> None:
            self._over.set()
            thread.join()
            os.close(descriptor)

        config.add_cleanup(stop)
        thread.start()

    def _watch(self, descriptor: int) -> None:
        """Until the run is over, write where nothing was for a while."""
        while not self._over.wait(SECOND / 4):
            with self._lock:
                now = time.monotonic()
                # until it is known how many tests there are, a terminal has pytest's own line on it
                if self._tests in (0, self._done) or (self._live and self._tests is None):
                    continue
                if now - self._said < (SECOND if self._live else SIGN):
                    continue
                self._said = now
                text = f"{self.text()}, {duration(now - self._begun)}{self._case}"
                if self._live:
                    width = self._reporter._tw.fullwidth - 1
                    text, self._reporter.currentfspath = f"\r{text[:width]:<{width}}", -2
                with suppress(OSError):
                    os.write(descriptor, text.encode(errors="backslashreplace") + b"\n" * (not self._live))

    def begin(self, case: Any, check: str) -> None:
        """Say what is being verified."""
        self._case = ""
        if isinstance(case, Case):
            self._case = f", now {case.operator.name} {case.problem.geometry.descriptor} {check}".rstrip()

    def expect(self, tests: int) -> None:
        """So many tests; 0 where pytest shows how far the run is. No path of a file is written, which no letters would
        follow."""
        self._tests = tests
        if self._shown and tests:
            self._reporter.showfspath = False

    def end(self) -> None:
        """What follows is the summary."""
        self._over.set()
        if self._reporter is not None:
            self._reporter.currentfspath = None  # pytest ends the line, and would do so again in its summary

    def add(self, record: Record, tests: int | None) -> None:
        """Count a verdict, and show the first that fails; `tests` is how many there are, and 0 where pytest shows how
        far the run is."""
        with self._lock:
            now = time.monotonic()
            self._tests = tests
            self._done += 1
            wrong = record.status in ("fail", "error")
            self._failed += wrong
            if not tests or not self._shown:
                return
            lines: list[str] = []
            with explaining(f"{record.implementation} {record.operator}", lambda line, _: lines.append(line)):
                if wrong and self._failed == 1 and record.operator:  # a file that cannot be used comes last
                    lines += first_failure(record)
                lines += self._always(record)
            if lines:
                self._reporter.ensure_newline()
            for line in lines:
                self._reporter.write_line(harmless(line))
            if self._live and (now - self._said >= PICTURE or self._done == tests):
                self._reporter.rewrite(self.text(), erase=True)
                self._reporter.currentfspath = -2  # whoever writes a line begins a new one
                self._said = now

    def _always(self, record: Record) -> Iterator[str]:
        """What every case of an implementation has ended in, once: its device may not be here, and a run takes
        minutes."""
        how: tuple[str, ...] = ("refused", without_numbers(record.headline)) if record.refused else ()
        if record.status == "error":
            how = signature(record)
        first, cases = self._same.get(record.implementation, (how, 0))
        self._same[record.implementation] = (how if how == first else (), cases + 1)
        if how and how == first and cases + 1 == FEW:
            refused = "refused when called: " * record.refused
            yield f"{record.implementation}: in each of its first {FEW} cases: {refused}{record.headline}"

    def text(self) -> str:
        """Tests done, and how many of them failed."""
        of = f"/{self._tests:,}" if self._tests else " done"
        return f"{self._done:,}{of}" + (f", {self._failed:,} failed" if self._failed else "")


def _verifies(config: pytest.Config) -> bool:
    """Whether kernels are verified, and not the tests of a project alone, of which none counts here."""
    given = [word.split("::")[0] for word in config.args]
    named = any(word == name or word.startswith(f"{name}.") for word in given for name in FOLDERS)
    real = (Path(os.path.realpath(word)) for word in given)
    within = any(path.is_relative_to(folder) for path in real for folder in FOLDERS.values())
    return bool(named or within or config.getoption("impl"))


def first_failure(record: Record) -> Iterator[str]:
    """In two lines, while the others run: the problem once, which is as large as they come, and no contract."""
    what = record.headline.partition(" (contract: ")[0]
    yield f"{record.status.upper()} {record.implementation} {record.operator}: {what}"
    yield f"reproduce: {record.command}" if record.command else f"case: {described(record)}"


def duration(seconds: float) -> str:
    """In the two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
