"""The summary at the end of a run: a matrix implementation x operator, and what was not run and why."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping

from conformance.reporting import accuracy, traffic
from conformance.reporting.tally import STATUSES, Tally

LETTERS = {"pass": "", "fail": "F", "error": "E", "unsupported": "u", "waived": "w", "unavailable": "-"}
LEGEND = "numbers pass; F fail, E error, u unsupported, w waived, - unavailable"


def summary(tally: Tally, width: int) -> Iterator[str]:
    """Lines of at most `width` columns."""
    yield from _matrix(tally, width)
    yield from textwrap.wrap(LEGEND, width)
    yield from _profiles(tally, width)
    yield from _traffic(tally, width)
    yield from _section("broken files", {path: [why] for path, why in tally.broken.items()}, width)
    yield from _section("unavailable", {name: [why] for name, why in tally.absent.items()}, width)
    yield from _section("unsupported", {n: _counted(reasons) for n, reasons in tally.refusals.items()}, width)
    answered = {name: sorted(requests) for name, requests in tally.answered.items()}
    yield from _section("computes what it should refuse", answered, width)
    yield from _section("waived", {n: _counted(reasons) for n, reasons in tally.waivers.items()}, width)
    totals = tally.totals
    counts = ", ".join(f"{totals[status]:,} {status}" for status in STATUSES if totals[status])
    yield from textwrap.wrap(f"{sum(totals.values()):,} cases: {counts or 'none'}", width)
    if tally.own:
        yield from textwrap.wrap(_time(tally), width)


def elsewhere(device: str, simulators: Mapping[str, list[str]], width: int) -> list[str]:
    """Lines on how to run a device's kernels without it. `simulators` is marker -> implementations that can do so."""
    ways = [f"pytest -m {marker} ({', '.join(names)})" for marker, names in sorted(simulators.items())]
    return textwrap.wrap(f"{device}: the same kernels run on the CPU: {', '.join(ways)}", width) if ways else []


def _time(tally: Tally) -> str:
    """Where the time went, and what a verdict costs beside its kernel and its reference."""
    kernels, references = tally.seconds["kernel"], tally.seconds["reference"]
    own = statistics.median(tally.own) * 1e3
    return f"kernels {kernels:.1f} s, references {references:.1f} s, and {own:.2f} ms a verdict (median) for the rest"


def _matrix(tally: Tally, width: int) -> Iterator[str]:
    """Blocks of as many operator columns as fit."""
    rows = sorted({name for name, operator in tally.cells if operator})
    operators = list(dict.fromkeys(operator for _, operator in tally.cells if operator))
    cells = {key: _cell(counts) for key, counts in tally.cells.items()}
    column = max([len(o) for o in operators] + [len(c) for c in cells.values()] + [8]) + 2
    first = min(max([len("implementation"), *map(len, rows)]) + 2, max(width - column, len("implementation") + 2))
    fit = max(1, (width - first) // column)
    for start in range(0, len(operators), fit):
        shown = operators[start : start + fit]
        yield "implementation".ljust(first) + "".join(operator.rjust(column) for operator in shown)
        for row in rows:
            texts = (cells.get((row, operator), "") for operator in shown)
            yield (_shortened(row, first - 2).ljust(first) + "".join(text.rjust(column) for text in texts)).rstrip()
        yield ""


def _shortened(name: str, width: int) -> str:
    """A name that is too long keeps its end, where versions and `@simulator` stand."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}~{name[-half:]}"


def _profiles(tally: Tally, width: int) -> Iterator[str]:
    """One line per implementation and dtype; nothing when no fixed-distribution case ran."""
    rows = [(_shortened(name, width // 3), *rest) for name, *rest in accuracy.table(tally.profiles)]
    if len(rows) < 2:
        return
    yield ""
    yield from textwrap.wrap("accuracy (worst of all cases; error as a share of what the contract allows)", width)
    yield from _columns(rows, width)
    yield ""


def _traffic(tally: Tally, width: int) -> Iterator[str]:
    rows = list(traffic.table(tally.moved))
    if rows:
        yield "traffic as counted by emulators"
        yield from _columns(rows, width)
        yield from textwrap.wrap(traffic.LEGEND, width)
        yield ""


def _columns(rows: list[tuple[str, ...]], width: int) -> Iterator[str]:
    """Aligned; what does not fit goes on below the last column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = sum(widths[:-1]) + len(widths) - 1
    for row in rows:
        line = " ".join(text.ljust(column) for text, column in zip(row, widths, strict=True)).rstrip()
        yield from textwrap.wrap(line, width, subsequent_indent=" " * (indent if indent < width - 16 else 6))


def _cell(counts: Counter[str]) -> str:
    words = [f"{counts[status]}{LETTERS[status]}" for status in STATUSES if counts[status]]
    return " ".join(words) or "0"


def _counted(reasons: Counter[str]) -> list[str]:
    return [f"{count} x {reason}" for reason, count in reasons.most_common()]


def _section(title: str, entries: dict[str, list[str]], width: int) -> Iterator[str]:
    if not entries:
        return
    yield f"{title}:"
    for name, lines in sorted(entries.items()):
        for line in lines:
            yield from textwrap.wrap(f"{name}: {line}", width, initial_indent="  ", subsequent_indent="      ")
