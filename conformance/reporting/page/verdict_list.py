"""The contents of the page's list of verdicts: a line of JSON each, as records have, after a line of what they share.

The whole is gzipped and in base64, so that nothing in it can end a script element or be taken for markup; 20,000
verdicts weigh less than a photograph.
"""

from __future__ import annotations

import base64
import gzip
import io
from collections.abc import Iterator
from typing import Any

import msgspec

from conformance.dtypes import dtype_place
from conformance.reporting.page.model import ReportedVerdict, operator_place
from conformance.reporting.page.tables import Digest
from conformance.results.schema import Number, Record

TEXTS = (
    "operator", "problem", "descriptor", "dtype", "layout", "distribution", "storage", "status", "check", "method",
)  # fmt: skip
"""Fields of a record that are copied as they are."""
DIGITS = 4
"""Significant digits of measured numbers on the page; records have all of them."""


def packed(digest: Digest) -> str:
    """Return all verdicts, as text that needs no escaping anywhere."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        for line in lines(digest):
            file.write(msgspec.json.encode(line) + b"\n")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def lines(digest: Digest) -> Iterator[dict[str, Any]]:
    """Yield {rows: names and machines, groups: titles of groups of failures, operators, dtypes and distributions to
    choose from}; then the verdicts."""
    yield {
        "rows": [[digest.name(row), row[1].label] for row in digest.every_row],
        "groups": [f"{group.implementation}: {group.title} ({group.cases:,})" for group in digest.report.groups],
        "operator": sorted({record.operator for record in digest.records}, key=operator_place),
        "dtype": sorted({record.dtype for record in digest.records}, key=dtype_place),
        "distribution": sorted({record.distribution for record in digest.records}),
    }
    places = {row: place for place, row in enumerate(digest.every_row)}
    for verdict, record in zip(digest.results.verdicts, digest.records, strict=True):
        yield {"row": places[verdict.row], **_verdict(verdict, record, digest)}


def _verdict(verdict: ReportedVerdict, record: Record, digest: Digest) -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in TEXTS},
        "cases": record.cases,
        "group": digest.grouped.get(id(record)),
        "reason": record.explanation,
        "command": record.command,
        "checks": [
            [output, name, *map(_shown, pair)]
            for output, checks in record.checks.items()
            for name, pair in checks.items()
        ],
        "worst": _shown(verdict.worst),
        "elements": verdict.mismatched,
        "seconds": _shown(record.seconds.get("total")),
        "facts": dict(_facts(record)),
    }


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield further facts about a verdict, by name."""
    if record.terms:
        yield "contraction length", str(max(record.terms.values()))
    yield "contract", ", ".join(f"{name} {value}" for name, value in (record.contract or {}).items())
    for output, profile in record.profile.items():
        yield f"inferred precision {output}", profile.inferred.precision
        yield f"profile {output}", ", ".join(f"{name} {_shown(value)}" for name, value in profile.numbers.items())
    if record.host:
        number = "" if record.device_index is None else f"number {record.device_index} of "
        yield "device", f"{number}{record.host} {record.device_serial}".strip()
    yield "versions", ", ".join(f"{name} {text}" for name, text in record.versions.items())


def _shown(number: Number | None) -> Number | None:
    """Round a number to few digits; infinities stay the texts that they are."""
    return number if number is None or isinstance(number, str) else float(f"{number:.{DIGITS}g}")
