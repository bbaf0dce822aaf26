"""What the templates are given: plain values, in the order in which the page shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.reporting import reproduce
from conformance.reporting.groups import amount, described
from conformance.reporting.page.merge import environments
from conformance.reporting.page.model import Row
from conformance.reporting.page.tables import Digest, Tile
from conformance.reporting.table import Table, many
from conformance.reporting.terminal import ACCEPTS, LETTERS, counted
from conformance.results.schema import STATUSES

LEGEND = {
    "pass": "within the declared contract",
    "fail": "not within it",
    "error": "raised, or its file is broken",
    "unsupported": "declared as not supported, or not checked because results are wrong",
    "waived": "fails as expected, with a reason",
    "unavailable": "no such device or package",
}
GROUPS = 100
"""Groups of failures that are shown; all failures are in the list."""


def overview(digest: Digest) -> dict[str, Any]:
    """Counts, lines that could not be read, what failed, and machines."""
    spans, start = [], 0.0
    for status in STATUSES:  # start and width of each piece of a bar of 1000
        width = 1000 * digest.totals[status] / max(digest.cases, 1)
        spans += [(status, f"{start:.2f}", f"{width:.2f}")] if width else []
        start += width
    machines = []
    for machine, versions in environments(digest.results).items():
        if machine.device:  # else of a file that could not be used
            names = sorted({name for name, where in digest.rows if where == machine})
            words = ", ".join(f"{name} {' and '.join(texts)}" for name, texts in versions.items())
            machines.append((machine.label, ", ".join(names) or "none", words))
    return {
        "lead": lead(digest),
        "counts": [(status, digest.totals[status]) for status in STATUSES if digest.totals[status]],
        "spans": spans,
        "cases": f"{digest.cases:,}",
        "verified": f"{digest.verified:,}",
        "levels": ", ".join(digest.levels),
        "generators": "; ".join(digest.generators) or "none",
        "errors": digest.results.errors,
        "machines": Table("Versions", ("machine", "implementations", "versions"), tuple(machines), 3),
        **failures(digest),
    }


def failures(digest: Digest) -> dict[str, Any]:
    """Rows with their groups of failures, each with its smallest case."""
    rows: list[dict[str, Any]] = []
    place = 0
    for row, found in digest.groups:
        cards = []
        for one in found:
            record = one.smallest
            card = {
                "place": place,
                "status": record.status,
                "title": one.text,
                "cases": one.cases,
                "counted": one.counted,
                "operators": ", ".join(filter(None, one.operators)),
                "smallest": described(record),
                "reason": record.explanation,
                "command": reproduce.command(record),
            }
            cards += [card] if place < GROUPS else []
            place += 1
        rows += [{"name": digest.name(row), "amount": amount(found), "cards": cards}] if cards else []
    more = f" The first {GROUPS} of {place:,} groups; the list at the end has all cases." if place > GROUPS else ""
    lead = (
        "Grouped by implementation and likely cause, those of most cases first, each with its smallest case and the "
        "command that repeats it."
    )
    return {"failures": rows, "failures_lead": lead + more}


def lead(digest: Digest) -> str:
    """The run in one sentence."""
    if not digest.verified:
        return "Nothing was verified."
    bad = digest.totals["fail"] + digest.totals["error"]
    of = many(len({name for name, _ in digest.rows}), "implementation")
    if bad:
        fail = "fails or raises an error" if bad == 1 else "fail or raise an error"
        return f"{bad:,} of {many(digest.cases, 'case')} of {of} {fail}."
    verified, waived = many(digest.verified, "verified case"), digest.totals["waived"]
    if waived:
        passed = digest.verified - waived
        fail = f"{waived:,} fail{'s' * (waived == 1)} as expected (waived)"
        return f"{passed:,} of {verified} of {of} pass{'es' * (passed == 1)}, {fail}."
    return f"{verified} of {of} passes." if digest.verified == 1 else f"All {verified} of {of} pass."


Link = Callable[[Row, str, str], str]
"""From a row, an operator and a dtype to the address of their verdicts on another page."""


def matrix(digest: Digest, link: Link | None = None) -> dict[str, Any]:
    """Rows of cells of tiles, which lead to their verdicts: by links, or in the list of this page."""
    places = {row: place for place, row in enumerate(digest.every_row)}
    rows = [
        {
            "name": row[0],
            "machine": row[1].short,
            "place": places[row],
            "cells": [
                [_tile(row, operator, tile, link) for tile in digest.matrix.get((row, operator), ())]
                for operator in digest.operators
            ],
        }
        for row in digest.rows
    ]
    return {
        "rows": rows,
        "operators": digest.operators,
        "legend": [(s, LETTERS[s], says) for s, says in LEGEND.items()],
    }


def _tile(row: Row, operator: str, tile: Tile, link: Link | None) -> dict[str, Any]:
    """The status that colours it, and its counts as in other documents, each with its status."""
    return {
        "operator": operator,
        "dtype": tile.dtype,
        "weak": tile.weak,
        "link": link(row, operator, tile.dtype) if link else "",
        "status": tile.status,
        "counts": list(zip((s for s in STATUSES if tile.counts[s]), counted(tile.counts).split(), strict=True)),
        "label": f"{row[0]}, {operator}, {tile.dtype or 'not attempted'}: {tile.words}"
        + (f"; contract: {tile.weak}" if tile.weak else ""),
    }


def findings(digest: Digest) -> dict[str, Any]:
    """Reasons with the cases that they explain."""
    kinds = [
        ("Unsupported", "reason", digest.reasons("unsupported")),
        ("Refused at run time", "reason", digest.reasons("unsupported", refused=True)),
        ("Waived", "reason", digest.reasons("waived")),
        ("Unavailable", "reason", digest.reasons("unavailable")),
        (ACCEPTS.capitalize(), "request", digest.accepted),
    ]
    found = [
        {"title": t, "head": head, "rows": [(n, f"{c:,}", why) for n, c, why in rows]}
        for t, head, rows in kinds
        if rows
    ]
    return {"findings": found, "findings_title": found[0]["title"] if len(found) == 1 else "Findings"}
