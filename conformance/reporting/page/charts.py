"""Dots on a scale, a row for each implementation: how fast calls are.

The template draws them as SVG. Every dot says its numbers; what it cannot show stands in the tables below.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from conformance.reporting.page.model import operator_place
from conformance.reporting.page.speeds import Speed
from conformance.reporting.page.tables import Digest
from conformance.timing.measurement import Interval
from conformance.timing.table import bounded

WIDTH, MARGIN = 320, 14
"""Of a drawing, and what is left free at either end."""
TOP = 1.25
"""Shares above this one are drawn here; their text has the true number."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A dot with the line of its interval, which is as short as the dot where none is known; places along the scale,
    in words its numbers."""

    x: float
    low: float
    high: float
    says: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows of dots on one scale: places of its ticks with their texts, and of the limit that dots are compared with."""

    title: str
    ticks: tuple[tuple[float, str], ...]
    limit: float
    rows: tuple[tuple[str, tuple[Mark, ...]], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels of one kind."""

    title: str
    text: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """What becomes a dot: in which panel and row, its value and the interval that holds it, and its numbers in
    words."""

    panel: str
    row: str
    value: float
    interval: Interval | None
    says: str


def speed(digest: Digest, found: Sequence[Speed]) -> list[Chart]:
    """Times torch, and share of the roofline; none where the numbers are not known."""
    ratios, shares = [], []
    for s in found:
        c, name = s.clocked, digest.name(s.clocked.row)
        if s.ratio is not None:
            words = f"{name}, {c.problem}: {bounded(s.ratio.value, s.ratio.interval)} times torch"
            ratios.append(Value(c.operator, name, s.ratio.value, s.ratio.interval, words))
        if c.share is not None:
            bounds = c.interval and (c.share * c.seconds / c.interval[1], c.share * c.seconds / c.interval[0])
            words = f"{name}, {c.problem}: {c.share:.0%} of the roofline"
            shares.append(Value(c.operator, name, c.share, bounds, words))
    states = sorted({s.clocked.timing.machine.state for s in found if s.clocked.timing.machine} - {"stable"})
    told = f" Machine: {', '.join(states)}." if states else ""
    lines = "a dot for each problem, with the interval that holds it with 95% where that is known."
    text = f"Torch's time over the implementation's, beyond the line is faster: {lines}{told}"
    charts = [Chart("Speed relative to torch", text, tuple(_logarithmic(one, ratios) for one in _operators(ratios)))]
    text = (
        "Least time of the operations or the bytes, at ceilings measured on the machine, over the time taken: "
        f"{lines} Kernels that save multiplications can exceed 100%.{told}"
    )
    charts.append(Chart("Share of the roofline", text, tuple(_linear(one, shares) for one in _operators(shares))))
    return [chart for chart in charts if chart.panels]


def _operators(values: Iterable[Value]) -> list[str]:
    return sorted({value.panel for value in values}, key=operator_place)


def _linear(panel: str, values: Iterable[Value]) -> Panel:
    """Shares of 1, which is the limit."""
    ticks = tuple((_placed(tick / 4 / TOP), f"{tick / 4:.0%}") for tick in range(5))

    def place(share: float) -> float:
        return _placed(min(max(share, 0.0), TOP) / TOP)

    return Panel(panel, ticks, place(1.0), _rows(panel, values, place))


def _logarithmic(panel: str, values: Sequence[Value]) -> Panel:
    """Ratios about 1: as many powers of two to either side as the farthest of them needs."""
    ends = [end for v in values if v.panel == panel for end in (v.value, *(v.interval or ()))]
    reach = max(1, math.ceil(max(abs(math.log2(end)) for end in ends)))

    def place(ratio: float) -> float:
        return _placed(0.5 + math.log2(ratio) / (2 * reach))

    powers = range(-reach, reach + 1, max(1, math.ceil(reach / 2)))
    ticks = tuple((place(2.0**power), f"{2.0**power:,.3g}") for power in sorted({*powers, 0}))
    return Panel(panel, ticks, place(1.0), _rows(panel, values, place))


def _rows(
    panel: str, values: Iterable[Value], place: Callable[[float], float]
) -> tuple[tuple[str, tuple[Mark, ...]], ...]:
    held: defaultdict[str, list[Mark]] = defaultdict(list)
    for one in values:
        if one.panel == panel:
            low, high = one.interval or (one.value, one.value)
            held[one.row].append(Mark(place(one.value), place(low), place(high), one.says))
    return tuple((name, tuple(marks)) for name, marks in sorted(held.items()))


def _placed(share: float) -> float:
    """Where a share of the scale lies in the drawing."""
    return round(MARGIN + share * (WIDTH - 2 * MARGIN), 1)
