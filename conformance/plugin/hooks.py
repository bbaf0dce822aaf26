"""Every hook of a run by pytest, in the order in which pytest calls them; the hooks of pytest-xdist come last.

Hooks of the plugin that is registered last are called first. `Hooks` is registered after pytest's own reporter and
pytest-xdist's, so that it handles a report before another plugin counts or shows it. (`entry` has the hooks that decide
whether a run loads this module.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance import __version__, interrupts
from conformance.engine import options
from conformance.engine.arithmetic import Arithmetic, WrongArithmeticError
from conformance.engine.options import OPTIONS
from conformance.engine.pool import share_cores
from conformance.engine.run import Run, recorded
from conformance.engine.summary import Summary
from conformance.execution.compiler_cache import CompilerCache, of_run
from conformance.execution.device_shares import Share, Shares, is_any_here, occupy
from conformance.execution.selection import SelectionError
from conformance.execution.status import Verdict
from conformance.execution.workers import Workers
from conformance.exit_codes import ExitCode
from conformance.failure import Failure
from conformance.implementations.devices import DEVICES, missing
from conformance.implementations.errors import of_the_suite
from conformance.implementations.registry import BrokenFile
from conformance.layouts import NAMES
from conformance.plugin import entry
from conformance.plugin.collection import MARKERS, Collection, task_of
from conformance.resources import IMPLS
from conformance.results import build
from conformance.results.benchmarks import digest_of
from conformance.results.schema import AnyRecord, Record
from conformance.results.writing import encode
from conformance.streams import passed
from conformance.worker import wire
from conformance.worker.isolation import end_with

RECORDS = "conformance-records"
"""Name of the user property of a report that carries records, the test's own record last; before a kernel is called, it
carries the record that counts if the test takes its worker down."""
INVALID = "conformance-invalid"
"""Name of the user property by which a worker reports, instead of a record, why it must not judge, and since when."""
WORKER_DATA = "conformance"
"""Key of the data that a worker of pytest-xdist receives at its start, and of the data that it returns at its end."""
STATUSES = {"pass": ("passed", "."), "fail": ("wrong", "F"), "error": ("erred", "E")}
"""Status -> pytest's category, and its letter; any other status is its own category. Failures are in none of pytest's
categories, because pytest would show them one by one."""
RUN = pytest.StashKey["Hooks"]()
_decode = msgspec.json.Decoder(list[AnyRecord]).decode


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options, and its setting, even if `-p no:` leaves `entry` out."""
    entry.pytest_addoption(parser)
    group = parser.getgroup("conformance", "kernel conformance")
    for name, described in OPTIONS.items():
        group.addoption(name, **described)
    group.addoption("--visits", type=_visits, metavar="N", help="times that each kernel is come back to (default: 7)")


