"""Files of results: records (JSON lines), pytest-benchmark's JSON, and the CSV of the U-Net table."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.reporting.comparison.runs import Run, RunError, understood
from conformance.reporting.comparison.runs import read as read_run
from conformance.reporting.page.form import fault
from conformance.reporting.page.model import ReportError
from conformance.results.records import SCHEMA

TABLE = b"operator,problem,descriptor,implementation,device,verdict,"
"""How the CSV of `python -m conformance unet` begins."""
TIMED = ("implementation", "operator", "problem", "dtype", "layout")
"""What is timed."""
KEPT = 10
"""Runs of a folder that are looked back at."""
SHARE = "roofline_share"
MEASURED = frozenset({SHARE, "flops", "timing"})
"""What a benchmark adds to its record."""


@dataclass(slots=True)
class Source:
    """What one file held."""

    name: str
    records: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    """What TIMED names, `device`, `versions`, `seconds_median` and, where they are known, `roofline_share`
    and `finding`."""
    troubles: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    run: Run | None = None
    """The rounds of a benchmark file, where they can be compared with those of another one."""


def read(paths: Iterable[Path]) -> Iterator[Source]:
    """The files in their order, without those whose content came before. Raises ReportError."""
    seen: set[bytes] = set()
    for path in paths:
        content = _content(path)
        digest = hashlib.sha256(content).digest()
        if digest not in seen:
            seen.add(digest)
            yield _source(path.name, content)


def looked_back_at(paths: Iterable[Path]) -> Iterator[Run]:
    """Benchmark files that are only looked back at; of a folder the last `KEPT` by name. Raises ReportError.

    A folder may hold the benchmarks of other projects as well.
    """
    for path in paths:
        for file in sorted(path.rglob("*.json"))[-KEPT:] if path.is_dir() else [path]:
            try:
                yield replace(read_run(file), name=_clean(file.name))
            except RunError as problem:
                if file is path:
                    raise ReportError(str(problem)) from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise ReportError(f"{path}: cannot be read ({problem.strerror}); give files of records") from None


def _source(name: str, content: bytes) -> Source:
    source = Source(_clean(name))
    if content.startswith(TABLE):
        _read_table(source, content)
    elif content.split(b"\n", 1)[0].strip() == b"{":
        _read_benchmarks(source, content)
    else:
        _read_lines(source, content)
    if not (source.records or source.timings or source.troubles):
        source.troubles.append(f"{source.name}: holds no verdict")
    return source


def _read_lines(source: Source, content: bytes) -> None:
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            _take(source, f"{source.name}, line {number}", line, source.records)


def _take(source: Source, place: str, line: bytes, into: list[dict[str, Any]]) -> None:
    """Keep a record, or say why not. Raises ReportError for one that another version wrote."""
    try:
        record = _parsed(line)
    except (ValueError, RecursionError):
        source.troubles.append(f"{place}: broken or cut off, left out")
        return
    _refuse_other_schema(place, record)
    wrong = fault(record)
    if wrong:
        source.troubles.append(f"{place}: no record ({wrong}), left out")
    else:
        into.append(record)


def _parsed(line: bytes) -> Any:
    """Strict JSON. Half a surrogate pair, which no UTF-8 file can hold, becomes a question mark."""
    text = line.decode("utf-8")
    value = json.loads(text, parse_constant=_no_constant)
    if "\\ud" in text.lower():
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse_other_schema(place: str, record: Any) -> None:
    if isinstance(record, dict) and "schema" in record and record["schema"] != SCHEMA:
        raise ReportError(
            f"{place}: written in schema {_clean(str(record['schema']))[:20]}, this version reads schema {SCHEMA}; "
            f"make the report with the version of kernel-conformance that wrote the file, or run again with this one"
        )


def _read_benchmarks(source: Source, content: bytes) -> None:
    """Benchmarks of other projects have no record and are passed over."""
    try:
        document = _parsed(content)
        benchmarks = [(dict(b["extra_info"]), float(b["stats"]["median"])) for b in document["benchmarks"]]
    except (ValueError, RecursionError, KeyError, TypeError):
        source.troubles.append(f"{source.name}: broken or cut off, or not written by --benchmark-json; left out")
        return
    source.hosts.append(_host(document))
    with suppress(RunError):  # of other projects, or without rounds
        source.run = understood(content, source.name)
    for number, (info, seconds) in enumerate(benchmarks, 1):
        if "implementation" not in info:
            continue
        before = len(source.records)
        extra = _numbers({SHARE: info.get(SHARE)}) | {"finding": _finding(info.get("timing"))}
        info = {name: value for name, value in info.items() if name not in MEASURED}
        _take(source, f"{source.name}, benchmark {number}", json.dumps(info).encode(), source.records)
        if len(source.records) > before and 0 < seconds < math.inf and _verified(source.records[-1]):
            source.timings.append({**source.records[-1], **extra, "seconds_median": seconds})


def _finding(timing: Any) -> str:
    """Why a time is not to be believed, as its benchmark says; empty if it does not."""
    if not isinstance(timing, dict) or timing.get("status") != "finding":
        return ""
    return str(timing.get("finding") or "doubted")


def _verified(record: dict[str, Any]) -> bool:
    return record["status"] == "pass" and all(name in record for name in TIMED)


def _host(document: Any) -> str:
    info = document.get("machine_info") or {}
    cpu = info.get("cpu") if isinstance(info, dict) else None
    return str(cpu.get("brand_raw") or "") if isinstance(cpu, dict) else ""


def _read_table(source: Source, content: bytes) -> None:
    """Times, and no verdicts: a table has no record."""
    lines = csv.DictReader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    try:
        for number, row in enumerate(lines, 1):
            _take_row(source, f"{source.name}, row {number}", row)
    except csv.Error as problem:
        source.troubles.append(f"{source.name}: broken from line {lines.line_num} on ({problem}), left out")


def _take_row(source: Source, place: str, row: dict[str, str]) -> None:
    known = _numbers({"seconds_median": row.get("median_s"), SHARE: row.get(SHARE)})
    if "seconds_median" in known and row["verdict"] == "pass":
        names = {name: _clean(row[name]) for name in ("implementation", "operator", "problem", "device")}
        source.timings.append({**names, "dtype": "fp32", "layout": "nchw", "versions": {}, **known})
    elif row["verdict"] in ("pass", None):
        source.troubles.append(f"{place}: broken or cut off, left out")


def _numbers(texts: dict[str, Any]) -> dict[str, float]:
    """Those that are positive numbers."""
    found: dict[str, float] = {}
    for name, text in texts.items():
        try:
            value = float(text)
        except (TypeError, ValueError):
            continue
        if 0 < value < math.inf:
            found[name] = value
    return found


def _clean(text: str) -> str:
    """A name of a file may hold bytes that no text can."""
    return text.encode("utf-8", "replace").decode("utf-8")
