"""The end of a run on the terminal, except for its failures."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from conformance.implementations.errors import printable
from conformance.implementations.implementation import OUTSIDE
from conformance.reporting import accuracy, emulator_counts
from conformance.reporting.kernel_verdicts import KernelVerdict, matrix
from conformance.reporting.table import many
from conformance.reporting.tally import NOT_ISOLATED, Tally
from conformance.results.schema import STATUSES
from conformance.streams import uncommanded

LETTERS = {"pass": "", "fail": "F", "error": "E", "unsupported": "u", "waived": "w", "unavailable": "-"}
LEGEND = "numbers pass; F fail, E error, u unsupported, w waived, - unavailable"
TOO_COARSE = "the declared precision allows errors as large as the results"
ACCEPTS = "accepts invalid arguments"
DETAILS = "details"
"""Word that `--show` takes beside statuses, for the accuracy profiles and where the time went."""
MAX_FAILING = 10
"""Largest number of kernels that fail and have a line each."""
MAX_REASONS = 3
"""Largest number of reasons of an implementation that are shown unless all are requested."""

Line = tuple[str, str]
"""A text and its color, which may be empty."""


def verdict_lines(verdicts: Sequence[KernelVerdict], width: int) -> Iterator[Line]:
    """Yield the line of a single kernel. Of several yield the matrix, then lines of those that fail; files that cannot
    be used have a line each."""
    kernels = [one for one in verdicts if one.operator]
    if len(kernels) > 1:
        table = matrix(kernels)
        failing = {name for one in kernels if one.failed for name in (one.implementation, one.operator)}
        for line in table.lines(width):
            yield harmless(line), "red" if line.partition("  ")[0] in failing else ""
        yield from _wrapped(table.note, width)
        kernels = [one for one in kernels if one.failed]
    for verdict in (*kernels[:MAX_FAILING], *(one for one in verdicts if not one.operator)):
        yield from _wrapped(str(verdict), width, color=verdict.color)
    if left := kernels[MAX_FAILING:]:
        yield f"and {many(len(left), 'more kernel')} that fail{'s' * (len(left) == 1)}", "red"


def notes(tally: Tally, verdicts: Sequence[KernelVerdict], width: int, listed: Set[str]) -> Iterator[Line]:
    """Yield what a user who trusts the verdicts should know, in lines of at most `width` columns. Only the commonest
    reasons of a status are shown, unless it is `listed`."""
    if DETAILS in listed:
        yield from _details(tally, width)
    for table in emulator_counts.tables(tally.moved):
        yield from _wrapped(table.title.lower(), width)
        yield from _columns([table.heads, *table.rows], width)
        yield from (*_wrapped(table.note, width), ("", ""))
    yield from _wrapped(_unsupported(tally, verdicts, listed), width)
    yield from _wrapped(_say_nothing(sum(tally.unverified.values(), Counter()), listed), width)
    present = sorted({name for name, operator in tally.cells if operator} - tally.absent.keys())
    ran = {verdict.implementation for verdict in verdicts}
    for name in present:
        for (_, weakness), places in sorted(item for item in tally.weak.items() if item[0][0] == name):
            yield from _wrapped(f"weaker contract: {name}: {weakness} ({', '.join(sorted(places))})", width)
        if "unsupported" in listed or name not in ran:  # where nothing ran, this is why
            yield from _wrapped(_not_implemented(tally, name), width)
            yield from _reasons("unsupported", name, tally.refusals[name] + tally.refused[name], width, listed)
        elif refused := tally.refused[name].total():
            yield from _wrapped(f"refused when called: {name}: {many(refused, 'case')}; --show unsupported", width)
        yield from _reasons("waived", name, tally.waivers[name], width, listed)
        if tally.accepted[name]:
            yield from _wrapped(
                f"{name} {ACCEPTS} (not counted as a failure): {'; '.join(sorted(tally.accepted[name]))}", width
            )
    absent: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in sorted(tally.absent.items()):
        absent[why].append(name)
    for why, who in absent.items():
        yield from _wrapped(f"unavailable: {', '.join(who)}: {why}", width)
    if not tally.is_isolated:
        yield from _wrapped(NOT_ISOLATED, width)


def _details(tally: Tally, width: int) -> Iterator[Line]:
    """Yield the accuracy profiles, and the seconds of kernels, references and diagnosis."""
    # the profile of a wrong kernel says nothing that its failures do not say
    right = {key: found for key, found in tally.profiles.items() if found.share <= 1}
    profiles = [(_shortened(name, width // 3), *rest) for name, *rest in accuracy.rows(right)]
    if profiles:
        yield from _wrapped(
            "accuracy profile (fixed distribution; error: the worst, as a share of what the contract allows)", width
        )
        yield from (*_columns([accuracy.HEADS, *profiles], width), ("", ""))
    if tally.own:
        kernels, references = tally.seconds["kernel"], tally.seconds["reference"]
        own_time = f"{statistics.median(tally.own) * 1e3:.2f} ms a verdict (median) for the rest"
        parts = f"kernels {kernels:.1f} s, references {references:.1f} s, diagnosis {tally.seconds['diagnosis']:.1f} s"
        yield from _wrapped(f"{parts}, and {own_time}", width)


def simulators(device: str, found: Mapping[str, list[str]], width: int) -> list[str]:
    """Return lines on running a device's kernels without it. `found` is marker -> implementations that can do so."""
    ways = [f"pytest -m {marker} ({', '.join(names)})" for marker, names in sorted(found.items())]
    return textwrap.wrap(f"{device}: the same kernels run on the CPU: {', '.join(ways)}", width) if ways else []


