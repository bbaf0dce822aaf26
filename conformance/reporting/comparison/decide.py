"""From times to outcomes: slower, faster, unchanged within the threshold, or inconclusive.

The unit is the visit: a run times a kernel in several processes, far apart. The rounds of a visit share a process,
which has one of two speeds if the kernel has two; visits show both. What makes unchanged code look changed, and the
guards:

- Visits scatter, and one may meet a process that takes its cores. The guard is Student's t on their logarithms, without
  a fifth at either end (`noise.estimated`): by Welch for an operator or an implementation, on what the visits to its
  problems share; with equal variances for a single kernel beside its siblings, where equal code has equal variances.
- Few visits can agree by chance, and runs differ beyond their visits. A change must also be certain by the scatter of
  all benchmarks' ratios (`noise.scatter`).
- Machines drift, from run to run and within seconds. A visit is compared beside the baseline's (torch, of the same
  sources and versions) to the same problem, seconds before or after it; single kernels beside the other problems of
  their operator as well. A kernel may react to drift more or less than the kernels that it is compared with. So a
  change counts if it exceeds the threshold both as measured and beside these, and still exists with twice the
  correction (for an operator: still exceeds the threshold): a drift raises no alarm in code that reacts to it up to
  twice as much.
- A kernel of two speeds can be at one of them in all visits of A that count, and at the other in all of B: with the
  `VISITS` that a single kernel needs, of which one at either end does not count, 0.8% of such kernels at most.

How often is anything called slower or faster although nothing is? Holm's method (Scandinavian Journal of Statistics 6,
1979) keeps that to the sum of `ALARM` for a whole comparison, 3%, however the questions depend on each other, if visits
scatter normally (bursts make alarms rarer: they widen intervals). Two speeds add 0.8% for each kernel that has them;
two such kernels leave it below `LEVEL`. A single run on each side cannot detect a drift between the runs that affects
one implementation and not the baseline, by more than the threshold: in a simulation in which every implementation
drifts on its own by up to 10%, half of all comparisons raise an alarm, and one in thirteen with three runs of each
taken in turn. `unchanged` raises no alarm and needs its own interval alone, at `LEVEL`: all of it inside the threshold.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from conformance.reporting.comparison import noise
from conformance.reporting.comparison.noise import Error, Estimate, Interval, Sides, estimated
from conformance.reporting.comparison.runs import BenchmarkKey, TimedBenchmark
from conformance.timing.measurement import baseline

LEVEL = 0.05
"""Share of the intervals that may miss."""
ALARM = {True: 0.01, False: 0.02}
"""Probability that anything is called slower or faster although nothing is: whole operators, and single kernels."""
VISITS = 7
"""Least number of visits of each side, for one kernel to be called slower or faster."""
STEADY = 3
"""Least number of rows of the baseline that show the machine's drift."""
SIBLINGS = 3
"""Least number of other problems of an operator beside which a kernel is compared; with fewer it is the baseline."""
EVERYTHING = "all operators"
SLOWER, FASTER, SAME, INCONCLUSIVE = "slower", "faster", "unchanged", "inconclusive"


@dataclass(frozen=True)
class Pair:
    """A benchmark that two runs share."""

    before: TimedBenchmark
    after: TimedBenchmark

    @property
    def key(self) -> BenchmarkKey:
        return self.before.key

    @cached_property
    def sides(self) -> Sides:
        """Logarithms of the visits before and after, relative to the benchmark's own middle."""
        sides = self.before.logarithms, self.after.logarithms
        middle = statistics.fmean(statistics.median(value for run in side for value in run) for side in sides)
        return [[[value - middle for value in run] for run in side] for side in sides]

    @property
    def steady(self) -> bool:
        """True if this is a baseline that has not changed."""
        before, after = self.before, self.after
        same = before.record.source == after.record.source and before.record.versions == after.record.versions
        return same and self.key.implementation == baseline(self.key.device)


