"""From times to outcomes: slower, faster, no change, or inconclusive.

Two things make unchanged code look changed, and each has its own guard.

- Noise. A benchmark's ratio is uncertain by the scatter of its rounds (`noise.shift`) and by that of whole runs, which
  rounds taken one after the other do not see: most scatter by a few percent, which is measured on all ratios that two
  runs share, but some have two speeds (threads on one core or on two, say) of which a run has one, and unchanged code
  differed by 68%. So a single benchmark is called slower or faster only where runs of its own tell how they scatter,
  two or more on each side; that one with two speeds happens to have another on each side is 3% with three runs a side,
  0.2% with five. The ratio of an implementation, and of one of its operators, is the centre of its problems' ratios,
  which scatter as runs do: one run on each side can tell.
- Drift of the machine. The baseline, where its sources and versions are the same, tells how much the machine itself
  changed. A load slows one kernel more than another, so that its ratio is no exact correction: slower is what is
  slower both as measured and beside the baseline.

Each implementation asks many questions at once. Slower and faster are corrected for their number by Holm's method
(1979), whole operators and single benchmarks each with half of `LEVEL`: a false alarm anywhere among them has a
probability of `LEVEL` at most, however they depend on each other. Controlling
the false discovery rate instead would let one alarm in twenty be false, and a gate that cries wolf is switched off.
`no change` raises no alarm and needs the benchmark's own interval alone.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.reporting.comparison import noise
from conformance.reporting.comparison.noise import Interval
from conformance.reporting.comparison.runs import Key, Timed
from conformance.timing.measurement import baseline

LEVEL = 0.05
RANKED = 12
"""Values from which ranks are used: of fewer, none is rare enough to be certain among many questions."""
EVERYTHING = "all operators"
SLOWER, FASTER, SAME, INCONCLUSIVE = "slower", "faster", "no change", "inconclusive"


@dataclass(frozen=True, slots=True)
class Pair:
    """A benchmark that two runs share."""

    before: Timed
    after: Timed

    @property
    def key(self) -> Key:
        return self.before.key

    def shift(self, level: float) -> Interval:
        """Logarithm of the seconds after over those before, as the rounds tell it."""
        before, after = ([math.log(seconds) for seconds in run.rounds] for run in (self.before, self.after))
        return noise.shift(before, after, level)

    def between(self, level: float, scale: float) -> float:
        """Within what runs of unchanged code would differ; the ratio of one to another scatters by `scale` or more."""
        before, after = (
            [math.log(statistics.median(rounds)) for rounds in side.runs] for side in (self.before, self.after)
        )
        return noise.apart(before, after, level, scale / math.sqrt(1 / len(before) + 1 / len(after)))

    @property
    def ratio(self) -> float:
        return self.shift(LEVEL).middle

    @property
    def steady(self) -> bool:
        """Whether this is a baseline that has not changed."""
        one, two = self.before, self.after
        same = one.record.source == two.record.source and one.record.versions == two.record.versions
        return same and self.key.implementation == baseline(self.key.device)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The logarithm of a ratio as measured, and beside the baseline; the same where there is none."""

    measured: Interval
    relative: Interval

    def outcome(self, limit: float) -> str:
        """What can be said, where changes of less than `limit` do not matter."""
        both = (self.measured, self.relative)
        if all(interval.low > 0 for interval in both) and self.relative.middle > limit:
            return SLOWER
        if all(interval.high < 0 for interval in both) and self.relative.middle < -limit:
            return FASTER
        return SAME if -limit < self.relative.low and self.relative.high < limit else INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class One:
    """The question about one benchmark. `scale` is the scatter of runs, `drift` that of the machine."""

    pair: Pair
    scale: float
    drift: Interval | None

    @property
    def name(self) -> str:
        return f"{self.pair.key.operator} {self.pair.key.problem}"

    @property
    def decisive(self) -> bool:
        return min(len(self.pair.before.runs), len(self.pair.after.runs)) > 1

    def bounds(self, level: float) -> Bounds:
        """Rounds and runs both have their say: the interval covers what either leaves open."""
        rounds, reach = self.pair.shift(level), noise.reach(level) * self.scale
        if self.decisive:
            reach = max(reach, self.pair.between(level, self.scale))
        low, high = min(rounds.low, rounds.middle - reach), max(rounds.high, rounds.middle + reach)
        measured = Interval(low, rounds.middle, high)
        if self.drift is None:
            return Bounds(measured, measured)
        room = (self.drift.high - self.drift.low) / 2
        return Bounds(measured, measured.shifted(-self.drift.middle).widened(room))


