"""Files of results, read and merged: records (JSON lines), and pytest-benchmark's JSON with the record of each verdict
inside. Machines are kept apart, and the later verdict on a case counts.

The order of files says nothing: the run that began later has the later verdict, where files say when their runs began.
"""

from __future__ import annotations

import hashlib
import itertools
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from conformance.dtypes import dtype_place
from conformance.exit_codes import ExitCode
from conformance.files import content_of
from conformance.reporting.failures import is_deciding
from conformance.reporting.page.model import (
    Clocked,
    Machine,
    Period,
    ReportedVerdict,
    Results,
    operator_place,
)
from conformance.reporting.report_command import ReportError
from conformance.results import benchmarks
from conformance.results.reading import RecordError, SchemaError, decode, runs
from conformance.results.schema import Attempt, Extras, Footer, Record
from conformance.results.units import UnitRun, missing, mixed
from conformance.results.writing import encode
from conformance.timing.measurement import medians

CASE = (
    "operator", "problem", "dtype", "layout", "distribution", "storage", "check", "descriptor", "seed", "generator",
    "method", "level",
)  # fmt: skip
"""Fields that distinguish the cases of an implementation on a machine."""
WHOLE = ("--impl", "-m")
"""Options with which all cases of a kernel run, in one run or in several whose files are merged."""
GROUP = ("implementation", "operator", "device", "status", "distribution", "check")
"""Fields that distinguish groups of cases that could not be attempted, which are counted and not named."""
ALIKE = (
    "implementation", "operator", "device", "versions", "reason", "run_level", "source", "problem", "descriptor",
    "dtype", "layout", "distribution", "storage", "check", "generator", "method", "level", "contract", "terms",
)  # fmt: skip
"""Fields of a record whose values many records share."""
MAX_BYTES = 1 << 30
"""Bytes of a file of results: about 700,000 records."""
A = TypeVar("A")
T = TypeVar("T")
Place = tuple[Any, ...]


def load(paths: Iterable[Path]) -> Results:
    """Read files as one. Raises ReportError."""
    return merged(list(read(paths)))


def merged(sources: Sequence[ResultsFile]) -> Results:
    """Merge sources in the order in which their runs began, or as they were given where one does not say that. Of two
    verdicts on a case the later one counts: a badge of two runs depended on which file was named last."""
    if all(source.periods for source in sources):
        sources = sorted(sources, key=lambda source: max(period.began for period in source.periods))
    places = _Places(sources)
    # one verdict a case, the latest: a line that occurs twice is one verdict, not two; and one time a kernel
    attempted: dict[Place, ReportedVerdict] = {}
    clocked: dict[Place, Clocked] = {}
    outdated = _outdated(sources)
    for number, source in enumerate(sources):
        for record in source.records:
            if not isinstance(record, Attempt) or (is_deciding(record) and (number, record.implementation) in outdated):
                continue
            machine = places.of(record)
            # a case that was read off the kernel has a second record, with what was read
            key = *_key(record, machine), bool(record.reading)
            if not is_deciding(record) or key not in attempted:  # a problem run to locate a failure replaces nothing
                attempted[key] = ReportedVerdict(machine, record)
        for time in source.times:
            here = replace(time, machine=places.of(time.record))
            clocked[*here.row, here.operator, here.problem] = here
    choices = [choice for source in sources for choice in source.choices]
    units = [unit for source in sources for unit in source.units]
    absent = (ReportedVerdict(places.of(record), record) for record in _absences(sources))
    return Results(
        tuple(sorted((*attempted.values(), *absent), key=_place)),
        tuple(sorted(clocked.values(), key=_time_place)),
        (*(error for source in sources for error in source.errors), *missing(units), *mixed(units)),
        tuple(sorted({period for source in sources for period in source.periods})),
        tuple(sorted({*itertools.chain(*choices)})) if all(choices) else (),
    )


