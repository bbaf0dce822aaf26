"""Several files, one report: machines apart, and the later verdict on a case in force.

What the order of files decides is only which of two verdicts on one case is later; files that share no case give the
same report in any order, and the same as one file that holds all of their lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.reporting.page.model import Clocked, Machine, ReportedVerdict, Results, dtype_place, operator_place
from conformance.reporting.page.reading import ResultsFile, read
from conformance.results.schema import Attempt, Record
from conformance.results.writing import encode

CASE = (
    "operator", "problem", "dtype", "layout", "distribution", "storage", "check", "descriptor", "seed", "generator",
    "method", "level",
)  # fmt: skip
"""What tells the cases of an implementation on a machine apart."""
GROUP = ("implementation", "operator", "device", "status", "distribution", "check")
"""What tells apart those that could not be attempted, which are counted and not named."""
Place = tuple[Any, ...]


def load(paths: Iterable[Path]) -> Results:
    """Files as one. Raises ReportError."""
    return merged(list(read(paths)))


def merged(sources: Sequence[ResultsFile]) -> Results:
    """Sources in the order in which they were given: the later one wins."""
    places = _Places(sources)
    verdicts = _attempted(sources, places)
    verdicts += [ReportedVerdict(places.of(record), record) for record in _absences(sources)]
    return Results(
        tuple(sorted(verdicts, key=_place)),
        _clocked(sources, places),
        tuple(error for source in sources for error in source.errors),
    )


class _Places:
    """The machine of each record. Those of cases that were not attempted do not name their device: they belong to the
    only machine that has a name, if there is one, unless their device was what was missing."""

    def __init__(self, sources: Sequence[ResultsFile]) -> None:
        every = [record for source in sources for record in source.records]
        self._named: defaultdict[tuple[str, Machine], set[Machine]] = defaultdict(set)
        for record in every:
            machine = Machine.of(record)
            if machine.name:
                self._named[record.implementation, replace(machine, name="")].add(machine)

    def of(self, record: Record) -> Machine:
        """Where a verdict was reached."""
        machine = Machine.of(record)
        if machine.name or record.status == "unavailable":
            return machine
        named = self._named.get((record.implementation, machine), set())
        return next(iter(named)) if len(named) == 1 else machine


def _key(record: Record, machine: Machine) -> Place:
    return record.implementation, machine, *(getattr(record, name) for name in CASE)


def _attempted(sources: Sequence[ResultsFile], places: _Places) -> list[ReportedVerdict]:
    """One verdict a case, the latest: a line that occurs twice is one verdict, not two."""
    found: dict[Place, ReportedVerdict] = {}
    for record in (r for source in sources for r in source.records if isinstance(r, Attempt)):
        machine = places.of(record)
        found[_key(record, machine)] = ReportedVerdict(machine, record)
    return list(found.values())


def _absences(sources: Sequence[ResultsFile]) -> list[Record]:
    """Files that share a case are two runs of the same: of what they count, the larger count stands (the later one if
    equal). Files that share none are parts of a run: what they count adds up."""
    kept: list[tuple[set[Place], dict[Place, list[Record]]]] = []
    for source in sources:
        keys = {_key(record, Machine.of(record)) for record in source.records if isinstance(record, Attempt)}
        groups: defaultdict[Place, list[Record]] = defaultdict(list)
        for record in source.records:
            if not isinstance(record, Attempt):
                groups[Machine.of(record), *(getattr(record, name) for name in GROUP)].append(record)
        for _, earlier in (pair for pair in kept if not pair[0].isdisjoint(keys)):
            for group in earlier.keys() & groups.keys():
                before, now = (sum(record.cases for record in held[group]) for held in (earlier, groups))
                del (groups if before > now else earlier)[group]
        kept.append((keys, dict(groups)))
    return [record for _, groups in kept for records in groups.values() for record in records]


def _clocked(sources: Sequence[ResultsFile], places: _Places) -> tuple[Clocked, ...]:
    """One time a kernel, the latest."""
    found: dict[Place, Clocked] = {}
    for time in (time for source in sources for time in source.times):
        here = replace(time, machine=places.of(time.record))
        found[*here.row, here.operator, here.problem] = here
    return tuple(sorted(found.values(), key=_time_place))


def _time_place(clocked: Clocked) -> Place:
    """Sort key: dtypes as the suite lists them."""
    record = clocked.record
    variant = dtype_place(record.dtype), record.layout
    return operator_place(record.operator), record.problem, clocked.row, *variant


def _place(verdict: ReportedVerdict) -> Place:
    """Sort key: total, so that two orders of the same lines give the same bytes."""
    record = verdict.record
    rest = () if isinstance(record, Attempt) else (encode(record),)
    first = (record.implementation, verdict.machine, operator_place(record.operator), record.problem)
    return *first, dtype_place(record.dtype), *map(record.text, CASE), *rest
