"""Batch invariance: in which dtypes the bits of an image depend on its batch, by implementation and operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.dtypes import dtype_place
from conformance.reporting.table import Table
from conformance.results.schema import BatchInvariance

HEADS = ("implementation", "operator", "declared", "same bits", "other bits (ulps)")
NOTE = (
    "whether the bits of an image, or of a row of a matrix product, are the same alone, at another place of its batch "
    "and beside others, in each dtype; ulps: the largest difference, which is large where a sum cancels"
)

Findings = Mapping[tuple[str, str], Mapping[str, list[BatchInvariance]]]
"""(implementation, operator) -> dtype -> the finding on each problem."""


def table(findings: Findings) -> Table | None:
    """Return the table of the findings; None where there are none."""
    return Table("Batch invariance", HEADS, tuple(_rows(findings)), 3, NOTE) if findings else None


def _rows(findings: Findings) -> Iterator[tuple[str, ...]]:
    for (implementation, operator), by_dtype in sorted(findings.items()):
        equal, differing, declared = list[str](), list[str](), "no"
        for dtype in sorted(by_dtype, key=dtype_place):
            problems = by_dtype[dtype]
            ulps = max((difference.ulps for problem in problems for difference in problem.differences), default=0)
            (differing if ulps else equal).append(f"{dtype} ({ulps:,})" if ulps else dtype)
            declared = "yes" if any(problem.declared for problem in problems) else declared
        yield implementation, operator, declared, ", ".join(equal), ", ".join(differing)
