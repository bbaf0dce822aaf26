"""Measurements as text, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.execution.case import Absence
from conformance.timing.measure import Measurement, Speed
from conformance.timing.relative import Key, means, ratios

ABSENT = "-"
NAMES = 2
"""Columns of names come first, and are flush left."""


@dataclass(frozen=True, slots=True)
class Direction:
    """What one operator amounted to: cells by problem, then implementation, and who has none."""

    title: str
    measurements: tuple[Measurement, ...]
    absences: tuple[Absence, ...] = ()

    @property
    def ratios(self) -> dict[Key, float]:
        """Relative to torch on the same device."""
        return ratios(timing for m in self.measurements if (timing := m.timing) is not None)

    def ratio(self, found: Measurement) -> float | None:
        """One of them."""
        case = found.case
        return self.ratios.get((case.operator.name, case.problem.name, case.implementation.name))

    @property
    def mean(self) -> str:
        """Geometric means by implementation, in words; empty without any."""
        found = {name: pair for (_, name), pair in means(self.ratios).items()}
        words = [f"{name} {mean:.2f} ({count} of {self.layers})" for name, (mean, count) in found.items()]
        return f"geometric mean relative to torch on the same device: {', '.join(words)}" if words else ""

    @property
    def layers(self) -> int:
        """Problems in the table."""
        return len({m.case.problem.name for m in self.measurements})


MAIN = ("layer", "implementation", "verdict", "time ms", "x torch", "TFLOP/s", "roof")
MORE = ("first ms", "in ms", "out ms", "max diff", "mean diff", "over")
LEGEND = (
    "time: median of warm calls, until the device is idle; first: the first call, with compilation or loading from a "
    "cache; in, out: copies to the device and back; x torch: torch's time on the same device over this one's (higher "
    "is faster); roof: least time of the operations or the bytes at the ceilings above, over this time; diff: "
    "|result - exact|, over all outputs or as many as are named. What does not pass has no time."
)


def figures(value: float | None) -> str:
    """Three significant digits, all of what stands before the point."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def cells(direction: Direction, found: Measurement) -> dict[str, str]:
    """The text of every column."""
    seen, timing = found.accuracy, found.timing
    roof = timing.share if timing else None
    main, *more = _milliseconds(found.speed)
    return {
        "layer": found.case.problem.name.removeprefix("unet."),
        "implementation": found.case.implementation.name,
        "verdict": found.status,
        "time ms": main,
        "x torch": figures(direction.ratio(found)),
        "TFLOP/s": figures(found.flops and found.flops / 1e12),
        "roof": ABSENT if roof is None else f"{roof:.0%}",
        **dict(zip(MORE, more, strict=False)),
        "max diff": f"{seen.largest:.2e}" if seen else ABSENT,
        "mean diff": f"{seen.mean:.2e}" if seen else ABSENT,
        "over": ABSENT if seen is None else "all" if seen.compared == seen.size else f"{seen.compared:,}",
    }


def _milliseconds(speed: Speed | None) -> list[str]:
    """Median, first call, copies in and out."""
    if speed is None:
        return [ABSENT] * 4
    return [figures(seconds * 1e3) for seconds in (speed.median, speed.first, speed.copy_in, speed.copy_out)]


