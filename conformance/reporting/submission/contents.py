"""What a submission holds: its members, read and typed. Nothing here knows whether it is complete or true."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance import __version__
from conformance.inputs.manifest import digest
from conformance.inputs.stream import GENERATOR
from conformance.reporting.comparison.runs import Run, RunError
from conformance.reporting.comparison.runs import understood as understood_run
from conformance.reporting.submission import statement
from conformance.reporting.submission.statement import Statement, StatementError
from conformance.results.reading import RecordError, UnfinishedError, decode, lines, shown
from conformance.results.schema import Attempt, Record

FORMAT = 1
MAX_LINE = 1 << 20
"""Bytes of a record."""
MAX_NAME = 200
"""Characters of a name."""
NAMES = ("implementation", "operator", "device", "problem", "dtype", "layout", "distribution", "storage", "check")


class SubmissionError(ValueError):
    """A submission that is refused; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The statement, every record, every benchmark run."""

    statement: Statement
    records: tuple[Record, ...]
    runs: tuple[Run, ...]

    def of(self, implementation: str) -> list[Record]:
        """The records of one implementation."""
        return [record for record in self.records if record.implementation == implementation]

    @property
    def cases(self) -> Iterator[Attempt]:
        """Every record of one case, not of many that could not be attempted."""
        return (record for record in self.records if isinstance(record, Attempt))


def understood(members: Mapping[str, bytes]) -> Contents:
    """The contents of members. Raises SubmissionError for the first that is not what its name says."""
    try:
        signed = statement.understood(members.get("statement.txt", b""))
    except StatementError as problem:
        raise SubmissionError(f"statement.txt {problem}") from None
    names = sorted(members)
    records = [r for name in names if name.startswith("records/") for _, r in records_of(members[name], name)]
    try:
        runs = [understood_run(members[name], name) for name in names if name.startswith("benchmarks/")]
    except RunError as problem:
        raise SubmissionError(str(problem)) from None
    return Contents(signed, tuple(records), tuple(runs))


def records_of(content: bytes, name: str) -> Iterator[tuple[bytes, Record]]:
    """The lines of a file with their records. Raises SubmissionError naming the line and the defect."""
    try:
        for place, line in lines(content, name):
            try:
                if len(line) > MAX_LINE:
                    raise RecordError(f"is longer than {MAX_LINE} bytes")
                record = decode(line)
                for field in NAMES:
                    value = getattr(record, field)
                    if len(value) > MAX_NAME or not value.isprintable() or set(value) & set("<>&\"'"):
                        raise RecordError(f"{field} {shown(value)} is no name: control characters, markup, or too long")
            except RecordError as problem:
                raise SubmissionError(f"{place}: {problem}") from None
            yield line, record
    except UnfinishedError as problem:
        raise SubmissionError(str(problem)) from None


def waivers(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The waivers that records use, and how many cases each covers."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for record in records:
        if record.waiver is not None:
            counts[record.implementation, record.operator, record.waiver.reason, record.waiver.url] += record.cases
    names = ("implementation", "operator", "reason", "url")
    return [dict(zip(names, key, strict=True)) | {"cases": count} for key, count in sorted(counts.items())]


def environment(contents: Contents) -> dict[str, Any]:
    """Where results come from: all that the records and runs say about sources, versions and machines."""
    found: dict[str, dict[str, set[str]]] = {}
    for record in contents.records:
        facts = found.setdefault(record.implementation, defaultdict(set))
        facts["device"].add(record.device)
        facts["source"].update({record.source} if record.source else ())
        for name, value in record.versions.items():
            facts[f"version of {name}"].add(value)
    return {
        "suite": __version__,
        "generator": GENERATOR,
        "golden": digest(),
        "implementations": {i: {name: sorted(f[name]) for name in sorted(f)} for i, f in sorted(found.items())},
        "machines": [dict(run.machine) for run in contents.runs],
    }


def manifest(members: Mapping[str, bytes]) -> dict[str, Any]:
    """Length and SHA-256 of every member but this one."""
    rows = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(members.items())
        if name != "manifest.json"
    }
    return {"format": FORMAT, "members": rows}


def as_json(value: Any) -> bytes:
    """The same bytes for the same value."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
