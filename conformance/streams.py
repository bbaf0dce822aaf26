"""Output that may go away in the middle of a run: who reads it, the disk; and one that a runner obeys."""

from __future__ import annotations

import os
import secrets
from typing import Any, TextIO

LONGEST = 1 << 16
"""Characters of a line that are held back until it ends."""


class _Stream:
    """A stream that is written on in another way."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TolerantStream(_Stream):
    """A stream whose output is dropped from when it cannot be written on: the run goes on, and its exit status is that
    of the verdicts. Whoever reads it sees each line when it is written, also in a pipe; the first one is not empty, as
    pytest's is that ends a line of letters."""

    _begun = False

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


class RunnerStream(_Stream):
    """A stream that one of GitHub's runners reads, which obeys a line that begins with `::` or holds `##[`: such a line
    of a kernel, whatever it comes through, is no command. What is `own` is one.

    A runner shows whole lines, and none is written before it ends: a kernel may write a command in two parts.
    """

    _held = ""

    def write(self, text: str) -> int:
        whole, end, self._held = (self._held + text).rpartition("\n")
        if len(self._held) > LONGEST:
            whole, end, self._held = whole + end + self._held, "\n", ""
        self._stream.write("".join(map(passed, (whole + end).splitlines(keepends=True))))
        return len(text)

    def end(self) -> None:
        """Write what has no end of a line."""
        if self._held:
            self.write("\n")


OWN = f"\0{secrets.token_hex(16)}"
"""Stands before a command of the suite's own; no kernel can know it."""


def own(command: str) -> str:
    """Return a command of a runner, marked so that it is `passed`."""
    return f"{OWN}{command}"


def passed(line: str) -> str:
    """Return a line as a runner may see it."""
    return line[len(OWN) :] if line.startswith(OWN) else uncommanded(line)


def is_obeyed() -> bool:
    """Whether one of GitHub's runners reads what is printed."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def uncommanded(line: str) -> str:
    """A line that is no command of one of GitHub's runners: of one form they look for the sign anywhere in it."""
    begins = line.lstrip().startswith("::")
    return (line.replace("::", ": :", 1) if begins else line).replace("##[", "# #[")
