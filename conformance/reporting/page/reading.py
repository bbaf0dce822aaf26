"""Files of results: records (JSON lines), pytest-benchmark's JSON, and the CSV of the U-Net table."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from conformance.reporting.page.model import Clocked, Machine, ReportError
from conformance.results import benchmarks
from conformance.results.reading import RecordError, SchemaError, UnfinishedError, decode, lines
from conformance.results.schema import SCHEMA, Attempt, Extras, MachineState, Record
from conformance.timing.measurement import Interval, Ratio, medians

TABLE = b"operator,problem,descriptor,implementation,device,verdict,"
"""How the CSV of `conformance unet` begins."""
TOLD = (
    "roofline_share", "minimum_s", "fastest_s", "low_s", "high_s", "ratio_to_torch", "ratio_low", "ratio_high",
)  # fmt: skip
"""Its columns of numbers that may be empty; earlier versions call the minimum `fastest_s`."""
STATES = {
    "stable": MachineState(state="stable"),
    "noisy": MachineState(state="noisy"),
    "unusable": MachineState(state="unusable"),
}
"""What it says of the machine; it has no reasons."""
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
    times: list[tuple[Clocked, Record | None]] = field(default_factory=list)
    """With the record of the verdict before each; a table in CSV has none, and names the device alone."""
    errors: list[str] = field(default_factory=list)
    host: str = ""

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
    """The files in their order, without those whose content came before. Raises ReportError: after the last file where
    one is of another schema, so that files of two schemas are named."""
    seen: set[bytes] = set()
    current, other = "", ""
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
                yield source
            except SchemaError as problem:
                other = other or str(problem)
            current = current or (source.name if source.records else "")
    if other:
        mixed = f"; {current} is of schema {SCHEMA}, and a report is of one schema" if current else ""
        raise ReportError(f"{other}{mixed}")


def _fill(source: ResultsFile, content: bytes, shared: dict[Any, Any]) -> None:
    if content.startswith(TABLE):
        _read_table(source, content)
    elif benchmarks.is_document(content):
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
    source.host = document.machine_info.cpu.brand_raw or ""
    for place, benchmark in document.verified(source.name):
        found = source.take(place, _verdict, benchmark)
        if found is None:
            continue
        record, extras = found
        source.records.append(record)
        if benchmark.stats.median and record.status == "pass" and isinstance(record, Attempt):
            names = (record.implementation, record.operator, record.problem, record.dtype, record.layout)
            timing, rounds = extras.timing, benchmark.stats.data
            clocked = Clocked(
                Machine(record.device),
                *names,
                benchmark.stats.median,
                extras.roofline_share or None,
                timing.doubt or timing.finding,
                bool(timing.doubt),
                timing.minimum_s or min(rounds, default=None),
                _bounds(timing.low_s, timing.high_s),
                medians(rounds, timing.visits) if rounds else (),
                run=document.datetime or source.name,
                state=timing.machine,
            )
            source.times.append((clocked, record))


def _verdict(benchmark: benchmarks.Benchmark) -> tuple[Record, Extras]:
    return benchmark.record(), benchmark.extras()


def _read_table(source: ResultsFile, content: bytes) -> None:
    """Times, and no verdicts: a table has no record."""
    rows = csv.DictReader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    try:
        for number, row in enumerate(rows, 1):
            seconds = _positive(row.get("median_s"))
            if seconds is not None and row["verdict"] == "pass":
                names = (_clean(row["implementation"]), _clean(row["operator"]), _clean(row["problem"]))
                told = {name: _positive(row.get(name)) for name in TOLD}
                ratio, impossible = told["ratio_to_torch"], row.get("impossible") == "1"
                clocked = Clocked(
                    Machine(_clean(row["device"])),
                    *names,
                    "fp32",
                    "nchw",
                    seconds,
                    None if impossible else told["roofline_share"],
                    _clean(row.get("finding") or ""),
                    impossible,
                    told["minimum_s"] or told["fastest_s"],
                    _bounds(told["low_s"], told["high_s"]),
                    ratio=Ratio(ratio, _bounds(told["ratio_low"], told["ratio_high"])) if ratio else None,
                    run=source.name,
                    state=STATES.get(row.get("machine") or ""),
                )
                source.times.append((clocked, None))
            elif row["verdict"] in ("pass", None):
                source.errors.append(f"{source.name}, row {number}: broken or cut off; left out")
    except csv.Error as problem:
        source.errors.append(f"{source.name}: broken from line {rows.line_num} on ({problem}); left out")


def _bounds(low: float | None, high: float | None) -> Interval | None:
    return (low, high) if low and high and low <= high else None


def _positive(text: str | None) -> float | None:
    """The number in a cell, if it is one above 0."""
    with suppress(TypeError, ValueError):
        value = float(text or "")
        return value if 0 < value < math.inf else None
    return None


def _clean(text: str) -> str:
    """A name of a file may hold bytes that no text can."""
    return text.encode("utf-8", "replace").decode("utf-8")
