"""Verdicts in columns, packed: 20,000 of them must not weigh more than a photograph.

Texts that repeat are numbered; a column holds numbers. The whole is JSON, gzipped, in base64, so that nothing in it
can end a script element or be taken for markup.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from conformance.reporting.page.model import Verdict
from conformance.reporting.page.tables import Digest

Record = Mapping[str, Any]
TEXTS = (
    "operator",
    "problem",
    "descriptor",
    "dtype",
    "layout",
    "distribution",
    "status",
    "reason",
    "check",
    "method",
    "level",
)
"""Fields of a record that become numbered texts; empty where a record has none."""
DIGITS = 4
"""Significant digits of measured numbers on the page; CSV has all of them."""


class _Numbered:
    """Texts (or anything that JSON can write) in the order of first use."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self.values: list[Any] = []

    def __getitem__(self, value: object) -> int:
        key = value if isinstance(value, str) else repr(value)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def packed(digest: Digest) -> str:
    """All verdicts, as text that needs no escaping anywhere."""
    text = json.dumps(columns(digest), allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), 9, mtime=0)).decode("ascii")


def columns(digest: Digest) -> dict[str, Any]:
    """{rows: names, values: column -> its texts, columns: column -> numbers, one per verdict}."""
    verdicts = digest.results.verdicts
    records = [verdict.record for verdict in verdicts]
    rows = {row: place for place, row in enumerate(sorted({v.row for v in verdicts}))}
    held: dict[str, list[Any]] = {"row": [rows[v.row] for v in verdicts], "cases": [v.cases for v in verdicts]}
    values: dict[str, list[Any]] = {}
    for name, value in VALUES.items():
        numbered = _Numbered()
        held[name] = [numbered[value(record)] for record in records]
        values[name] = numbered.values
    held["command"] = [record.get("command", "") for record in records]
    held["terms"] = [_terms(record.get("terms")) for record in records]
    held["figures"] = [_figures(record) for record in records]
    held["worst"] = [_shown(worst(v)) for v in verdicts]
    held["seconds"] = [_shown(record.get("seconds", {}).get("total")) for record in records]
    held["marks"] = [v.replaced + 2 * v.stale for v in verdicts]
    names = [[name, digest.name((name, machine)), machine.label] for name, machine in rows]
    return {"rows": names, "values": values, "columns": held}


def _text(name: str) -> Callable[[Record], Any]:
    return lambda record: record.get(name, "")


def _shape(name: str) -> Callable[[Record], Any]:
    """Of what holds figures: outputs with the names of their numbers."""
    return lambda record: [[output, list(numbers)] for output, numbers in record.get(name, {}).items()]


VALUES: Mapping[str, Callable[[Record], Any]] = {
    **{name: _text(name) for name in TEXTS},
    **{name: _shape(name) for name in ("checks", "profile")},
    "versions": lambda record: record["versions"],
    "contract": lambda record: record.get("contract"),
    "inferred": lambda record: {output: one["contract"] for output, one in record.get("inferred", {}).items()},
}
"""Column -> what is numbered in it."""


def _figures(record: Record) -> list[Any]:
    """Value and limit of each check, then the numbers of the profiles, in the order of their shapes."""
    checks = [n for found in record.get("checks", {}).values() for pair in found.values() for n in pair]
    return [_shown(n) for n in (*checks, *_flat(record.get("profile", {})))]


def _flat(found: Mapping[str, Mapping[str, Any]]) -> Iterable[Any]:
    return (number for numbers in found.values() for number in numbers.values())


def _shown(number: Any) -> Any:
    """Few digits; infinities stay the texts that they are."""
    return float(f"{number:.{DIGITS}g}") if isinstance(number, int | float) else number


def _terms(found: Any) -> Any:
    """Contraction length of the longest sum."""
    return max(found.values(), default=None) if isinstance(found, dict) else found


def worst(verdict: Verdict) -> float | None:
    """The largest of |value| over limit of the checks; None where there are none."""
    pairs = [pair for found in verdict.record.get("checks", {}).values() for pair in found.values()]
    shares = [abs(float(value)) / float(limit) for value, limit in pairs if float(limit) > 0]
    wrong = [abs(float(value)) for value, limit in pairs if not float(limit) > 0 and abs(float(value)) > 0]
    finite = [min(share, 1e300) if share == share else 1e300 for share in (*shares, *wrong)]
    return max(finite, default=0.0 if pairs else None)
