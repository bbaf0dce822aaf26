"""Benchmark runs: the times of each of the suite's benchmarks, with the record of the verdict before it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from conformance.files import content_of
from conformance.results.benchmarks import document
from conformance.results.reading import RecordError, shown
from conformance.results.schema import MachineState, Record, Timing

LARGEST = 1 << 28
"""Largest number of bytes of a file that is read at all."""
DECISIVE = ("CPU", "cores", "architecture", "device")
"""Facts that must be equal for times to be compared."""
REPEATED = ("python", "machine", "system", "processor")
"""Facts about the machine that a record has as well."""


class RunError(ValueError):
    """A benchmark file that cannot be used; the message names it and the defect."""


class BenchmarkKey(NamedTuple):
    """Identity of a benchmark."""

    device: str
    implementation: str
    operator: str
    problem: str
    dtype: str
    layout: str
    distribution: str


@dataclass(frozen=True, slots=True)
class TimedBenchmark:
    """One benchmark: seconds of the rounds of each visit of each run, and the record of the verdict before them."""

    key: BenchmarkKey
    runs: tuple[tuple[tuple[float, ...], ...], ...]
    record: Record
    timing: Timing

    @property
    def rounds(self) -> tuple[float, ...]:
        return tuple(second for run in self.runs for visit in run for second in visit)

    @property
    def logarithms(self) -> list[list[float]]:
        """Logarithm of each visit's median, run by run."""
        return [[math.log(statistics.median(visit)) for visit in run] for run in self.runs]


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """A file: where it was made, what was timed there, and the machine's condition."""

    name: str
    machine: Mapping[str, str]
    benchmarks: Mapping[BenchmarkKey, TimedBenchmark] = field(repr=False)
    state: MachineState | None = None

    def facts(self, keys: Iterable[BenchmarkKey]) -> dict[str, str]:
        """Return the facts about the machine, and the versions and devices in the records of these benchmarks."""
        names: dict[str, set[str]] = {}
        for name, value in (item for key in keys for item in self.benchmarks[key].record.versions.items()):
            if value != "not installed" and name not in REPEATED:
                names.setdefault(name, set()).add(value)
        return {**self.machine, **{name: ", ".join(sorted(values)) for name, values in names.items()}}


def read(path: Path) -> BenchmarkRun:
    """Read the run in a file. Raises RunError."""
    try:
        return understood(content_of(path, LARGEST), str(path))
    except OSError as problem:
        raise RunError(f"{path}: cannot be read ({problem.strerror})") from None


def understood(content: bytes, name: str) -> BenchmarkRun:
    """Read the run in the bytes of a file called `name`. Raises RunError."""
    benchmarks: dict[BenchmarkKey, TimedBenchmark] = {}
    where = shown(name)
    try:
        contents = document(content)
        for place, benchmark in contents.verified(shown(name)):
            where = place
            record, rounds = benchmark.record(), benchmark.stats.data
            key = BenchmarkKey(*(getattr(record, name) for name in BenchmarkKey._fields))
            if not rounds:
                raise RecordError("has no rounds (stats.data): write it with pytest --benchmark-json=FILE")
            if key in benchmarks:
                raise RecordError(f"times {shown(' '.join(key))} twice")
            timing = benchmark.extras().timing
            benchmarks[key] = TimedBenchmark(key, (_visits(rounds, timing.visits),), record, timing)
    except RecordError as problem:
        raise RunError(f"{where}: {problem}") from None
    if not benchmarks:
        raise RunError(f"{shown(name)}: times no verified kernel (no benchmark holds a record)")
    state = worst(timed.timing.machine for timed in benchmarks.values())
    return BenchmarkRun(name, contents.machine_info.facts, benchmarks, state)


def _visits(rounds: tuple[float, ...], counts: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """Split rounds into visits; in files of earlier versions one visit has all of them. Raises RecordError."""
    if not counts:
        return (rounds,)
    if 0 in counts or sum(counts) != len(rounds):
        raise RecordError(f"has {len(rounds)} rounds, which are not those of its visits ({shown(list(counts))})")
    return tuple(rounds[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True))


def worst(states: Iterable[MachineState | None]) -> MachineState | None:
    """Return the worst of a machine's conditions, with all reasons for it; None if none was judged."""
    judged = [state for state in states if state is not None]
    for name in ("unusable", "noisy", "stable"):
        if alike := [state for state in judged if state.state == name]:
            return MachineState(state=name, reasons=tuple(dict.fromkeys(r for state in alike for r in state.reasons)))
    return None


def pooled(runs: Sequence[BenchmarkRun]) -> BenchmarkRun:
    """Return several runs of the same code as one with all their visits, of what all of them timed. Raises RunError."""
    first = runs[0]
    shared = [key for key in first.benchmarks if all(key in run.benchmarks for run in runs)]
    for run in runs[1:]:
        facts = first.facts(shared), run.facts(shared)
        pairs = {name: (facts[0].get(name), facts[1].get(name)) for name in DECISIVE}
        for key in shared:
            sources = first.benchmarks[key].record.source, run.benchmarks[key].record.source
            pairs[f"the source of {shown(key.implementation)} is"] = sources
        for what, (value, other) in pairs.items():
            if value != other:
                raise RunError(
                    f"{first.name} and {run.name} cannot be taken together: {what} {shown(value)} and {shown(other)}"
                )
    timed = {key: [run.benchmarks[key] for run in runs] for key in shared}
    benchmarks = {
        key: replace(
            repeats[0],
            runs=tuple(run for repeat in repeats for run in repeat.runs),
            timing=next((repeat.timing for repeat in repeats if repeat.timing.doubt), repeats[0].timing),
        )
        for key, repeats in timed.items()
    }
    return replace(first, benchmarks=benchmarks, state=worst(run.state for run in runs))
