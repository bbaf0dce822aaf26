"""What the templates are given: plain values, in the order in which the page shows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conformance.reporting.page.merge import environments
from conformance.reporting.page.model import Row, Verdict
from conformance.reporting.page.tables import Digest, Tile
from conformance.reporting.table import Table
from conformance.reporting.terminal import ACCEPTS
from conformance.results.schema import STATUSES

LEGEND = {
    "pass": "within the declared contract",
    "fail": "not within it",
    "error": "raised, or its file is broken",
    "waived": "fails as expected, with a reason",
    "unsupported": "declared as not supported",
    "unavailable": "no such device or package",
}
FAILURES = 50
"""Shown in full at the top; all of them are in the list."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the files that the reader must know."""

    title: str
    lines: list[str]
    open: bool


def overview(digest: Digest) -> dict[str, Any]:
    """Counts, notices, machines, and what failed."""
    totals = digest.totals
    return {
        "lead": lead(digest),
        "counts": [(status, totals[status]) for status in STATUSES],
        "spans": _spans(digest),
        "cases": f"{digest.cases:,}",
        "verified": f"{digest.verified:,}",
        "levels": ", ".join(digest.levels),
        "generators": "; ".join(digest.generators) or "none",
        "hosts": ", ".join(digest.results.hosts),
        "notices": list(notices(digest)),
        "machines": _machines(digest),
        "failures": [_card(digest, verdict) for verdict in digest.failures[:FAILURES]],
        "failures_lead": _failures_lead(len(digest.failures)),
    }


def lead(digest: Digest) -> str:
    """The run in one sentence."""
    if not digest.verified:
        return "Nothing was verified."
    bad = digest.totals["fail"] + digest.totals["error"]
    of = f"{len({name for name, _ in digest.rows})} implementations"
    if bad:
        return f"{bad:,} of {digest.cases:,} cases of {of} fail or raise an error."
    return f"All {digest.verified:,} verified cases of {of} pass or fail as expected."


def _spans(digest: Digest) -> Iterator[tuple[str, str, str]]:
    """Status, start and width of its piece of a bar of 1000."""
    start = 0.0
    for status in STATUSES:
        width = 1000 * digest.totals[status] / max(digest.cases, 1)
        if width:
            yield status, f"{start:.2f}", f"{width:.2f}"
        start += width


def notices(digest: Digest) -> Iterator[Notice]:
    """What is wrong with the files, or came from several."""
    results = digest.results
    if results.errors:
        yield Notice(f"{_many(len(results.errors), 'line')} could not be read", list(results.errors[:200]), True)
    if results.conflicts:
        lines = [f"{c.case}, {c.machine}: {c.earlier}, then {c.later}" for c in results.conflicts[:200]]
        yield Notice(
            f"{_many(len(results.conflicts), 'contradiction')}: same case, same source, another status", lines, True
        )
    stale = sum(v.stale for v in results.verdicts)
    if stale:
        names = sorted({v.record.implementation for v in results.verdicts if v.stale})
        yield Notice(f"{_many(stale, 'stale verdict')}: a later file has another source", names, False)
    replaced = sum(v.replaced for v in results.verdicts)
    if replaced:
        names = sorted({v.record.implementation for v in results.verdicts if v.replaced})
        place = f"{_many(replaced, 'verdict')} in the place of an earlier file's on the same case"
        yield Notice(place, names, False)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _machines(digest: Digest) -> Table:
    rows = []
    for machine, versions in environments(digest.results).items():
        if not machine.device:  # of a file that could not be used
            continue
        names = sorted({name for name, where in digest.rows if where == machine})
        words = ", ".join(f"{name} {' and '.join(texts)}" for name, texts in versions.items())
        rows.append((machine.label, ", ".join(names) or "none", words))
    return Table("Machines and versions", ("machine", "implementations", "versions"), tuple(rows), 3)


def _failures_lead(count: int) -> str:
    return "Each with what is wrong and how to run it alone." + (
        f" The first {FAILURES} of {count:,}; the list at the end has all." if count > FAILURES else ""
    )


def _card(digest: Digest, verdict: Verdict) -> dict[str, str]:
    return {
        "status": verdict.record.status,
        "title": verdict.title,
        "machine": verdict.machine.label,
        "reason": verdict.record.explanation,
        "command": verdict.record.command,
    }


def matrix(digest: Digest) -> dict[str, Any]:
    """Rows of cells of tiles."""
    places = {row: place for place, row in enumerate(sorted({v.row for v in digest.results.verdicts}))}
    rows = [
        {
            "name": row[0],
            "machine": row[1].short,
            "place": places[row],
            "cells": [
                [_tile(row, operator, tile) for tile in digest.matrix.get((row, operator), ())]
                for operator in digest.operators
            ],
        }
        for row in digest.rows
    ]
    return {"rows": rows, "operators": digest.operators, "legend": LEGEND.items()}


def _tile(row: Row, operator: str, tile: Tile) -> dict[str, str]:
    """The count of the status that colours it, and that of the others as letters."""
    others = [f"{tile.counts[s]:,}{s[0]}" for s in STATUSES if tile.counts[s] and s != tile.status]
    return {
        "operator": operator,
        "dtype": tile.dtype,
        "status": tile.status,
        "main": f"{tile.counts[tile.status]:,}",
        "more": " ".join(others),
        "label": f"{row[0]}, {operator}, {tile.dtype or 'not attempted'}: {tile.words}",
    }


def findings(digest: Digest) -> dict[str, Any]:
    """Reasons with the cases that they explain."""
    kinds = [
        ("Waived", "reason", digest.reasons("waived")),
        (ACCEPTS.capitalize(), "request", digest.accepted),
        ("Unsupported", "reason", digest.reasons("unsupported")),
        ("Unavailable", "reason", digest.reasons("unavailable")),
    ]
    found = [
        {"title": t, "head": head, "rows": [(n, f"{c:,}", why) for n, c, why in rows]}
        for t, head, rows in kinds
        if rows
    ]
    return {"findings": found}
