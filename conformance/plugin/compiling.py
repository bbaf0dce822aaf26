"""What a run compiles is kept for the next one; at its end it is told what JAX has compiled."""

from __future__ import annotations

import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.execution.compiler_cache import CompilerCache, kept
from conformance.execution.workers import Workers
from conformance.reporting.table import many
from conformance.worker import wire

FOLDER, COMPILED = "conformance-compiled", "conformance-compiled-here"
"""What a worker of pytest-xdist is told, and what it tells."""
LONG, MANY = 10.0, 100
"""Seconds of compiling from which on a user may ask what they were spent on, and programs that were read."""


class Compiling:
    """The folder of one run. A worker is told which; the process that started it looks after it."""

    def __init__(self, config: pytest.Config, *, isolated: bool) -> None:
        self.compiled: CompilerCache | None = None
        self.workers: Workers | None = None
        """What the kernels of this process run in."""
        self._config = config
        self._told = wire.Compiled()
        self._problem = ""
        told: dict[str, Any] | None = getattr(config, "workerinput", None)
        # a kernel that is timed was compiled here and now, as its users' are
        timed = getattr(config.option, "benchmark_only", False)
        if not isolated or timed or config.option.collectonly:
            return
        if told is not None:
            self.compiled = CompilerCache(Path(told[FOLDER]), told["workerid"]) if FOLDER in told else None
            return
        used = ExitStack()
        config.add_cleanup(used.close)  # which comes after the end of all kernels' processes
        try:
            self.compiled = CompilerCache(used.enter_context(kept()), "main")
        except OSError as error:
            self._problem = f"compilation cache: none, the folder cannot be used ({error.strerror}: {error.filename})"

    def told(self, node: Any) -> dict[str, str]:
        """Only a process of this machine finds the folder, and code for its own processor in it."""
        if self.compiled is None or not node.gateway.spec.popen:
            return {}
        return {FOLDER: str(self.compiled.folder)}

    def tell(self) -> None:
        """What the kernels' processes of a worker have compiled."""
        if self.workers is not None:
            output: dict[str, Any] = getattr(self._config, "workeroutput", {})
            output[COMPILED] = msgspec.to_builtins(self.workers.compiled)

    def hear(self, told: dict[str, Any]) -> None:
        """The same of a worker that has ended."""
        self._told += msgspec.convert(told.get(COMPILED, ()), wire.Compiled)

    def lines(self, width: int) -> list[str]:
        """What compiling has cost; nothing where that is next to nothing."""
        spent = self._told + (self.workers.compiled if self.workers is not None else wire.Compiled())
        compiled = many(spent.programs - spent.kept, "program")
        text = f"JAX compiled {compiled} and read {spent.kept:,}, in {spent.seconds:,.0f} s"
        said = self._problem, text if spent.kept >= MANY or spent.seconds >= LONG else ""
        return [line for text in said for line in textwrap.wrap(text, width)]
