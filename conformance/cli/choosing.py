"""The choice of a run's tasks by name, and of those that failed in the last run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import platformdirs

from conformance.execution.selection import SelectionError
from conformance.files import content_of, write

WORD = re.compile(r"\s*(\(|\)|[^\s()]+)")


def named_by(expression: str) -> Callable[[str], bool]:
    """Return the predicate of an expression of -k: words that a name contains, in any case, with `and`, `or`, `not` and
    parentheses. Raises SelectionError."""
    words = WORD.findall(expression)
    place = 0

    def peek() -> str:
        return words[place] if place < len(words) else ""

    def take() -> str:
        nonlocal place
        place += 1
        word: str = words[place - 1]
        return word

    def either() -> Callable[[str], bool]:
        parts = [both()]
        while peek() == "or":
            take()
            parts.append(both())
        return lambda name: any(part(name) for part in parts)

    def both() -> Callable[[str], bool]:
        parts = [single()]
        while peek() == "and":
            take()
            parts.append(single())
        return lambda name: all(part(name) for part in parts)

    def single() -> Callable[[str], bool]:
        if peek() in ("", ")", "and", "or"):
            raise SelectionError(f"-k {expression!r}: a word is missing")
        word = take()
        if word == "not":
            inner = single()
            return lambda name: not inner(name)
        if word == "(":
            inner = either()
            if peek() != ")":
                raise SelectionError(f"-k {expression!r}: a parenthesis is not closed")
            take()
            return inner
        return lambda name: word.lower() in name

    predicate = either()
    if place < len(words):
        raise SelectionError(f"-k {expression!r}: unexpected {words[place]!r}")
    return lambda name: predicate(name.lower())


class LastRun:
    """The failures of the last run in this folder, for --lf and --ff. They are kept for the folder, but not in it."""

    def __init__(self) -> None:
        try:
            here = bytes(Path.cwd())
        except OSError:  # the folder is gone
            here = b""
        cache = platformdirs.user_cache_path("kernel-conformance", appauthor=False)
        self._file = cache / "runs" / f"{crc32(here):08x}" / "failed.json"
        self.failed: frozenset[str] = frozenset()
        with suppress(OSError, ValueError, TypeError, RecursionError):
            self.failed = frozenset(json.loads(content_of(self._file)))

    def end(self, failed: Iterable[str], ran: Collection[str]) -> None:
        """Remember what failed, and tasks that failed earlier and did not run."""
        names: Sequence[str] = sorted({*failed} | (self.failed - {*ran}))
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write(self._file, json.dumps(names).encode())
