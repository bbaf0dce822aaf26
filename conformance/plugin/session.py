"""The state of one run: what is asked for, what was loaded, what has been counted, and its exit status."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from conformance import interrupts
from conformance.execution.case import Case, Claim
from conformance.execution.implementation_names import base_of
from conformance.execution.plan import Plan
from conformance.execution.selection import Selection, SelectionError, split
from conformance.execution.workers import Workers, group_of
from conformance.exit_codes import ExitCode
from conformance.failure import Failure
from conformance.implementations import registry
from conformance.layouts import NAMES
from conformance.plugin import options, processes, recording
from conformance.plugin.compiling import Compiling
from conformance.plugin.recording import ABSENCES, BEGUN, BESIDE, PROPERTY, decoded, encoded, record_of
from conformance.plugin.summary import NOTHING, Summary
from conformance.reporting.claims_report import Compared
from conformance.reporting.tally import Tally
from conformance.results import build, claims_file
from conformance.results.schema import CaseRecord, Record
from conformance.results.writing import RecordsError

if TYPE_CHECKING:
    from conformance.plugin.environment import Invalid
    from conformance.plugin.timing import TimingRun


class Session:
    """One run: its plan, its tally, its records. Workers plan and verify, the controller counts and writes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.selection = options.read(config)
        self._given = {text: split([text]) for text in config.getoption("--impl") or ()}
        """Names and paths of what was given, before a kernel can remove its file."""
        self.tally = Tally()
        self._patience, self._end = options.seconds(config), math.inf
        self.impls = options.folder(config, self.selection)
        self.claims = _claims(self.selection, self.impls)
        self.compared = Compared(self.claims)
        self._plan: Plan | None = None
        limits = options.isolation(config, _processes(config))
        self.compiling = Compiling(config, isolated=limits is not None)
        self.workers = None if limits is None else Workers(*limits, compiled=self.compiling.compiled)
        if self.workers is not None:
            config.add_cleanup(self.workers.close)  # however the run ends, no kernel's process is left
        self.compiling.workers = self.workers
        self.asked = False
        """Whether any test is here to verify something."""
        self.timing: TimingRun | None = None
        """Where benchmarks were collected."""
        self.records = None if self.is_worker else recording.opened(config, self.selection)
        self.recorded = recording.recorded(config, self.records)
        self._sources: dict[str, str] = {}
        """Implementation -> the source that its first pass names."""
        self._first: dict[tuple[str, ...], CaseRecord] = {}
        """Problem, dtype, layout and storage of an implementation -> its first case that passed, or was refused when
        the kernel was called."""
        self._begun: dict[str, str] = {}
        """Test that a worker has begun with -> its record, should that be the worker's end."""
        self._failed: set[str] = set()
        """Implementations that have failed, as far as this process knows."""
        self._heard_absences = False
        self.loop: pytest.Session | None = None
        """Which is told to stop."""
        if self.selection.implementations or self.selection.paths or {*self.selection.layouts} - {*NAMES}:
            _ = self.plan  # what is wrong with it ends the run before it starts, also where only workers need it
        self.summary = Summary(self)
        if self.records is not None and (earlier := self.records.earlier.records):
            recording.require_same_sources(self.records, self.plan)
            for record in earlier:
                self._count(self._refused_or_not(record), None)

    @property
    def plan(self) -> Plan:
        """Loaded when first needed: the controller of a parallel run usually never needs it."""
        if self._plan is None:
            try:
                self._plan = Plan(self.selection, self.impls, self.claims, self.workers or registry)
            except SelectionError as error:
                raise pytest.UsageError(str(error)) from None
        return self._plan

    def passes_over(self, item: pytest.Item) -> bool:
        """Whether a test is left out, with --first-failure: a campaign over known-bad kernels asks only whether each is
        detected, and diagnosing every failure takes most of its time."""
        if not (self._failed and self.config.getoption("--first-failure")):
            return False
        case, _ = recording.asked(item)
        return isinstance(case, Case) and case.implementation.name in self._failed

    def note(self, report: pytest.TestReport) -> None:
        """What a report says beside its verdict."""
        self.asked |= not {"verifies", "behaves", "trains"}.isdisjoint(report.keywords)
        record = record_of(report)
        if record is not None and record.status in ("fail", "error"):
            self._failed.add(record.implementation)
        if report.when == "setup" and not self.is_worker:
            told: dict[str, Any] = dict(report.user_properties)
            if begun := told.get(BEGUN):
                self._begun[report.nodeid] = str(begun)
            self.count_absences(told.get(ABSENCES, ()))
        if report.when == "teardown":  # of which pytest makes JUnit, which would hold every record once more
            report.user_properties = [pair for pair in report.user_properties if not pair[0].startswith(PROPERTY)]

    def count_report(self, record: Record, report: pytest.TestReport) -> None:
        """Count a verdict, write it, and end the run when its time is up."""
        self._begun.pop(report.nodeid, None)
        if self._patience is not None:  # from the first verdict on: loading frameworks is no part of it
            self._end = min(self._end, time.monotonic() + self._patience)
            if time.monotonic() > self._end:
                # under xdist it is its own loop that stops
                loop: Any = self.config.pluginmanager.get_plugin("dsession") or self.loop
                loop.shouldstop = f"stopped after {self._patience / 60:g} minutes (--minutes)"
        if beside := dict(report.user_properties).get(BESIDE):
            self._take(decoded(str(beside)))
        record = self._refused_or_not(self._of_one_source(record))
        self._write(record)
        self._count(record, report)

    def _of_one_source(self, record: Record) -> Record:
        """The record; an error where it passes and another worker has loaded another source: one of them was changed
        during the run."""
        if record.status != "pass" or self._sources.setdefault(record.implementation, record.source) == record.source:
            return record
        why = "its source was changed during the run: other records of the run are of another one; run again"
        failure = Failure(kind="source", message=why)
        return msgspec.structs.replace(record, status="error", reason=why, failure=failure)

    def _refused_or_not(self, record: Record) -> Record:
        """The record; a failure where it says that the kernel computes a problem, and an earlier one that it refuses
        other values of it, or the reverse: whichever worker, or part of a resumed run, has made them."""
        if not isinstance(record, CaseRecord) or not (record.refused or record.status == "pass"):
            return record
        where = record.descriptor, record.dtype, record.layout, record.storage
        first = self._first.setdefault((record.implementation, record.operator, *where), record)
        if first.refused == record.refused or record.status not in ("pass", "unsupported"):
            return record
        refused, computed = (record, first) if record.refused else (first, record)
        first_line = f"refuses these values, and computes others of the problem: {refused.headline}"
        why = (
            f"refuses these values, and computes others of the problem: {refused.reason}\n"
            f"refused: distribution {refused.distribution}; computed: distribution {computed.distribution}"
        )
        failure = Failure(kind="refusal", message=first_line)
        return msgspec.structs.replace(record, status="fail", refused=False, reason=why, failure=failure)

    def count_absences(self, lines: Sequence[str]) -> None:
        """Count and write what is not here and is no test."""
        if self.config.option.collectonly:
            return
        for record in map(decoded, lines):
            self.asked = self._heard_absences = True
            self._take(record)

    def _write(self, record: Record) -> None:
        if self.records is not None:
            try:
                self.records.write(record)
            except (OSError, RecordsError) as error:
                raise recording.unwritable(self.records.path, error) from None

    def _count(self, record: Record, report: pytest.TestReport | None) -> None:
        self.tally.add(record)
        self.summary.add(record, report)
        if report is None or "benchmarks" not in report.keywords:
            self.compared.add(record)

    def _take(self, record: Record) -> None:
        """Count and write a verdict that no test has."""
        self._write(record)
        self._count(record, None)

    def told(self) -> dict[str, Any]:
        """What a worker must know of what is resumed."""
        if self.records is None or not self.records.earlier.records:
            return {}
        return {recording.RESUMED: (str(self.records.path.absolute()), self.records.earlier.size)}

    def hear(self, told: dict[str, Any]) -> None:
        """Of a run without tests; workers say all the same."""
        if not self._heard_absences:
            self.count_absences(told.get(ABSENCES, ()))

    def scheduler(self, log: Any) -> Any:
        """Which worker of pytest-xdist gets which tests."""
        from conformance.plugin.parallel import ByProblem  # xdist is here only if its hook is called

        self.config.option.loadscopereorder = False  # else problems with many cases come first, whatever the ranking
        paths = [*self.selection.paths]
        if self.selection.implementations or not paths:
            paths += registry.discover(self.impls)
        groups = {group_of(path) for path in paths}
        count = len(groups) + sum(base_of(name) != name for name in self.selection.implementations)
        crowded = self.workers is not None and (count > self.workers.most or bool(self.selection.variants))
        return ByProblem(self.config, log, {problem.name for problem in self.selection.problems}, crowded)

    def idle(self) -> dict[str, str]:
        """Files, folders and names that were given and of which nothing was verified -> that, with what is missing. Not
        what other options leave out, nor, in a part of a run, what may be in another one."""
        part = any(self.config.getoption(name, None) for name in ("lf", "stepwise", "group"))
        found = {}
        for text, given in () if self.summary.incomplete else self._given.items():
            names = self.plan.given(*given) & {name for name, _ in self.tally.cells}
            lacks = [f": {why}" for name, why in self.tally.absent.items() if name in names][:1]
            if names and not self.tally.speaks_of(names) and (lacks or not part):
                found[text] = "".join((f"{NOTHING} of {text}", *lacks))
        return found

    def make_error(self, test: str, report: pytest.TestReport) -> None:
        """Give pytest-xdist's report of a test that has killed its worker the record of that test."""
        report.when = "call"
        reason = str(report.longrepr)
        failure = Failure(kind="suite", message=reason.partition("\n")[0])
        record: Record = build.broken_record(test, registry.BrokenFile(reason, failure))
        if test in self._begun:
            record = msgspec.structs.replace(decoded(self._begun.pop(test)), reason=reason, failure=failure)
        record = recording.of_run(self.config, record)
        report.user_properties.append((PROPERTY, encoded(record)))

    def end(self, session: pytest.Session, exitstatus: int, invalid: Invalid | None) -> None:
        """Decide on the exit status, and end the records. A run in which nothing was verified does not end well."""
        if self.timing is not None:
            self.timing.complete()
        status, totals = exitstatus, self.tally.totals
        if exitstatus in (ExitCode.GOOD, ExitCode.NOTHING):
            if totals["fail"] or totals["error"] or any(not self.tally.verified_on(d) for d in self.selection.required):
                status = ExitCode.BAD
            elif self.tally.verified:
                # also where all of it was before this run, which had no test left
                status = ExitCode.NOTHING if self.idle() else ExitCode.GOOD
            elif self.asked or self.config.getoption("--impl"):
                status = ExitCode.NOTHING
        stepwise = self.config.getoption("stepwise", False) and session.shouldstop and self._patience is None
        if stepwise and (totals["fail"] or totals["error"]):  # which pytest takes for an interrupt
            status = ExitCode.BAD
        if status == ExitCode.GOOD and self.timing is not None:
            status = self.timing.status
        whole = exitstatus in (ExitCode.GOOD, ExitCode.BAD, ExitCode.NOTHING)
        self.summary.incomplete = not whole or bool(session.shouldstop or session.shouldfail)
        try:
            self.summary.decide(self._take)
        except KeyboardInterrupt:
            self.summary.incomplete, status = True, ExitCode.INTERRUPTED
        interrupts.write_summary_in_peace()
        if status == ExitCode.INTERRUPTED:
            processes.hurry(self.config)
        if invalid is not None:
            status = ExitCode.INTERNAL
        if self.records is not None:
            try:
                self.records.end(status, self.summary.incomplete, 0 if invalid is None else invalid.verdicts)
            except (OSError, RecordsError) as error:
                if exitstatus != ExitCode.UNUSABLE:  # else it has been said
                    self.summary.unwritable = str(recording.unwritable(self.records.path, error))
                    status = ExitCode.UNUSABLE if invalid is None else status
        session.exitstatus = status


SESSION = pytest.StashKey[Session]()
"""Under which the state of a run is found from its pytest.Config."""


def _processes(config: pytest.Config) -> int:
    """How many processes of this run have workers."""
    given = getattr(config, "workerinput", {}).get("workercount") or config.getoption("numprocesses", None) or 1
    return max(1, int(given))


def _claims(selection: Selection, impls: Path) -> dict[str, Claim]:
    """What is claimed beside the files given, and in the folder where implementations are looked for."""
    found = claims_file.sources(impls) if selection.implementations or not selection.paths else ()
    try:
        return claims_file.load([*selection.paths, *found])
    except claims_file.ClaimsError as error:
        raise pytest.UsageError(str(error)) from None