@dataclass(frozen=True, slots=True)
class All:
    """The question about an implementation's ratios in one operator, or in all. `base` has the baseline's on the same
    problems; `scale` is the scatter of runs."""

    what: str
    ratios: tuple[float, ...]
    base: tuple[float, ...]
    scale: float
    decisive: bool = True

    @property
    def name(self) -> str:
        return f"{self.what}, geometric mean of {len(self.ratios)}"

    def bounds(self, level: float) -> Bounds:
        """Of the centre of the ratios, which is their geometric mean where no run was disturbed."""
        measured = _centre(self.ratios, level, self.scale)
        if not self.base:
            return Bounds(measured, measured)
        beside = [a - b for a, b in zip(self.ratios, self.base, strict=True)]
        return Bounds(measured, _centre(beside, level, self.scale * math.sqrt(2)))


Question = One | All


def _centre(values: Sequence[float], level: float, scale: float) -> Interval:
    """By ranks, unless there are too few of them to reach the level of one question among many."""
    return noise.centre(values, level) if len(values) >= RANKED else noise.mean(values, level, scale)


@dataclass(frozen=True, slots=True)
class Answer:
    """What can be said about a question; `bounds` are those of its own, at `LEVEL`."""

    implementation: str
    device: str
    name: str
    outcome: str
    bounds: Bounds
    overall: bool
    """Whether it is about all problems of an operator."""

    def distance(self) -> float:
        """How far the ratio lies from no change, as a logarithm."""
        return abs(self.bounds.relative.middle)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the ratios say about the machine: device -> drift, where known; and the scatter of runs."""

    drifts: dict[str, Interval]
    scale: float


def surveyed(pairs: Sequence[Pair]) -> Machine:
    """The machine behind two runs. A device has a drift where six baseline rows or more tell of it."""
    groups: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    steady: defaultdict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        groups[pair.key.device, pair.key.implementation, pair.key.operator].append(pair.ratio)
        if pair.steady:
            steady[pair.key.device].append(pair.ratio)
    known = {device: noise.centre(ratios, LEVEL) for device, ratios in steady.items()}
    drifts = {device: drift for device, drift in known.items() if math.isfinite(drift.low)}
    return Machine(drifts, noise.scale(list(groups.values())))


def answers(pairs: Sequence[Pair], machine: Machine, threshold: float) -> Iterator[Answer]:
    """Everything that can be said where a ratio of 1 + `threshold` matters, one implementation after the other."""
    for device, implementation in dict.fromkeys((p.key.device, p.key.implementation) for p in pairs):
        own = [
            p for p in pairs if p.key[:2] == (device, implementation) and not (p.steady and device in machine.drifts)
        ]
        single = [One(pair, machine.scale, machine.drifts.get(device)) for pair in own]
        families: tuple[Sequence[Question], ...] = list(_overall(own, pairs, machine)), single
        deciding = sum(any(question.decisive for question in asked) for asked in families)
        for asked in families:
            found = settled(asked, math.log1p(threshold), LEVEL / max(deciding, 1))
            for question, outcome in zip(asked, found, strict=True):
                overall = isinstance(question, All)
                yield Answer(implementation, device, question.name, outcome, question.bounds(LEVEL), overall)


def settled(questions: Sequence[Question], limit: float, error: float) -> list[str]:
    """The outcome of each, where any false alarm has a probability of `error` at most.

    Each round of Holm's method asks about what is left, less strictly.
    """
    found = [INCONCLUSIVE] * len(questions)
    left = {i for i, question in enumerate(questions) if question.decisive}
    while left:
        now = {i: questions[i].bounds(error / len(left)).outcome(limit) for i in left}
        changed = {i for i in left if now[i] in (SLOWER, FASTER)}
        if not changed:
            break
        for i in changed:
            found[i] = now[i]
        left -= changed
    for i in (i for i in range(len(questions)) if found[i] == INCONCLUSIVE):
        found[i] = SAME if questions[i].bounds(LEVEL).outcome(limit) == SAME else INCONCLUSIVE
    return found


def _overall(own: Sequence[Pair], pairs: Sequence[Pair], machine: Machine) -> Iterator[All]:
    """One for all operators and one for each that has several problems; beside the baseline where it was timed on every
    one of the problems."""
    base = {p.key._replace(implementation=""): p.ratio for p in pairs if p.steady and p.key.device in machine.drifts}
    ratios = {pair.key._replace(implementation=""): pair.ratio for pair in own}
    operators = dict.fromkeys(key.operator for key in ratios)
    for what in (*([EVERYTHING] if len(operators) > 1 else []), *operators):
        here = {key: ratio for key, ratio in ratios.items() if what in (key.operator, EVERYTHING)}
        beside = tuple(base[key] for key in here if key in base)
        if len(here) > 1:
            yield All(what, tuple(here.values()), beside if len(beside) == len(here) else (), machine.scale)
