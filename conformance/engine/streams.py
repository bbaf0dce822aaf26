"""Output that may go away in the middle of a run: who reads it, the disk."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Any, TextIO

from conformance.reporting.terminal import uncommanded


class TolerantStream:
    """A stream whose output is dropped from when it cannot be written on: the run goes on, and its exit status is that
    of the verdicts. Whoever reads it sees each line when it is written, also in a pipe; the first one is not empty, as
    pytest's is that ends a line of letters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._begun |= text != "\n"
        if not self._begun:
            return len(text)
        try:
            written = self._stream.write(text)
            if text.endswith("\n"):
                self._stream.flush()
            return written
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """What is buffered too: Python flushes once more when it ends, and would end with 120."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._stream.flush()


class RunnerStream:
    """A stream that one of GitHub's runners reads, which obeys a line that begins with `::` or `##[`: such a line of a
    kernel, whatever it comes through, is no command. What is `own` is one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_at_start = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            is_theirs = self._is_at_start and not line.startswith(OWN)
            self._stream.write(uncommanded(line) if is_theirs else line.removeprefix(OWN))
            self._is_at_start = line.endswith(("\n", "\r"))
        return len(text)


OWN = f"\0{secrets.token_hex(16)}"
"""Stands before a command of the suite's own; no kernel can know it."""


def own(command: str) -> str:
    """Return a command of a runner as it must be written."""
    return f"{OWN}{command}" if isinstance(sys.stdout, RunnerStream) else command
