"""Benchmark files of pytest-benchmark, with the record of each verdict inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from conformance.reporting.comparison.strict import StrictError, decoded, parsed, shown

LARGEST = 1 << 28
"""Bytes of a file that is read at all."""
PLACES = {
    "CPU": ("cpu", "brand_raw"),
    "cores": ("cpu", "count"),
    "architecture": ("machine",),
    "system": ("system",),
    "kernel": ("release",),
    "Python": ("python_version",),
}
"""Fact about a machine -> where pytest-benchmark writes it."""
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
    record: Mapping[str, Any]

    @property
    def rounds(self) -> tuple[float, ...]:
        """Of all runs."""
        return tuple(second for run in self.runs for second in run)

    @property
    def status(self) -> str:
        """Of the verdict."""
        return str(self.record["status"])

    @property
    def versions(self) -> Mapping[str, Any]:
        """Of everything that the verdict depends on."""
        found = self.record.get("versions")
        return found if isinstance(found, Mapping) else {}


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
        for name, value in (item for key in keys for item in self.benchmarks[key].versions.items()):
            if value != "not installed" and name not in REPEATED:
                names.setdefault(name, set()).add(str(value))
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
    try:
        document = parsed(decoded(content))
        machine = _mapping(_mapping(document, "the document").get("machine_info"), "machine_info")
        rows = document.get("benchmarks")
        if not isinstance(rows, list):
            raise StrictError("has no list 'benchmarks': write it with pytest --benchmark-json=FILE")
        found: dict[Key, Timed] = {}
        for timed in _timed(rows):
            if timed.key in found:
                raise StrictError(f"times {shown(' '.join(timed.key))} twice")
            found[timed.key] = timed
    except StrictError as problem:
        raise RunError(f"{shown(name)}: {problem}") from None
    if not found:
        raise RunError(f"{shown(name)}: times no verified kernel (no benchmark holds a record)")
    origin = _told(document, "datetime"), _told(document, "commit_info", "id")
    return Run(name, {fact: _at(machine, place) for fact, place in PLACES.items()}, found, *origin)


def pooled(runs: Sequence[Run]) -> Run:
    """Several runs of the same code as one with all their rounds; what all of them timed. Raises RunError."""
    first = runs[0]
    shared = [key for key in first.benchmarks if all(key in run.benchmarks for run in runs)]
    for run in runs[1:]:
        for what, one, two in _apart(first, run, shared):
            raise RunError(
                f"{first.name} and {run.name} cannot be taken together: {what} {shown(one)} and {shown(two)}"
            )
    timed = {key: tuple(rounds for run in runs for rounds in run.benchmarks[key].runs) for key in shared}
    found = {key: replace(first.benchmarks[key], runs=timed[key]) for key in shared}
    return replace(first, benchmarks=found)


def _apart(first: Run, other: Run, keys: Sequence[Key]) -> Iterator[tuple[str, object, object]]:
    """In what two runs differ that must be alike to be one."""
    one, two = first.facts(keys), other.facts(keys)
    yield from ((name, one.get(name), two.get(name)) for name in DECISIVE if one.get(name) != two.get(name))
    for key in keys:
        sources = first.benchmarks[key].record.get("source"), other.benchmarks[key].record.get("source")
        if sources[0] != sources[1]:
            yield f"the source of {shown(key.implementation)} is", *sources


def _timed(rows: list[Any]) -> Iterator[Timed]:
    """The benchmarks that hold a record; others have nothing to do with conformance."""
    for number, row in enumerate(rows):
        where = f"benchmark {number}"
        record = _mapping(_mapping(row, where).get("extra_info"), f"{where}, extra_info")
        if "implementation" not in record:
            continue
        missing = [name for name in (*Key._fields, "status") if not isinstance(record.get(name), str)]
        if missing:
            raise StrictError(f"{where}: the record in extra_info has no {', '.join(missing)}")
        _mapping(record.get("timing", {}), f"{where}, timing")
        yield Timed(Key(*(record[name] for name in Key._fields)), (_rounds(row, where),), record)


def _rounds(row: Mapping[str, Any], where: str) -> tuple[float, ...]:
    data = _mapping(row.get("stats"), f"{where}, stats").get("data")
    if not isinstance(data, list) or not data:
        raise StrictError(f"{where} has no rounds (stats.data): write it with pytest --benchmark-json=FILE")
    if not all(type(value) in (int, float) and 0 < value < 1e9 for value in data):
        raise StrictError(f"{where}: a round is not a number of seconds above 0")
    return tuple(map(float, data))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise StrictError(f"{where} is missing or is not an object")
    return value


def _told(document: Mapping[str, Any], *place: str) -> str:
    """Text that a file may lack."""
    found = _at(document, place)
    return "" if found == "unknown" else found


def _at(machine: Mapping[str, Any], place: tuple[str, ...]) -> str:
    found: Any = machine
    for name in place:
        found = found.get(name) if isinstance(found, Mapping) else None
    return "unknown" if found is None else str(found)
