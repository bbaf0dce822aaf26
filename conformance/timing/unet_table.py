"""The U-Net's layers as text, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from conformance.execution.case import Absence
from conformance.results.schema import MachineState
from conformance.timing.measurement import Key, Measurement, Ratio, means
from conformance.timing.run import Run, TimedKernel
from conformance.timing.table import ABSENT, finding_lines, laid_out, times, unsteady_lines, wrapped


@dataclass(frozen=True, slots=True)
class Direction:
    """The U-Net's layers in one direction: by problem, then implementation, and who has none."""

    operator: str
    subjects: tuple[TimedKernel, ...]
    times: dict[int, Measurement] = field(default_factory=dict)
    """Subject, by its place -> its time."""
    ratios: dict[Key, Ratio] = field(default_factory=dict)
    state: MachineState = field(default_factory=lambda: MachineState(state="stable"))
    absences: tuple[Absence, ...] = ()

    @property
    def mean(self) -> str:
        """Geometric means by implementation, as text; empty without any, and where the machine was not stable."""
        layers = len({subject.case.problem.name for subject in self.subjects})
        found = means(self.ratios).items() if self.state.state == "stable" else ()
        text = ", ".join(f"{name} {mean:.2f} ({count} of {layers})" for (_, name), (mean, count) in found)
        return text and f"geometric mean relative to torch on the same device: {text}"

    def rows(self) -> list[dict[str, str]]:
        """The text of every column, a row for each kernel."""
        rows = []
        for place, subject in enumerate(self.subjects):
            names = {"layer": subject.case.problem.name.removeprefix("unet.")}
            names |= {"implementation": subject.case.implementation.name, "verdict": status(subject)}
            shown = dict.fromkeys(chain(*UNET_COLUMNS), ABSENT)
            if (time := self.times.get(place)) is not None:
                shown |= times(time, self.ratios.get(time.key))
                if (seen := time.accuracy) is not None:
                    over = "all" if seen.compared == seen.size else f"{seen.compared:,}"
                    shown |= {"max diff": f"{seen.largest:.2e}", "mean diff": f"{seen.mean:.2e}", "over": over}
            rows.append(shown | names)
        return rows


def directions(run: Run, absent: Iterable[Absence]) -> list[Direction]:
    """A run, by operator."""
    best, ratios, state = {m.key: m for m in run.times}, run.ratios, run.state
    absent = list(absent)
    found = []
    names = [subject.case.operator.name for subject in run.subjects] + [one.operator for one in absent]
    for operator in dict.fromkeys(names):
        subjects = tuple(subject for subject in run.subjects if subject.case.operator.name == operator)
        timed = {place: best[time.key] for place, one in enumerate(subjects) if (time := one.time) is not None}
        own = {key: ratio for key, ratio in ratios.items() if key[1] == operator}
        missing = tuple(one for one in absent if one.operator == operator)
        found.append(Direction(operator, subjects, timed, own, state, missing))
    return found


def status(subject: TimedKernel) -> str:
    """Of the verdict; of a kernel that was not reached before the run was interrupted, that."""
    return subject.verdict.status if subject.verdict is not None else "not reached"


UNET_COLUMNS = (
    ("layer", "implementation", "verdict", "ms"),
    ("min", "roof", "x torch"),
    ("TFLOP/s",),
    ("first ms", "in ms", "out ms", "max diff", "mean diff", "over"),
)
LEGEND = (
    "ms: median of calls, each on inputs that are new to the kernel, and the interval that holds it with 95%, from the "
    "visits to the kernel; min: the fastest call; first: the first call, with compilation or loading from a cache; in, "
    "out: copies to the device and back; x torch: torch's time on the same device over this one's (higher is faster); "
    "roof: least time of the operations or the bytes at the ceilings, over this time (* with a finding); diff: "
    "|result - exact|, over all outputs or as many as are named. What does not pass has no time."
)


def text(direction: Direction, width: int) -> Iterator[str]:
    """No lines without kernels. What has no time says why, and how to see it alone."""
    if not direction.subjects:
        return
    heads, *lines = laid_out(UNET_COLUMNS, 2, direction.rows(), width)
    yield from (direction.operator, *heads)
    for subject, row in zip(direction.subjects, lines, strict=True):
        yield from row
        if (verdict := subject.verdict) is not None and verdict.status != "pass":
            words = [verdict.explanation.partition("\n")[0]]
            words += [f"reproduce: {subject.case.command}"] if verdict.status in ("fail", "error") else []
            for line in words:
                yield from wrapped(f"    {line}", width, "      ")
    yield from textwrap.wrap(direction.mean, width)
    yield from finding_lines(direction.times.values(), width)
    yield from unsteady_lines(direction.times.values(), width)


