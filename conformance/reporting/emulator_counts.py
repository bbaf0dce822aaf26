"""Bytes that kernels moved and instructions, as an emulator counts them: a line by implementation and operator."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from conformance.reporting.table import Table
from conformance.results.schema import Record, Work

HEADS = ("implementation", "operator", "cases", "median bytes", "max", "problem", "instructions", "matmuls")
NOTE = (
    "bytes: moved by the DMA, over every tensor moved once (median, max and the problem of the max); instructions, "
    "matmuls: sums"
)


def tables(counted: Mapping[tuple[str, str], list[tuple[Record, Work]]]) -> list[Table]:
    """Return the table of the counts; empty if there are none."""
    return [Table("Traffic as counted by emulators", HEADS, tuple(rows(counted)), 2, NOTE)] if counted else []


def rows(counted: Mapping[tuple[str, str], list[tuple[Record, Work]]]) -> Iterator[tuple[str, ...]]:
    """Yield rows of text by implementation and operator; none if nothing was counted."""
    for (implementation, operator), cases in sorted(counted.items()):
        ratios = [work.dma_bytes / work.least_bytes for _, work in cases]
        worst, problem = max(zip(ratios, (record.problem for record, _ in cases), strict=True), key=lambda p: p[0])
        issued = (sum(work.instructions for _, work in cases), sum(work.matmuls for _, work in cases))
        figures = (f"{len(cases):,}", f"{statistics.median(ratios):.2f}", f"{worst:.2f}", problem)
        yield implementation, operator, *figures, *(f"{number:,}" for number in issued)
