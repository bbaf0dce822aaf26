"""The end of a run on the terminal, except for its failures."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from conformance.implementations.errors import printable
from conformance.implementations.implementation import OUTSIDE
from conformance.reporting.report import TOO_COARSE, Report
from conformance.reporting.table import Table, many
from conformance.reporting.tally import ACCEPTS, CONTRADICTS, NOT_ISOLATED, NOT_VERIFIED, REFUSED, Tally
from conformance.streams import uncommanded

DETAILS = "details"
"""Word that `--show` takes beside statuses, for accuracy profiles, batch invariance, devices and phases of the time."""
PHASES = {"kernel": "kernels", "reference": "references", "diagnosis": "diagnosis"}
MAX_FAILING = 10
"""Largest number of failing kernels that have a line each."""
MAX_REASONS = 3
"""Largest number of reasons of an implementation that are shown unless all are requested."""

Line = tuple[str, str]
"""A text and its color, which may be empty."""


def verdict_lines(report: Report, width: int) -> Iterator[Line]:
    """Yield the line of a single kernel, or the matrix of several and then the lines of those that fail. Files that
    cannot be used have a line each."""
    kernels = [verdict for verdict in report.verdicts if verdict.operator]
    if len(kernels) > 1:
        failing = {name for kernel in kernels if kernel.failed for name in (kernel.implementation, kernel.operator)}
        for line in report.matrix.lines(width):
            yield harmless(line), "red" if line.partition("  ")[0] in failing else ""
        yield from _wrapped(report.matrix.note, width)
        kernels = [kernel for kernel in kernels if kernel.failed]
    for verdict in (*kernels[:MAX_FAILING], *(verdict for verdict in report.verdicts if not verdict.operator)):
        yield from _wrapped(str(verdict), width, color=verdict.color)
    if (more := len(kernels) - MAX_FAILING) > 0:
        yield f"and {many(more, 'more kernel')} that fail{'s' * (more == 1)}", "red"


def notes(report: Report, width: int, listed: Set[str]) -> Iterator[Line]:
    """Yield what a user who trusts the verdicts should know, in lines of at most `width` columns. Only the commonest
    reasons of a status are shown, unless it is `listed`."""
    tally, reasons = report.tally, report.tally.reasons
    if DETAILS in listed:
        for table in filter(None, (report.accuracy, report.batches, report.devices)):
            yield from _table(table, width)
        yield from _wrapped(_seconds(tally), width)
    for table in report.counted:
        yield from _table(table, width)
    yield from _wrapped(_unsupported(report, listed), width)
    yield from _wrapped(_say_nothing(sum(reasons[NOT_VERIFIED].values(), Counter()), listed), width)
    present = sorted({name for name, operator in tally.cells if operator} - tally.absent.keys())
    ran = {verdict.implementation for verdict in report.verdicts}
    for name in present:
        for _, weakness, kernels in tally.weaker(name):
            yield from _wrapped(f"weaker contract: {name}: {weakness} ({kernels})", width)
        if "unsupported" in listed or name not in ran:  # where nothing ran, this is why
            if missing := tally.not_implemented[name]:
                yield from _wrapped(f"unsupported: {name} does not implement {', '.join(missing)}", width)
            not_run = reasons["unsupported"][name] + reasons[REFUSED][name]
            yield from _reasons("unsupported", name, not_run, width, listed)
        elif refused := reasons[REFUSED][name].total():
            yield from _wrapped(f"{REFUSED}: {name}: {many(refused, 'case')}; --show unsupported", width)
        yield from _reasons("waived", name, reasons["waived"][name], width, listed)
        for finding in (CONTRADICTS, ACCEPTS):
            if told := "; ".join(sorted(reasons[finding][name])):
                yield from _wrapped(f"{name} {finding} (not counted as a failure): {told}", width)
    absent: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in sorted(tally.absent.items()):
        absent[why].append(name)
    for why, who in absent.items():
        yield from _wrapped(f"unavailable: {', '.join(who)}: {why}", width)
    if not tally.is_isolated:
        yield from _wrapped(NOT_ISOLATED, width)


def _seconds(tally: Tally) -> str:
    """Return the seconds of kernels, references and diagnosis; empty if none were measured."""
    if not tally.overheads:
        return ""
    own_time = f"{statistics.median(tally.overheads) * 1e3:.2f} ms a verdict (median) for the rest"
    parts = (f"{name} {tally.seconds[phase]:.1f} s" for phase, name in PHASES.items())
    return f"{', '.join(parts)}, and {own_time}"


def simulators(device: str, by_marker: Mapping[str, list[str]], width: int) -> list[str]:
    """Return lines on running a device's kernels without it, given marker -> implementations that can do so."""
    ways = [f"pytest -m {marker} ({', '.join(names)})" for marker, names in sorted(by_marker.items())]
    return textwrap.wrap(f"{device}: the same kernels run on the CPU: {', '.join(ways)}", width) if ways else []


