"""`conformance compare`: what changed between two benchmark runs, beyond noise."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.exit_codes import ExitCode
from conformance.reporting.comparison.decide import (
    EVERYTHING,
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    VISITS,
    Answer,
    MachineNoise,
    Pair,
    answers,
    surveyed,
)
from conformance.reporting.comparison.noise import Interval
from conformance.reporting.comparison.runs import DECISIVE, BenchmarkKey, BenchmarkRun, RunError, pooled, read
from conformance.results.reading import shown
from conformance.results.schema import MachineState

THRESHOLD = 0.05
UNKNOWN = Interval(-math.inf, 0.0, math.inf)
SINGLE = 5
"""Largest number of single benchmarks that are listed of an outcome that raises no alarm, unless all are requested."""
MOST = 10
"""Largest number of lines of any other list."""
ORDER = (SLOWER, FASTER, INCONCLUSIVE, SAME)
SIDES = ("A", "B")


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Everything that two runs say about each other. `refused` is the reason not to compare their times; else empty.

    `states` has the machine's condition during A and B. If it was unusable, every time is inconclusive.
    """

    threshold: float
    refused: str
    notes: tuple[str, ...]
    states: tuple[MachineState | None, MachineState | None]
    machine: MachineNoise | None
    answers: tuple[Answer, ...]
    worse: tuple[str, ...]
    better: tuple[str, ...]
    missing: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """True if anything is slower or faster."""
        return any(answer.outcome in (SLOWER, FASTER) for answer in self.answers)

    def during(self, state: str) -> str:
        """Return the sides whose machine was in a state, and why; empty if none was."""
        sides = [
            (side, condition.reasons)
            for side, condition in zip(SIDES, self.states, strict=True)
            if condition and condition.state == state
        ]
        return ", ".join(f"during {side}" + (f" ({shown('; '.join(r), 200)})" if r else "") for side, r in sides)

    @property
    def undecided(self) -> list[Answer]:
        """Answers that `--strict` needs and these runs cannot give: on implementations and operators, and on the
        kernels of an implementation that has too few for either."""
        whole = {answer.implementation for answer in self.answers if answer.overall}
        needed = [answer for answer in self.answers if answer.overall or answer.implementation not in whole]
        return [answer for answer in needed if answer.outcome == INCONCLUSIVE]

    def status(self, subset: bool, strict: bool = False) -> int:
        """Return the exit status: 1 if anything is slower, worse or gone (unless a `subset` was meant), 4 if times were
        refused, and with `strict` also if they cannot decide."""
        slower = any(answer.outcome == SLOWER for answer in self.answers)
        if slower or self.worse or (self.missing and not subset):
            return ExitCode.BAD
        undecided = strict and (self.undecided or not self.answers)
        return ExitCode.UNUSABLE if self.refused or undecided else ExitCode.GOOD


def declare(parser: argparse.ArgumentParser) -> None:
    """Two benchmark runs: what became slower or faster beyond noise, and which verdicts changed."""
    parser.set_defaults(run=_run)
    parser.add_argument("before", type=Path, metavar="A.json", help="written by pytest --benchmark-json=FILE")
    parser.add_argument("after", type=Path, metavar="B.json", help="the same benchmarks, later")
    parser.add_argument(
        "--and",
        nargs=2,
        type=Path,
        action="append",
        default=[],
        dest="more",
        metavar=("A2.json", "B2.json"),
        help="two more runs of the same, best made in turn; the visits of all are taken together",
    )
    parser.add_argument(
        "--threshold", type=_threshold, default=THRESHOLD, metavar="5%", help="changes that matter (default: 5%%)"
    )
    parser.add_argument("--force", action="store_true", help="compare times of different machines")
    parser.add_argument("--subset", action="store_true", help="B was meant to hold fewer benchmarks")
    parser.add_argument(
        "--strict", action="store_true", help="exit 4 where an implementation or an operator is inconclusive"
    )
    parser.add_argument("--all", action="store_true", help="list everything, where otherwise the first lines are")


def _threshold(text: str) -> float:
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)(%?)", text, re.ASCII)
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 5% or 0.05, above 0 and up to 100%")
    return value


def _run(arguments: argparse.Namespace) -> int:
    try:
        pairs = [(arguments.before, arguments.after), *arguments.more]
        for earlier, later in pairs:
            if earlier.resolve() == later.resolve():  # it would say that nothing has changed
                raise RunError(f"{earlier} is given as both runs; give the files of two runs")
        before, after = (pooled([read(path) for path in side]) for side in zip(*pairs, strict=True))
        comparison = compared(before, after, arguments.threshold, arguments.force)
    except RunError as problem:
        print(problem, file=sys.stderr)
        return ExitCode.UNUSABLE
    status = comparison.status(arguments.subset, arguments.strict)
    print("\n".join(text(comparison, arguments.all)))
    return status


