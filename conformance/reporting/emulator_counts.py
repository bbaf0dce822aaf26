"""What kernels moved and issued where an emulator counts it, and what they would take on the device where it models
that: a line for each implementation and operator."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping

from conformance.reporting.table import Table
from conformance.results.schema import Modelled, Record, Work

HEADS = ("implementation", "operator", "cases", "median bytes", "max", "problem", "instructions", "matmuls")
NOTE = (
    "bytes: moved by the DMA, over every tensor moved once (median, max and the problem of the max); instructions, "
    "matmuls: sums"
)


MODELLED_HEADS = ("implementation", "operator", "cases", "modelled us", "of roofline", "worst", "problem", "limit")
MODELLED_NOTE = (
    "modelled from documented formulas, not measured: sum of the cases, from all engines at once to one after another; "
    "share of the roofline: median, and that of the worst case; the engine that limits most cases"
)


def tables(found: Mapping[tuple[str, str], list[tuple[Record, Work]]]) -> list[Table]:
    """What was counted, and what was modelled; none where there is nothing."""
    made = (
        Table("Traffic as counted by emulators", HEADS, tuple(rows(found)), 2, NOTE),
        Table("Modelled time on the device", MODELLED_HEADS, tuple(modelled_rows(found)), 2, MODELLED_NOTE),
    )
    return [table for table in made if table.rows]


def rows(found: Mapping[tuple[str, str], list[tuple[Record, Work]]]) -> Iterator[tuple[str, ...]]:
    """Rows of text by implementation and operator; none where nothing was counted."""
    for (implementation, operator), cases in sorted(found.items()):
        ratios = [work.dma_bytes / work.least_bytes for _, work in cases]
        worst, problem = max(zip(ratios, (record.problem for record, _ in cases), strict=True), key=lambda p: p[0])
        issued = (sum(work.instructions for _, work in cases), sum(work.matmuls for _, work in cases))
        figures = (f"{len(cases):,}", f"{statistics.median(ratios):.2f}", f"{worst:.2f}", problem)
        yield implementation, operator, *figures, *(f"{number:,}" for number in issued)


def modelled_rows(found: Mapping[tuple[str, str], list[tuple[Record, Work]]]) -> Iterator[tuple[str, ...]]:
    """The same for modelled times; none where nothing was modelled."""
    for (implementation, operator), cases in sorted(found.items()):
        known = [(record.problem, work.modelled) for record, work in cases if work.modelled is not None]
        if not known:
            continue
        times = [model for _, model in known]
        least, most = [_share(m.upper, m) for m in times], [_share(m.lower, m) for m in times]
        low, high, problem = min(zip(least, most, (problem for problem, _ in known), strict=True))
        spent = f"{sum(model.lower for model in times):,.0f} to {sum(model.upper for model in times):,.0f}"
        limit, _ = Counter(model.limit for model in times).most_common(1)[0]
        middle = f"{statistics.median(least):.0%} to {statistics.median(most):.0%}"
        yield implementation, operator, f"{len(known):,}", spent, middle, f"{low:.0%} to {high:.0%}", problem, limit


def _share(time: float, model: Modelled) -> float:
    return model.roofline / time if time else 0.0
