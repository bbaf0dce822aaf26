"""What the charts show, as numbers: worst errors by contraction length, input bits, quantiles of errors, speed."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from conformance.reporting.page.model import dtype_place, operator_place
from conformance.reporting.page.speeds import Speed, geometric_means
from conformance.reporting.page.tables import Digest
from conformance.reporting.table import Table
from conformance.timing.measurement import Interval
from conformance.timing.table import bounded, figures

T = TypeVar("T")
Point = dict[str, Any]
TOP = 1.25
"""Errors above this share of their bound are drawn here; their description has the true number."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BIN = 0.05
"""Width of a histogram's bin, as a share of the bound."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Points for a chart of one kind, and the same numbers for those who cannot see it.

    panels are in order; `implementation` of a point is the name that its row has everywhere.
    """

    kind: str
    title: str
    text: str
    points: tuple[Point, ...]
    panels: tuple[str, ...]
    table: Table


@dataclass(frozen=True, slots=True)
class _Error:
    row: str
    dtype: str
    terms: int
    share: float
    bits: float | None

    @property
    def power(self) -> int:
        """The power of two that its terms reach."""
        return 1 << (self.terms.bit_length() - 1)


def accuracy(digest: Digest) -> list[Plot]:
    """From the profiles of the fixed distribution; none where there is no such verdict."""
    errors = []
    for name, record in digest.named:
        for output, found in record.profile.items():
            effective = math.nan if found.effective_bits is None else float(found.effective_bits)
            known = effective if math.isfinite(effective) else None
            share = found.share if math.isfinite(found.share) else 1e300
            errors.append(_Error(name, record.dtype, max(record.terms.get(output, 0), 1), share, known))
    bounded = [error for error in errors if (error.row, error.dtype) not in digest.exceeding]
    precise = [_bits(bounded, digest.left_out)] if bounded else []
    return [_by_terms(errors), *precise, _histograms(errors)] if errors else []


def _grouped(pairs: Iterable[tuple[_Error, T]]) -> list[tuple[str, str, list[T]]]:
    """Row, dtype and what belongs to them, sorted."""
    found: defaultdict[tuple[str, str], list[T]] = defaultdict(list)
    for error, value in pairs:
        found[error.row, error.dtype].append(value)
    places = sorted(found, key=lambda place: (place[0], dtype_place(place[1])))
    return [(*place, found[place]) for place in places]


def _by_terms(errors: Sequence[_Error]) -> Plot:
    """The worst of each power of two, where single verdicts would be a cloud."""
    lengths = sorted({error.power for error in errors})
    points, rows = [], []
    for row, dtype, held in _grouped((error, error) for error in errors):
        worst: dict[int, float] = {}
        for error in held:
            worst[error.power] = max(worst.get(error.power, 0.0), error.share)
        for terms, share in sorted(worst.items()):
            says = f"{row}, {dtype}, contraction length {terms} or more: {_share(share)}"
            points.append(_point(row, dtype, x=terms, y=min(share, TOP), says=says))
        rows.append((row, dtype, *(_share(worst[n]) if n in worst else "-" for n in lengths)))
    title = "Worst error against contraction length"
    text = (
        "Error as a share of the bound that the declared contract allows; contraction lengths from each power of two."
    )
    heads = ("implementation", "dtype", *(f"{n}+" for n in lengths))
    table = Table(f"{title}: worst error as a share of its bound", heads, tuple(rows), 2)
    return Plot("terms", title, text, tuple(points), _panels(errors), table)


