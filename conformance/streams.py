"""Streams for output whose reader or disk may go away in the middle of a run, and for output that a runner obeys."""

from __future__ import annotations

import os
import re
import secrets
from typing import Any, TextIO

LONGEST = 1 << 16
"""Characters of a line that are held back until the line ends."""


COMMAND = re.compile(r"##(?=\w*\[)")
"""Beginning of a command within a line."""


class _Stream:
    """A stream whose writing is changed by a subclass."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TolerantStream(_Stream):
    """A stream whose output is dropped once it cannot be written to: the run goes on, and its exit status is that of
    the verdicts. Its reader sees each line when it is written, also in a pipe. The first line is not empty, as pytest's
    line that ends a line of letters is."""

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
        """Drop all output, buffered output too: Python flushes once more when it ends, and would end with 120."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._stream.flush()


class RunnerStream(_Stream):
    """A stream to a runner, which obeys a line that begins with `::` or holds `##[`, or the like: such a line of a
    kernel, whatever way it comes, is changed so that it is no command. Lines that are marked by `own` are commands.

    Runners show whole lines, and no line is written before it ends: a kernel may write a command in two parts.
    """

    _held = ""

    def write(self, text: str) -> int:
        whole, end, self._held = (self._held + text).rpartition("\n")
        if len(self._held) > LONGEST:
            whole, end, self._held = whole + end + self._held, "\n", ""
        self._stream.write("".join(map(passed, (whole + end).splitlines(keepends=True))))
        return len(text)

    def end(self) -> None:
        """Write the last line, which has no end."""
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


def is_github() -> bool:
    """Return whether one of GitHub's runners reads what is printed."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def is_obeyed() -> bool:
    """Return whether a runner of GitHub, Azure or TeamCity reads what is printed."""
    return is_github() or os.environ.get("TF_BUILD") == "True" or "TEAMCITY_VERSION" in os.environ


def uncommanded(line: str) -> str:
    """Return a line changed so that runners see no command: GitHub's look for `##[` anywhere in a line, Azure's for
    `##vso[`, TeamCity for `##teamcity[`."""
    begins = line.lstrip().startswith("::")
    return COMMAND.sub("# #", line.replace("::", ": :", 1) if begins else line)
