"""Measurements as the table at the end of a benchmark run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from conformance.results.schema import MachineState
from conformance.timing.measurement import Interval, Measurement, Ratio, baseline, means
from conformance.timing.run import Run

ABSENT = "-"
UNSTEADY = 0.25
"""Share by which a kernel's slowest visit must exceed its fastest for both to be listed."""
MAX_UNSTEADY = 8


def figures(value: float | None) -> str:
    """Format three significant digits, and all digits before the point."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def bounded(value: float, bounds: Interval | None) -> str:
    """Format a value and the interval that holds it with 95%, where that is known."""
    return figures(value) + (f" [{figures(bounds[0])}, {figures(bounds[1])}]" if bounds else "")


def times(measurement: Measurement, ratio: Ratio | None) -> dict[str, str]:
    """Return the text of every column that follows from a time."""
    bounds = measurement.interval
    return {
        "ms": bounded(measurement.median * 1e3, bounds and (bounds[0] * 1e3, bounds[1] * 1e3)),
        "min": figures(measurement.minimum * 1e3),
        "x torch": bounded(ratio.value, ratio.interval) if ratio else ABSENT,
        "GFLOP/s": figures(measurement.flops / 1e9),
        "GB/s": figures(measurement.bandwidth / 1e9),
        "roof": ABSENT if measurement.share is None else f"{measurement.share:.0%}{'*' if measurement.finding else ''}",
        "first ms": figures(measurement.first * 1e3),
        "in ms": figures(measurement.copy_in * 1e3),
        "out ms": figures(measurement.copy_out * 1e3),
        "host MB": ABSENT if measurement.host_growth is None else f"{measurement.host_growth / 1e6:,.1f}",
        "device MB": ABSENT if measurement.device_growth is None else f"{measurement.device_growth / 1e6:,.1f}",
    }


COLUMNS = (
    ("implementation", "ms"),
    ("min", "roof", "x torch"),
    ("GFLOP/s", "GB/s"),
    ("first ms", "in ms", "out ms", "host MB", "device MB"),
)
LEGEND = (
    "ms: median of calls, each on inputs that are new to the kernel, and the interval that holds it with 95%, from the "
    "visits to the kernel; min: the fastest call; roof: least time of the operations or the bytes at the measured "
    "ceilings, over this time; x torch: torch's time on the same device over this one's (higher is faster); first: the "
    "first call, with compilation; in, out: copies to the device and back; MB: the most that a call takes beyond its "
    "inputs. Only what was verified has a time. What is marked * has a finding; what is impossible is marked ! and "
    "compared with nothing."
)


def laid_out(rows: Sequence[dict[str, str]], width: int) -> Iterator[list[str]]:
    """Yield the lines of the heads and of each row, of at most `width` columns, which is 60 or more: one line where all
    cells fit, else several, where the columns of a group stay together.

    A name that is too long keeps its end, where it differs from its neighbours'.
    """
    all_rows = [{head: head for group in COLUMNS for head in group}, *rows]
    widths = {head: max(len(row[head]) for row in all_rows) for head in all_rows[0]}
    groups: list[list[str]] = []
    for group in COLUMNS:
        together = [*groups[-1], *group] if groups else []
        indent = 8 if groups[1:] else 2
        if together and indent + sum(widths[head] + 2 for head in together) - 2 <= width:
            groups[-1] = together
        else:
            groups.append([*group])
    name, *rest = groups[0]
    widths[name] = min(widths[name], max(6, width - 2 - sum(widths[head] + 2 for head in rest)))

    def cell(head: str, text: str) -> str:
        shown = text if len(text) <= widths[head] else f"~{text[1 - widths[head] :]}"
        return shown.ljust(widths[head]) if head == name else shown.rjust(widths[head])

    for row in all_rows:
        lines = ("  ".join(cell(head, row[head]) for head in group) for group in groups)
        yield [(" " * (8 if number else 2) + line).rstrip() for number, line in enumerate(lines)]


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False)


FOLLOWS = {
    "stable": "",
    "noisy": " Believe intervals, not single figures: there is no geometric mean.",
    "unusable": " Nothing is compared: run again when the machine has less to do.",
}
"""Advice for each state of the machine."""


def machine_lines(state: MachineState, width: int) -> Iterator[str]:
    """Say whether to believe the times, and why not."""
    yield from textwrap.wrap(f"machine: {state.state}.{FOLLOWS[state.state]}", width)
    for reason in state.reasons:
        yield from wrapped(f"  {reason}", width)


def unsteady_lines(measurements: Iterable[Measurement], width: int) -> Iterator[str]:
    """List kernels whose visits differ: the kernel has two speeds, or the machine had."""
    rows = []
    for m in measurements:
        centres = m.centres
        excess = max(centres) / min(centres) - 1
        if excess > UNSTEADY:
            rows.append((excess, m, " ".join(figures(seconds * 1e3) for seconds in centres)))
    rows.sort(key=lambda row: -row[0])
    if rows:
        yield f"visits that differ by more than {UNSTEADY:.0%}: {len(rows)} kernels"
    for excess, m, shown in rows[:MAX_UNSTEADY]:
        _, operator, problem, name = m.key
        yield from wrapped(f"  {name} {operator} {problem}: by {excess:.0%}, {shown} ms", width)


def finding_lines(measurements: Iterable[Measurement], width: int) -> Iterator[str]:
    """List shares above 100% of the roofline, with a command where a share is impossible."""
    measurements = [m for m in measurements if m.finding]
    if measurements:
        yield f"findings: {len(measurements)}"
    for m in measurements:
        _, operator, problem, name = m.key
        yield from wrapped(f"  {name} {operator} {problem}: {m.finding.text if m.finding else ''}", width)
        if m.impossible:
            yield from wrapped(f"  reproduce: {m.trial.command}", width)


def suite_table(run: Run, width: int) -> Iterator[str]:
    """Yield the table by operator and problem, torch on the same device first."""
    measurements, ratios, state = run.times, run.ratios, run.state
    rows = [
        {"implementation": m.trial.implementation.name + ("!" if m.impossible else "")} | times(m, ratios.get(m.key))
        for m in measurements
    ]
    heads, *lines = laid_out(rows, width)
    yield from textwrap.wrap(LEGEND, width)
    for operator in dict.fromkeys(m.trial.operator.name for m in measurements):
        yield from ("", operator, *heads)
        places: dict[str, list[tuple[bool, list[str]]]] = {}
        for m, row in zip(measurements, lines, strict=True):
            device, of, problem, name = m.key
            if of == operator:
                place = f"{problem} on {device}, {m.intensity:.3g} flop/byte"
                places.setdefault(place, []).append((name != baseline(device), row))
        for place, same in places.items():
            yield from wrapped(place, width)
            for _, row in sorted(same, key=lambda pair: pair[0]):
                yield from row
        found_means = [(name, *pair) for (of, name), pair in means(ratios).items() if of == operator]
        if state.state == "stable" and found_means:
            text = ", ".join(f"{name} {mean:.2f}x of {count}" for name, mean, count in found_means)
            yield from wrapped(f"{operator} geometric mean relative to torch: {text}", width)
    yield ""
    yield from finding_lines(measurements, width)
    yield from unsteady_lines(measurements, width)
    yield from machine_lines(state, width)
