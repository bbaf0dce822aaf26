"""What kernels moved and issued where an emulator counts it: a line for each implementation and operator."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

HEAD = ("implementation", "operator", "cases", "bytes", "most", "of", "instructions", "matmuls")
LEGEND = "bytes: through the DMA over every tensor moved once (median, most, and where); the rest: sums"


@dataclass(frozen=True, slots=True)
class Moved:
    """One case: bytes moved over the least possible, and what was issued."""

    ratio: float
    problem: str
    instructions: int
    matmuls: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Moved | None:
        """What a record says of it, if anything."""
        work = record.get("work")
        if not work:
            return None
        ratio = work["dma_bytes"] / record["least_bytes"]
        return cls(ratio, record["problem"], work["instructions"], work["matmuls"])


def table(found: Mapping[tuple[str, str], list[Moved]]) -> Iterator[tuple[str, ...]]:
    """A head and rows; nothing where nothing was counted."""
    if found:
        yield HEAD
    for (implementation, operator), cases in sorted(found.items()):
        most = max(cases, key=lambda case: case.ratio)
        median = statistics.median(case.ratio for case in cases)
        issued = (sum(case.instructions for case in cases), sum(case.matmuls for case in cases))
        figures = (f"{len(cases):,}", f"{median:.2f}", f"{most.ratio:.2f}", most.problem, *(f"{n:,}" for n in issued))
        yield implementation, operator, *figures
