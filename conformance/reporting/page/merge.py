"""Several files, one report: machines apart, the later verdict on a case in force, contradictions listed.

What the order of files decides is only which of two verdicts on one case is later; files that share no case give the
same report in any order, and the same as one file that holds all of their lines.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.reporting.comparison.runs import Run
from conformance.reporting.page.model import Clocked, Conflict, Machine, Results, Verdict, operator_place
from conformance.reporting.page.reading import TIMED, Source, looked_back_at, read

Record = Mapping[str, Any]
CASE = (
    "operator", "problem", "dtype", "layout", "distribution", "check", "descriptor", "seed", "generator", "method",
    "level",
)  # fmt: skip
"""What tells the cases of an implementation on a machine apart."""
GROUP = ("implementation", "operator", "device", "status", "distribution", "check")
"""What tells apart those that could not be attempted, which are counted and not named."""


def load(paths: Iterable[Path], before: Iterable[Path] = ()) -> Results:
    """Files as one, and those before them only for their history. Raises ReportError."""
    return merged(list(read(paths)), list(looked_back_at(before)))


def merged(sources: Sequence[Source], before: Sequence[Run] = ()) -> Results:
    """Sources in the order in which they were given: the later one wins."""
    places = _Places(sources)
    runs = [source.run for source in sources if source.run is not None]
    saved = [run for run in before if all(run.benchmarks != other.benchmarks for other in runs)]
    verdicts, conflicts = _attempted(sources, places)
    verdicts += [Verdict(places.of(record), record) for record in _absences(sources)]
    return Results(
        tuple(sorted(verdicts, key=_place)),
        _clocked(sources, places),
        tuple(sorted(conflicts)),
        tuple(trouble for source in sources for trouble in source.troubles),
        tuple(sorted({host for source in sources for host in source.hosts if host})),
        tuple(_repeated([*saved, *runs])),
    )


def _repeated(runs: Sequence[Run]) -> Iterator[Run]:
    """Those that timed what another one did: the others are parts of a run."""
    counts = Counter(key for run in runs for key in run.benchmarks)
    return (run for run in runs if any(counts[key] > 1 for key in run.benchmarks))


class _Places:
    """The machine of each record. Those of cases that were not attempted do not name their device: they belong to the
    only machine that has a name, if there is one, unless their device was what was missing."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._named: defaultdict[tuple[str, Machine], set[Machine]] = defaultdict(set)
        for record in (record for source in sources for record in source.records):
            machine = _machine(record)
            if machine.name:
                self._named[record["implementation"], _nameless(machine)].add(machine)
        self._by_device: defaultdict[str, set[Machine]] = defaultdict(set)
        for record in (record for source in sources for record in source.records):
            self._by_device[record["device"]].add(self.of(record))

    def of(self, record: Record) -> Machine:
        """Where a verdict was reached."""
        machine = _machine(record)
        if machine.name or record["status"] == "unavailable":
            return machine
        named = self._named.get((record["implementation"], machine), set())
        return next(iter(named)) if len(named) == 1 else machine

    def of_timing(self, timing: Record) -> Machine:
        """Where a time was taken; a table in CSV names the device alone."""
        if "status" in timing:
            return self.of(timing)
        known = self._by_device.get(timing["device"], set())
        return next(iter(known)) if len(known) == 1 else Machine(timing["device"])


def _machine(record: Record) -> Machine:
    versions, device = record["versions"], record["device"]
    told = versions.get("device", "")
    name = "" if told == device else told
    if device == "cpu":
        name = name or versions.get("processor", "")
    return Machine(device, name, versions.get("machine", ""), versions.get("system", ""))


def _nameless(machine: Machine) -> Machine:
    return Machine(machine.device, "", machine.architecture, machine.system)


def _key(record: Record, machine: Machine) -> tuple[Any, ...]:
    return record["implementation"], machine, *(record.get(name) for name in CASE)


def _attempted(sources: Sequence[Source], places: _Places) -> tuple[list[Verdict], list[Conflict]]:
    """One verdict a case. A line that occurs twice is one verdict, not two."""
    found: dict[tuple[Any, ...], Verdict] = {}
    conflicts: list[Conflict] = []
    newest = {r["implementation"]: r["source"] for source in sources for r in source.records if "source" in r}
    for source in sources:
        for record in filter(_named_case, source.records):
            machine = places.of(record)
            key, stale = _key(record, machine), record.get("source") != newest.get(record["implementation"])
            before = found.get(key)
            if before is not None and before.record == record:
                continue
            found[key] = Verdict(machine, record, before is not None, stale)
            if before is not None and _contradict(before.record, record):
                conflicts.append(Conflict(found[key].title, machine.label, before.status, record["status"]))
    return list(found.values()), conflicts


def _named_case(record: Record) -> bool:
    return "problem" in record


def _contradict(earlier: Record, later: Record) -> bool:
    return earlier["status"] != later["status"] and earlier.get("source") == later.get("source")


def _absences(sources: Sequence[Source]) -> list[Record]:
    """Files that share a case are two runs of the same: of what they count, the larger count stands (the later one if
    equal). Files that share none are parts of a run: what they count adds up."""
    kept: list[tuple[set[tuple[Any, ...]], dict[tuple[Any, ...], list[Record]]]] = []
    for source in sources:
        keys = {_key(record, _machine(record)) for record in source.records if _named_case(record)}
        groups: defaultdict[tuple[Any, ...], list[Record]] = defaultdict(list)
        for record in source.records:
            if not _named_case(record):
                groups[_machine(record), *(record.get(name) for name in GROUP)].append(record)
        for _, earlier in (pair for pair in kept if not pair[0].isdisjoint(keys)):
            for group in earlier.keys() & groups.keys():
                del (groups if _cases(earlier[group]) > _cases(groups[group]) else earlier)[group]
        kept.append((keys, dict(groups)))
    return [record for _, groups in kept for records in groups.values() for record in records]


def _cases(records: Iterable[Record]) -> int:
    return sum(record["cases"] for record in records)


def _clocked(sources: Sequence[Source], places: _Places) -> tuple[Clocked, ...]:
    found: dict[tuple[Any, ...], Clocked] = {}
    for timing in (timing for source in sources for timing in source.timings):
        names = {name: timing[name] for name in TIMED}
        machine = places.of_timing(timing)
        found[machine, *names.values()] = Clocked(
            machine,
            **names,
            seconds=timing["seconds_median"],
            share=timing.get("roofline_share"),
            finding=timing.get("finding", ""),
        )
    return tuple(
        sorted(found.values(), key=lambda c: (operator_place(c.operator), c.problem, c.row, c.dtype, c.layout))
    )


def _place(verdict: Verdict) -> tuple[Any, ...]:
    """Sort key: total, so that two orders of the same lines give the same bytes."""
    record = verdict.record
    first = record["implementation"], verdict.machine, operator_place(record["operator"])
    rest = () if _named_case(record) else (json.dumps(record, sort_keys=True),)
    return *first, *(verdict.text(name) for name in CASE), *rest


def environments(results: Results) -> dict[Machine, dict[str, list[str]]]:
    """Machine -> name -> versions found there, and the implementations that ran."""
    found: defaultdict[Machine, dict[str, Counter[str]]] = defaultdict(dict)
    for verdict in results.verdicts:
        for name, text in verdict.record["versions"].items():
            if name not in ("device", "machine", "system", "processor"):
                found[verdict.machine].setdefault(name, Counter())[text] += 1
    return {m: {name: sorted(texts) for name, texts in sorted(found[m].items())} for m in sorted(found)}
