"""`conformance compare`: what changed between two benchmark runs, beyond noise."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.exit_codes import ExitCode
from conformance.reporting.comparison.decide import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    Answer,
    Machine,
    Pair,
    answers,
    surveyed,
)
from conformance.reporting.comparison.noise import Interval
from conformance.reporting.comparison.runs import DECISIVE, Key, Run, RunError, pooled, read
from conformance.results.reading import shown

THRESHOLD = 0.05
SINGLE = 10
"""Single benchmarks that are listed where nothing, or nothing certain, has changed."""
ORDER = (SLOWER, FASTER, INCONCLUSIVE, SAME)
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two runs say about each other. `refused` is why their times say nothing; else empty."""

    threshold: float
    refused: str
    notes: tuple[str, ...]
    machine: Machine | None
    answers: tuple[Answer, ...]
    worse: tuple[str, ...]
    better: tuple[str, ...]
    missing: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether anything is slower or faster."""
        return any(answer.outcome in (SLOWER, FASTER) for answer in self.answers)

    def status(self, subset: bool) -> int:
        """The exit status: 1 for what is slower, worse or gone (unless a `subset` was meant), 4 where times were
        refused."""
        slower = any(answer.outcome == SLOWER for answer in self.answers)
        if slower or self.worse or (self.missing and not subset):
            return 1
        return ExitCode.UNUSABLE if self.refused else ExitCode.GOOD


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
        help="two more runs of the same; rounds of all are taken together, and a disturbed run does no harm",
    )
    parser.add_argument(
        "--threshold", type=_threshold, default=THRESHOLD, metavar="5%", help="changes that matter (default: 5%%)"
    )
    parser.add_argument("--force", action="store_true", help="compare times of different machines")
    parser.add_argument("--subset", action="store_true", help="B was meant to hold fewer benchmarks")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _threshold(text: str) -> float:
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)(%?)", text, re.ASCII)
    value = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 5% or 0.05, above 0 and up to 100%")
    return value


def _run(arguments: argparse.Namespace) -> int:
    try:
        sides = zip((arguments.before, arguments.after), *arguments.more, strict=True)
        before, after = (pooled([read(path) for path in side]) for side in sides)
        found = compared(before, after, arguments.threshold, arguments.force)
    except RunError as problem:
        print(problem, file=sys.stderr)
        return ExitCode.UNUSABLE
    status = found.status(arguments.subset)
    if arguments.json:
        print(json.dumps(as_json(found, status), indent=1, allow_nan=False))
    else:
        print("\n".join(text(found)))
    return status


def compared(before: Run, after: Run, threshold: float = THRESHOLD, force: bool = False) -> Comparison:
    """Two runs, by what they share and what they do not."""
    shared = [key for key in before.benchmarks if key in after.benchmarks]
    pairs = [Pair(before.benchmarks[key], after.benchmarks[key]) for key in shared]
    one, two = before.facts(shared), after.facts(shared)
    other = [name for name in dict.fromkeys((*one, *two)) if one.get(name) != two.get(name)]
    notes = [
        f"{shown(name)} differs: {shown(one.get(name, 'not there'))}, then {shown(two.get(name, 'not there'))}"
        for name in other
    ]
    decisive = "; ".join(f"{n} {shown(one.get(n))} and {shown(two.get(n))}" for n in DECISIVE if n in other)
    refused = f"times are not comparable: {decisive}; --force compares them all the same" if decisive else ""
    refused = "" if force else refused
    passed = [pair for pair in pairs if pair.before.record.status == pair.after.record.status == "pass"]
    doubts = {} if refused else {pair.key: _doubt(pair) for pair in passed}
    timed = [] if refused else [pair for pair in passed if not doubts[pair.key]]
    machine = surveyed(timed) if timed else None
    changed = [pair for pair in pairs if pair.before.record.status != pair.after.record.status]
    named = {
        pair.key: f"{_name(pair.key)}: {pair.before.record.status}, then {pair.after.record.status}" for pair in changed
    }
    notes += _changes(pairs)
    notes += (f"{_name(key)} is not compared, {doubt}" for key, doubt in doubts.items() if doubt)
    notes += _limits(timed, machine) if machine else ()
    return Comparison(
        threshold=threshold,
        refused=refused,
        notes=tuple(notes),
        machine=machine,
        answers=tuple(answers(timed, machine, threshold)) if machine else (),
        worse=tuple(named[pair.key] for pair in changed if pair.before.record.status == "pass"),
        better=tuple(named[pair.key] for pair in changed if pair.after.record.status == "pass"),
        missing=tuple(_name(key) for key in before.benchmarks if key not in after.benchmarks),
        new=tuple(_name(key) for key in after.benchmarks if key not in before.benchmarks),
    )


def _changes(pairs: Sequence[Pair]) -> Iterator[str]:
    """What an implementation says about itself and says differently."""
    for what in ("contract", "seed", "generator", "descriptor", "method"):
        changed = [pair for pair in pairs if getattr(pair.before.record, what) != getattr(pair.after.record, what)]
        if changed:
            yield f"another {what} in {len(changed)} benchmarks, {_name(changed[0].key)} the first"
    for name in dict.fromkeys(pair.key.implementation for pair in pairs):
        own = [pair for pair in pairs if pair.key.implementation == name]
        if all(pair.before.record.source == pair.after.record.source for pair in own):
            yield f"{shown(name)}: the same sources in both runs"


def _doubt(pair: Pair) -> str:
    """Why two times are not compared; empty if they are."""
    one, two = pair.before.timing, pair.after.timing
    if one.clock != two.clock:
        return f"taken by the clocks {shown(one.clock or 'unknown')} and {shown(two.clock or 'unknown')}"
    doubt = one.doubt or two.doubt
    return f"in doubt: {shown(doubt)}" if doubt else ""


def _limits(timed: Sequence[Pair], machine: Machine) -> Iterator[str]:
    """What two runs cannot decide."""
    for device in dict.fromkeys(pair.key.device for pair in timed):
        if device not in machine.drifts:
            yield (
                f"{device}: no baseline (six rows or more of torch-{device}, unchanged), so that drift of the machine "
                f"shows as a change of the kernels"
            )
    if math.isinf(machine.scale):
        yield "fewer than six ratios tell how runs scatter, so that no single benchmark can be called slower or faster"
    elif any(min(len(pair.before.runs), len(pair.after.runs)) == 1 for pair in timed):
        yield (
            "one run on each side does not tell how runs of a single benchmark scatter, so that none alone is called "
            "slower or faster: give three runs or more of each with --and"
        )


def _name(key: Key) -> str:
    usual = Key("", "", "", "", "fp32", "nchw", "fixed")
    unusual = [value for value, common in zip(key[4:], usual[4:], strict=True) if value != common]
    return shown(" ".join((key.implementation, key.operator, key.problem, *unusual)))


def text(found: Comparison) -> Iterator[str]:
    """The report, most important last, where a terminal leaves off."""
    yield from (f"note: {note}" for note in found.notes)
    if found.machine:
        for device, drift in found.machine.drifts.items():
            yield f"drift of {device} (its baseline): {percent(drift)}"
        if math.isfinite(found.machine.scale):
            yield f"ratios of single benchmarks scatter by {math.expm1(found.machine.scale):.1%}"
    for outcome in reversed(ORDER):
        rows = [answer for answer in found.answers if answer.outcome == outcome]
        yield from ("", f"{outcome}:") if rows else ()
        alone = sorted((answer for answer in rows if not answer.overall), key=Answer.distance, reverse=True)
        limit = SINGLE if outcome in (SAME, INCONCLUSIVE) else len(rows)
        listed = [*(answer for answer in rows if answer.overall), *alone[:limit]]
        # whole operators first, then the largest change
        for answer in sorted(listed, key=lambda a: (a.implementation, not a.overall, -a.distance())):
            measured, relative = answer.bounds.measured, answer.bounds.relative
            beside = "" if relative == measured else f"; measured {percent(measured)}"
            yield "  " + shown(f"{answer.implementation} {answer.name}: {percent(relative)}{beside}", 200)
        if alone[limit:]:
            yield f"  and {len(alone) - limit} single benchmarks that lie closer (all are in --json)"
    lists = {
        "new": found.new,
        "missing (not selected, or no longer verified, or broken)": found.missing,
        "verdict better": found.better,
        "verdict worse": found.worse,
    }
    for title, lines in lists.items():
        yield from ("", f"{title}:", *(f"  {line}" for line in lines)) if lines else ()
    yield ""
    if found.refused:
        yield f"REFUSED: {found.refused}"
        return
    counts = [(outcome, sum(a.outcome == outcome for a in found.answers)) for outcome in ORDER]
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts if count) or "no times to compare"
    change = "CHANGED" if found.changed else "NO CHANGE FOUND"
    yield f"{change} beyond noise and {100 * found.threshold:.3g}%: {words}"


def percent(interval: Interval) -> str:
    """Change of the time, and the interval that holds it with 95%."""
    low, middle, high = (
        f"{math.expm1(value):+.1%}" if math.isfinite(value) else "?"
        for value in (interval.low, interval.middle, interval.high)
    )
    return f"{middle} ({low} to {high})"


def as_json(found: Comparison, status: int) -> dict[str, Any]:
    """The same for programs. Ratios are seconds of B over seconds of A; null stands for no bound."""
    machine = found.machine
    return {
        "format": FORMAT,
        "status": status,
        "threshold": found.threshold,
        "refused": found.refused,
        "notes": list(found.notes),
        "drift": {name: _ratio(drift) for name, drift in machine.drifts.items()} if machine else {},
        "scatter": math.expm1(machine.scale) if machine and math.isfinite(machine.scale) else None,
        "answers": [
            {
                "implementation": answer.implementation,
                "device": answer.device,
                "name": answer.name,
                "overall": answer.overall,
                "outcome": answer.outcome,
                "measured": _ratio(answer.bounds.measured),
                "relative": _ratio(answer.bounds.relative),
            }
            for answer in found.answers
        ],
        **{name: list(getattr(found, name)) for name in ("worse", "better", "missing", "new")},
    }


def _ratio(interval: Interval) -> list[float | None]:
    return [math.exp(v) if math.isfinite(v) else None for v in (interval.low, interval.middle, interval.high)]
