"""Measurements as tables: of a benchmark run, and of the U-Net's layers as text, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from conformance.execution.case import Absence
from conformance.timing.measure import Cell
from conformance.timing.measurement import Key, Measurement, baseline, means, ratios

ABSENT = "-"


def figures(value: float | None) -> str:
    """Three significant digits, all of what stands before the point."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _times(found: Measurement, ratio: float | None) -> dict[str, str]:
    """The text of every column that follows from a time."""
    return {
        "ms": figures(found.median * 1e3),
        "iqr": f"{found.spread / found.median:.0%}" if len(found.rounds) > 1 else ABSENT,
        "x torch": figures(ratio),
        "GFLOP/s": figures(found.flops / 1e9),
        "TFLOP/s": figures(found.flops / 1e12),
        "GB/s": figures(found.bandwidth / 1e9),
        "roof": ABSENT if found.share is None else f"{found.share:.0%}",
        "first ms": figures(found.first * 1e3),
        "in ms": figures(found.copy_in * 1e3),
        "out ms": figures(found.copy_out * 1e3),
        "host MB": ABSENT if found.host_growth is None else f"{found.host_growth / 1e6:,.1f}",
        "device MB": ABSENT if found.device_growth is None else f"{found.device_growth / 1e6:,.1f}",
    }


Row = Mapping[str, str]


