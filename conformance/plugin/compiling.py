"""What a run compiles is kept for the next one; at its end it is told what that holds."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from conformance.execution.compiled import Compiled
from conformance.reporting.table import many

FOLDER = "conformance-compiled"
"""What a worker of pytest-xdist is told: the folder, if there is one."""
LONG = 10.0
"""Seconds of first calls from which on a user may ask what they were spent on."""


class Compiling:
    """The folder of one run. A worker is told which; the process that started it looks after it."""

    def __init__(self, config: pytest.Config, *, isolated: bool) -> None:
        self.compiled: Compiled | None = None
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

    def lines(self, seconds: float, width: int) -> list[str]:
        """What the folder holds, where the run has added to it or `seconds` of first calls were spent."""
        if self.compiled is None:
            return textwrap.wrap(self.problem, width)
        (count, size), (before, _) = self.compiled.holds(), self.compiled.begun
        if not count or (count <= before and seconds < LONG):
            return []
        new = f"{max(0, count - before):,} of them new"
        text = (
            f"compilation cache: {many(count, 'kernel')}, {size / 1e6:,.0f} MB, {new}; --no-compile-cache runs without"
        )
        return [*textwrap.wrap(text, width, subsequent_indent="    "), f"    {self.compiled.folder}"]