def _bits(errors: Sequence[_Error], left_out: str) -> Plot:
    """The minimum and the median; sums that are exact have no finite number."""
    rows, points = [], []
    for row, dtype, bits in _grouped((error, error.bits) for error in errors if error.bits is not None):
        low, median = min(bits), statistics.median(bits)
        rows.append((row, dtype, f"{low:.1f}", f"{median:.1f}", f"{len(bits):,}"))
        says = f"{row}, {dtype}: min {low:.1f} bits, median {median:.1f}"
        points.append(_point(row, dtype, x=max(low, 0), x2=max(median, 0), y=row, says=says))
    text = (
        "Significant bits of the inputs that the worst error of a plain sum leaves (point) and the median over all "
        "(end of the line). bf16 has 8, fp16 and TF32 11, fp32 24, fp64 53; exact sums have none"
        f"{left_out}."
    )
    table = Table("Effective input bits", ("implementation", "dtype", "min bits", "median", "outputs"), tuple(rows), 2)
    return Plot("bits", "Effective input bits", text, tuple(points), _panels(errors), table)


def _histograms(errors: Sequence[_Error]) -> Plot:
    """A row of bins for each implementation, which stay legible where histograms over each other would not."""
    rows = []
    points: list[Point] = []
    for row, dtype, shares in _grouped((error, error.share) for error in errors):
        shares.sort()
        cells = [_share(value) for value in (*(_quantile(shares, q) for q in QUANTILES), shares[-1])]
        rows.append((row, dtype, *cells, f"{len(shares):,}"))
        counts = Counter(int(min(max(share, 0.0), TOP - BIN / 2) / BIN) for share in shares)  # the last holds all above
        for place, count in sorted(counts.items()):
            low, high, part = place * BIN, (place + 1) * BIN, count / len(shares)
            says = f"{row}, {dtype}: {part:.1%} of outputs from {low:.0%} to {high:.0%} of the bound"
            points.append(_point(row, dtype, y=row, low=low, high=high, part=part, says=says))
        says = f"{row}, {dtype}: median {cells[2]}, 95% within {cells[4]}, worst {cells[5]}"
        ends = {"x": _quantile(shares, 0.5), "worst": shares[-1]}
        points.append(_point(row, dtype, y=row, says=says, **{n: min(v, TOP) for n, v in ends.items()}))
    text = (
        "Histograms of the errors of all outputs on the fixed distribution, as a share of their bound: "
        "the stronger a bin, the more outputs; median (tick) and the worst (point)."
    )
    heads = ("implementation", "dtype", *(f"{q:.0%}" for q in QUANTILES), "worst", "outputs")
    table = Table("Quantiles of errors", heads, tuple(rows), 2)
    return Plot("histograms", "Distribution of errors", text, tuple(points), _panels(errors), table)


def _panels(errors: Sequence[_Error]) -> tuple[str, ...]:
    return tuple(sorted({error.dtype for error in errors}, key=dtype_place))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def speed(digest: Digest, found: Sequence[Speed]) -> list[Plot]:
    """Times, times torch, and share of the roofline; none where the numbers are not known."""
    states = sorted({s.clocked.state.state for s in found if s.clocked.state} - {"stable"})
    told = f" Machine: {', '.join(states)}." if states else ""
    made = [_times(digest, found, told)] if found else []
    made += [_ratios(digest, found, told)] if any(s.ratio for s in found) else []
    made += [_shares(digest, found, told)] if any(s.clocked.share is not None for s in found) else []
    return made


def _times(digest: Digest, found: Sequence[Speed], told: str) -> Plot:
    points, rows = [], []
    for s in found:
        c, name = s.clocked, digest.name(s.clocked.row)
        low, high = c.interval or (None, None)
        numbers = {"x": c.seconds, "low": low, "high": high, "least": c.minimum}
        cells = {key: value and value * 1e3 for key, value in numbers.items()}
        says = f"{name}, {s.problem}: {', '.join(filter(None, (s.milliseconds, s.minimum)))}"
        points.append(_point(name, c.operator, **cells, y=s.problem, lane=name, says=says, mean=False))
        rows.append((name, c.operator, s.problem, *map(figures, cells.values())))
    text = (
        "Milliseconds of a call: median (point), the interval that holds it with 95% (line) and the fastest round "
        f"(tick), as far as files have them.{told}"
    )
    heads = ("implementation", "operator", "problem", "ms", "from", "to", "min")
    table = Table("Times", heads, tuple(rows), 3)
    return Plot("times", "Time of a call", text, *_sorted(points), table)