@dataclass(slots=True)
class ResultsFile:
    """The contents of one file."""

    name: str
    records: list[Record] = field(default_factory=list)
    times: list[Clocked] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)
    choices: list[list[str]] = field(default_factory=list)
    """The options of each run that leave out cases of its kernels, as words of a command line."""
    units: list[UnitRun] = field(default_factory=list)
    """The units that have come to their end."""

    def ran(self, began: str, ended: str = "") -> None:
        """Note when a run was, if the times can be read."""
        if (period := Period.of(began, ended)) is not None:
            self.periods.append(period)

    def take(self, place: str, read: Callable[[A], T], what: A) -> T | None:
        """Read `what`; note the defect and return None if it is not a record. Raises SchemaError for a record of
        another version."""
        try:
            return read(what)
        except SchemaError as problem:
            raise SchemaError(f"{place}: {problem}") from None
        except RecordError as problem:
            self.errors.append(f"{place}: {problem}; left out")
            return None


def read(paths: Iterable[Path]) -> Iterator[ResultsFile]:
    """Yield the files in their order, without repeated content. Raises ReportError, also for another schema."""
    digests: set[bytes] = set()
    shared: dict[Any, Any] = {}
    for path in paths:
        try:
            content = content_of(path, MAX_BYTES)
        except OSError as problem:
            raise ReportError(f"{path}: cannot be read ({problem.strerror}); give files of records") from None
        digest = hashlib.sha256(content).digest()
        if digest not in digests:
            digests.add(digest)
            # a file's name may have bytes that no text can hold
            source = ResultsFile(path.name.encode("utf-8", "replace").decode("utf-8"))
            try:
                _fill(source, content, shared)
            except SchemaError as problem:
                raise ReportError(str(problem)) from None
            yield source


def _fill(source: ResultsFile, content: bytes, shared: dict[Any, Any]) -> None:
    if benchmarks.is_document(content):
        _read_benchmarks(source, content)
    else:
        for run in runs(content, source.name):
            unit = None
            try:
                run.require_whole()
            except RecordError as problem:
                source.errors.append(str(problem))
            if not run.fits:  # nobody knows what its kernels did
                continue
            if run.headers:
                source.ran(run.headers[0].started, run.footer.ended if run.footer else "")
                header = run.headers[0]
                selection = header.selection.items()
                source.choices.append([shlex.join((name, *values)) for name, values in selection if name not in WHOLE])
                unit = UnitRun.of(header, source.name)
                if unit is not None and run.footer is not None and not run.footer.interrupted:
                    source.units.append(unit)
            for place, line in run.lines():
                if (record := source.take(place, decode, line)) is not None:
                    if unit is not None:
                        unit.take(record)
                    source.records.append(_lean(record, shared))
            if run.headers and run.footer is not None and (ended := unexplained(run.footer)):
                source.errors.append(f"{source.name}: {run.title} ended with {ended}")
    if not (source.records or source.times or source.errors):
        source.errors.append(f"{source.name}: holds no verdict")


def unexplained(footer: Footer) -> str:
    """Return a run's exit status that its cases do not explain, with its meaning; empty for all others."""
    status, cases = footer.exit_status, footer.cases
    failed = status == ExitCode.BAD and (cases.get("fail") or cases.get("error"))
    nothing = status == ExitCode.NOTHING and not cases.get("pass")
    if failed or nothing or footer.interrupted or status == ExitCode.GOOD:
        return ""
    return ": ".join([str(status), *(code.meaning for code in ExitCode if code == status)])


def _lean(record: Record, shared: dict[Any, Any]) -> Record:
    """Return the record with the texts and tables that many records share held once: a third of the memory."""
    for name in ALIKE:
        value = getattr(record, name)
        key = msgspec.json.encode(value) if isinstance(value, dict) else value
        msgspec.structs.force_setattr(record, name, shared.setdefault(key, value))
    return record


def _read_benchmarks(source: ResultsFile, content: bytes) -> None:
    """Add the records and times of a benchmark file; benchmarks of other projects have no record and are skipped."""
    document = source.take(source.name, benchmarks.document, content)
    if document is None:
        return
    source.ran(document.datetime)
    for place, benchmark in document.verified(source.name):
        verified = source.take(place, _verdict, benchmark)
        if verified is None:
            continue
        record, extras = verified
        source.records.append(record)
        if benchmark.stats.median and record.status == "pass" and isinstance(record, Attempt):
            timing, rounds = extras.timing, benchmark.stats.data
            if rounds and timing.minimum_s is None:
                timing = msgspec.structs.replace(timing, minimum_s=min(rounds))
            clocked = Clocked(
                Machine.of(record),
                record,
                benchmark.stats.median,
                share=extras.roofline_share or None,
                timing=timing,
                visits=medians(rounds, timing.visits) if rounds else (),
                run=document.datetime or source.name,
            )
            source.times.append(clocked)


