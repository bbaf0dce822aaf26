"""Output for GitHub's runners: annotations of the change, each at a line, and the summary of the job."""

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
"""A file and a line, which is 0 if it is unknown."""
_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})
_DEFINES = re.compile(r"\s*(?:async )?def |\s*class ")


def annotation(title: str, message: str, places: Iterable[Place]) -> str:
    """Return a runner's command that makes a message an annotation of the change, at the first of the places that is in
    the repository, if any is."""
    here = Path.cwd()
    repositories = (folder for folder in (here, *here.parents) if (folder / ".git").exists())
    root = Path(os.environ.get("GITHUB_WORKSPACE") or next(repositories, here)).resolve()
    inside = ((file.resolve(), line) for file, line in places if file.is_file())
    place = ""
    if first := next(((file, line) for file, line in inside if file.is_relative_to(root)), None):
        file, line = first
        place = f"file={harmless(file.relative_to(root).as_posix()).translate(_PROPERTY)},"
        place += f"line={line}," if line > 0 else ""
    return f"::error {place}title={title.translate(_PROPERTY)}::{message.translate(_MESSAGE)}"


def of_group(failures: Group, condition: str, path: str, implementation: Implementation | None) -> str:
    """Return the annotation of a group of failures; `path` is the file that the command names."""
    again = f"reproduce: {failures.command}" if failures.command else ""
    message = "\n".join(filter(None, (f"{harmless(failures.title)}: {failures.counted}", condition, again)))
    return annotation(Path(failures.implementation).name, message, _places(failures, path, implementation))


def _places(failures: Group, path: str, implementation: Implementation | None) -> Iterator[Place]:
    """Yield the places at which a failure may be shown, the best first: the line that raised, and the definition of the
    kernel or the torch module."""
    source, record = Path(path), failures.smallest
    if record.failure and record.failure.file:
        yield Path(record.failure.file), record.failure.line
    if implementation is not None and implementation.adapted:
        classes = re.compile(rf"class (?:ModelNew|{re.escape(failures.implementation)})\b")
        yield source, next((n for n, text in _lines(source) if classes.match(text)), 0)
    elif implementation is not None:
        for kernel in implementation.kernels:
            if kernel.operator == record.operator and record.dtype in kernel.dtypes and record.layout in kernel.layouts:
                spec = declared_at(kernel.function)
                yield Path(spec.written), _below_decorators(Path(spec.written), spec.line)
    yield source, 0


class JobSummary:
    """A report in Markdown, for the file in which a runner looks for the summary of a job; without that file nothing is
    written."""

    def __init__(self) -> None:
        self._file = os.environ.get("GITHUB_STEP_SUMMARY", "")
        self._began, self._records = now(), list[Record]()

    def add(self, record: Record) -> None:
        """Add a record of the run."""
        if self._file:
            self._records.append(record)

    def append(self, notes: Sequence[str]) -> None:
        """Append the summary at the end of the run, below `notes` on the run as a whole. Raises OSError."""
        if not self._file:
            return
        from conformance.reporting.page.markdown import summary  # the code for pages takes a while to load
        from conformance.reporting.page.merge import ResultsFile, merged
        from conformance.reporting.page.tables import Digest

        source = ResultsFile("this run", self._records)
        source.ran(self._began, now())
        digest = Digest(merged([source]))
        write(
            Path(self._file), summary(digest, digest.title, notes).encode(), at_end=True
        )  # a step may run several commands


def _below_decorators(file: Path, line: int) -> int:
    """Return the line of the definition whose decorators begin at a line."""
    texts = dict(_lines(file))
    if not texts.get(line, "").lstrip().startswith("@"):
        return line
    return next((n for n, text in texts.items() if n > line and _DEFINES.match(text)), line)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, numbered from 1; none if it cannot be read."""
    with suppress(OSError):
        yield from enumerate(content_of(file, LARGEST_SOURCE).decode("utf-8", "replace").splitlines(), start=1)