def laid_out(
    groups: Sequence[Sequence[str]], names: int, rows: Iterable[Row], width: int, indent: int = 0
) -> Iterator[list[str]]:
    """The lines of the heads and of each row, of at most `width` columns, from 60 on: one where all cells fit, else one
    for each group of columns.

    The first columns are `names`, flush left; they share the room that is left. A name that is too long keeps its end,
    where it differs from its neighbours'.
    """
    heads = {name: name for group in groups for name in group}
    rows = [heads, *rows]
    widths = {name: max(len(row[name]) for row in rows) for name in heads}
    if sum(widths.values()) + 2 * (len(heads) - 1) + indent <= width:
        groups = [list(heads)]
    left, right = groups[0][:names], groups[0][names:]
    spare = width - indent - 2 * (len(groups[0]) - 1) - sum(widths[name] for name in right)
    for number, name in enumerate(left):
        widths[name] = min(widths[name], max(6, spare // (names - number)))
        spare -= widths[name]

    def cell(name: str, text: str) -> str:
        shown = text if len(text) <= widths[name] else f"~{text[1 - widths[name] :]}"
        return shown.ljust(widths[name]) if name in left else shown.rjust(widths[name])

    for row in rows:
        lines = ("  ".join(cell(name, row[name]) for name in group) for group in groups)
        yield [(" " * (indent + 6 * number) + line).rstrip() for number, line in enumerate(lines)]


def _wrapped(text: str, width: int, indent: str = "    ") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


SUITE_COLUMNS = (
    ("implementation", "ms", "iqr", "GFLOP/s", "GB/s", "roof", "x torch"),
    ("first ms", "in ms", "out ms", "host MB", "device MB"),
)
SUITE_LEGEND = (
    "ms: median of calls, each on inputs that are new to the kernel; iqr: interquartile range, as a share of it; roof: "
    "least time of the operations or the bytes at the measured ceilings, over this time; x torch: torch's time on the "
    "same device over this one's (higher is faster); first: the first call, with compilation; in, out: copies to the "
    "device and back; MB: the most that a call takes beyond its inputs. Only what was verified has a time. A finding "
    "is marked ! and compared with nothing."
)


def compared(found: Iterable[Measurement]) -> dict[Key, float]:
    """Ratios to torch on the same device; findings have none and give none."""
    return ratios({m.key: m.median for m in found if m.finding is None})


def suite_table(found: Sequence[Measurement], width: int) -> Iterator[str]:
    """By operator and problem, torch on the same device first."""
    known = compared(found)
    rows = [
        {"implementation": m.case.implementation.name + ("!" if m.finding else "")} | _times(m, known.get(m.key))
        for m in found
    ]
    heads, *lines = laid_out(SUITE_COLUMNS, 1, rows, width, indent=2)
    yield from textwrap.wrap(SUITE_LEGEND, width)
    for operator in dict.fromkeys(m.case.operator.name for m in found):
        yield from ("", operator, *heads)
        places: dict[str, list[tuple[bool, list[str]]]] = {}
        for m, row in zip(found, lines, strict=True):
            device, of, problem, name = m.key
            if of == operator:
                place = f"{problem} on {device}, {m.intensity:.3g} flop/byte"
                places.setdefault(place, []).append((name != baseline(device), row))
        for place, same in places.items():
            yield from _wrapped(place, width)
            for _, row in sorted(same, key=lambda pair: pair[0]):
                yield from row
        found_means = [(name, *pair) for (of, name), pair in means(known).items() if of == operator]
        if text := ", ".join(f"{name} {mean:.2f}x of {count}" for name, mean, count in found_means):
            yield from _wrapped(f"{operator} geometric mean relative to torch: {text}", width)
    findings = [m for m in found if m.finding]
    yield from ("", f"findings: {len(findings)}") if findings else ()
    for m in findings:
        _, operator, problem, name = m.key
        yield from _wrapped(f"  {name} {operator} {problem}: {m.finding}", width)
        yield from _wrapped(f"  reproduce: {m.case.command}", width)


@dataclass(frozen=True, slots=True)
class Direction:
    """The U-Net's layers in one direction: cells by problem, then implementation, and who has none."""

    operator: str
    cells: tuple[Cell, ...]
    absences: tuple[Absence, ...] = ()

    @property
    def ratios(self) -> dict[Key, float]:
        """Relative to torch on the same device."""
        return ratios({m.key: m.median for cell in self.cells if (m := cell.time) is not None})

    @property
    def mean(self) -> str:
        """Geometric means by implementation, as text; empty without any."""
        layers = len({cell.case.problem.name for cell in self.cells})
        found = means(self.ratios).items()
        text = ", ".join(f"{name} {mean:.2f} ({count} of {layers})" for (_, name), (mean, count) in found)
        return text and f"geometric mean relative to torch on the same device: {text}"

    def rows(self) -> list[dict[str, str]]:
        """The text of every column, a row for each cell."""
        known, rows = self.ratios, []
        for cell in self.cells:
            seen, names = cell.accuracy, {"layer": cell.case.problem.name.removeprefix("unet.")}
            names |= {"implementation": cell.case.implementation.name, "verdict": cell.status}
            times = dict.fromkeys(chain(*UNET_COLUMNS), ABSENT)
            if cell.time is not None:
                times |= _times(cell.time, known.get(cell.time.key))
            if seen is not None:
                over = "all" if seen.compared == seen.size else f"{seen.compared:,}"
                times |= {"max diff": f"{seen.largest:.2e}", "mean diff": f"{seen.mean:.2e}", "over": over}
            rows.append(times | names)
        return rows


UNET_COLUMNS = (
    ("layer", "implementation", "verdict", "ms", "x torch", "TFLOP/s", "roof"),
    ("first ms", "in ms", "out ms", "max diff", "mean diff", "over"),
)
LEGEND = (
    "ms: median of warm calls, until the device is idle; first: the first call, with compilation or loading from a "
    "cache; in, out: copies to the device and back; x torch: torch's time on the same device over this one's (higher "
    "is faster); roof: least time of the operations or the bytes at the ceilings above, over this time; diff: "
    "|result - exact|, over all outputs or as many as are named. What does not pass has no time."
)


def text(direction: Direction, width: int) -> Iterator[str]:
    """No lines without cells. What has no time says why, and how to see it alone."""
    if not direction.cells:
        return
    heads, *lines = laid_out(UNET_COLUMNS, 2, direction.rows(), width)
    yield from (direction.operator, *heads)
    for cell, row in zip(direction.cells, lines, strict=True):
        yield from row
        if cell.status != "pass":
            words = [cell.reason.partition("\n")[0]]
            words += [f"reproduce: {cell.case.command}"] if cell.status in ("fail", "error") else []
            for line in words:
                yield from _wrapped(f"    {line}", width, "      ")
    yield from textwrap.wrap(direction.mean, width)


def absences(directions: Iterable[Direction], width: int) -> Iterator[str]:
    """One entry for each implementation and reason: which could not run at all."""
    found = dict.fromkeys((a.status, a.implementation, a.reason) for d in directions for a in d.absences)
    for status, name, reason in found:
        yield from textwrap.wrap(f"{status}: {name}: {reason}", width, subsequent_indent="    ")


def markdown(header: Iterable[str], directions: Sequence[Direction]) -> Iterator[str]:
    """Lines: the header, then for each direction one table with times alone and one with everything.

    Times alone are layers by implementations: milliseconds and share of the roofline, or the verdict.
    """
    yield from (f"- {_escaped(line)}" for line in header)
    for direction in (d for d in directions if d.cells):
        rows, layers = direction.rows(), dict[str, dict[str, str]]()
        for row in rows:
            time = row["ms"] if row["roof"] == ABSENT else f"{row['ms']} ms, {row['roof']}"
            layers.setdefault(row["layer"], {})[row["implementation"]] = (
                time if row["verdict"] == "pass" else row["verdict"]
            )
        names = list(dict.fromkeys(row["implementation"] for row in rows))
        times = [[layer, *(found.get(name, ABSENT) for name in names)] for layer, found in layers.items()]
        yield from ("", f"### {direction.operator}", "", *_grid(("layer", *names), times), "", _escaped(direction.mean))
        columns = tuple(chain(*UNET_COLUMNS))
        yield from ("", *_grid(columns, [[row[name] for name in columns] for row in rows]))
    yield from ("", *(f"- {_escaped(line)}" for line in absences(directions, 10**9)))


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
    file, known = io.StringIO(newline=""), direction.ratios
    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
    if headed:
        writer.writeheader()
    for cell in direction.cells:
        case, geometry = cell.case, cell.case.problem.geometry
        record: dict[str, object] = {
            "operator": case.operator.name,
            "problem": case.problem.name,
            "descriptor": geometry.descriptor,
            "implementation": case.implementation.name,
            "device": case.implementation.device,
            "verdict": cell.status,
            "reason": cell.reason,
            "flops": case.operator.flops(geometry),
            "command": case.command,
        }
        if (seen := cell.accuracy) is not None:
            record |= {"max_difference": seen.largest, "mean_difference": seen.mean}
            record |= {"compared": seen.compared, "elements": seen.size}
        if (time := cell.time) is not None:
            record |= {
                "median_s": time.median,
                "fastest_s": min(time.rounds),
                "slowest_s": max(time.rounds),
                "rounds": len(time.rounds),
                "first_call_s": time.first,
                "copy_in_s": time.copy_in,
                "copy_out_s": time.copy_out,
                "tflop_per_s": time.flops / 1e12,
                "roofline_share": time.share,
                "ratio_to_torch": known.get(time.key),
            }
        writer.writerow(record)
    for absence in direction.absences:
        names = {"operator": absence.operator, "implementation": absence.implementation, "device": absence.device}
        writer.writerow({**names, "verdict": absence.status, "reason": absence.reason})
    return file.getvalue()
