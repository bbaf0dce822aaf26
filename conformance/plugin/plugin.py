"""pytest wiring: options, cases, verdicts as test outcomes, records, summary, exit status."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.execution.case import Absence, Case
from conformance.execution.plan import Plan
from conformance.execution.trial import Check, Facts, conduct
from conformance.execution.verify import Verdict, verify
from conformance.implementations.devices import DEVICES, missing
from conformance.operators import OPERATORS
from conformance.plugin import options
from conformance.reporting import command, terminal
from conformance.reporting.tally import Tally
from conformance.results import build
from conformance.results.reading import decode
from conformance.results.schema import Record
from conformance.results.writing import Records, encode

PROPERTY = "conformance"
"""Name of the user property that carries a record, as a JSON line, from a worker to the controller."""

IMPLS = Path(__file__).parents[2] / "impls"

LETTERS = {"pass": ".", "fail": "F", "error": "E", "unsupported": "u", "waived": "w", "unavailable": "-"}
CATEGORIES = {"pass": "passed", "fail": "failed", "error": "failed"}
"""Status -> pytest's own category; other statuses are categories of their own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's options and where implementations live."""
    options.add(parser)
    parser.addini("impls", "folder of implementations, relative to the root directory", default=str(IMPLS))


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Under xdist, share the cores among workers."""
    workers = config.getoption("numprocesses", None)
    if not workers:
        return
    share = str(max(1, (os.cpu_count() or 1) // workers))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, share)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, check the command line, open the records."""
    for device in DEVICES:
        config.addinivalue_line("markers", f"{device}: cases of implementations on this device")
    config.addinivalue_line("markers", "behaves(operators): a few small cases of every implementation and operator")
    config.addinivalue_line("markers", "measures(operator, problems, dtypes): cases of a check of memory")
    config.addinivalue_line("markers", "verifies(operator, when): cases of an operator, where when(geometry) holds")
    if config.option.help or config.option.markers:
        return
    config.pluginmanager.register(Session(config), "conformance-session")


class Session:
    """One run: its plan, its tally, its records. Workers plan and verify, the controller counts and writes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.selection = options.read(config)
        self.tally = Tally()
        self.impls = options.folder(config, self.selection)
        self.records = None if self._is_worker else _open_records(config)
        self._plan: Plan | None = None
        self.asked = False
        """Whether any test is here to verify something."""
        if self.selection.implementations:
            _ = self.plan

    @property
    def _is_worker(self) -> bool:
        return hasattr(self.config, "workerinput")

    @property
    def plan(self) -> Plan:
        """Loaded when first needed: the controller of a parallel run usually never needs it."""
        if self._plan is None:
            self._plan = Plan(self.selection, self.impls)
        return self._plan

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per case of the operator that the test function verifies."""
        verifies = metafunc.definition.get_closest_marker("verifies")
        times = metafunc.definition.get_closest_marker("times")
        behaves = metafunc.definition.get_closest_marker("behaves")
        measures = metafunc.definition.get_closest_marker("measures")
        if verifies is not None:
            self.asked = True
            due = self.plan.cases(verifies.args[0], verifies.kwargs.get("when"))
        elif behaves is not None:
            self.asked = True
            due = self.plan.behaviour(behaves.args or tuple(OPERATORS))
        elif measures is not None:
            self.asked = True
            due = self.plan.measured(measures.args[0], measures.kwargs["problems"], measures.kwargs["dtypes"])
        elif times is not None:
            due = self.plan.timed(times.args[0], times.kwargs["problems"])
        else:
            return
        metafunc.parametrize("case", [parameter(case, behaves is not None) for case in due])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Drop tests that no case is due for, which pytest would report as skipped, and add one item per broken file.

        After deselection: a broken file is nobody's to deselect.
        """
        items[:] = filter(_has_case, items)
        if self.asked:
            items += [
                Broken.from_parent(session, name=path, path_text=path, reason=reason)
                for path, reason in self.plan.registry.broken.items()
            ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count and write a record as soon as its verdict is known."""
        self.asked |= not {"verifies", "behaves", "trains", "measures"}.isdisjoint(report.keywords)
        record = record_of(report)
        if record is None or self._is_worker:
            return
        self.tally.add(record)
        if self.records is not None:
            try:
                self.records.write(record)
            except OSError as problem:
                raise _unwritable(self.records.path, problem) from None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep the cases of a problem together, unless `--dist` says otherwise."""
        if config.getoption("dist") != "load":
            return None
        from conformance.plugin.parallel import ByProblem  # xdist is here only if its hook is called

        return ByProblem(config, log, {problem.name for problem in self.selection.problems})

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """A kernel that kills its worker is an error, counted like any other."""
        report.when = "call"
        line = encode(build.broken_record(crashitem, str(report.longrepr))).decode()
        report.user_properties.append((PROPERTY, line))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A run in which nothing was verified does not end well."""
        if self.records is not None:
            self.records.close()
        if self._is_worker or exitstatus not in (0, 5) or self.config.option.collectonly:
            return
        if any(not self.tally.verified_on(device) for device in self.selection.required):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif self.asked and not self.tally.verified:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The matrix, what was not run and why, and what was asked for and is not here."""
        asked = options.devices_asked(self.config)
        if self.config.option.collectonly or not (self.asked or self.tally.cells or asked):
            return
        terminalreporter.section("conformance")
        width = terminalreporter._tw.fullwidth - 1
        if self.tally.cells:
            for line in terminal.summary(self.tally, width):
                terminalreporter.write_line(line)
        for device in asked:
            if not self.tally.verified_on(device):
                terminalreporter.write_line(f"{device}: nothing verified: {self._why(device)}", yellow=True)
                for line in terminal.simulators(device, self.plan.simulators(device), width):
                    terminalreporter.write_line(line, yellow=True)
        if not self.tally.verified:
            terminalreporter.write_line("NOTHING WAS VERIFIED", red=True)
        if self.records is not None and (folder := self.config.getoption("--report")):
            for line in command.of_run(self.records.path, Path(folder)):
                terminalreporter.write_line(line)

    def _why(self, device: str) -> str:
        if missing(device):
            return missing(device)
        return (
            "no implementation of this device could run" if self.tally.devices[device] else "no implementation selected"
        )


class Broken(pytest.Item):
    """A file in `impls/` that cannot be used: one loud error, and the others still run."""

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


@pytest.fixture
def judged(request: pytest.FixtureRequest) -> Callable[[Case | Absence], None]:
    """A function that verifies a case and turns its verdict into the test's outcome."""

    def run(case: Case | Absence) -> None:
        if isinstance(case, Absence):
            verdict = Verdict(case.status, case.reason)
            record: Record = build.absence_record(case)
        else:
            verdict = verify(case)
            record = build.record(case, verdict)
        publish(request.node, record)
        conclude(verdict, record.command)

    return run


@pytest.fixture
def kept(request: pytest.FixtureRequest) -> Callable[[Case | Absence, Check], None]:
    """A function that makes one check of behaviour on a case and turns its verdict into the test's outcome."""

    def run(case: Case | Absence, check: Check) -> None:
        if isinstance(case, Absence):
            verdict, facts = Verdict(case.status, case.reason), Facts()
        else:
            verdict, facts = conduct(case, check)
        record = build.behaviour_record(case, verdict, check.__name__, facts)
        publish(request.node, record)
        conclude(verdict, record.command)

    return run


def publish(item: pytest.Item, record: Record) -> None:
    """Hand a record, with the level of the run, to whoever counts and writes."""
    record = msgspec.structs.replace(record, run_level=item.config.getoption("--level"))
    item.user_properties.append((PROPERTY, encode(record).decode()))


def conclude(verdict: Verdict, command: str) -> None:
    """Turn a verdict into the test's outcome."""
    if verdict.status in ("fail", "error"):
        pytest.fail(f"{verdict.status.upper()}: {verdict.reason}\nreproduce: {command}", pytrace=False)
    if verdict.status == "waived":
        pytest.xfail(verdict.reason)
    if verdict.status in ("unsupported", "unavailable"):
        pytest.skip(verdict.reason)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show the suite's statuses instead of pytest's."""
    record = record_of(report)
    if record is None:
        return None
    status = record.status
    return CATEGORIES.get(status, status), LETTERS[status], status.upper()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is asked for and which devices are here."""
    here = [device for device in DEVICES if not missing(device)]
    level, seed = config.getoption("--level"), config.getoption("--seed")
    return [f"conformance: level {level}, seed {seed}, devices {', '.join(here)}"]


def parameter(case: Case | Absence, with_operator: bool) -> Any:
    """A case for `parametrize`, with its name and the marker of its device."""
    device = case.device if isinstance(case, Absence) else case.implementation.device
    operator = case.operator if isinstance(case, Absence) else case.operator.name
    marks = [getattr(pytest.mark, name) for name in ([device] if device else DEVICES)]
    return pytest.param(case, id=f"{operator}-{case.id}" if with_operator else case.id, marks=marks)


def _has_case(item: pytest.Item) -> bool:
    """False for a test whose parameters were empty."""
    parameters = getattr(item, "callspec", None)
    return parameters is None or isinstance(parameters.params.get("case"), (Case, Absence, type(None)))


def record_of(report: pytest.TestReport) -> Record | None:
    """The record of a test whose call ended; None for other phases and other tests."""
    if getattr(report, "when", None) != "call":
        return None
    text = dict(report.user_properties).get(PROPERTY)
    return None if text is None else decode(str(text))


def _open_records(config: pytest.Config) -> Records | None:
    """The file that `--records` names, or one beside the report that is made from it."""
    path, folder = config.getoption("--records"), _report_folder(config)
    if path is None and folder is not None:
        path = folder / "records.jsonl"
    if path is None:
        return None
    try:
        return Records(Path(path))
    except OSError as problem:
        raise _unwritable(path, problem) from None


def _report_folder(config: pytest.Config) -> Path | None:
    """There, with what a report needs, before minutes are spent on what belongs in it."""
    folder = config.getoption("--report")
    if folder is None:
        return None
    if lacking := command.missing():
        raise pytest.UsageError(f"--report: {lacking}")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise pytest.UsageError(f"--report {folder}: cannot be written ({problem.strerror})") from None
    return Path(folder)


def _unwritable(path: str | Path, problem: OSError) -> pytest.UsageError:
    return pytest.UsageError(f"--records {path}: cannot be written ({problem.strerror})")