def absences(found: Iterable[Direction], width: int) -> Iterator[str]:
    """One entry for each implementation and reason: which could not run at all."""
    shown = dict.fromkeys((a.status, a.implementation, a.reason) for d in found for a in d.absences)
    for kind, name, reason in shown:
        yield from textwrap.wrap(f"{kind}: {name}: {reason}", width, subsequent_indent="    ")


def markdown(header: Iterable[str], found: Sequence[Direction]) -> Iterator[str]:
    """Lines: the header, then for each direction one table with times alone and one with everything.

    Times alone are layers by implementations: milliseconds and share of the roofline, or the verdict.
    """
    yield from (f"- {_escaped(line)}" for line in header)
    for direction in (d for d in found if d.subjects):
        rows, layers = direction.rows(), dict[str, dict[str, str]]()
        for row in rows:
            time = row["ms"] if row["roof"] == ABSENT else f"{row['ms']} ms, {row['roof']}"
            layers.setdefault(row["layer"], {})[row["implementation"]] = (
                time if row["verdict"] == "pass" else row["verdict"]
            )
        names = list(dict.fromkeys(row["implementation"] for row in rows))
        shown = [[layer, *(here.get(name, ABSENT) for name in names)] for layer, here in layers.items()]
        yield from ("", f"### {direction.operator}", "", *_grid(("layer", *names), shown), "", _escaped(direction.mean))
        columns = tuple(chain(*UNET_COLUMNS))
        yield from ("", *_grid(columns, [[row[name] for name in columns] for row in rows]))
    yield from ("", *(f"- {_escaped(line)}" for line in absences(found, 10**9)))


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(_escaped, heads))} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(_escaped, row))} |"


def _escaped(text: str) -> str:
    """A cell that holds a line break or a bar would end there, and one with a tag would vanish."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


COLUMNS = (
    "operator", "problem", "descriptor", "implementation", "device", "verdict", "reason", "median_s", "minimum_s",
    "low_s", "high_s", "rounds", "visits", "first_call_s", "copy_in_s", "copy_out_s", "flops", "tflop_per_s",
    "roofline_share", "finding", "impossible", "ratio_to_torch", "ratio_low", "ratio_high", "machine", "max_difference",
    "mean_difference", "compared", "elements", "command",
)  # fmt: skip
"""Of the CSV. Seconds are floats in full; what is not known is empty."""


def as_csv(found: Sequence[Direction]) -> str:
    """One line for each kernel, and for each implementation that could not run, below the names of columns."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for direction in found:
        for place, subject in enumerate(direction.subjects):
            case, geometry = subject.case, subject.case.problem.geometry
            record: dict[str, object] = {
                "operator": case.operator.name,
                "problem": case.problem.name,
                "descriptor": geometry.descriptor,
                "implementation": case.implementation.name,
                "device": case.implementation.device,
                "verdict": status(subject),
                "reason": subject.verdict.explanation if subject.verdict is not None else "",
                "flops": case.operator.flops(geometry),
                "command": case.command,
            }
            if (time := direction.times.get(place)) is not None:
                ratio, nothing = direction.ratios.get(time.key), (None, None)
                record |= {
                    "median_s": time.median,
                    "minimum_s": time.minimum,
                    **dict(zip(("low_s", "high_s"), time.interval or nothing, strict=True)),
                    "rounds": len(time.rounds),
                    "visits": len(time.visits),
                    "first_call_s": time.first,
                    "copy_in_s": time.copy_in,
                    "copy_out_s": time.copy_out,
                    "tflop_per_s": time.flops / 1e12,
                    "roofline_share": time.share,
                    "finding": time.finding.text if time.finding else "",
                    "impossible": int(time.impossible),
                    "ratio_to_torch": ratio.value if ratio else None,
                    **dict(zip(("ratio_low", "ratio_high"), (ratio and ratio.interval) or nothing, strict=True)),
                    "machine": direction.state.state,
                }
                if (seen := time.accuracy) is not None:
                    record |= {"max_difference": seen.largest, "mean_difference": seen.mean}
                    record |= {"compared": seen.compared, "elements": seen.size}
            writer.writerow(record)
        for absence in direction.absences:
            names = {"operator": absence.operator, "implementation": absence.implementation, "device": absence.device}
            writer.writerow({**names, "verdict": absence.status, "reason": absence.reason})
    return file.getvalue()
