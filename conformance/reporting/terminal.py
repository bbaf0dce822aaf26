"""The summary at the end of a run: a matrix implementation x operator, and what was not run and why."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from conformance.reporting import accuracy, traffic
from conformance.reporting.tally import Tally
from conformance.results.schema import STATUSES

LETTERS = {"pass": "", "fail": "F", "error": "E", "unsupported": "u", "waived": "w", "unavailable": "-"}
LEGEND = "numbers pass; F fail, E error, u unsupported, w waived, - unavailable"
ACCEPTS = "accepts invalid arguments"


def summary(tally: Tally, width: int) -> Iterator[str]:
    """Lines of at most `width` columns."""
    yield from _matrix(tally, width)
    yield from textwrap.wrap(LEGEND, width)
    profiles = [(_shortened(name, width // 3), *rest) for name, *rest in accuracy.rows(tally.profiles)]
    if profiles:
        title = "accuracy profile (worst of all cases; error as a share of what the contract allows)"
        yield from ("", *textwrap.wrap(title, width), *_columns([accuracy.HEADS, *profiles], width), "")
    if tally.moved:
        yield "traffic as counted by emulators"
        yield from _columns([traffic.HEADS, *traffic.rows(tally.moved)], width)
        yield from (*textwrap.wrap(traffic.NOTE, width), "")
    sections = {
        "broken files": {path: [why] for path, why in tally.broken.items()},
        "unavailable": {name: [why] for name, why in tally.absent.items()},
        "unsupported": {name: _counted(reasons) for name, reasons in tally.refusals.items()},
        ACCEPTS: {name: sorted(requests) for name, requests in tally.accepted.items() if requests},
        "waived": {name: _counted(reasons) for name, reasons in tally.waivers.items()},
    }
    for title, entries in sections.items():
        yield from [f"{title}:"] if entries else []
        for name, lines in sorted(entries.items()):
            for line in lines:
                yield from textwrap.wrap(f"{name}: {line}", width, initial_indent="  ", subsequent_indent="      ")
    totals = tally.totals
    counts = ", ".join(f"{totals[status]:,} {status}" for status in STATUSES if totals[status])
    yield from textwrap.wrap(f"{sum(totals.values()):,} cases: {counts or 'none'}", width)
    if tally.own:
        kernels, references = tally.seconds["kernel"], tally.seconds["reference"]
        own = f"{statistics.median(tally.own) * 1e3:.2f} ms a verdict (median) for the rest"
        yield from textwrap.wrap(f"kernels {kernels:.1f} s, references {references:.1f} s, and {own}", width)


def simulators(device: str, found: Mapping[str, list[str]], width: int) -> list[str]:
    """Lines on how to run a device's kernels without it. `found` is marker -> implementations that can do so."""
    ways = [f"pytest -m {marker} ({', '.join(names)})" for marker, names in sorted(found.items())]
    return textwrap.wrap(f"{device}: the same kernels run on the CPU: {', '.join(ways)}", width) if ways else []


def _matrix(tally: Tally, width: int) -> Iterator[str]:
    """Blocks of as many operator columns as fit."""
    rows = sorted({name for name, operator in tally.cells if operator})
    operators = list(dict.fromkeys(operator for _, operator in tally.cells if operator))
    cells = {key: counted(counts) or "0" for key, counts in tally.cells.items()}
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


def counted(counts: Counter[str]) -> str:
    """A cell of the matrix, as LEGEND says."""
    return " ".join(f"{counts[status]}{LETTERS[status]}" for status in STATUSES if counts[status])


def _shortened(name: str, width: int) -> str:
    """A name that is too long keeps its end, where versions and `@simulator` stand."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}~{name[-half:]}"


def _columns(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[str]:
    """Aligned; what does not fit goes on below the last column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = sum(widths[:-1]) + len(widths) - 1
    for row in rows:
        line = " ".join(text.ljust(column) for text, column in zip(row, widths, strict=True)).rstrip()
        yield from textwrap.wrap(line, width, subsequent_indent=" " * (indent if indent < width - 16 else 6))


def _counted(reasons: Counter[str]) -> list[str]:
    return [f"{count} x {reason}" for reason, count in reasons.most_common()]
