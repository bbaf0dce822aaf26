"""The choice of a run's tasks by name and marker, and of those that failed in the last run; and what they cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import platformdirs

from conformance.engine import options
from conformance.engine.tasks import Task
from conformance.engine.units import Cost, modelled, recorded
from conformance.execution.selection import SelectionError
from conformance.files import content_of, write
from conformance.results import reading as results

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


def chosen(planned: Sequence[Task], keyword: str | None, expression: str) -> list[Task]:
    """Return the tasks that -k and -m select."""
    is_named = named_by(keyword) if keyword else lambda name: True
    return [
        task
        for task in planned
        if is_named(task.id) and (not expression or options.selects(expression, {task.kind, *task.devices}))
    ]


def costs(file: str | None) -> Cost:
    """Return the cost of tasks by the records of an earlier run, or else by the model. Raises SelectionError."""
    if file is None:
        return modelled
    try:
        return recorded(record for run in results.read(Path(file)) for _, record in run.records())
    except OSError as error:
        raise SelectionError(f"--costs {file}: cannot be read ({error.strerror})") from None
    except results.RecordError as error:
        raise SelectionError(f"--costs {error}") from None
