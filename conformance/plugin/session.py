"""One pytest run: options, cases for the marked tests, records, the summary, the exit status."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance import __version__
from conformance.checks import CHECKS
from conformance.checks.state import calls_are_right_later
from conformance.execution.case import Absence, Case
from conformance.execution.claims import Claim
from conformance.execution.implementation_names import base_of
from conformance.execution.plan import Plan
from conformance.execution.required import Demand, Verified
from conformance.execution.selection import Selection, SelectionError
from conformance.execution.status import Verdict
from conformance.execution.workers import Workers, group_of
from conformance.exit_codes import ExitCode
from conformance.implementations import registry
from conformance.implementations.devices import DEVICES, missing
from conformance.layouts import NAMES
from conformance.plugin import compiling, options, outcome, recording
from conformance.plugin.outcome import ABSENCES, BEGUN, PROPERTY, ROW, decoded, publish, record_of
from conformance.plugin.summary import Summary
from conformance.problems import PROBLEMS
from conformance.reporting.claims import Compared
from conformance.reporting.tally import Tally
from conformance.results import build, claims
from conformance.results.schema import Record
from conformance.results.writing import RecordsError, encode
from conformance.timing.required import Timed
from conformance.training.required import Trained, Training
from conformance.training.tables import OPERATOR as TRAINING_OPERATOR

MARKERS = {
    "verifies": "verifies(operator, when): cases of an operator, where when(geometry) holds",
    "behaves": "behaves(*names): behaviour checks, on the cases that each of them is required on",
    "trains": "trains(network): a network, trained through every implementation",
    "benchmarks": "benchmarks(operator, problems): those that device and level require, timed",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's options."""
    options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, check the command line, open the records."""
    for device in DEVICES:
        config.addinivalue_line("markers", f"{device}: cases of implementations on this device")
    for text in MARKERS.values():
        config.addinivalue_line("markers", text)
    if not (config.option.help or config.option.markers):
        config.pluginmanager.register(Session(config), "conformance-session")


class Session:
    """One run: its plan, its tally, its records. Workers plan and verify, the controller counts and writes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.selection = options.read(config)
        self.tally = Tally()
        self._patience, self._end = options.seconds(config), math.inf
        self.impls = options.folder(config, self.selection)
        self.claims = _claims(self.selection, self.impls)
        self.compared = Compared(self.claims)
        self._plan: Plan | None = None
        limits = options.isolation(config, _processes(config))
        self.compiling = compiling.Compiling(config, isolated=limits is not None)
        config.pluginmanager.register(self.compiling)
        self.workers = None if limits is None else Workers(*limits, compiled=self.compiling.compiled)
        self.compiling.workers = self.workers
        self.asked = False
        """Whether any test is here to verify something."""
        self.records = None if self.is_worker else recording.opened(config, self.selection)
        self._recorded = recording.recorded(config, self.records)
        self._absent: Counter[tuple[Absence, tuple[str, ...]]] = Counter()
        """What is not here, with its check if it has one -> its cases."""
        self.absences: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """(implementation, operator) -> the same by status, in the process that counts."""
        self._begun: dict[str, str] = {}
        """Test that a worker has begun with -> its record, should that be the worker's end."""
        if self.selection.implementations or self.selection.paths or {*self.selection.layouts} - {*NAMES}:
            _ = self.plan  # what is wrong with it ends the run before it starts, also where only workers need it
        if not self.is_worker:
            self.summary = Summary(self)
            config.pluginmanager.register(self.summary, "conformance-summary")
        if self.records is not None and (earlier := self.records.earlier.records):
            recording.require_same_sources(self.records, self.plan)
            for record in earlier:
                self._count(record, None)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session: Any = session

    @property
    def plan(self) -> Plan:
        """Loaded when first needed: the controller of a parallel run usually never needs it."""
        if self._plan is None:
            try:
                self._plan = Plan(self.selection, self.impls, self.claims, self.workers or registry)
            except SelectionError as error:
                raise pytest.UsageError(str(error)) from None
        return self._plan

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per case that the marker of a test function asks for."""
        marker = next(filter(None, map(metafunc.definition.get_closest_marker, MARKERS)), None)
        if marker is None:
            return
        self.asked |= marker.name != "benchmarks"
        names = ("name", "case") if marker.name == "behaves" else ("case",)
        marked = {mark.name for mark in metafunc.definition.iter_markers()}
        parameters = []
        for prefix, check, demand in self._demands(marker):
            for case in self.plan.required(demand):
                device = case.device if isinstance(case, Absence) else case.implementation.device
                devices = [device] if device else [*DEVICES]
                # three quarters of the tests of a file with one operator were absences; what is claimed is a test,
                # because it fails, and so is what is timed
                if isinstance(case, Absence) and case.status != "fail" and marker.name != "benchmarks":
                    if options.counts_absences(self.config, {*marked, *devices}):
                        self._absent[replace(case, cases=0), check] += case.cases
                    continue
                marks = [getattr(pytest.mark, known) for known in devices]
                parameters.append(pytest.param(*check, case, id=prefix + case.id, marks=marks))
        metafunc.parametrize(names, parameters)

    def _demands(self, marker: pytest.Mark) -> Iterator[tuple[str, tuple[str, ...], Demand]]:
        """What a marker asks for, each with what its test's id begins with and its behaviour check, if any."""
        ranked, asked = self.plan.ranked, self.plan.selection
        if marker.name == "behaves":
            for name in marker.args:
                for demand in CHECKS[name].demands(ranked):
                    yield f"{name}-{demand.operator}-", (name,), demand
        elif marker.name == "verifies":
            yield "", (), Verified(ranked, marker.args[0], marker.kwargs.get("when"))
        elif marker.name == "trains":
            yield "", (), Trained(asked, marker.args[0])
        else:
            if self._recorded:
                raise pytest.UsageError("--resume: times are not in records; time again with --overwrite")
            from conformance.plugin import timing  # which imports this module

            if not self.config.pluginmanager.has_plugin(timing.NAME):
                self.config.pluginmanager.register(timing.TimingPlugin(self.config), timing.NAME)
            by_hand = asked.problems is not PROBLEMS  # a table is none of somebody who names a problem
            problems = asked.problems if by_hand else marker.kwargs["problems"]
            yield "", (), Timed(asked, marker.args[0], problems, by_hand)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Drop tests that no case is required for, which pytest would report as skipped; add one item per broken file.

        After deselection: a broken file is nobody's to deselect.
        """
        kept = []
        for item in items:
            ours = any(item.get_closest_marker(name) for name in MARKERS)
            if not ours or not hasattr(item, "callspec") or recording.asked(item)[0] is not None:
                kept.append(item)
        failed = self.config.cache.get("cache/lastfailed", {}) if self.config.getoption("failedfirst", False) else {}
        kept.sort(key=lambda item: (item.nodeid not in failed, self._place(item)))
        if self.asked or any(item.get_closest_marker("benchmarks") for item in kept):
            kept += [
                Broken.from_parent(session, name=path, path_text=path, reason=reason)
                for path, reason in self.plan.registry.broken.items()
            ]
        items[:] = [item for item in kept if not self._is_recorded(item)] if self._recorded else kept

    def _is_recorded(self, item: pytest.Item) -> bool:
        """Of two tests with one key, and one record, one is left."""
        key = recording.key(item)
        self._recorded[key] -= 1
        return self._recorded[key] >= 0

    def _place(self, item: pytest.Item) -> tuple[int, int, int]:
        """In the order of the ranking, all operators in turn. One file's cases after the other's, where not all of them
        can have a process at once. Results first: a kernel that crashes in one check after another is not run any
        more. Last what waits for a second since the first call, which by then has mostly gone by."""
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        case, whose = given.get("case"), 0
        later = int(isinstance(case, Training) or item.get_closest_marker("behaves") is not None)
        later += given.get("name") == calls_are_right_later.__name__
        if self.workers is not None and self.workers.crowded and isinstance(case, (Case, Training)):
            whose = self.workers.place(case.implementation)
        return whose, later, case.place if isinstance(case, Case) and not later else 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell every test how many its row has, now that all are known: a controller learns it from their reports."""
        rows = []
        for item in session.items:
            case, _ = recording.asked(item)
            if case is not None:
                rows.append((item, _row(case)))
        # of a vendor's own tests, some can be selected that have nothing to do with the suite
        self.asked = bool(rows or self._absent) or any(isinstance(item, Broken) for item in session.items)
        counts = Counter(row for _, row in rows)
        for item, row in rows:
            item.user_properties.append((ROW, counts[row]))
        absences = [encode(record).decode() for record in self._absence_records()]
        if not self.is_worker:
            self._count_absences(absences)
        elif session.items:  # all workers have the same first test, and one of them runs it
            session.items[0].user_properties.append((ABSENCES, absences))
        else:
            workeroutput: dict[str, Any] = getattr(self.config, "workeroutput", {})
            workeroutput[ABSENCES] = absences

    def _absence_records(self) -> Iterator[Record]:
        """Of what is not here, without what the resumed records have."""
        for (absence, check), cases in self._absent.items():
            found = build.behaviour_record(replace(absence, cases=cases), Verdict(absence.status), *check or ("",))
            if self._recorded[recording.key_of(found)] > 0:
                self._recorded[recording.key_of(found)] -= 1
            else:
                yield outcome.of_run(self.config, found)

    def _count_absences(self, lines: Sequence[str]) -> None:
        if self.config.option.collectonly:
            return
        for record in map(decoded, lines):
            self.asked = True
            self.absences[record.implementation, record.operator][record.status] += record.cases
            self._write(record)
            self._count(record, None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Of a run without tests; workers say all the same."""
        if not self.absences:
            self._count_absences(getattr(node, "workeroutput", {}).get(ABSENCES, ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A worker says with what it begins: when it has crashed it is too late."""
        if self.is_worker and (record := recording.lost(item)) is not None:
            item.user_properties.append((BEGUN, encode(record).decode()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        sent = BEGUN, ABSENCES  # once, with the report of the setup
        item.user_properties[:] = [pair for pair in item.user_properties if pair[0] not in sent]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count and write a record as soon as its verdict is known."""
        self.asked |= not {"verifies", "behaves", "trains"}.isdisjoint(report.keywords)
        if self.is_worker:
            return
        if report.when == "setup":
            told: dict[str, Any] = dict(report.user_properties)
            if begun := told.get(BEGUN):
                self._begun[report.nodeid] = str(begun)
            self._count_absences(told.get(ABSENCES, ()))
        record = record_of(report)
        if record is None:
            return
        self._begun.pop(report.nodeid, None)
        if self._patience is not None:  # from the first verdict on: loading frameworks is no part of it
            self._end = min(self._end, time.monotonic() + self._patience)
        if self._patience is not None and time.monotonic() > self._end:
            # under xdist it is its own loop that stops
            loop = self.config.pluginmanager.get_plugin("dsession") or self._session
            loop.shouldstop = f"stopped after {self._patience / 60:g} minutes (--minutes)"
        self._write(record)
        self._count(record, report)

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

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker what is resumed."""
        if self.records is not None and self.records.earlier.records:
            node.workerinput[recording.RESUMED] = str(self.records.path.absolute()), self.records.earlier.size

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep the cases of a problem together, unless `--dist` says otherwise."""
        if config.getoption("dist") != "load":
            return None
        from conformance.plugin.parallel import ByProblem  # xdist is here only if its hook is called

        config.option.loadscopereorder = False  # else problems with many cases come first, whatever the ranking says
        paths = [*self.selection.paths]
        if self.selection.implementations or not paths:
            paths += registry.discover(self.impls)
        groups = {group_of(path) for path in paths}
        count = len(groups) + sum(base_of(name) != name for name in self.selection.implementations)
        crowded = self.workers is not None and (count > self.workers.most or self.selection.variants)
        return ByProblem(config, log, {problem.name for problem in self.selection.problems}, crowded)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """A kernel that kills its worker is an error, counted like any other."""
        report.when = "call"
        record: Record = build.broken_record(crashitem, "")
        if crashitem in self._begun:
            record = decoded(self._begun.pop(crashitem))
        level = self.config.getoption("--level")
        changed = {"run_level": level, "in_process": self.workers is None}
        record = msgspec.structs.replace(record, reason=str(report.longrepr), **changed)
        report.user_properties.append((PROPERTY, encode(record).decode()))

    def pytest_unconfigure(self) -> None:
        """However the run ends, no kernel's process is left."""
        if self.workers is not None:
            self.workers.close()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A run in which nothing was verified does not end well."""
        if self.is_worker or self.config.option.collectonly:
            return
        status, totals = exitstatus, self.tally.totals
        if exitstatus in (ExitCode.GOOD, ExitCode.NOTHING):
            if totals["fail"] or totals["error"] or any(not self.tally.verified_on(d) for d in self.selection.required):
                status = ExitCode.BAD
            elif self.tally.verified:
                status = ExitCode.GOOD  # also where all of it was before this run, which had no test left
            elif self.asked or self.config.getoption("--impl"):
                status = ExitCode.NOTHING
        timing: Any = self.config.pluginmanager.get_plugin("conformance-timing")
        if status == ExitCode.GOOD and timing is not None:
            status = timing.status
        whole = exitstatus in (ExitCode.GOOD, ExitCode.BAD, ExitCode.NOTHING)
        self.summary.incomplete = not whole or bool(session.shouldstop or session.shouldfail)
        if self.records is not None:
            try:
                environment: Any = self.config.pluginmanager.get_plugin("conformance-environment")
                invalid = environment.invalid.verdicts if environment is not None and environment.invalid else 0
                self.records.end(status, self.summary.incomplete, invalid)
            except (OSError, RecordsError) as error:
                if exitstatus != ExitCode.UNUSABLE:  # else it has been said
                    self.summary.unwritable = str(recording.unwritable(self.records.path, error))
                    status = ExitCode.UNUSABLE
        session.exitstatus = status


def _processes(config: pytest.Config) -> int:
    """How many processes of this run have workers."""
    given = getattr(config, "workerinput", {}).get("workercount") or config.getoption("numprocesses", None) or 1
    return max(1, int(given))


class Broken(pytest.Item):
    """A file in `impls/` that cannot be used: one loud error, and the others still run."""

    fixturenames = ("benchmark",)
    """By which `--benchmark-only` of pytest-benchmark knows what it must not skip."""

    def __init__(self, *, path_text: str, reason: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.reason = reason
        publish(self, build.broken_record(path_text, reason))

    def runtest(self) -> None:
        """Always fails."""
        pytest.fail(self.reason, pytrace=False)

    def reportinfo(self) -> tuple[str, None, str]:
        """The file is the headline."""
        return self.name, None, self.name


def _row(case: Case | Training | Absence) -> tuple[str, str]:
    """Implementation and operator, as in the case's record."""
    if isinstance(case, Absence):
        return case.implementation, case.operator
    return case.implementation.name, TRAINING_OPERATOR if isinstance(case, Training) else case.operator.name


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is asked for, which devices are here, and what is resumed."""
    here = [device for device in DEVICES if not missing(device)]
    level, seed = config.getoption("--level"), config.getoption("--seed")
    session: Any = config.pluginmanager.get_plugin("conformance-session")
    earlier = session.records.earlier.records if session is not None and session.records is not None else ()
    resumed = [f"resumed: {len(earlier):,} records of {session.records.path}"] if earlier else []
    return [f"kernel-conformance {__version__}: level {level}, seed {seed}, devices {', '.join(here)}", *resumed]


def _claims(selection: Selection, impls: Path) -> dict[str, Claim]:
    """What is claimed beside the files given, and in the folder where implementations are looked for."""
    paths = [*selection.paths, *(claims.sources(impls) if selection.implementations or not selection.paths else ())]
    try:
        return claims.load(paths)
    except claims.ClaimsError as error:
        raise pytest.UsageError(str(error)) from None