def _unsupported(report: Report, listed: Set[str]) -> str:
    """Return one line on the cases that were not run for implementations that ran; empty if none is left out."""
    tally = report.tally
    names = {verdict.implementation for verdict in report.verdicts if verdict.operator}
    cases = sum(counts["unsupported"] for (name, _), counts in tally.cells.items() if name in names)
    if not cases or "unsupported" in listed:
        return ""
    if len(names) > 1:
        return f"unsupported: {many(cases, 'case')} of {many(len(names), 'implementation')}; --show unsupported"
    (name,) = names
    reasons: defaultdict[str, list[str]] = defaultdict(list, operator=[*tally.not_implemented[name]])
    for reason, _ in tally.reasons["unsupported"][name].most_common():
        undeclared = tally.undeclared.get(reason)
        reasons[undeclared.kind if undeclared else "reason"].append(undeclared.what if undeclared else reason)
    parts = [
        f"{missing[0]}" + f" and {many(len(missing) - 1, f'more {kind}')}" * (len(missing) > 1)
        for kind in ("operator", "dtype", "layout")
        if (missing := reasons[kind])
    ]
    other_reasons = len(reasons["reason"]) + len(reasons["shape"])
    parts += [many(other_reasons, "other reason")] if other_reasons else []
    return f"unsupported: {', '.join(parts)}; --show unsupported" if parts else ""


def _say_nothing(outputs: Counter[str], listed: Set[str]) -> str:
    """Return one line on the outputs that have no useful limit, with the number of cases of each; empty without any."""
    shown = outputs.most_common(None if DETAILS in listed else MAX_REASONS)
    parts = [f"{output}: {many(cases, 'case')}" for output, cases in shown]
    parts += [f"and {many(len(outputs) - len(shown), 'more output')}"] * (len(shown) < len(outputs))
    verb = "says" if outputs.total() == 1 else "say"
    return f"{', '.join(parts)} {verb} nothing, because {TOO_COARSE}" if parts else ""


def _reasons(status: str, name: str, reasons: Counter[str], width: int, listed: Set[str]) -> Iterator[Line]:
    """Yield the reasons for a status of an implementation: first what its `when=` leaves out, then the commonest."""
    ordered = sorted(reasons.most_common(), key=lambda item: OUTSIDE not in item[0])
    commonest = ordered if status in listed else ordered[:MAX_REASONS]
    for reason, count in commonest:
        yield from _wrapped(f"{status}: {name}: {count:,} x {reason}", width)
    if hidden := sum(count for _, count in ordered[len(commonest) :]):
        more = f"{hidden:,} for {many(len(ordered) - len(commonest), 'other reason')}: --show {status}"
        yield from _wrapped(f"{status}: {name}: {more}", width)


def _shortened(name: str, width: int) -> str:
    """Shorten a name that is too long in the middle, so that it keeps its end, with versions and `@simulator`."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}~{name[-half:]}"


def _table(table: Table, width: int) -> Iterator[Line]:
    """Yield the lines of a table with its title and its note."""
    rows = tuple((_shortened(name, width // 3), *rest) for name, *rest in table.rows)
    yield from _wrapped(table.title.lower(), width)
    for line in replace(table, rows=rows).lines(width):
        yield harmless(line), ""
    yield from (*_wrapped(table.note, width), ("", ""))


def _wrapped(text: str, width: int, color: str = "") -> Iterator[Line]:
    # not at hyphens: a reason may contain a command with options
    for line in textwrap.wrap(text, width, subsequent_indent=" " * 4, break_on_hyphens=False):
        yield harmless(line), color


def harmless(text: str) -> str:
    """Return a line that a kernel may have written without terminal escapes and commands of a CI runner."""
    return uncommanded(printable(text))