def compared(
    before: BenchmarkRun, after: BenchmarkRun, threshold: float = THRESHOLD, force: bool = False
) -> RunComparison:
    """Compare two runs, by the benchmarks that they share and those that they do not."""
    shared = [key for key in before.benchmarks if key in after.benchmarks]
    pairs = [Pair(before.benchmarks[key], after.benchmarks[key]) for key in shared]
    facts_before, facts_after = before.facts(shared), after.facts(shared)
    other = [
        name for name in dict.fromkeys((*facts_before, *facts_after)) if facts_before.get(name) != facts_after.get(name)
    ]
    notes = [
        f"{shown(name)} differs: {shown(facts_before.get(name, 'not there'))}, "
        f"then {shown(facts_after.get(name, 'not there'))}"
        for name in other
    ]
    decisive = "; ".join(
        f"{n} {shown(facts_before.get(n))} and {shown(facts_after.get(n))}" for n in DECISIVE if n in other
    )
    refused = f"times are not comparable: {decisive}; --force compares them all the same" if decisive else ""
    refused = "" if force else refused
    passed = [pair for pair in pairs if pair.before.record.status == pair.after.record.status == "pass"]
    doubts = {} if refused else {pair.key: _doubt(pair) for pair in passed}
    timed = [] if refused else [pair for pair in passed if not doubts[pair.key]]
    machine = surveyed(timed) if timed else None
    states = before.state, after.state
    unfit = any(state and state.state == "unusable" for state in states)
    results: Iterable[Answer] = answers(timed, machine, threshold) if machine else ()
    if unfit:
        results = (replace(a, outcome=INCONCLUSIVE, measured=UNKNOWN, relative=UNKNOWN) for a in results)
    changed = [pair for pair in pairs if pair.before.record.status != pair.after.record.status]
    named = {
        pair.key: f"{_name(pair.key)}: {pair.before.record.status}, then {pair.after.record.status}" for pair in changed
    }
    notes += _limits(timed, machine) if machine else ()
    notes += _changes(pairs)
    notes += (f"{_name(key)} is not compared, {doubt}" for key, doubt in doubts.items() if doubt)
    return RunComparison(
        threshold=threshold,
        refused=refused,
        notes=tuple(notes),
        states=states,
        machine=machine,
        answers=tuple(results),
        worse=tuple(named[pair.key] for pair in changed if pair.before.record.status == "pass"),
        better=tuple(named[pair.key] for pair in changed if pair.after.record.status == "pass"),
        missing=tuple(_name(key) for key in before.benchmarks if key not in after.benchmarks),
        new=tuple(_name(key) for key in after.benchmarks if key not in before.benchmarks),
    )