@dataclass(frozen=True, slots=True)
class Question:
    """The question of how the time of one benchmark, or of an operator's, changed: as measured, beside the baseline
    (the same if there is none), and beside the control that tells whether a change is certain."""

    key: BenchmarkKey
    name: str
    overall: bool
    measured: Estimate
    relative: Estimate
    control: Estimate

    def outcome(self, certain: bool, limit: float) -> str:
        """Return the outcome; `certain` says whether there is a change at all, and changes of less than `limit` do not
        matter."""
        measured, beside = self.measured.middle, (self.relative.middle, self.control.middle)
        twice = [2 * middle - measured for middle in beside]
        least = limit if self.overall else 0.0  # one kernel scatters more than the drift is worth
        for outcome, sign in ((SLOWER, 1), (FASTER, -1)) if certain else ():
            moved = min(sign * middle for middle in (measured, *beside)) > limit
            if moved and min(sign * middle for middle in twice) > least:
                return outcome
        interval = self.relative.interval(LEVEL)
        return SAME if -limit < interval.low and interval.high < limit else INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question; its intervals are those of the question alone, at `LEVEL`."""

    implementation: str
    device: str
    name: str
    outcome: str
    measured: Interval
    relative: Interval
    overall: bool
    """Whether the answer is about all problems of an operator."""

    def distance(self) -> float:
        """Return how far the ratio lies from 1, as a logarithm."""
        return abs(self.relative.middle)


@dataclass(frozen=True, slots=True)
class MachineNoise:
    """What the ratios say about the machine: by device, what the baseline's visits share, if there are enough of them,
    and their drift; the baseline on each problem, by the key without an implementation; and the scatter of ratios."""

    steady: dict[str, Sides]
    drifts: dict[str, Interval]
    base: dict[BenchmarkKey, Pair]
    scatter: Error

    def is_control(self, pair: Pair) -> bool:
        """Return whether a pair is a baseline by which other pairs are judged."""
        return pair.steady and pair.key.device in self.steady

    def beside(self, pair: Pair) -> Sides:
        """Return a pair's visits beside the baseline's to the same problem, which were made within seconds of each
        other; else beside what all visits to the baseline share; unchanged if there is no baseline."""
        if baseline_pair := self.base.get(pair.key._replace(implementation="")):
            return noise.beside(pair.sides, baseline_pair.sides)
        steady = self.steady.get(pair.key.device)
        return noise.beside(pair.sides, steady) if steady else pair.sides


def surveyed(pairs: Sequence[Pair]) -> MachineNoise:
    """Return what the ratios of two runs say about the machine."""
    by_device: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.steady:
            by_device[pair.key.device].append(pair)
    rows = {device: baseline_pairs for device, baseline_pairs in by_device.items() if len(baseline_pairs) >= STEADY}
    steady = {device: noise.common([pair.sides for pair in baseline_pairs]) for device, baseline_pairs in rows.items()}
    base = {pair.key._replace(implementation=""): pair for baseline_pairs in rows.values() for pair in baseline_pairs}
    machine = MachineNoise(steady, {}, base, Error())
    groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for pair in pairs:
        if not machine.is_control(pair):
            groups[pair.key[:3]].append(estimated(machine.beside(pair), Error()).middle)
    scatter = noise.scatter(list(groups.values()))
    drifts = {
        device: estimated(steady[device], _shared(scatter, len(baseline_pairs))).interval(LEVEL)
        for device, baseline_pairs in rows.items()
    }
    return replace(machine, drifts=drifts, scatter=scatter)


def answers(pairs: Sequence[Pair], machine: MachineNoise, threshold: float) -> Iterator[Answer]:
    """Yield every answer for which a ratio of 1 + `threshold` matters, one implementation after the other."""
    questions = list(_questions(pairs, machine))
    # the number of questions depends on how many visits there are, not on their times
    families = {whole: [q for q in questions if q.overall is whole and q.control.is_finite] for whole in ALARM}
    certain = {id(q) for whole, family in families.items() for q in sure(family, ALARM[whole])}
    for q in questions:
        bounds = q.measured.interval(LEVEL), q.relative.interval(LEVEL)
        outcome = q.outcome(id(q) in certain, math.log1p(threshold))
        yield Answer(q.key.implementation, q.key.device, q.name, outcome, *bounds, q.overall)


def sure(questions: Sequence[Question], error: float) -> Iterator[Question]:
    """Yield the questions about a change that is certain, by Holm's method: the probability that any of them is about
    none is at most `error`."""
    ordered = sorted(questions, key=lambda q: q.control.p)
    for place, question in enumerate(ordered):
        if question.control.p > error / (len(ordered) - place):
            return
        yield question


def _questions(pairs: Sequence[Pair], machine: MachineNoise) -> Iterator[Question]:
    for device, implementation in dict.fromkeys(p.key[:2] for p in pairs):
        kernel_pairs = [p for p in pairs if p.key[:2] == (device, implementation) and not machine.is_control(p)]
        operators = dict.fromkeys(pair.key.operator for pair in kernel_pairs)
        for what in (*([EVERYTHING] if len(operators) > 1 else []), *operators):
            here = [pair for pair in kernel_pairs if what in (pair.key.operator, EVERYTHING)]
            if len(here) > 1:
                yield _whole(what, here, machine)
        for pair in kernel_pairs:
            yield _alone(pair, [p for p in kernel_pairs if p.key[:3] == pair.key[:3] and p is not pair], machine)


def _whole(what: str, here: Sequence[Pair], machine: MachineNoise) -> Question:
    """Return the question about all problems of an operator, or of all; beside the baseline if that has all of them."""
    error = _shared(machine.scatter, len(here))
    measured = relative = estimated(noise.common([pair.sides for pair in here]), error)
    if all(pair.key._replace(implementation="") in machine.base for pair in here):
        relative = estimated(noise.common([machine.beside(pair) for pair in here]), error)
    return Question(here[0].key, f"{what} ({len(here)} problems)", True, measured, relative, relative)


def _alone(pair: Pair, siblings: Sequence[Pair], machine: MachineNoise) -> Question:
    """Return the question about one benchmark. Whether it is slower or faster is decided beside its siblings, which a
    load slows as well; unchanged code then scatters alike on both sides."""
    beside = family = machine.beside(pair)
    if len(siblings) >= SIBLINGS:
        family = noise.beside(beside, noise.common([machine.beside(sibling) for sibling in siblings]))
    control = estimated(family, machine.scatter, alike=True)
    if min(sum(len(run) for run in side) for side in family) < VISITS:
        control = Estimate(control.middle)
    measured, relative = (estimated(sides, machine.scatter) for sides in (pair.sides, beside))
    return Question(pair.key, f"{pair.key.operator} {pair.key.problem}", False, measured, relative, control)


def _shared(scatter: Error, count: float) -> Error:
    """Return the error of what `count` ratios share."""
    return Error(scatter.deviation / math.sqrt(count), scatter.freedom)
