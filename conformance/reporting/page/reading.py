"""Files of results: records (JSON lines), and pytest-benchmark's JSON with the record of each verdict inside."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from conformance.reporting.page.model import Clocked, Machine, ReportError
from conformance.results import benchmarks
from conformance.results.reading import RecordError, SchemaError, UnfinishedError, decode, lines
from conformance.results.schema import Attempt, Extras, Record
from conformance.timing.measurement import medians

ALIKE = (
    "implementation", "operator", "device", "versions", "reason", "run_level", "source", "problem", "descriptor",
    "dtype", "layout", "distribution", "storage", "check", "generator", "method", "level", "contract", "terms",
)  # fmt: skip
"""Fields of a record that many others have alike."""
MAX_BYTES = 1 << 30
"""Bytes of a file of results: about 700,000 records."""
A = TypeVar("A")
T = TypeVar("T")


@dataclass(slots=True)
class ResultsFile:
    """What one file held."""

    name: str
    records: list[Record] = field(default_factory=list)
    times: list[Clocked] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def take(self, place: str, read: Callable[[A], T], what: A) -> T | None:
        """What is read; where it is no record, that is noted. Raises SchemaError for another version's."""
        try:
            return read(what)
        except SchemaError as problem:
            raise SchemaError(f"{place}: {problem}") from None
        except RecordError as problem:
            self.errors.append(f"{place}: {problem}; left out")
            return None


def read(paths: Iterable[Path]) -> Iterator[ResultsFile]:
    """The files in their order, without those whose content came before. Raises ReportError, also for a file of another
    schema."""
    seen: set[bytes] = set()
    shared: dict[Any, Any] = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as problem:
            raise ReportError(f"{path}: cannot be read ({problem.strerror}); give files of records") from None
        if len(content) > MAX_BYTES:
            raise ReportError(f"{path}: is larger than {MAX_BYTES >> 20} MiB; give the records in several files")
        digest = hashlib.sha256(content).digest()
        if digest not in seen:
            seen.add(digest)
            source = ResultsFile(_clean(path.name))
            try:
                _fill(source, content, shared)
            except SchemaError as problem:
                raise ReportError(str(problem)) from None
            yield source


def _fill(source: ResultsFile, content: bytes, shared: dict[Any, Any]) -> None:
    if benchmarks.is_document(content):
        _read_benchmarks(source, content)
    else:
        try:
            for place, line in lines(content, source.name):
                if (record := source.take(place, decode, line)) is not None:
                    source.records.append(_lean(record, shared))
        except UnfinishedError as problem:
            source.errors.append(str(problem))
    if not (source.records or source.times or source.errors):
        source.errors.append(f"{source.name}: holds no verdict")


def _lean(record: Record, shared: dict[Any, Any]) -> Record:
    """The record with the texts and tables that are alike in many records held once: a third of the memory."""
    for name in ALIKE:
        value = getattr(record, name)
        key = tuple(value.items()) if isinstance(value, dict) else value
        msgspec.structs.force_setattr(record, name, shared.setdefault(key, value))
    return record


def _read_benchmarks(source: ResultsFile, content: bytes) -> None:
    """Benchmarks of other projects have no record and are passed over."""
    document = source.take(source.name, benchmarks.document, content)
    if document is None:
        return
    for place, benchmark in document.verified(source.name):
        found = source.take(place, _verdict, benchmark)
        if found is None:
            continue
        record, extras = found
        source.records.append(record)
        if benchmark.stats.median and record.status == "pass" and isinstance(record, Attempt):
            timing, rounds = extras.timing, benchmark.stats.data
            if rounds and timing.minimum_s is None:
                timing = msgspec.structs.replace(timing, minimum_s=min(rounds))
            clocked = Clocked(
                Machine.of(record),
                record,
                benchmark.stats.median,
                share=extras.roofline_share or None,
                timing=timing,
                visits=medians(rounds, timing.visits) if rounds else (),
                run=document.datetime or source.name,
            )
            source.times.append(clocked)


def _verdict(benchmark: benchmarks.Benchmark) -> tuple[Record, Extras]:
    return benchmark.record(), benchmark.extras()


def _clean(text: str) -> str:
    """A name of a file may hold bytes that no text can."""
    return text.encode("utf-8", "replace").decode("utf-8")