def _ratios(digest: Digest, found: Sequence[Speed], told: str) -> Plot:
    points, rows = [], []
    for s in found:
        if s.ratio is not None:
            value, bounds = s.ratio.value, s.ratio.interval
            shown = bounded(value, bounds)
            points.append(_speed_point(digest, s, value, bounds, f"{shown} times torch"))
            rows.append((digest.name(s.clocked.row), s.clocked.operator, s.problem, shown))
    means = geometric_means(found)
    for (row, operator), (mean, count) in means.items():
        name = digest.name(row)
        says = f"{name}, {operator}: {mean:.2f} times torch, geometric mean of {count}"
        points.append(_point(name, operator, x=mean, y=name, says=says, mean=True))
        rows.append((name, operator, f"geometric mean of {count}", f"{mean:.2f}"))
    text = (
        "Torch's time over the implementation's (higher is faster), visit by visit: problems (points) with the "
        f"interval that holds the ratio with 95% (lines){' and their geometric mean (tick)' if means else ''}.{told}"
    )
    heads = ("implementation", "operator", "problem", "times torch")
    title = "Speed relative to torch on the same machine"
    return Plot("ratio", title, text, *_sorted(points), Table(title, heads, tuple(rows), 3))


def _shares(digest: Digest, found: Sequence[Speed], told: str) -> Plot:
    points, rows = [], []
    held: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    # what little is known of a time would leave no room for the others
    top = TOP * max(1.0, *(s.clocked.share or 0.0 for s in found))
    unsteady = {(digest.name(s.clocked.row), s.clocked.operator) for s in found if not s.clocked.steady}
    for s in found:
        c, share = s.clocked, s.clocked.share
        if share is not None:
            bounds = c.interval and (share * c.seconds / c.interval[1], min(share * c.seconds / c.interval[0], top))
            points.append(_speed_point(digest, s, share, bounds, f"{share:.0%} of the roofline"))
            held[digest.name(c.row), c.operator].append(share)
    for (name, operator), own in sorted(held.items(), key=lambda item: (item[0][0], operator_place(item[0][1]))):
        median = statistics.median(own)
        if known := (name, operator) not in unsteady:
            says = f"{name}, {operator}: {median:.0%} of the roofline, median of {len(own)}"
            points.append(_point(name, operator, x=median, y=name, says=says, mean=True))
        cells = (f"{min(own):.0%}", f"{median:.0%}" if known else "-", f"{max(own):.0%}")
        rows.append((name, operator, *cells, str(len(own))))
    tick = " and the median (tick)" if any(point["mean"] for point in points) else ""
    text = (
        "Least time of the operations or the bytes, at ceilings measured on the machine, over the time taken: each "
        f"problem (points) with the interval that holds it with 95% (lines){tick}. Kernels that save multiplications "
        f"can exceed 100%.{told}"
    )
    heads = ("implementation", "operator", "min", "median", "max", "problems")
    table = Table("Share of the roofline", heads, tuple(rows), 2)
    return Plot("roofline", "Share of the roofline", text, *_sorted(points), table)


def _speed_point(digest: Digest, speed: Speed, x: float, bounds: Interval | None, says: str) -> Point:
    c, name = speed.clocked, digest.name(speed.clocked.row)
    low, high = bounds or (None, None)
    says = f"{name}, {speed.problem}: {says}"
    return _point(name, c.operator, x=x, low=low, high=high, y=name, lane=speed.problem, says=says, mean=False)


def _sorted(points: Sequence[Point]) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    panels = tuple(sorted({point["panel"] for point in points}, key=operator_place))
    return tuple(sorted(points, key=lambda p: (p["panel"], p["implementation"], p["mean"], p["says"]))), panels


def _point(implementation: str, panel: str, **rest: Any) -> Point:
    return {"implementation": implementation, "panel": panel, **rest}


def _share(value: float) -> str:
    if value < 10:
        return f"{value:.1%}"
    return f"{value:,.0f} times" if value < 1e5 else f"{value:.0e} times"
