"""Dots on a scale, a row for each implementation: how many times as fast as torch its calls are.

The template draws the dots as SVG. Every dot has its numbers in words; the tables below have what a dot cannot show.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.reporting.page.model import operator_place
from conformance.reporting.page.speeds import Speed
from conformance.reporting.page.tables import Digest
from conformance.timing.measurement import Ratio
from conformance.timing.table import bounded

WIDTH, MARGIN = 320, 14
"""Width of a drawing, and margin at either end."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A dot with the line of its interval, which is as short as the dot if no interval is known; `x`, `low` and `high`
    are places along the scale, `says` has the numbers in words."""

    x: float
    low: float
    high: float
    says: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows of dots on one scale: places of the ticks with their texts, and of the limit that dots are compared with."""

    title: str
    ticks: tuple[tuple[float, str], ...]
    limit: float
    rows: tuple[tuple[str, tuple[Mark, ...]], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel for each operator."""

    title: str
    text: str
    panels: tuple[Panel, ...]


def speed(digest: Digest, speeds: Sequence[Speed]) -> Chart | None:
    """Return the chart of torch's times over those of the implementations; None if no ratio is known."""
    compared: defaultdict[str, list[tuple[Speed, Ratio]]] = defaultdict(list)
    for timed in speeds:
        if timed.ratio is not None:
            compared[timed.clocked.operator].append((timed, timed.ratio))
    if not compared:
        return None
    states = sorted({s.clocked.timing.machine.state for s in speeds if s.clocked.timing.machine} - {"stable"})
    text = (
        "Torch's time over the implementation's, beyond the line is faster: a dot for each problem, with the interval "
        "that holds it with 95% where that is known."
    ) + (f" Machine: {', '.join(states)}." if states else "")
    panels = (_panel(digest, operator, compared[operator]) for operator in sorted(compared, key=operator_place))
    return Chart("Speed relative to torch", text, tuple(panels))


def _panel(digest: Digest, operator: str, compared: Sequence[tuple[Speed, Ratio]]) -> Panel:
    """Return an operator's panel, with as many powers of two to either side of 1 as the farthest ratio needs."""
    ends = [end for _, to_torch in compared for end in (to_torch.value, *(to_torch.interval or ()))]
    reach = max(1, math.ceil(max(abs(math.log2(end)) for end in ends)))

    def place(ratio: float) -> float:
        share = 0.5 + math.log2(ratio) / (2 * reach)
        return round(MARGIN + share * (WIDTH - 2 * MARGIN), 1)

    powers = sorted({0, *range(-reach, reach + 1, max(1, math.ceil(reach / 2)))})
    ticks = tuple((place(2.0**power), f"{2.0**power:,.3g}") for power in powers)
    rows: defaultdict[str, list[Mark]] = defaultdict(list)
    for timed, to_torch in compared:
        name = digest.name(timed.clocked.row)
        low, high = to_torch.interval or (to_torch.value, to_torch.value)
        says = f"{name}, {timed.clocked.problem}: {bounded(to_torch.value, to_torch.interval)} times torch"
        rows[name].append(Mark(place(to_torch.value), place(low), place(high), says))
    return Panel(operator, ticks, place(1.0), tuple((name, tuple(marks)) for name, marks in sorted(rows.items())))