def counted(counts: Counter[str]) -> str:
    """Return a cell of the matrix in documents, as LEGEND says."""
    return " ".join(f"{counts[status]}{LETTERS[status]}" for status in STATUSES if counts[status])


def _unsupported(tally: Tally, verdicts: Sequence[KernelVerdict], listed: Set[str]) -> str:
    """Return one line on the cases that were not run for implementations that ran; empty if none is left out."""
    names = {verdict.implementation for verdict in verdicts if verdict.operator}
    cases = sum(counts["unsupported"] for (name, _), counts in tally.cells.items() if name in names)
    if not cases or "unsupported" in listed:
        return ""
    if len(names) > 1:
        return f"unsupported: {many(cases, 'case')} of {many(len(names), 'implementation')}; --show unsupported"
    (name,) = names
    found: defaultdict[str, list[str]] = defaultdict(list, operator=[*tally.not_implemented[name]])
    for reason, _ in tally.refusals[name].most_common():
        known = tally.undeclared.get(reason)
        found[known.kind if known else "reason"].append(known.what if known else reason)
    parts = [
        f"{some[0]}" + f" and {many(len(some) - 1, f'more {kind}')}" * (len(some) > 1)
        for kind in ("operator", "dtype", "layout")
        if (some := found[kind])
    ]
    others = len(found["reason"]) + len(found["shape"])
    parts += [many(others, "other reason")] if others else []
    return f"unsupported: {', '.join(parts)}; --show unsupported" if parts else ""


def _say_nothing(outputs: Counter[str], listed: Set[str]) -> str:
    """Return one line on the outputs that have no useful limit, with the number of cases of each; empty without any."""
    every = outputs.most_common()
    shown = every if DETAILS in listed else every[:MAX_REASONS]
    parts = [f"{output}: {many(cases, 'case')}" for output, cases in shown]
    parts += [f"{many(len(every) - len(shown), 'more output')}"] * (len(shown) < len(every))
    verb = "says" if len(every) == 1 and every[0][1] == 1 else "say"
    return f"{', '.join(parts)} {verb} nothing, because {TOO_COARSE}" if parts else ""


def _not_implemented(tally: Tally, name: str) -> str:
    missing = tally.not_implemented[name]
    return f"unsupported: {name} does not implement {', '.join(missing)}" if missing else ""


def _reasons(status: str, name: str, reasons: Counter[str], width: int, listed: Set[str]) -> Iterator[Line]:
    """Yield the reasons for a status of an implementation: first what its `when=` leaves out, then the commonest."""
    every = sorted(reasons.most_common(), key=lambda item: OUTSIDE not in item[0])
    commonest = every if status in listed else every[:MAX_REASONS]
    for reason, count in commonest:
        yield from _wrapped(f"{status}: {name}: {count:,} x {reason}", width)
    if left := sum(count for _, count in every[len(commonest) :]):
        more = f"{left:,} for {many(len(every) - len(commonest), 'other reason')}: --show {status}"
        yield from _wrapped(f"{status}: {name}: {more}", width)


def _shortened(name: str, width: int) -> str:
    """Shorten a name that is too long in the middle, so that it keeps its end, with versions and `@simulator`."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}~{name[-half:]}"


def _columns(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[Line]:
    """Yield rows as aligned columns; text that does not fit continues below the last column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = sum(widths[:-1]) + len(widths) - 1
    for row in rows:
        line = " ".join(text.ljust(column) for text, column in zip(row, widths, strict=True)).rstrip()
        yield from _wrapped(line, width, indent if indent < width - 16 else 6)


def _wrapped(text: str, width: int, indent: int = 4, color: str = "") -> Iterator[Line]:
    # not at hyphens: a reason may hold a command, and options of one
    for line in textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False):
        yield harmless(line), color


def harmless(text: str) -> str:
    """Return a line that a kernel may have written without terminal escapes and commands of a CI runner."""
    return uncommanded(printable(text))
