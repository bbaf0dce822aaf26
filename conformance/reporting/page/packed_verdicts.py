"""Verdicts in columns, packed: 20,000 of them must not weigh more than a photograph.

Texts that repeat are numbered; a column holds numbers. The whole is JSON, gzipped, in base64, so that nothing in it
can end a script element or be taken for markup.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from conformance.reporting import reproduce
from conformance.reporting.page.model import dtype_place, operator_place
from conformance.reporting.page.tables import Digest
from conformance.results.schema import Number, Record

TEXTS = (
    "operator", "problem", "descriptor", "dtype", "layout", "distribution", "storage", "status", "check", "method",
    "level",
)  # fmt: skip
"""Fields of a record that become numbered texts; empty where a record has none."""
DIGITS = 4
"""Significant digits of measured numbers on the page; CSV has all of them."""
VALUES: Mapping[str, Callable[[Record], Any]] = {
    **{name: partial(lambda name, record: getattr(record, name), name) for name in TEXTS},
    "reason": lambda record: record.explanation,
    "checks": lambda record: [[output, list(checks)] for output, checks in record.checks.items()],
    "profile": lambda record: [[output, list(found.numbers)] for output, found in record.profile.items()],
    "versions": lambda record: record.versions,
    "contract": lambda record: record.contract,
    "inferred": lambda record: {output: found.inferred.precision for output, found in record.profile.items()},
}
"""Column -> what is numbered in it, in the order of first use."""


def packed(digest: Digest) -> str:
    """All verdicts, as text that needs no escaping anywhere."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(columns(digest)), 9, mtime=0)).decode("ascii")


def columns(digest: Digest) -> dict[str, Any]:
    """{rows: names, groups: titles of groups of failures, options: filter -> what it offers, values: column -> its
    texts, columns: column -> numbers, one per verdict}."""
    verdicts = digest.results.verdicts
    rows = {row: place for place, row in enumerate(sorted({v.row for v in verdicts}))}
    held: dict[str, list[Any]] = {"row": [rows[v.row] for v in verdicts]}
    values: dict[str, list[Any]] = {}
    for name, value in VALUES.items():
        places: dict[str, int] = {}
        held[name], values[name] = [], []
        for found in (value(verdict.record) for verdict in verdicts):
            key = found if isinstance(found, str) else repr(found)
            if key not in places:
                places[key] = len(places)
                values[name].append(found)
            held[name].append(places[key])
    for verdict in verdicts:
        record = verdict.record
        numbers = [n for checks in record.checks.values() for pair in checks.values() for n in pair]
        numbers += [n for found in record.profile.values() for n in found.numbers.values()]
        one = {
            "cases": record.cases,
            "command": reproduce.command(record),
            "terms": max(record.terms.values(), default=None),
            "figures": [_shown(number) for number in numbers],
            "worst": _shown(verdict.worst),
            "elements": verdict.mismatched,
            "seconds": _shown(record.seconds.get("total")),
            "group": digest.grouped[id(record)][0] if id(record) in digest.grouped else None,
            "marks": verdict.replaced + 2 * verdict.stale,
        }
        for name, cell in one.items():
            held.setdefault(name, []).append(cell)
    names = [[name, digest.name((name, machine)), machine.label] for name, machine in rows]
    groups = [f"{digest.name(row)}: {one.title} ({one.cases:,})" for row, found in digest.groups for one in found]
    orders: dict[str, Callable[[str], Any]] = {"operator": operator_place, "dtype": dtype_place, "distribution": str}
    options = {name: sorted(values[name], key=order) for name, order in orders.items()}
    return {"rows": names, "groups": groups, "options": options, "values": values, "columns": held}


def _shown(number: Number | None) -> Number | None:
    """Few digits; infinities stay the texts that they are."""
    return number if number is None or isinstance(number, str) else float(f"{number:.{DIGITS}g}")