def _changes(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield the fields in which records of the two runs differ, and the implementations whose sources are the same."""
    for what in ("contract", "seed", "generator", "descriptor", "method"):
        changed = [pair for pair in pairs if getattr(pair.before.record, what) != getattr(pair.after.record, what)]
        if changed:
            yield f"another {what} in {len(changed)} benchmarks, {_name(changed[0].key)} the first"
    for name in dict.fromkeys(pair.key.implementation for pair in pairs):
        kernel_pairs = [pair for pair in pairs if pair.key.implementation == name]
        if all(pair.before.record.source == pair.after.record.source for pair in kernel_pairs):
            yield f"{shown(name)}: the same sources in both runs"


def _doubt(pair: Pair) -> str:
    """Return why two times are not compared; empty if they are."""
    first, second = pair.before.timing, pair.after.timing
    if first.clock != second.clock:
        return f"taken by the clocks {shown(first.clock or 'unknown')} and {shown(second.clock or 'unknown')}"
    doubt = first.doubt or second.doubt
    return f"in doubt: {shown(doubt)}" if doubt else ""


def _limits(timed: Sequence[Pair], machine: MachineNoise) -> Iterator[str]:
    """Yield what two runs cannot decide, and why."""
    for device in dict.fromkeys(pair.key.device for pair in timed):
        if device not in machine.drifts:
            yield (
                f"{device}: no baseline (three rows or more of torch-{device}, unchanged): drift of the machine shows "
                f"as a change of the kernels"
            )
    fewest = min(sum(len(run) for run in side.runs) for pair in timed for side in (pair.before, pair.after))
    if math.isinf(machine.scatter.deviation):
        yield "fewer than six ratios tell how runs scatter, so that nothing can be called slower or faster"
    elif fewest < VISITS:
        yield (
            f"no kernel with fewer than {VISITS} visits on each side is called slower or faster alone, and nothing is "
            f"with one: more visits, or more runs with --and"
        )


def _name(key: BenchmarkKey) -> str:
    usual = BenchmarkKey("", "", "", "", "fp32", "nchw", "fixed")
    unusual = [value for value, common in zip(key[4:], usual[4:], strict=True) if value != common]
    return shown(" ".join((key.implementation, key.operator, key.problem, *unusual)))


def sentences(comparison: RunComparison) -> Iterator[str]:
    """Yield the sentences that a person reads first."""
    unusable, noisy = comparison.during("unusable"), comparison.during("noisy")
    if comparison.refused:
        yield f"Times were not compared: {comparison.refused}."
    elif not comparison.answers:
        yield "There are no times to compare."
    elif unusable:
        yield f"The machine was unusable {unusable}, so that all times are inconclusive: run again on a quiet machine."
    else:
        yield from _changed(comparison)
        for overall, what in ((True, "implementations and operators"), (False, "single kernels")):
            counts = Counter(answer.outcome for answer in comparison.answers if answer.overall is overall)
            outcomes = ", ".join(
                f"{counts[name]} {worded(name, comparison.threshold)}" for name in ORDER if counts[name]
            )
            yield from (f"Of {counts.total()} {what}: {outcomes}.",) if outcomes else ()
        if noisy:
            yield f"The machine was noisy {noisy}: believe the intervals, not the ratios in their middle."
        elif all(comparison.states):
            yield "The machine was stable during both."
        if comparison.undecided:
            yield "What is inconclusive needs a quiet machine, or more runs of both (--and)."
    verdicts = {"worse": comparison.worse, "missing": comparison.missing, "better": comparison.better}
    if words := ", ".join(f"{len(names)} {what}" for what, names in verdicts.items() if names):
        yield f"Verdicts: {words}."


def _changed(comparison: RunComparison) -> Iterator[str]:
    """Yield what became slower and faster: whole implementations first, whose operators follow in the details."""
    for outcome in (SLOWER, FASTER):
        changed = [answer for answer in comparison.answers if answer.outcome == outcome]
        whole_implementations = [answer.implementation for answer in changed if answer.name.startswith(EVERYTHING)]
        kept = [
            a
            for a in changed
            if not a.overall or a.name.startswith(EVERYTHING) or a.implementation not in whole_implementations
        ]
        kept.sort(key=lambda answer: (not answer.overall, -answer.distance()))
        more = f"; and {len(kept) - 3} more" if kept[3:] else ""
        if kept:
            yield f"{outcome.capitalize()} in B: {'; '.join(map(_line, kept[:3]))}{more}."
    if not comparison.changed:
        yield f"Nothing was found to be slower or faster by more than {100 * comparison.threshold:.3g}%."


def worded(outcome: str, threshold: float) -> str:
    """Return an outcome in words; `unchanged` with the threshold."""
    return f"{outcome} within {100 * threshold:.3g}%" if outcome == SAME else outcome


def text(comparison: RunComparison, list_all: bool = False) -> Iterator[str]:
    """Yield the report: a paragraph, then the evidence for it: the first lines of each list, or all (`list_all`)."""
    unusable = comparison.during("unusable")
    yield from textwrap.wrap(
        " ".join(sentences(comparison)), min(shutil.get_terminal_size().columns, 120), break_on_hyphens=False
    )
    yield from ("",) if comparison.notes else ()
    yield from (f"note: {note}" for note in _first(comparison.notes, list_all))
    if comparison.machine and not unusable:
        for device, drift in comparison.machine.drifts.items():
            yield f"drift of {device} (its baseline): {percent(drift)}"
        if math.isfinite(comparison.machine.scatter.deviation):
            yield f"ratios of single benchmarks scatter by {math.expm1(comparison.machine.scatter.deviation):.1%}"
    for outcome in () if unusable else ORDER:
        rows = [answer for answer in comparison.answers if answer.outcome == outcome]
        yield from ("", f"{worded(outcome, comparison.threshold)}:") if rows else ()
        alone = sorted((answer for answer in rows if not answer.overall), key=Answer.distance, reverse=True)
        limit = len(alone) if list_all else SINGLE if outcome in (SAME, INCONCLUSIVE) else MOST
        listed = [*(answer for answer in rows if answer.overall), *alone[:limit]]
        # whole operators first, then the largest change
        for answer in sorted(listed, key=lambda a: (a.implementation, not a.overall, -a.distance())):
            beside = "" if answer.relative == answer.measured else f"; measured {percent(answer.measured)}"
            yield f"  {_line(answer)}{beside}"
        if alone[limit:]:
            yield f"  and {len(alone) - limit} single benchmarks that lie closer (--all)"
    lists = {
        "verdict worse": comparison.worse,
        "missing (not selected, or no longer verified, or broken)": comparison.missing,
        "verdict better": comparison.better,
        "new": comparison.new,
    }
    for title, lines in lists.items():
        yield from ("", f"{title}:", *(f"  {line}" for line in _first(lines, list_all))) if lines else ()


def _first(lines: Sequence[str], list_all: bool) -> Iterator[str]:
    """Yield as many lines as fit on a screen, or all of them."""
    limit = len(lines) if list_all else MOST
    yield from lines[:limit]
    if lines[limit:]:
        yield f"and {len(lines) - limit} more (--all)"


def _line(answer: Answer) -> str:
    return shown(f"{answer.implementation} {answer.name}: {percent(answer.relative)}", 200)


def percent(interval: Interval) -> str:
    """Return the change of the time, with its 95% interval; no change without an interval."""
    if not math.isfinite(interval.high - interval.low):
        return "no interval"
    low, middle, high = (f"{math.expm1(value):+.1%}" for value in (interval.low, interval.middle, interval.high))
    return f"{middle} ({low} to {high})"
