"""What the charts show, as numbers: worst errors by contraction length, input bits, quantiles of errors, speed."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.reporting.page.model import Row, Verdict, dtype_place, operator_place
from conformance.reporting.page.tables import Digest, Speed, geometric_means
from conformance.reporting.table import Table

Point = dict[str, Any]
TOP = 1.25
"""Errors beyond this share of their bound are drawn here; what is said of them has the true number."""
WITHIN = (0.05, 0.25, 0.5, 0.75, 0.95)
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


def accuracy(digest: Digest) -> list[Plot]:
    """From the profiles of the fixed distribution; none where there is no such verdict."""
    errors = [error for verdict in digest.results.verdicts for error in _errors(digest, verdict)]
    if not errors:
        return []
    return [_by_terms(errors), _bits(errors), _histograms(errors)]


def _errors(digest: Digest, verdict: Verdict) -> Iterator[_Error]:
    record = verdict.record
    for output, found in record.profile.items():
        bits = None if found.effective_bits is None else float(found.effective_bits)
        known = None if bits is None or not math.isfinite(bits) else bits
        share = found.share if math.isfinite(found.share) else 1e300
        yield _Error(digest.name(verdict.row), record.dtype, max(record.terms.get(output, 0), 1), share, known)


def _panels(errors: Sequence[_Error]) -> tuple[str, ...]:
    return tuple(sorted({error.dtype for error in errors}, key=dtype_place))


def _by_terms(errors: Sequence[_Error]) -> Plot:
    """The worst of each power of two, where single verdicts would be a cloud."""
    worst: defaultdict[tuple[str, str, int], float] = defaultdict(float)
    for error in errors:
        place = error.row, error.dtype, 1 << (error.terms.bit_length() - 1)
        worst[place] = max(worst[place], error.share)
    points = [
        _point(row, dtype, x=terms, y=min(share, TOP), says=f"{row}, {dtype}, {terms} terms or more: {_share(share)}")
        for (row, dtype, terms), share in sorted(worst.items())
    ]
    lengths = sorted({terms for *_, terms in worst})
    places = sorted({place[:2] for place in worst}, key=lambda place: (place[0], dtype_place(place[1])))
    rows = [
        (row, dtype, *(_share(worst[row, dtype, n]) if (row, dtype, n) in worst else "-" for n in lengths))
        for row, dtype in places
    ]
    heads = ("implementation", "dtype", *(f"{n}+" for n in lengths))
    title = "Worst error against contraction length"
    text = (
        "Error as a share of the bound that the declared contract allows; contraction lengths from each power of two."
    )
    table = Table(f"{title}: worst error as a share of its bound, by terms", heads, tuple(rows), 2)
    return Plot("terms", title, text, tuple(points), _panels(errors), table)


def _bits(errors: Sequence[_Error]) -> Plot:
    """The fewest, and the median; sums that are exact have no finite number."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for error in errors:
        if error.bits is not None:
            found[error.row, error.dtype].append(error.bits)
    rows = []
    points = []
    for (row, dtype), bits in sorted(found.items(), key=lambda item: (item[0][0], dtype_place(item[0][1]))):
        least, median = min(bits), statistics.median(bits)
        rows.append((row, dtype, f"{least:.1f}", f"{median:.1f}", f"{len(bits):,}"))
        says = f"{row}, {dtype}: at least {least:.1f} bits, median {median:.1f}"
        points.append(_point(row, dtype, x=least, x2=median, y=row, says=says))
    text = (
        "Significant bits of the inputs that the worst error of a plain sum leaves (point) and the median over all "
        "(end of the line). bf16 has 8, fp16 and TF32 11, fp32 24, fp64 53; exact sums are left out."
    )
    heads = ("implementation", "dtype", "fewest bits", "median", "outputs")
    table = Table("Effective input bits", heads, tuple(rows), 2)
    return Plot("bits", "Effective input bits", text, tuple(points), _panels(errors), table)


