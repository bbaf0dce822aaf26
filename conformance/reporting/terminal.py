"""What a run shows on the terminal: a row for each implementation and operator, and the summary at the end."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from conformance.inputs import golden
from conformance.reporting import accuracy, emulator_counts
from conformance.reporting.table import many
from conformance.reporting.tally import Tally
from conformance.results.schema import STATUSES

LETTERS = {"pass": "", "fail": "F", "error": "E", "unsupported": "u", "waived": "w", "unavailable": "-"}
LEGEND = "numbers pass; F fail, E error, u unsupported, w waived, - unavailable"
ACCEPTS = "accepts invalid arguments"
COLUMNS = {"pass": 8, "fail": 7, "error": 7, "unsupported": 12, "waived": 7}
"""Statuses in a row, and their widths. What is unavailable has no row."""
COLORS = {"pass": "green", "fail": "red", "error": "red", "unsupported": "cyan", "waived": "yellow"}
OPERATOR = 21
"""Width of the column."""
MAX_REASONS = 3
"""Reasons of an implementation that are shown unless all are asked for."""

Line = Sequence[tuple[str, str]]
"""Texts, each with its color, which may be empty."""


def heading(width: int) -> Line:
    """Above the rows."""
    return ((names("implementation", "operator", width) + "".join(s.rjust(w) for s, w in COLUMNS.items()), ""),)


def row(implementation: str, operator: str, counts: Mapping[str, int], width: int) -> Line:
    """Cases by status."""
    cells = [
        (f"{counts.get(status, 0):{columns},}", COLORS[status] if counts.get(status) else "")
        for status, columns in COLUMNS.items()
    ]
    return ((names(implementation, operator, width), ""), *cells)


def names(implementation: str, operator: str, width: int) -> str:
    """The first two columns of a row; as wide on every row of a run, whoever comes later."""
    room = max(12, min(32, width - OPERATOR - sum(COLUMNS.values())))
    return _shortened(implementation, room - 1).ljust(room) + operator.ljust(OPERATOR)


def summary(tally: Tally, width: int, listed: Set[str]) -> Iterator[Line]:
    """Lines of at most `width` columns: counts, accuracy, what was not done and why, the total.

    Only the commonest reasons are shown, unless their status is `listed`.
    """
    present = sorted({name for name, operator in tally.cells if operator} - tally.absent.keys())
    yield from [heading(width)] if present else []
    for name in present:
        own = {operator: counts for (owner, operator), counts in tally.cells.items() if owner == name}
        rows = {operator: counts for operator, counts in own.items() if operator not in tally.not_implemented[name]}
        for operator, counts in rows.items():
            yield row(name, operator, counts, width)
        if len(rows) != 1:
            yield row(name, "all operators", sum(own.values(), Counter()), width)
    yield from [()] if present else []
    # of a wrong kernel it says nothing that its failures do not say
    right = {key: found for key, found in tally.profiles.items() if found.share <= 1}
    profiles = [(_shortened(name, width // 3), *rest) for name, *rest in accuracy.rows(right)]
    if profiles:
        yield from _wrapped(
            "accuracy profile (fixed distribution; error: the worst, as a share of what the contract allows)", width
        )
        yield from (*_columns([accuracy.HEADS, *profiles], width), ())
    for table in emulator_counts.tables(tally.moved):
        yield from _wrapped(table.title.lower(), width)
        yield from _columns([table.heads, *table.rows], width)
        yield from (*_wrapped(table.note, width), ())
    for name in present:
        yield from _wrapped(_not_implemented(tally, name), width)
        for (_, weakness), places in sorted(item for item in tally.weak.items() if item[0][0] == name):
            yield from _wrapped(f"weaker contract: {name}: {weakness} ({', '.join(sorted(places))})", width)
        for what, reasons in (("not verified", tally.unverified[name]), ("refused at run time", tally.refused[name])):
            for reason, count in reasons.most_common():
                yield from _wrapped(f"{what}: {name}: {count:,} x {reason}", width)
        for status, reasons in (("unsupported", tally.refusals[name]), ("waived", tally.waivers[name])):
            every = reasons.most_common()
            commonest = every if status in listed else every[:MAX_REASONS]
            for reason, count in commonest:
                yield from _wrapped(f"{status}: {name}: {count:,} x {reason}", width)
            if left := sum(count for _, count in every[len(commonest) :]):
                more = f"{left:,} for {many(len(every) - len(commonest), 'other reason')}: --show {status}"
                yield from _wrapped(f"{status}: {name}: {more}", width)
        if tally.accepted[name]:
            yield from _wrapped(f"{name} {ACCEPTS}: {'; '.join(sorted(tally.accepted[name]))}", width)
    absent: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in sorted(tally.absent.items()):
        absent[why].append(name)
    for why, who in absent.items():
        yield from _wrapped(f"unavailable: {', '.join(who)}: {why}", width)
    totals = tally.totals
    counted_ = ", ".join(f"{totals[status]:,} {status}" for status in STATUSES if totals[status])
    yield from _wrapped(f"{many(totals.total(), 'case')}: {counted_ or 'none'}", width)
    if tally.references:
        held = golden.held(tally.references)
        without = f"{len(tally.references) - held:,} have none (another seed or dtype, drawn, or level full)"
        yield from _wrapped(f"references: {held:,} equal to their goldens; {without}", width)
    if tally.own:
        kernels, references = tally.seconds["kernel"], tally.seconds["reference"]
        own_time = f"{statistics.median(tally.own) * 1e3:.2f} ms a verdict (median) for the rest"
        parts = f"kernels {kernels:.1f} s, references {references:.1f} s, diagnosis {tally.seconds['diagnosis']:.1f} s"
        yield from _wrapped(f"{parts}, and {own_time}", width)


def simulators(device: str, found: Mapping[str, list[str]], width: int) -> list[str]:
    """Lines on how to run a device's kernels without it. `found` is marker -> implementations that can do so."""
    ways = [f"pytest -m {marker} ({', '.join(names)})" for marker, names in sorted(found.items())]
    return textwrap.wrap(f"{device}: the same kernels run on the CPU: {', '.join(ways)}", width) if ways else []


def counted(counts: Counter[str]) -> str:
    """A cell of the matrix in documents, as LEGEND says."""
    return " ".join(f"{counts[status]}{LETTERS[status]}" for status in STATUSES if counts[status])


def _not_implemented(tally: Tally, name: str) -> str:
    missing = tally.not_implemented[name]
    return (
        f"unsupported: {name} does not implement {', '.join(missing)} ({many(missing.total(), 'case')})"
        if missing
        else ""
    )


def _shortened(name: str, width: int) -> str:
    """A name that is too long keeps its end, where versions and `@simulator` stand."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}~{name[-half:]}"


def _columns(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[Line]:
    """Aligned; what does not fit goes on below the last column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = sum(widths[:-1]) + len(widths) - 1
    for row in rows:
        line = " ".join(text.ljust(column) for text, column in zip(row, widths, strict=True)).rstrip()
        yield from _wrapped(line, width, indent if indent < width - 16 else 6)


def _wrapped(text: str, width: int, indent: int = 4) -> Iterator[Line]:
    # not at hyphens: a reason may hold a command, and options of one
    for line in textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False):
        yield ((line, ""),)
