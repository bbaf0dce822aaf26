"""Every hook of a run, from top to bottom in the order in which pytest calls them, and pytest-xdist's after them.

Hooks of the plugin that is registered last are called first. `Hooks` is registered after pytest's own reporter and
pytest-xdist's, so that what it does with a report comes before anybody counts or shows it. (`entry` has the hooks that
decide whether a run has these.)
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from conformance import __version__
from conformance.exit_codes import ExitCode
from conformance.implementations.devices import DEVICES, missing
from conformance.plugin import entry, options, processes, run_command
from conformance.plugin.collection import MARKERS, Collection
from conformance.plugin.environment import Environment
from conformance.plugin.fixtures import shown_from_the_kernel_on
from conformance.plugin.progress import Progress
from conformance.plugin.recording import ABSENCES, BEGUN, CATEGORIES, LETTERS, asked, encoded, lost, record_of, tests_of
from conformance.plugin.session import SESSION, Session
from conformance.results.benchmarks import digest_of


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's options, and its setting, also where `-p no:` leaves `entry` out."""
    entry.pytest_addoption(parser)
    options.add(parser)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """What `conformance run` is given are implementations, not tests. What only lists tests or fixtures verifies
    nothing, and does not end well."""
    if run_command.is_running(config):
        run_command.take_implementations(config)
    status = yield
    session = config.stash.get(SESSION, None)
    if status or session is None or not (session.asked and options.lists(config)):
        return status
    print("NOTHING WAS VERIFIED: tests were only listed", file=sys.stderr)
    return ExitCode.NOTHING


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register markers, check the command line, open the records."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if run_command.is_running(config) and reporter is not None:
        run_command.begin_and_end_otherwise(reporter, lambda: config.stash[SESSION].summary.end(reporter))
    for device in DEVICES:
        config.addinivalue_line("markers", f"{device}: cases of implementations on this device")
    for text in MARKERS.values():
        config.addinivalue_line("markers", text)
    entry.collect_suites(config)
    if not (config.option.help or config.option.markers):
        config.pluginmanager.register(Hooks(config), "conformance-hooks")


class Hooks:
    """Of one run. Workers of pytest-xdist collect and verify, the process that started them counts and writes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        processes.share_cores(config)  # xdist knows by now how many `-n auto` are
        processes.prepare(config)
        self.session = config.stash[SESSION] = Session(config)
        self.collection = Collection(self.session)
        self.environment = Environment(config, self.session.selection.operators)
        self.progress = Progress(config)

    def pytest_report_header(self) -> list[str]:
        """What is asked for, which devices are here, and what is resumed."""
        here = ", ".join(device for device in DEVICES if not missing(device))
        level, seed = self.config.getoption("--level"), self.config.getoption("--seed")
        lines = [f"kernel-conformance {__version__}: level {level}, seed {seed}, devices {here}"]
        records = self.session.records
        if records is not None and (earlier := records.earlier.records):
            lines.append(f"resumed: {len(earlier):,} records of {records.path}")
        return lines

    def pytest_collection(self, session: pytest.Session) -> None:
        """The header, where pytest's, which names settings and plugins that do not apply, is not shown."""
        self.session.loop = session
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if run_command.is_running(self.config) and reporter is not None and self.config.get_verbosity() >= 0:
            for line in self.pytest_report_header():
                reporter.write_line(line)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per case that the marker of a test function asks for."""
        self.collection.parametrize(metafunc)

    @pytest.hookimpl(trylast=True)  # after deselection: a broken file is nobody's to deselect
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """The tests in the order of the ranking, and one for each broken file."""
        self.collection.arrange(session, items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell every test how many there are, now that all are known: a controller learns it from their reports."""
        self.collection.finish(session)
        if session.items:
            self.progress.expect(tests_of(session.items[0]) or 0)

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """With --first-failure, pass over what is left of an implementation that has failed."""
        return True if self.session.passes_over(item) else None

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A worker says with what it begins: when it has crashed it is too late."""
        self.environment.before(item)
        self.progress.begin(*asked(item))
        if self.session.is_worker and (record := lost(item)) is not None:
            item.user_properties.append((BEGUN, encoded(record)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Check the arithmetic after every verdict, before that is published."""
        sent = BEGUN, ABSENCES  # with the report of the setup, and once is enough
        item.user_properties[:] = [pair for pair in item.user_properties if pair[0] not in sent]
        with self.environment.checked(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """What a kernel raised is shown from the kernel on."""
        return (yield from shown_from_the_kernel_on(item, call))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count and write a record as soon as its verdict is known."""
        self.session.note(report)
        if self.session.is_worker:
            return
        self.environment.require_trust(report)
        if (record := record_of(report)) is not None:
            self.session.count_report(record, report)
            self.progress.add(record, tests_of(report))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """The suite's statuses. Letters only beside those of other tests, else there is one line of progress."""
        if (record := record_of(report)) is None:
            return None
        status, verbose = record.status, self.config.get_verbosity() > 0
        mixed = tests_of(report) == 0
        return CATEGORIES.get(status, status), LETTERS[status] * (verbose or mixed), status.upper() * verbose

    @pytest.hookimpl(wrapper=True)  # around pytest-benchmark's, which writes its file
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        """The last check of the arithmetic, the exit status, and the end of the records."""
        self.environment.last_check()
        self.progress.begin(None, "")
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):  # a second one, before pytest has noted the first
            exitstatus = ExitCode.INTERRUPTED
        if self.session.is_worker:
            self.session.compiling.tell()
        elif not self.config.option.collectonly:
            self.session.end(session, exitstatus, self.environment.invalid)
        self.progress.end()
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Bind times and records of a benchmark file, before it is written."""
        if self.session.timing is not None:
            output_json["conformance"] = {"digest": digest_of(output_json)}

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """After pytest's own sections, which show other tests' failures one by one, and not these."""
        with self.session.summary.around(terminalreporter):
            result = yield
        if self.environment.invalid is not None:
            terminalreporter.write_line(f"VERDICTS CANNOT BE TRUSTED: {self.environment.invalid}", red=True)
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """What a worker is told: who must not go away before it, where compiled kernels are, what is resumed."""
        node.workerinput |= processes.told(node) | self.session.compiling.told(node) | self.session.told()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """How many tests there are, before the first of them has ended."""
        self.progress.expect(len(ids))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep the cases of a problem together, unless `--dist` says otherwise."""
        return self.session.scheduler(log) if config.getoption("dist") == "load" else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """A kernel that kills its worker is an error, counted like any other."""
        self.session.make_error(crashitem, report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker tells at its end; one that has crashed tells nothing."""
        told = getattr(node, "workeroutput", {})
        self.session.compiling.hear(told)
        self.session.hear(told)
        self.environment.hear(told)