def text(direction: Direction, width: int) -> Iterator[str]:
    """Lines of at most `width` columns from 60 on: a row is one line where it fits, else two. None without rows."""
    if not direction.measurements:
        return
    rows = [cells(direction, found) for found in direction.measurements]
    heads = {name: name for name in (*MAIN, *MORE)}
    widths = {name: max(len(row[name]) for row in (heads, *rows)) for name in heads}
    whole = sum(widths.values()) + 2 * (len(widths) - 1) <= width
    groups = [(*MAIN, *MORE)] if whole else [MAIN, MORE]
    spare = width - sum(widths[name] for name in groups[0][NAMES:]) - 2 * (len(groups[0]) - 1)
    widths["layer"] = min(widths["layer"], max(6, spare // 2))
    widths["implementation"] = min(widths["implementation"], max(6, spare - widths["layer"]))
    yield direction.title
    yield from _row(heads, widths, groups)
    for row, found in zip(rows, direction.measurements, strict=True):
        yield from _row(row, widths, groups)
        yield from _why(found, width)
    yield from textwrap.wrap(direction.mean, width)


def _row(row: Mapping[str, str], widths: Mapping[str, int], groups: Sequence[Sequence[str]]) -> Iterator[str]:
    for group, names in enumerate(groups):
        fitted = (_fitted(row[name], widths[name], left=name in MAIN[:NAMES]) for name in names)
        yield ("      " * group + "  ".join(fitted)).rstrip()


def _fitted(text: str, width: int, left: bool) -> str:
    """A name that is too long keeps its end, where it differs from its neighbours'."""
    shown = text if len(text) <= width else f"~{text[len(text) - width + 1 :]}"
    return shown.ljust(width) if left else shown.rjust(width)


def _why(found: Measurement, width: int) -> Iterator[str]:
    """Why a cell has no time, and how to see it alone."""
    if found.status == "pass":
        return
    words = [found.reason.partition("\n")[0]]
    words += [f"reproduce: {found.case.command}"] if found.status in ("fail", "error") else []
    for line in words:
        yield from textwrap.wrap(line, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)


def absences(directions: Iterable[Direction], width: int) -> Iterator[str]:
    """One entry for each implementation and reason: which could not run at all."""
    found = dict.fromkeys((a.status, a.implementation, a.reason) for d in directions for a in d.absences)
    for status, name, reason in found:
        yield from textwrap.wrap(f"{status}: {name}: {reason}", width, subsequent_indent="    ")


def markdown(header: Iterable[str], directions: Sequence[Direction]) -> Iterator[str]:
    """Lines: the header, then for each direction one table with times alone and one with everything."""
    yield from (f"- {_escaped(line)}" for line in header)
    for direction in (d for d in directions if d.measurements):
        yield from ("", f"### {direction.title}", "", *_times(direction), "")
        yield _escaped(direction.mean)
        rows = [cells(direction, found) for found in direction.measurements]
        yield from ("", *_grid((*MAIN, *MORE), [list(row.values()) for row in rows]))
    yield from ("", *(f"- {_escaped(line)}" for line in absences(directions, 10**9)))


def _times(direction: Direction) -> Iterator[str]:
    """Layers by implementations: milliseconds and share of the roofline, or the verdict."""
    rows: dict[str, dict[str, str]] = {}
    for row in (cells(direction, found) for found in direction.measurements):
        told = row["time ms"] if row["roof"] == ABSENT else f"{row['time ms']} ms, {row['roof']}"
        rows.setdefault(row["layer"], {})[row["implementation"]] = told if row["verdict"] == "pass" else row["verdict"]
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    table = [[layer, *(found.get(name, ABSENT) for name in names)] for layer, found in rows.items()]
    return _grid(("layer", *names), table)


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(_escaped, heads))} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(_escaped, row))} |"


def _escaped(text: str) -> str:
    """A cell that holds a line break or a bar would end there, and one with a tag would vanish."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


COLUMNS = (
    "operator", "problem", "descriptor", "implementation", "device", "verdict", "reason", "median_s", "fastest_s",
    "slowest_s", "rounds", "first_call_s", "copy_in_s", "copy_out_s", "flops", "tflop_per_s", "roofline_share",
    "ratio_to_torch", "max_difference", "mean_difference", "compared", "elements", "command",
)  # fmt: skip
"""Of the CSV. Seconds are floats in full; what is not known is empty."""


def as_csv(direction: Direction, headed: bool) -> str:
    """One line for each cell, and for each implementation that could not run; `headed` by the names of columns."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
    if headed:
        writer.writeheader()
    writer.writerows(_record(direction, found) for found in direction.measurements)
    writer.writerows(_absent(absence) for absence in direction.absences)
    return file.getvalue()


def _record(direction: Direction, found: Measurement) -> dict[str, object]:
    case, geometry = found.case, found.case.problem.geometry
    record: dict[str, object] = {
        "operator": case.operator.name,
        "problem": case.problem.name,
        "descriptor": geometry.descriptor,
        "implementation": case.implementation.name,
        "device": case.implementation.device,
        "verdict": found.status,
        "reason": found.reason,
        "flops": case.operator.flops(geometry),
        "command": case.command,
    }
    if found.accuracy is not None:
        seen = found.accuracy
        record |= {"max_difference": seen.largest, "mean_difference": seen.mean}
        record |= {"compared": seen.compared, "elements": seen.size}
    return record | _times_record(direction, found)


def _times_record(direction: Direction, found: Measurement) -> dict[str, object]:
    speed, timing = found.speed, found.timing
    if speed is None or timing is None or found.flops is None:
        return {}
    return {
        "median_s": speed.median,
        "fastest_s": min(speed.rounds),
        "slowest_s": max(speed.rounds),
        "rounds": len(speed.rounds),
        "first_call_s": speed.first,
        "copy_in_s": speed.copy_in,
        "copy_out_s": speed.copy_out,
        "tflop_per_s": found.flops / 1e12,
        "roofline_share": timing.share,
        "ratio_to_torch": direction.ratio(found),
    }


def _absent(absence: Absence) -> dict[str, object]:
    names = {"operator": absence.operator, "implementation": absence.implementation, "device": absence.device}
    return {**names, "verdict": absence.status, "reason": absence.reason}
