"""CSV: one line per verdict, numbers in full."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

from conformance.reporting.page.model import Verdict
from conformance.reporting.page.tables import Digest

COLUMNS = (
    "implementation", "device", "machine", "operator", "problem", "descriptor", "dtype", "layout", "distribution",
    "storage", "check", "seed", "generator", "method", "status", "cases", "reason", "cause", "worst_error_over_bound",
    "mismatched_elements", "seconds", "kernel_seconds", "source", "replaced", "stale", "command",
)  # fmt: skip
RECORDED = (
    "implementation", "device", "operator", "problem", "descriptor", "dtype", "layout", "distribution", "storage",
    "check", "seed", "generator", "method", "status", "source", "command",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t")
"""A spreadsheet takes a cell that begins so for a formula, and would run it."""


def as_csv(digest: Digest, title: str) -> Iterator[str]:
    """A heading and a line for each verdict; what a record does not say is empty."""
    writer = csv.DictWriter(SimpleNamespace(write=str), COLUMNS, lineterminator="\n")  # a row is what write returns
    yield writer.writeheader()
    for verdict in digest.results.verdicts:
        cells = _cells(verdict, digest.cause(verdict.record))
        yield writer.writerow({name: defused(value) for name, value in cells.items()})


def defused(value: object) -> object:
    """Text that would be a formula gets an apostrophe before it, which spreadsheets do not show, also where the sign is
    a full-width one or stands behind what nobody sees; lines end alike, for Python's writer leaves a lone carriage
    return unquoted."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    signs = (c for c in unicodedata.normalize("NFKC", text) if c == "\t" or unicodedata.category(c)[0] not in "CMZ")
    return f"'{text}" if next(signs, "") in FORMULA else text


def _cells(verdict: Verdict, cause: str) -> Mapping[str, object]:
    record = verdict.record
    return {
        **{name: record.text(name) for name in RECORDED},
        "machine": verdict.machine.label,
        "cases": record.cases,
        "reason": record.explanation,
        "cause": cause,
        "worst_error_over_bound": verdict.worst,
        "mismatched_elements": verdict.mismatched,
        "seconds": record.seconds.get("total"),
        "kernel_seconds": record.seconds.get("kernel"),
        "replaced": int(verdict.replaced),
        "stale": int(verdict.stale),
    }
