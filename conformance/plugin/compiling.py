"""What a run compiles is kept for the next one; at its end it is told what that holds."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.execution.compiled import Compiled
from conformance.execution.workers import Workers
from conformance.reporting.table import many
from conformance.worker import wire

FOLDER = "conformance-compiled"
"""What a worker of pytest-xdist is told: the folder, if there is one."""
COMPILED = "conformance-compiled-here"
"""What a worker tells."""
WRAPPING: Any = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
LONG, MANY = 10.0, 100
"""Seconds of compiling from which on a user may ask what they were spent on, and programs that were read."""


class Compiling:
    """The folder of one run. A worker is told which; the process that started it looks after it."""

    def __init__(self, config: pytest.Config, *, isolated: bool) -> None:
        self.compiled: Compiled | None = None
        self.workers: Workers | None = None
        """What the kernels of this process run in."""
        self._told: list[wire.Compiled] = []
        self.problem = ""
        """Why nothing is kept."""
        told: dict[str, Any] | None = getattr(config, "workerinput", None)
        # a kernel that is timed was compiled here and now, as its users' are
        timed = getattr(config.option, "benchmark_only", False)
        if not isolated or timed or config.getoption("--no-compile-cache") or config.option.collectonly:
            return
        try:
            if told is None:
                self.compiled = Compiled(judge=not config.getoption("numprocesses", None))
            elif FOLDER in told:
                self.compiled = Compiled(Path(told[FOLDER]), keeper=False)
            if self.compiled is not None:
                config.add_cleanup(self.compiled.close)  # which comes after the end of all kernels' processes
        except OSError as error:
            self.problem = f"compilation cache: none, the folder cannot be used ({error.strerror}: {error.filename})"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Only a process of this machine finds the folder, and code for its own processor in it."""
        if self.compiled is not None and node.gateway.spec.popen:
            node.workerinput[FOLDER] = str(self.compiled.folder)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker tells what its kernels' processes have compiled."""
        config: Any = session.config
        if hasattr(config, "workeroutput") and self.workers is not None:
            config.workeroutput[COMPILED] = msgspec.to_builtins(self.workers.compiled)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What has crashed tells nothing."""
        told = getattr(node, "workeroutput", {}).get(COMPILED)
        if told is not None:
            self._told.append(msgspec.convert(told, wire.Compiled))

    def lines(self, width: int) -> list[str]:
        """What compiling has cost and what is kept of it; nothing where both are next to nothing."""
        spent = sum(self._told, self.workers.compiled if self.workers is not None else wire.Compiled())
        count, size, before = (
            (*self.compiled.holds(), self.compiled.begun[0]) if self.compiled is not None else (0, 0, 0)
        )
        texts = [self.problem]
        if count and (count > before or spent.kept >= MANY or spent.seconds >= LONG):
            new = f"{max(0, count - before):,} of them new"
            texts.append(
                f"compilation cache: {many(count, 'kernel')}, {size / 1e6:,.1f} MB, {new}; "
                f"--no-compile-cache runs without; {self.compiled and self.compiled.folder}"
            )
        if spent.kept >= MANY or spent.seconds >= LONG:
            compiled = many(spent.programs - spent.kept, "program")
            texts.append(f"JAX compiled {compiled} and read {spent.kept:,}, in {spent.seconds:,.0f} s")
        return [line for text in texts for line in textwrap.wrap(text, width, **WRAPPING)]