def _visits(text: str) -> int:
    from conformance.timing.run import visits  # most runs time nothing

    return visits(text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start a worker for each device that -m names."""
    return options.automatic(config.getoption("markexpr", "") or "", config.getoption("--require") or ())


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register markers, check the command line, open the records."""
    for device in DEVICES:
        config.addinivalue_line("markers", f"{device}: cases of implementations on this device")
    for text in MARKERS.values():
        config.addinivalue_line("markers", text)
    entry.collect_suites(config)
    if not (config.option.help or config.option.markers):
        try:
            config.pluginmanager.register(Hooks(config), "conformance-hooks")
        except SelectionError as error:
            raise pytest.UsageError(str(error)) from None


class Hooks:
    """Hooks of one run. Workers of pytest-xdist collect and verify; the process that started them counts and writes."""

    def __init__(self, config: pytest.Config) -> None:
        config.stash[RUN] = self
        self.config = config
        self.worker_input: dict[str, Any] | None = getattr(config, "workerinput", {}).get(WORKER_DATA)
        self.is_worker = hasattr(config, "workerinput")
        # a worker receives the group's signals, too, but the run ends it: otherwise its kernel would be blamed
        handler = interrupts.pass_over if self.is_worker else interrupts.Interrupt()
        config.add_cleanup(interrupts.handle_signals(handler))
        processes = getattr(config, "workerinput", {}).get("workercount") or config.getoption("numprocesses", None) or 1
        chosen = _options(config, processes)
        if processes > 1 and not self.is_worker:
            if config.getoption("dist", "no") == "each":
                raise SelectionError("--dist each: every case would be verified, and counted, by every worker")
            share_cores(processes)
        if self.worker_input and self.worker_input["parent"]:
            end_with(self.worker_input["parent"])
        if self.worker_input:
            occupy(msgspec.convert(self.worker_input["share"], Share))
        self.compiled = wire.Compiled()
        self.cache, problem = self._cache() if chosen.limits is not None else (None, "")
        words = ("pytest", *map(str, config.invocation_params.args))
        self.shares = Shares(processes, words)
        self.places: dict[Any, int] = {}
        """Worker -> its place among those that live, from 0: a worker that takes another's place has its devices."""
        shares_devices = not (self.is_worker or config.option.collectonly)
        if shares_devices:
            config.add_cleanup(self.shares.close)
            self.shares.take(chosen.devices, is_asked=True)
        workers = None
        if chosen.limits is not None:
            workers = Workers(chosen.limits, chosen.workers, compiled=self.cache)
            config.add_cleanup(workers.close)  # however the run ends, no kernel's process is left
        self.run = Run(chosen, workers, words if shares_devices else ())
        if self.run.records is not None:
            config.add_cleanup(self.run.records.close)
        if self.worker_input and self.worker_input["resumed"]:
            self.run.recorded = recorded(Path(self.worker_input["resumed"]), self.worker_input["size"])
        selection = chosen.selection
        if selection.implementations or selection.paths or {*selection.layouts} - {*NAMES}:
            _ = self.run.plan  # an error in the plan ends the run before it starts, even if only workers need the plan
        if shares_devices and is_any_here(chosen.selection.devices):
            self.run.share_devices(self.shares, elsewhere=bool(config.getoption("numprocesses", None)))
        if self.shares.processes < processes:
            config.option.tx = config.option.tx[: self.shares.processes]
        self.run.unexplained += [problem] * bool(problem)
        self.run.resume()
        self.collection = Collection(self)
        self.arithmetic = Arithmetic(self.run.operators)
        self.begun: dict[str, Record] = {}
        """Test that a worker has begun -> the test's record if the worker ends there."""
        self.raised: dict[int, Any] = {}
        """Id of a record -> how pytest shows the exception that its kernel raised in this process."""
        self.has_absences = False
        """Whether a worker has reported absences."""
        self.count = 0
        """Number of tests that have a verdict."""

    def _cache(self) -> tuple[CompilerCache | None, str]:
        """Return the cache of compiled kernels; None if kernels are timed, as timed kernels are compiled in the run, as
        they are for their users."""
        if getattr(self.config.option, "benchmark_only", False) or self.config.option.collectonly:
            return None, ""
        if self.is_worker:
            folder = self.worker_input["compiled"] if self.worker_input else ""
            return CompilerCache(Path(folder), self.config.workerinput["workerid"]) if folder else None, ""  # type: ignore[attr-defined]
        used = ExitStack()
        self.config.add_cleanup(used.close)  # called after all kernels' processes have ended
        return of_run(used)

    def pytest_report_header(self) -> list[str]:
        """Return lines on the level, seed and devices of the run, and on the records that it resumes."""
        here = ", ".join(device for device in DEVICES if not missing(device))
        seed = self.config.getoption("--seed")
        lines = [f"kernel-conformance {__version__}: level {self.run.options.level}, seed {seed}, devices {here}"]
        lines += self.shares.notes
        if self.run.records is not None and (earlier := self.run.records.earlier.records):
            lines.append(f"resumed: {len(earlier):,} records of {self.run.records.path}")
        return lines

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test per case that the marker of a test function asks for."""
        with _usage():
            self.collection.parametrize(metafunc)

    @pytest.hookimpl(trylast=True)  # after deselection: nothing may deselect a broken file
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Sort the tests by the ranking, and add one for each broken file."""
        with _usage():
            self.collection.arrange(session, items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count absences that are not tests; a worker reports them at its end."""
        self.session = session
        self.collection.finish(session.items)
        if not (self.is_worker or self.config.option.collectonly):
            self._take_absences(self.collection.absences())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Check the arithmetic. A worker reports which test it begins, because it cannot report that after a crash."""
        task = task_of(item)
        if task is not None:
            with self._trusted(item):
                self.arithmetic.require_before()
            if self.is_worker:
                publish(item, task.record(Verdict("error")))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Check the arithmetic after every verdict, before the verdict is published."""
        if task_of(item) is None:
            return (yield)
        item.user_properties[:] = [pair for pair in item.user_properties if pair[0] != RECORDS]
        with self._trusted(item):
            try:
                return (yield)
            finally:
                self.arithmetic.require_mode()

    @contextmanager
    def _trusted(self, item: pytest.Item) -> Iterator[None]:
        """Reject a verdict that the block reaches in wrong arithmetic, and report why."""
        try:
            yield
        except WrongArithmeticError as error:
            item.user_properties[:] = [(INVALID, (f"{error.reason} (seen in {item.nodeid})", error.since))]
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show a kernel's exception without the suite's calls above it, and in short unless `--tb` says otherwise. The
        calls are removed before pytest makes the report: describing them took most of the time of a run in which a
        kernel always raised."""
        raised = call.excinfo
        if raised is None or task_of(item) is None or not isinstance(raised.value, Exception):
            return (yield)
        inside = [of_the_suite(place.path) for place in raised.traceback]
        if True in inside and not inside[-1]:
            raised.traceback = raised.traceback[len(inside) - inside[::-1].index(True) :]
        report = yield
        setting = self.config.getoption("tbstyle")
        style: Any = "short" if setting == "auto" else setting
        report.longrepr = raised.getrepr(style=style, showlocals=self.config.getoption("showlocals"), funcargs=True)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count and write a record as soon as its verdict is known."""
        if invalid := dict(report.user_properties).get(INVALID):
            self._distrust(*invalid)  # type: ignore[misc]
        if report.when == "setup" and (begun := records_of(report)):
            self.begun[report.nodeid] = begun[-1]
        if report.when != "call" or not (records := records_of(report)):
            return
        self.begun.pop(report.nodeid, None)
        if self.is_worker:
            return
        self.count += 1
        with _usage():
            for record in records[:-1]:
                self.run.take(record)
            taken = self.run.take(records[-1], report.start, claimed="benchmarks" not in report.keywords)
        if report.longrepr is not None and "\nreproduce: " not in str(report.longrepr):
            self.raised[id(taken)] = report.longrepr
        if self.run.stopped:
            # with pytest-xdist, its own loop must stop
            loop: Any = self.config.pluginmanager.get_plugin("dsession") or self.session
            loop.shouldstop = self.run.stopped

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Return category, letter and word of the suite's statuses."""
        if report.when != "call" or not (records := records_of(report)):
            return None
        status = records[-1].status
        category, letter = STATUSES.get(status, (status, status[0]))
        return category, letter, status.upper()

    @pytest.hookimpl(wrapper=True)  # around pytest-benchmark's, which writes its file
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        """Check the arithmetic a last time, decide on the exit status, and end the records."""
        try:
            if self.arithmetic.has_judged and self.run.invalid is None:
                self.arithmetic.require()
        except WrongArithmeticError as error:
            self.run.distrust(error)
        if self.is_worker:
            self._tell()
        elif not self.config.option.collectonly:
            if isinstance(
                sys.exc_info()[1], KeyboardInterrupt
            ):  # a second interrupt, before pytest has noted the first
                exitstatus = ExitCode.INTERRUPTED
            session.exitstatus = self._end(session, exitstatus)
        return (yield)

    def _end(self, session: pytest.Session, exitstatus: int) -> int:
        """Decide on the exit status, and end the records."""
        run, timing, option = self.run, self.collection.timing, self.config.option
        if timing is not None:
            timing.complete()
        self.is_part = any(getattr(option, name, None) for name in ("lf", "stepwise"))
        status, is_whole = exitstatus, exitstatus in (ExitCode.GOOD, ExitCode.BAD, ExitCode.NOTHING)
        run.stopped = run.stopped or str(session.shouldstop or session.shouldfail or "" if is_whole else "interrupted")
        if exitstatus in (ExitCode.GOOD, ExitCode.NOTHING):
            of_cases = run.status(is_asked=self.collection.is_asked, is_part=self.is_part)
            status = of_cases if run.tally.cells or self.collection.is_asked or run.options.kernels else exitstatus
        if getattr(option, "stepwise", False) and session.shouldstop and run.failed:
            status = ExitCode.BAD  # pytest takes the stop for an interrupt
        if status == ExitCode.GOOD and timing is not None:
            status = timing.status
        try:
            self.shares.occupy()
            run.decide()
        except KeyboardInterrupt:
            run.stopped, status = "interrupted", ExitCode.INTERRUPTED
        interrupts.write_summary_in_peace()
        return run.end(status)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Bind times and records of a benchmark file, before it is written."""
        if self.collection.timing is not None:
            output_json["conformance"] = {"digest": digest_of(output_json)}

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """Write the summary after pytest's own sections, which show failures of other tests than the suite's."""
        result = yield
        if self.is_worker:  # in a worker the rest would raise, and nothing would be cleaned up
            return result
        run, screen = self.run, _Screen(terminalreporter)
        if self.config.option.collectonly or not (self.collection.is_asked or run.tally.cells or run.options.devices):
            if self.config.getoption("impl"):
                screen.line("no test here verifies anything: add --pyargs conformance.suites, or use conformance run")
            return result
        timing = self.collection.timing
        if timing is not None and timing.run.times:
            screen.section("speed of what was verified")
            for text in timing.lines(screen.width):
                screen.line(text)
        compiled_here = run.workers.compiled if run.workers is not None else wire.Compiled()
        session = terminalreporter._session
        collected = session.testscollected if session is not None else 0
        summary = Summary(
            run,
            screen,
            finished=lambda: f"{self.count:,} of {collected:,} tests have a verdict",
            raised=self._shown,
            compiled=self.compiled + compiled_here,
            is_part=self.is_part,
            is_last=False,
        )
        summary.write(terminalreporter.verbosity)
        if not summary.is_reported and session and session.exitstatus < ExitCode.INTERRUPTED:
            session.exitstatus = ExitCode.UNUSABLE
        if run.invalid is not None:
            screen.line(f"VERDICTS CANNOT BE TRUSTED: {run.invalid}", "red")
        return result

    def _shown(self, record: Record) -> list[str]:
        return str(self.raised.get(id(record), "")).splitlines()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker which process it must not outlive, where compiled kernels are, which records to resume, and
        which devices it sees."""
        is_here = node.gateway.spec.popen and not node.gateway.spec.via
        self.places[node] = min({*range(len(self.places) + 1)} - {*self.places.values()})
        records = self.run.records
        resumed = records is not None and bool(records.earlier.records)
        node.workerinput[WORKER_DATA] = {
            "parent": os.getpid() if is_here else 0,
            # only a process on this machine finds the folder, and only there the code fits the processor
            "compiled": str(self.cache.folder) if self.cache is not None and node.gateway.spec.popen else "",
            "resumed": str(records.path.absolute()) if records is not None and resumed else "",
            "size": records.earlier.size if records is not None else 0,
            "share": msgspec.to_builtins(self.shares.of(self.places[node]) if node.gateway.spec.popen else Share()),
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep the cases of a problem together, unless `--dist` says otherwise."""
        if config.getoption("dist") != "load":
            return None
        from conformance.plugin.scheduling import scheduler  # xdist is here only if its hook is called

        return scheduler(self.run, config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Make an error record for a kernel that killed its worker; it is counted like any other error."""
        reason = str(report.longrepr)
        failure = Failure(kind="suite", message=reason.partition("\n")[0])
        record: Record = build.broken_record(crashitem, BrokenFile(reason, failure))
        if begun := self.begun.pop(crashitem, None):
            record = msgspec.structs.replace(begun, reason=reason, failure=failure)
        report.when = "call"
        report.user_properties.append((RECORDS, f"[{encode(record).decode()}]"))

    def _tell(self) -> None:
        """Send the data that this worker returns at its end; a worker that has crashed sends nothing."""
        compiled_here = self.run.workers.compiled if self.run.workers is not None else wire.Compiled()
        invalid = self.run.invalid
        self.config.workeroutput[WORKER_DATA] = {  # type: ignore[attr-defined]
            "compiled": msgspec.to_builtins(compiled_here),
            "absences": _lines(self.collection.absences()),
            "invalid": None if invalid is None else (invalid.reason, invalid.since),
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the data that a worker returned at its end. All workers report the same absences: take those of the
        first."""
        self.places.pop(node, None)
        output = getattr(node, "workeroutput", {}).get(WORKER_DATA)
        if output is None:
            return
        self.compiled += msgspec.convert(output["compiled"], wire.Compiled)
        if not self.has_absences:
            self.has_absences = True
            self._take_absences(_decode(output["absences"]))
        if output["invalid"]:
            self._distrust(*output["invalid"])

    def _take_absences(self, records: list[Any]) -> None:
        self.collection.is_asked |= bool(records)
        for record in records:
            self.run.take(record)

    def _distrust(self, reason: str, since: float) -> None:
        self.run.distrust(WrongArithmeticError(reason, since))
        pytest.exit("verdicts cannot be trusted")  # the summary says why


class _Screen:
    """Writes the summary of a run with pytest's reporter."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @property
    def width(self) -> int:
        return int(self._reporter._tw.fullwidth) - 1

    def line(self, text: str, color: str = "", *, bold: bool = False) -> None:
        self._reporter.write_line(passed(text), **({color: True} if color else {}), bold=bold)

    def section(self, title: str) -> None:
        self._reporter.section(title)


def publish(item: pytest.Item, *records: Record) -> None:
    """Hand records to the process that counts and writes them, the test's own record last."""
    item.user_properties.append((RECORDS, _lines(records)))


def _lines(records: Any) -> str:
    return f"[{','.join(encode(record).decode() for record in records)}]"


def records_of(report: Any) -> list[Any]:
    """Return the records that a report carries."""
    text = dict(report.user_properties).get(RECORDS)
    return [] if text is None else _decode(str(text))


def _options(config: pytest.Config, processes: int) -> options.RunOptions:
    """Return the options of a run, from the command line and pytest's settings. Raises SelectionError."""
    expression = config.getoption("markexpr", "") or ""
    options.require_markers(expression, [line.split(":")[0].split("(")[0].strip() for line in config.getini("markers")])
    setting = config.getini("impls")
    if isinstance(setting, list):
        raise SelectionError("impls: is one file or folder, not a list; give --impl=FILE for each of several")
    impls = config.rootpath / (setting or IMPLS)
    words = tuple(map(str, config.invocation_params.args))
    chosen = options.read(config.option, words, impls=impls, folder=config.invocation_params.dir, processes=processes)
    shown = {"unsupported"} if "u" in (config.getoption("reportchars") or "") else set[str]()
    return replace(chosen, shown=chosen.shown | shown) if shown else chosen


@contextmanager
def _usage() -> Iterator[None]:
    """If the block raises SelectionError, end pytest with its exit status for a wrong command line."""
    try:
        yield
    except SelectionError as error:
        raise pytest.UsageError(str(error)) from None