def _verdict(benchmark: benchmarks.Benchmark) -> tuple[Record, Extras]:
    return benchmark.record(), benchmark.extras()


class _Places:
    """The machine of each record. Cases that were not attempted do not name their device: they belong to the only
    machine that has a name, if there is one, unless their device was missing."""

    def __init__(self, sources: Sequence[ResultsFile]) -> None:
        records = [record for source in sources for record in source.records]
        self._named: defaultdict[tuple[str, Machine], set[Machine]] = defaultdict(set)
        for record in records:
            machine = Machine.of(record)
            if machine.name:
                self._named[record.implementation, replace(machine, name="")].add(machine)

    def of(self, record: Record) -> Machine:
        """Return the machine on which a verdict was reached."""
        machine = Machine.of(record)
        if machine.name or record.status == "unavailable":
            return machine
        named = self._named.get((record.implementation, machine), set())
        return next(iter(named)) if len(named) == 1 else machine


def _key(record: Record, machine: Machine) -> Place:
    return record.implementation, machine, *(getattr(record, name) for name in CASE)


def _outdated(sources: Sequence[ResultsFile]) -> set[tuple[int, str]]:
    """Return the files, by their number, and kernels whose cases a later file verifies again: what the earlier run did
    to explain a failure says nothing of the later one's kernel. The other shards of a run verify other cases."""
    outdated: set[tuple[int, str]] = set()
    verified: defaultdict[str, set[Place]] = defaultdict(set)
    for number, source in reversed([*enumerate(sources)]):
        cases: defaultdict[str, set[Place]] = defaultdict(set)
        for record in source.records:
            if isinstance(record, Attempt) and not is_deciding(record):
                cases[record.implementation].add(_key(record, Machine.of(record)))
        for name, keys in cases.items():
            if not keys.isdisjoint(verified[name]):
                outdated.add((number, name))
            verified[name] |= keys
    return outdated


def _absences(sources: Sequence[ResultsFile]) -> list[Record]:
    """Return the records of cases that were not attempted. Files that share a case are two runs of the same: the larger
    of their counts stands (the later one if equal). Files that share none are parts of a run: their counts add up."""
    kept: list[tuple[set[Place], dict[Place, list[Record]]]] = []
    for source in sources:
        attempts = source.records if len(sources) > 1 else ()  # a single file shares no case with others
        keys = {_key(record, Machine.of(record)) for record in attempts if isinstance(record, Attempt)}
        groups: defaultdict[Place, list[Record]] = defaultdict(list)
        for record in source.records:
            if not isinstance(record, Attempt):
                groups[Machine.of(record), *(getattr(record, name) for name in GROUP)].append(record)
        for _, earlier in (pair for pair in kept if not pair[0].isdisjoint(keys)):
            for group in earlier.keys() & groups.keys():
                before, now = (sum(record.cases for record in counted[group]) for counted in (earlier, groups))
                del (groups if before > now else earlier)[group]
        kept.append((keys, dict(groups)))
    return [record for _, groups in kept for records in groups.values() for record in records]


def _time_place(clocked: Clocked) -> Place:
    """Return the sort key of a time: dtypes as the suite lists them."""
    record = clocked.record
    variant = dtype_place(record.dtype), record.layout
    return operator_place(record.operator), record.problem, clocked.row, *variant


def _place(verdict: ReportedVerdict) -> Place:
    """Return the sort key of a verdict: total, so that two orders of the same lines give the same bytes."""
    record = verdict.record
    rest = () if isinstance(record, Attempt) else (encode(record),)
    first = (record.implementation, verdict.machine, operator_place(record.operator), record.problem)
    return *first, dtype_place(record.dtype), *map(record.text, CASE), *rest
