"""What a submission holds: its members, read and typed. Nothing here knows whether it is complete or true."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance import __version__
from conformance.inputs.manifest import MANIFEST
from conformance.inputs.stream import GENERATOR
from conformance.reporting.comparison.runs import Run, RunError
from conformance.reporting.comparison.runs import understood as understood_run
from conformance.reporting.comparison.strict import StrictError, decoded, parsed, shown
from conformance.reporting.submission import statement
from conformance.reporting.submission.statement import Statement, StatementError
from conformance.reporting.tally import STATUSES
from conformance.results.records import SCHEMA
from conformance.training.tables import OPERATOR as TRAINING

FORMAT = 1
LINE = 1 << 20
"""Bytes of a record."""
NAME = 200
"""Characters of a name."""
HEAD = {"implementation": str, "operator": str, "device": str, "status": str, "cases": int, "reason": str}
NAMES = ("implementation", "operator", "device", "problem", "dtype", "layout", "distribution", "check")
CASE = {"source": str, "problem": str, "dtype": str, "layout": str, "distribution": str, "seed": int, "checks": dict,
        "seconds": dict, "command": str}  # fmt: skip
"""Fields of a record of one case beyond those of the head, and of any but a training beyond these."""
JUDGED = {"descriptor": str, "generator": str, "method": str}
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
LINK = re.compile(r"https?://[!-~]+", re.ASCII)

Record = Mapping[str, Any]


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
        return [record for record in self.records if record["implementation"] == implementation]


def is_case(record: Record) -> bool:
    """Whether a record is about one case, not about many that could not be attempted."""
    return "problem" in record


def understood(members: Mapping[str, bytes]) -> Contents:
    """The contents of members. Raises SubmissionError for the first that is not what its name says."""
    try:
        signed = statement.understood(members.get("statement.txt", b""))
    except StatementError as problem:
        raise SubmissionError(f"statement.txt {problem}") from None
    records = [r for name in sorted(members) if name.startswith("records/") for r in records_of(members[name], name)]
    try:
        runs = [understood_run(members[name], name) for name in sorted(members) if name.startswith("benchmarks/")]
    except RunError as problem:
        raise SubmissionError(str(problem)) from None
    return Contents(signed, tuple(records), tuple(runs))


def records_of(content: bytes, name: str) -> Iterator[Record]:
    """The records of a file. Raises SubmissionError naming the line and the defect."""
    try:
        lines = decoded(content).split("\n")
    except StrictError as problem:
        raise SubmissionError(f"{name} {problem}") from None
    for number, text in enumerate(lines, 1):
        if not text and number == len(lines):
            return
        try:
            if len(text) > LINE:
                raise StrictError(f"is longer than {LINE} characters")
            record = parsed(text)
            check_record(record)
        except StrictError as problem:
            raise SubmissionError(f"{name}, line {number}: {problem}") from None
        yield record


def check_record(record: Any) -> None:
    """The fields of a record and their types. Raises StrictError."""
    if not isinstance(record, dict):
        raise StrictError("is not an object")
    if type(record.get("schema")) is not int or record["schema"] != SCHEMA:
        raise StrictError(f"is not a record of schema {SCHEMA}")
    _check_fields(record, HEAD)
    if is_case(record):
        _check_fields(record, CASE)
        _check_fields(record, JUDGED if record["operator"] != TRAINING else {})
        _check_numbers(record["checks"])
        if not SHA256.fullmatch(record["source"]):
            raise StrictError("source is not a SHA-256")
    for name in NAMES:
        _check_name(name, record.get(name, ""))
    if record["status"] not in STATUSES or record["cases"] < 1:
        raise StrictError(f"has status {shown(record['status'])} for {record['cases']} cases")
    versions = record.get("versions")
    if not isinstance(versions, dict) or not all(isinstance(value, str) for value in versions.values()):
        raise StrictError("versions are missing or are not text")


def _check_fields(record: Record, fields: Mapping[str, type]) -> None:
    for name, kind in fields.items():
        if type(record.get(name)) is not kind:
            raise StrictError(f"field {name} is missing or is not {kind.__name__}")


def _check_name(field: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > NAME or not value.isprintable() or set(value) & set("<>&\"'"):
        raise StrictError(f"{field} {shown(value)} is no name: control characters, markup, or too long")


def _check_numbers(checks: Mapping[str, Any]) -> None:
    """Output -> check -> value and limit; a value that is no number is written as text."""
    for output in checks.values():
        pairs = output.values() if isinstance(output, dict) else [None]
        if not all(isinstance(pair, list) and len(pair) == 2 and _is_number(pair[1]) for pair in pairs):
            raise StrictError("checks are not pairs of value and limit")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def waivers(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The waivers that records use, and how many cases each covers. Reason and link are empty where there is none."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for record in records:
        if record["status"] == "waived":
            reason, url = _waiver(record["reason"].partition("\n")[0])
            counts[record["implementation"], record["operator"], reason, url] += record["cases"]
    names = ("implementation", "operator", "reason", "url")
    return [dict(zip(names, key, strict=True)) | {"cases": count} for key, count in sorted(counts.items())]


def _waiver(line: str) -> tuple[str, str]:
    """Reason and link of `waived: reason (link)`, as verdicts give them; both empty where either is."""
    reason, _, link = line.removeprefix("waived:").removesuffix(")").rpartition(" (")
    told = line.startswith("waived:") and line.endswith(")") and reason.strip() and LINK.fullmatch(link)
    return (reason.strip(), link) if told else ("", "")


def environment(contents: Contents) -> dict[str, Any]:
    """Where results come from: all that the records and runs tell about sources, versions and machines."""
    told: dict[str, dict[str, set[str]]] = {}
    for record in contents.records:
        facts = told.setdefault(record["implementation"], defaultdict(set))
        facts["device"].add(record["device"])
        facts["source"].update({record["source"]} if "source" in record else ())
        for name, value in record["versions"].items():
            facts[f"version of {name}"].add(value)
    return {
        "suite": __version__,
        "generator": GENERATOR,
        "golden": hashlib.sha256(MANIFEST.read_bytes()).hexdigest(),
        "implementations": {i: {name: sorted(f[name]) for name in sorted(f)} for i, f in sorted(told.items())},
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
