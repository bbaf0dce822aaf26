"""How speed changed from one benchmark file to the next, where several that timed the same were given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.reporting.comparison.compare import ORDER, Comparison, compared, percent, worded
from conformance.reporting.comparison.decide import Answer
from conformance.reporting.comparison.runs import Key, Run
from conformance.reporting.page.model import operator_place
from conformance.reporting.page.plots import Plot, Point
from conformance.reporting.table import Table
from conformance.timing.measurement import means, medians, ratios
from conformance.timing.table import figures

SINGLE = 5
"""Benchmarks that are shown alone."""
HEADS = ("implementation", "what", "outcome", "change of the time", "beside the baseline")


@dataclass(frozen=True, slots=True)
class Step:
    """Two runs on one machine, and what they say about each other."""

    before: Run
    after: Run
    found: Comparison


def steps(runs: Sequence[Run]) -> Iterator[Step]:
    """Each run beside the last one before it that timed something of it on the same machine."""
    for place, after in enumerate(runs):
        earlier = (run for run in reversed(runs[:place]) if run.benchmarks.keys() & after.benchmarks.keys())
        tried = (Step(before, after, compared(before, after)) for before in earlier)
        step = next((step for step in tried if not step.found.refused), None)
        if step is not None:
            yield step


def changes(found: Sequence[Step]) -> Iterator[Table]:
    """One table a step: implementations and their operators, and the single benchmarks that lie furthest apart."""
    for step in found:
        overall = [answer for answer in step.found.answers if answer.overall]
        single = [answer for answer in step.found.answers if not answer.overall]
        overall.sort(key=lambda answer: (answer.implementation, ORDER.index(answer.outcome)))
        rows = tuple(
            (
                a.implementation,
                a.name,
                worded(a.outcome, step.found.threshold),
                percent(a.measured),
                percent(a.relative),
            )
            for a in (*overall, *sorted(single, key=Answer.distance, reverse=True)[:SINGLE])
        )
        counts = Counter(answer.outcome for answer in single)
        words = ", ".join(
            f"{counts[outcome]:,} {worded(outcome, step.found.threshold)}" for outcome in ORDER if counts[outcome]
        )
        unusable = step.found.during("unusable")
        unfit = f"The machine was unusable {unusable}. " if unusable else ""
        note = (
            f"{unfit}Single benchmarks: {words or 'none'}; those furthest apart come last. Changes of less than "
            f"{step.found.threshold:.0%} do not matter; in brackets the interval that holds the change with 95%; the "
            f"baseline is torch on the same device, unchanged"
        )
        yield Table(f"From {step.before.label} to {step.after.label}", HEADS, rows, 3, note)


def trend(found: Sequence[Step]) -> Plot | None:
    """Geometric means relative to torch, run by run, over the problems that all of these runs timed."""
    chain = [found[-1].after] if found else []
    for step in reversed(found):  # the runs that lead to the last one, the earliest first
        if step.after is chain[0]:
            chain.insert(0, step.before)
    shared = [key for key in chain[0].benchmarks if all(key in run.benchmarks for run in chain)] if chain else []
    timed = [_means(run, shared) for run in chain]
    places = sorted({place for known in timed for place in known}, key=lambda p: (operator_place(p[0]), p[1]))
    if not places:
        return None
    points: list[Point] = []
    for number, (run, known) in enumerate(zip(chain, timed, strict=True), 1):
        for operator, name in (place for place in places if place in known):
            mean = known[operator, name]
            says = f"{name}, {operator}, {run.label}: {mean:.2f} times torch"
            points.append({"implementation": name, "panel": operator, "x": number, "y": mean, "says": says})
    rows = tuple(
        (name, operator, *(figures(known.get((operator, name))) for known in timed)) for operator, name in places
    )
    heads = ("implementation", "operator", *(run.label for run in chain))
    text = (
        "Torch's time over the implementation's in the same run, so that the machine's own drift cancels (higher is "
        "faster): geometric means over the problems that all of these runs timed."
    )
    panels = tuple(dict.fromkeys(operator for operator, _ in places))
    return Plot("runs", "Speed run by run", text, tuple(points), panels, Table("Speed run by run", heads, rows, 2))


def unsteady(run: Run) -> str:
    """The state of a run's machine where it was not stable; empty where it was, and of files that do not judge it."""
    states = {timed.timing.machine.state for timed in run.benchmarks.values() if timed.timing.machine} - {"stable"}
    return ", ".join(sorted(states))


def left_out(found: Sequence[Step]) -> str:
    """Runs that have no geometric mean, in words; empty where all have one."""
    runs = {id(run): run for step in found for run in (step.before, step.after)}
    names = [f"{run.label} ({state})" for run in runs.values() if (state := unsteady(run))]
    return (
        f"No geometric mean relative to torch of runs on a machine that was not stable: {'; '.join(names)}."
        if names
        else ""
    )


def _means(run: Run, keys: Sequence[Key]) -> dict[tuple[str, str], float]:
    """(Operator, implementation) -> geometric mean; none where the machine was not stable."""
    if unsteady(run):
        return {}
    seconds = {
        (key.device, key.operator, " ".join(key[3:]), key.implementation): medians(timed.rounds, timed.timing.visits)
        for key in keys
        if not (timed := run.benchmarks[key]).timing.doubt
    }
    return {place: mean for place, (mean, _) in means(ratios(seconds)).items()}
