"""What GitHub's runners read of a run: annotations of the change, each at a line, and the summary of the job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from conformance.execution.remote import declared_at
from conformance.files import LARGEST_SOURCE, content_of, write
from conformance.implementations.implementation import Implementation
from conformance.reporting.groups import Group
from conformance.reporting.terminal import harmless
from conformance.results.build import now
from conformance.results.schema import Record

Place = tuple[Path, int]
"""A file and a line, which is 0 where nobody knows."""
_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})
_DEFINES = re.compile(r"\s*(?:async )?def |\s*class ")


def annotation(title: str, message: str, places: Iterable[Place]) -> str:
    """A command of a runner, which makes a message an annotation of the change: at the first of the places that is in
    the repository, if any is."""
    here = Path.cwd()
    found = (folder for folder in (here, *here.parents) if (folder / ".git").exists())
    root = Path(os.environ.get("GITHUB_WORKSPACE") or next(found, here)).resolve()
    inside = ((file.resolve(), line) for file, line in places if file.is_file())
    place = ""
    if first := next(((file, line) for file, line in inside if file.is_relative_to(root)), None):
        file, line = first
        place = f"file={harmless(file.relative_to(root).as_posix()).translate(_PROPERTY)},"
        place += f"line={line}," if line > 0 else ""
    return f"::error {place}title={title.translate(_PROPERTY)}::{message.translate(_MESSAGE)}"


def of_group(one: Group, condition: str, path: str, implementation: Implementation | None) -> str:
    """The annotation of a group of failures; `path` is the file that was given."""
    again = f"reproduce: {one.command}" if one.command else ""
    message = "\n".join(filter(None, (f"{harmless(one.title)}: {one.counted}", condition, again)))
    return annotation(Path(one.implementation).name, message, _places(one, path, implementation))


def _places(one: Group, path: str, implementation: Implementation | None) -> Iterator[Place]:
    """Where a failure may be shown, the best first: where something was raised, and where the kernel or the torch
    module is written."""
    given, record = Path(path), one.smallest
    if record.failure and record.failure.file:
        yield Path(record.failure.file), record.failure.line
    if implementation is not None and implementation.adapted:
        classes = re.compile(rf"class (?:ModelNew|{re.escape(one.implementation)})\b")
        yield given, next((n for n, text in _lines(given) if classes.match(text)), 0)
    elif implementation is not None:
        for kernel in implementation.kernels:
            if kernel.operator == record.operator and record.dtype in kernel.dtypes and record.layout in kernel.layouts:
                spec = declared_at(kernel.function)
                yield Path(spec.written), _below_decorators(Path(spec.written), spec.line)
    yield given, 0


class JobSummary:
    """What a report says in Markdown, for the file in which a runner looks for the summary of a job; nothing where it
    does not."""

    def __init__(self, *, wanted: bool) -> None:
        self._file = os.environ.get("GITHUB_STEP_SUMMARY", "") if wanted else ""
        self._began, self._records = now(), list[Record]()

    def add(self, record: Record) -> None:
        """One of the run."""
        if self._file:
            self._records.append(record)

    def append(self, notes: Sequence[str]) -> None:
        """At the end of the run, below `notes` on it as a whole. Raises OSError."""
        if not self._file:
            return
        from conformance.reporting.page.markdown import summary  # what makes a page takes a while to load
        from conformance.reporting.page.merge import ResultsFile, merged
        from conformance.reporting.page.tables import Digest

        source = ResultsFile("this run", self._records)
        source.ran(self._began, now())
        digest = Digest(merged([source]))
        write(Path(self._file), summary(digest, digest.title, notes).encode(), at_end=True)  # each step has one


def _below_decorators(file: Path, line: int) -> int:
    """Where the definition is that begins there."""
    texts = dict(_lines(file))
    if not texts.get(line, "").lstrip().startswith("@"):
        return line
    return next((n for n, text in texts.items() if n > line and _DEFINES.match(text)), line)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbered from 1; none of a file that cannot be read."""
    with suppress(OSError):
        yield from enumerate(content_of(file, LARGEST_SOURCE).decode("utf-8", "replace").splitlines(), start=1)
