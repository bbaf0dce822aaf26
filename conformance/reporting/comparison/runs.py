"""Benchmark runs: what each of the suite's benchmarks took, with the record of the verdict before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from conformance.results.benchmarks import document
from conformance.results.reading import RecordError, shown
from conformance.results.schema import Record, Timing

LARGEST = 1 << 28
"""Bytes of a file that is read at all."""
DECISIVE = ("CPU", "cores", "architecture", "device")
"""Facts without which times say nothing about each other."""
REPEATED = ("python", "machine", "system", "processor")
"""Facts that a record tells as well."""


class RunError(ValueError):
    """A benchmark file that cannot be used; the message names it and the defect."""


class Key(NamedTuple):
    """What was timed."""

    device: str
    implementation: str
    operator: str
    problem: str
    dtype: str
    layout: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Timed:
    """One benchmark: seconds of the rounds of each run, and the record of the verdict before them."""

    key: Key
    runs: tuple[tuple[float, ...], ...]
    record: Record
    timing: Timing

    @property
    def rounds(self) -> tuple[float, ...]:
        return tuple(second for run in self.runs for second in run)


@dataclass(frozen=True, slots=True)
class Run:
    """A file: where and when it was made, of which commit, and what was timed there."""

    name: str
    machine: Mapping[str, str]
    benchmarks: Mapping[Key, Timed] = field(repr=False)
    when: str = ""
    commit: str = ""

    @property
    def label(self) -> str:
        """When, and of which commit; the file's name where it does not say."""
        return ", ".join(filter(None, (self.when[:19].replace("T", " "), self.commit[:10]))) or self.name

    def facts(self, keys: Iterable[Key]) -> dict[str, str]:
        """The machine, and what the records of these benchmarks say about versions and devices."""
        names: dict[str, set[str]] = {}
        for name, value in (item for key in keys for item in self.benchmarks[key].record.versions.items()):
            if value != "not installed" and name not in REPEATED:
                names.setdefault(name, set()).add(value)
        return {**self.machine, **{name: ", ".join(sorted(values)) for name, values in names.items()}}


def read(path: Path) -> Run:
    """The run in a file. Raises RunError."""
    try:
        if path.stat().st_size > LARGEST:
            raise RunError(f"{path}: is larger than {LARGEST >> 20} MiB")
        return understood(path.read_bytes(), str(path))
    except OSError as problem:
        raise RunError(f"{path}: cannot be read ({problem.strerror})") from None


def understood(content: bytes, name: str) -> Run:
    """The run in the bytes of a file called `name`. Raises RunError."""
    found: dict[Key, Timed] = {}
    where = shown(name)
    try:
        held = document(content)
        for place, benchmark in held.verified(shown(name)):
            where = place
            record, rounds = benchmark.record(), benchmark.stats.data
            key = Key(*(getattr(record, name) for name in Key._fields))
            if not rounds:
                raise RecordError("has no rounds (stats.data): write it with pytest --benchmark-json=FILE")
            if key in found:
                raise RecordError(f"times {shown(' '.join(key))} twice")
            found[key] = Timed(key, (rounds,), record, benchmark.extras().timing)
    except RecordError as problem:
        raise RunError(f"{where}: {problem}") from None
    if not found:
        raise RunError(f"{shown(name)}: times no verified kernel (no benchmark holds a record)")
    return Run(name, held.machine_info.facts, found, held.datetime, held.commit_info.id or "")


def pooled(runs: Sequence[Run]) -> Run:
    """Several runs of the same code as one with all their rounds; what all of them timed. Raises RunError."""
    first = runs[0]
    shared = [key for key in first.benchmarks if all(key in run.benchmarks for run in runs)]
    for run in runs[1:]:
        facts = first.facts(shared), run.facts(shared)
        pairs = {name: (facts[0].get(name), facts[1].get(name)) for name in DECISIVE}
        for key in shared:
            sources = first.benchmarks[key].record.source, run.benchmarks[key].record.source
            pairs[f"the source of {shown(key.implementation)} is"] = sources
        for what, (one, two) in pairs.items():
            if one != two:
                raise RunError(
                    f"{first.name} and {run.name} cannot be taken together: {what} {shown(one)} and {shown(two)}"
                )
    timed = {key: tuple(rounds for run in runs for rounds in run.benchmarks[key].runs) for key in shared}
    return replace(first, benchmarks={key: replace(first.benchmarks[key], runs=timed[key]) for key in shared})