def _histograms(errors: Sequence[_Error]) -> Plot:
    """A row of bins for each implementation, which stay legible where histograms over each other would not."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for error in errors:
        found[error.row, error.dtype].append(error.share)
    rows = []
    points: list[Point] = []
    for (row, dtype), shares in sorted(found.items(), key=lambda item: (item[0][0], dtype_place(item[0][1]))):
        shares.sort()
        told = [_share(value) for value in (*(_quantile(shares, q) for q in WITHIN), shares[-1])]
        rows.append((row, dtype, *told, f"{len(shares):,}"))
        points += _bins(row, dtype, shares)
        says = f"{row}, {dtype}: median {told[2]}, 95% within {told[4]}, worst {told[5]}"
        ends = {"x": _quantile(shares, 0.5), "worst": shares[-1]}
        points.append(_point(row, dtype, y=row, says=says, **{n: min(v, TOP) for n, v in ends.items()}))
    text = (
        "Histograms of the errors of all outputs on the fixed distribution, as a share of their bound: "
        "the stronger a bin, the more outputs; median (tick) and the worst (point)."
    )
    heads = ("implementation", "dtype", *(f"{q:.0%}" for q in WITHIN), "worst", "outputs")
    table = Table("Quantiles of errors", heads, tuple(rows), 2)
    return Plot("histograms", "How errors are spread", text, tuple(points), _panels(errors), table)


def _bins(row: str, dtype: str, shares: Sequence[float]) -> Iterator[Point]:
    """Bins that are not empty; the last one holds all that lie beyond."""
    counts = Counter(int(min(share, TOP - BIN / 2) / BIN) for share in shares)
    for place, count in sorted(counts.items()):
        low, high, part = place * BIN, (place + 1) * BIN, count / len(shares)
        says = f"{row}, {dtype}: {part:.1%} of outputs from {low:.0%} to {high:.0%} of the bound"
        yield _point(row, dtype, y=row, low=low, high=high, part=part, says=says)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def speed(digest: Digest, found: Sequence[Speed], tables: Sequence[Table]) -> list[Plot]:
    """Times torch, and share of the roofline; none where the numbers are not known."""
    plots = []
    if any(s.ratio not in (None, 1.0) for s in found):
        plots.append(_ratio(digest, [s for s in found if s.ratio is not None], tables[-1]))
    if any(s.clocked.share is not None for s in found):
        plots.append(_roofline(digest, [s for s in found if s.clocked.share is not None]))
    return plots


def _ratio(digest: Digest, found: Sequence[Speed], table: Table) -> Plot:
    means = geometric_means(found)
    points = [
        _speed_point(digest, s, s.ratio or 1.0, f"{s.ratio:.2f} times torch") for s in found if _row(s) in _rows(means)
    ]
    for (row, operator), (mean, count) in means.items():
        name = digest.name(row)
        says = f"{name}, {operator}: {mean:.2f} times torch, geometric mean of {count}"
        points.append(_point(name, operator, x=mean, y=name, says=says, mean=True))
    text = (
        "Torch's time over the implementation's (higher is faster): problems (points) and their geometric mean (tick)."
    )
    return Plot("ratio", "Speed relative to torch on the same machine", text, *_sorted(points), table)


def _roofline(digest: Digest, found: Sequence[Speed]) -> Plot:
    points = [_speed_point(digest, s, s.clocked.share or 0.0, f"{s.clocked.share:.0%} of the roofline") for s in found]
    held: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for s in found:
        held[digest.name(s.clocked.row), s.clocked.operator].append(s.clocked.share or 0.0)
    rows = []
    for (name, operator), shares in sorted(held.items(), key=lambda item: (item[0][0], operator_place(item[0][1]))):
        median = statistics.median(shares)
        says = f"{name}, {operator}: {median:.0%} of the roofline, median of {len(shares)}"
        points.append(_point(name, operator, x=median, y=name, says=says, mean=True))
        rows.append((name, operator, *(f"{n:.0%}" for n in (min(shares), median, max(shares))), str(len(shares))))
    text = (
        "Least time of the operations or the bytes, at ceilings measured on the machine, over the time taken: each "
        "problem (points) and the median (tick). Kernels that save multiplications can exceed 100%."
    )
    table = Table(
        "Share of the roofline", ("implementation", "operator", "least", "median", "most", "problems"), tuple(rows), 2
    )
    return Plot("roofline", "Share of the roofline", text, *_sorted(points), table)


def _row(speed: Speed) -> Row:
    return speed.clocked.row


def _rows(means: dict[tuple[Row, str], tuple[float, int]]) -> set[Row]:
    return {row for row, _ in means}


def _speed_point(digest: Digest, speed: Speed, x: float, says: str) -> Point:
    c, name = speed.clocked, digest.name(speed.clocked.row)
    return _point(name, c.operator, x=x, y=name, says=f"{name}, {c.problem}: {says}", mean=False)


def _sorted(points: Sequence[Point]) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    panels = tuple(sorted({point["panel"] for point in points}, key=operator_place))
    return tuple(sorted(points, key=lambda p: (p["panel"], p["implementation"], p["mean"], p["says"]))), panels


def _point(implementation: str, panel: str, **rest: Any) -> Point:
    return {"implementation": implementation, "panel": panel, **rest}


def _share(value: float) -> str:
    if value < 10:
        return f"{value:.1%}"
    return f"{value:,.0f} times" if value < 1e5 else f"{value:.0e} times"
