"""The end of a run on the terminal: failures grouped by their cause, then what the run amounted to."""

from __future__ import annotations

import textwrap
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from conformance.diagnosis.where import WorkLeft
from conformance.execution.case import Case
from conformance.execution.verify import verify
from conformance.execution.workers import printed
from conformance.exit_codes import ExitCode
from conformance.implementations.devices import missing
from conformance.implementations.implementation import Implementation, ImplementationError
from conformance.operators import OPERATORS, takes
from conformance.plugin import options, run_command
from conformance.plugin.progress import duration
from conformance.plugin.recording import CATEGORIES, of_run
from conformance.problems import Problem, Variant
from conformance.problems.table import DECIDING
from conformance.reporting import github, modules, report_command, terminal, training
from conformance.reporting.evidence import RunEvidence, Verified
from conformance.reporting.failures import has_no_kernel, is_deciding, is_not_run
from conformance.reporting.groups import Group, amount, described, group, located
from conformance.reporting.kernel_verdicts import KernelVerdict, kernel_verdicts, total
from conformance.reporting.page.model import ReportError
from conformance.reporting.table import many
from conformance.reporting.terminal import harmless
from conformance.results import build
from conformance.results.schema import CheckRecord, Record, TrainingRecord

if TYPE_CHECKING:
    from conformance.plugin.session import Session

MAX_WHOLE, MAX_GROUPS = 3, 10
"""Groups of an implementation whose smallest case is shown with all that is known of it; groups that are shown."""
NOTHING = "NOTHING WAS VERIFIED"


class Summary:
    """Keeps what is shown at the end, in the process that counts."""

    def __init__(self, run: Session) -> None:
        self._run = run
        self._listed: frozenset[str] = frozenset(run.config.getoption("--show") or ()) | (
            {"unsupported"} if "u" in (run.config.getoption("reportchars") or "") else frozenset()
        )
        self._tables: list[Record] = []
        """Those that have a row in a table of their own: memory, training."""
        self._cases: list[Record] = []
        """Those that are listed."""
        self._failed: list[tuple[Record, Any]] = []
        """With pytest's report."""
        self._unexplained: list[str] = []
        """Lines on what could not be explained, which changes no verdict."""
        self._evidence = RunEvidence(tell=self._tell)
        self._deciding: Counter[str] = Counter()
        """Implementation -> cases that were run to find out where it fails."""
        self._own: list[Record] = []
        """Of the problems that torch modules are made for."""
        self._counted: list[tuple[Record, int]] = []
        """Records, with the number of their cases that pytest counts no report of."""
        self._groups: list[Group] = []
        self._verdicts: list[KernelVerdict] = []
        """Of the failures, and of the kernels, when the run has ended."""
        self._reported = 0
        """Tests of the suites, and of those who use it."""
        self._job = github.JobSummary(wanted=run_command.is_running(run.config) and not run.is_worker)
        self.incomplete = False
        """Whether the run ended before all tests had."""
        self.unwritable = ""
        """Why the records have no end."""

    def add(self, record: Record, report: Any) -> None:
        """`report` is pytest's; None for a record of an earlier run."""
        self._reported += report is not None
        self._job.add(record)
        if isinstance(record, (CheckRecord, TrainingRecord)):
            self._tables.append(record)
        if record.status in self._listed:
            self._cases.append(record)
        if record.status in ("fail", "error"):
            self._failed.append((record, report))
        if modules.is_own(record):
            self._own.append(record)
        with self._evidence.explaining(f"{record.implementation} {described(record)}"):
            self._evidence.add(record)
        self._deciding[record.implementation] += is_deciding(record)
        if not is_deciding(record) and (uncounted := record.cases - (report is not None)):
            self._counted.append((record, uncounted))

    def _tell(self, line: str, error: Exception) -> None:
        """Keep what is to be reported: in one line, with -v with its traceback."""
        self._unexplained.append(line)
        if self._run.config.get_verbosity() > 0:
            self._unexplained += "".join(traceback.format_exception(error)).splitlines()

    def decide(self, take: Callable[[Record], None]) -> None:
        """Run problems that decide where the kernels fail whose failures are shown whole, and take their records. Not
        where kernels run in this process, where they compile for each shape, of a run that was cut short, or where
        somebody has chosen what is run."""
        run, option = self._run, self._run.config.option
        chosen = any(getattr(option, name, None) for name in ("problem", "keyword", "deselect", "lf", "benchmark_only"))
        if run.workers is None or self.incomplete or chosen or option.tbstyle == "no":
            return
        failed = group((record for record, _ in self._failed), self._evidence)
        for name, found in groupby(failed, key=lambda one: one.implementation):
            implementation = run.plan.registry.implementations.get(name)
            if implementation is not None and not implementation.compiles_per_shape:
                for one in [*found][:MAX_WHOLE]:
                    self._evidence.decide(one.records, self._verifier(implementation, one.smallest.operator, take))

    def _verifier(self, implementation: Implementation, operator: str, take: Callable[[Record], None]) -> Verified:
        """Verifies problems as far as the work that there is for a group of failures covers them."""
        run, workers, work = self._run, self._run.workers, WorkLeft()
        assert workers is not None

        def verified(geometry: Any, variant: Variant) -> Record | None:
            if not (takes(operator, geometry) and variant.suits(operator, geometry)):
                return None
            try:
                if not implementation.supports(operator, geometry, variant.dtype, variant.layout):
                    return None
            except ImplementationError:  # it has crashed too often to be asked
                return None
            if not work.covers(geometry):
                return None
            problem = Problem(DECIDING + geometry.descriptor.replace(" ", "_"), geometry, "standard", (variant,))
            selection = run.selection
            program = run.plan.program(implementation)
            case = Case(
                implementation, OPERATORS[operator], problem, variant, selection.seed, selection.method, program
            )
            verdict = verify(case)
            workers.conclude(implementation, verdict)
            record = of_run(run.config, build.record(case, verdict))
            if record.status in ("fail", "error"):
                record = replace(record, printed=printed(implementation))
            if is_not_run(record):
                return None
            if record.status not in ("unsupported", "unavailable"):
                take(record)
            return record

        return verified

    @contextmanager
    def around(self, reporter: pytest.TerminalReporter) -> Iterator[None]:
        """After pytest's own sections, which show other tests' failures one by one, and not these."""
        stats = reporter.stats
        ours = {id(report) for _, report in self._failed}
        whole: dict[str, list[Any]] = {
            category: stats[category] for category in ("failed", "error") if category in stats
        }
        for category, reports in whole.items():
            stats[category] = [report for report in reports if id(report) not in ours]
        try:
            yield
        finally:
            stats.update(whole)
        self._write(reporter)
        # pytest counts reports, and one report may stand for many cases
        for record, cases in self._counted:
            stats.setdefault(CATEGORIES.get(record.status, record.status), []).extend([record] * cases)
        reporter._set_main_color()  # which finds out what kinds there are: of absences no test has told it

    def _write(self, reporter: pytest.TerminalReporter) -> None:
        run = self._run
        if run.config.option.collectonly:
            return
        if not (run.asked or run.tally.cells or options.devices_asked(run.config)):
            if run.config.getoption("impl") and not run_command.is_running(run.config):
                reporter.write_line(
                    "no test here verifies anything: add --pyargs conformance.suites, or use conformance run"
                )
            return
        self._groups = group((record for record, _ in self._failed), self._evidence)
        self._verdicts = kernel_verdicts(run.tally, self._groups, self._evidence)
        parts = {"speed": self._speed}
        if reporter.verbosity >= 0:
            parts |= {"tables": self._tables_of_their_own, "cases": self._listed_cases, "modules": self._modules}
            parts |= {"verdicts": self._counts, "notes": self._notes, "failures": self._failures}
        elif reporter.verbosity == -1:
            parts |= {"cases": self._listed_cases, "failures": self._failures, "verdicts": self._quiet_counts}
        parts |= {"report": self._report, "summary of the job": self._append_to_job}
        for name, write in parts.items():
            with self._evidence.explaining(f"{name} of this run"):  # no part takes another one with it
                write(reporter)
        for line in dict.fromkeys(self._unexplained):
            reporter.write_line(harmless(line), yellow=True)
        if self.unwritable:
            reporter.write_line(f"ERROR: {self.unwritable}", red=True)

    def _speed(self, reporter: pytest.TerminalReporter) -> None:
        timing = self._run.timing
        if timing is not None and timing.run.times:
            reporter.section("speed of what was verified")
            for text in timing.lines(_width(reporter)):
                reporter.write_line(text)

    def _report(self, reporter: pytest.TerminalReporter) -> None:
        run, session = self._run, reporter._session
        if run.records is None or not (folder := run.config.getoption("--report")):
            return
        try:
            for text in report_command.of_run(run.records.path, Path(folder)):
                if reporter.verbosity >= 0:
                    reporter.write_line(text)
        except ReportError as problem:
            reporter.write_line(f"report: {problem}", red=True)
            if session is not None and session.exitstatus not in (ExitCode.INTERRUPTED, ExitCode.INTERNAL):
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _append_to_job(self, reporter: pytest.TerminalReporter) -> None:
        try:
            self._job.append([self._incompletely(reporter)] if self.incomplete else [*self._run.idle().values()])
        except OSError as error:
            reporter.write_line(f"GITHUB_STEP_SUMMARY: cannot be written ({error.strerror})", red=True)

    def _tables_of_their_own(self, reporter: pytest.TerminalReporter) -> None:
        """Memory and training."""
        named = [(record.implementation, record) for record in self._tables]
        networks, width = training.table(named), _width(reporter)
        for table in (*training.memory_tables(named), *([networks] if networks else [])):
            reporter.section(table.title)
            for text in (*table.lines(width), *textwrap.wrap(table.note, width)):
                reporter.write_line(text)

    def _modules(self, reporter: pytest.TerminalReporter) -> None:
        """That not all was run, where it was not, and of each torch module a row."""
        reporter.section("conformance")
        if self.incomplete:  # the counts below look like those of a whole run
            reporter.write_line(self._incompletely(reporter), red=True)
        rows = []
        for record in self._own:
            name = record.implementation
            cells = (found for (owner, _), found in self._run.tally.cells.items() if owner == name)
            mine = [one for one in self._groups if one.implementation == name]
            rows.append(modules.row(record, sum(cells, Counter()), mine, lambda one: located(one, self._evidence)))
        unverified = [
            f"{name}: {one.adapted.unverified}"
            for name, one in self._run.plan.registry.implementations.items()
            if one.adapted and one.adapted.unverified
        ]
        if rows:
            table = modules.lines(*rows[0]) if len(rows) == 1 else modules.table(rows).lines(10**6)
            for text in (*table, *unverified, ""):
                reporter.write_line(text)

    def _counts(self, reporter: pytest.TerminalReporter) -> None:
        """The verdicts. What the last line of the run says is not said twice, but for failures."""
        again = any(one.operator and one.failed for one in self._verdicts)
        if len(self._verdicts) > 1 or again or not run_command.is_running(self._run.config):
            self._lines(reporter, terminal.verdict_lines(self._verdicts, _width(reporter)))

    def _quiet_counts(self, reporter: pytest.TerminalReporter) -> None:
        """The verdicts of several kernels; where there is none, why, which nothing else says."""
        run = self._run
        if len(self._verdicts) > 1:
            self._lines(reporter, terminal.verdict_lines(self._verdicts, 10**6))
        if not run.tally.verified:
            self._lines(reporter, terminal.notes(run.tally, self._verdicts, _width(reporter), self._listed))

    def _notes(self, reporter: pytest.TerminalReporter) -> None:
        """What a user should know who trusts the verdicts."""
        run, width = self._run, _width(reporter)
        self._lines(reporter, terminal.notes(run.tally, self._verdicts, width, self._listed))
        for text in run.compiling.lines(width):
            reporter.write_line(text)
        for device in options.devices_asked(run.config):
            if not run.tally.verified_on(device):
                reason = missing(device) or (
                    "no implementation of this device could run"
                    if run.tally.devices[device]
                    else "no implementation selected"
                )
                reporter.write_line(f"{device}: nothing verified: {reason}", yellow=True)
                for text in terminal.simulators(device, run.plan.simulators(device), width):
                    reporter.write_line(text, yellow=True)
        for text in run.compared.lines(width):
            reporter.write_line(text)
        if not run_command.is_running(run.config):
            self._lines(reporter, ((text, "red") for text in self._nothing()))

    def _nothing(self) -> list[str]:
        """That nothing was verified, or nothing of something that was given."""
        return [*self._run.idle().values()] or [NOTHING] * (not self._run.tally.verified)

    def _lines(self, reporter: pytest.TerminalReporter, lines: Iterable[terminal.Line]) -> None:
        for text, color in lines:
            reporter.write_line(text, **({color: True} if color else {}))

    def _incompletely(self, reporter: pytest.TerminalReporter) -> str:
        collected = reporter._session.testscollected if reporter._session is not None else 0
        return f"INCOMPLETE: {self._reported:,} of {collected:,} tests have a verdict"

    def end(self, reporter: pytest.TerminalReporter) -> None:
        """The last line of `conformance run`, in the place of pytest's, which counts what did not run."""
        if self._run.config.option.collectonly:
            return
        nothing = self._nothing()
        text = total(self._verdicts) if self._verdicts else ""
        if self.incomplete:
            stopped = getattr(reporter._session, "shouldstop", False) or getattr(reporter._session, "shouldfail", False)
            text = f"INCOMPLETE, {str(stopped or 'interrupted').rstrip('.')}: {text or 'nothing was verified'}"
        elif nothing:
            why = "-k, -m or --deselect leaves no test" if reporter.stats.get("deselected") else ""
            text = "; ".join(filter(None, (text, why, *nothing)))
        took = f"{harmless(text)} ({duration(reporter._session_start.elapsed().seconds)})"
        wrong = self.incomplete or nothing or any(one.failed for one in self._verdicts)
        color = {"red" if wrong else "green": True}
        if reporter.verbosity < 0 or len(took) > reporter._tw.fullwidth - 4:
            reporter.write_line(took, **color)
        else:
            reporter.write_sep("=", took, **color)

    def _failures(self, reporter: pytest.TerminalReporter) -> None:
        """The smallest case of each cause, whole; of the others their number. What a file that cannot be used raised is
        in its verdict."""
        unusable = [one for one in self._groups if not (any(one.operators) or "\n" in one.smallest.explanation)]
        for one in unusable:
            self._annotate(reporter, one, "", one.implementation)
        for text, said in self._run.idle().items() if github.reads() else ():
            reporter.write_line(github.annotation(text, said, [(Path(text.partition("::")[0]), 0)]))
        failed = [one for one in self._groups if one not in unusable]
        if not failed:
            return
        reports = {id(record): report for record, report in self._failed}
        style = self._run.config.getoption("tbstyle")
        if reporter.verbosity >= 0:
            reporter.section("failures")
        for name, found in groupby(failed, key=lambda one: one.implementation):
            groups = list(found)
            conditions = [located(one, self._evidence) for one in groups[:MAX_GROUPS]]
            more = f"; {many(self._deciding[name], 'more problem')} run to find out where" * bool(self._deciding[name])
            more += ", in vain" * bool(more and not any(conditions))
            reporter.write_line(f"{name}: {amount(groups)}{more}", bold=True)
            for number, (one, condition) in enumerate(zip(groups, conditions, strict=False), start=1):
                smallest = one.smallest
                reporter.write_line(f"{number}. {harmless(one.title)}: {one.counted}", red=True, bold=True)
                case = described(smallest)
                for line in filter(None, (condition, f"smallest case: {case}" * bool(case))):
                    reporter.write_line(line)
                with self._evidence.explaining(f"{name} {case}"):
                    if number <= MAX_WHOLE and style != "no":
                        raised = getattr(reports[id(smallest)], "longrepr", None)
                        _show(reporter, one, raised, terminal.DETAILS in self._listed)
                if smallest.command:
                    reporter.write_line(f"reproduce: {smallest.command}")
                with self._evidence.explaining(f"{name} {case}"):
                    self._annotate(reporter, one, condition, self._run.plan.registry.paths.get(name, ""))
            if left := groups[MAX_GROUPS:]:
                reporter.write_line(f"and more: {amount(left)}")
        if len(self._failed) > 1 and not self._listed & {"fail", "error"}:
            reporter.write_line("every failing case: --show fail --show error")

    def _annotate(self, reporter: pytest.TerminalReporter, one: Group, condition: str, path: str) -> None:
        """Show a group beside the change, where a runner can."""
        if github.reads():
            implementation = self._run.plan.registry.implementations.get(one.implementation)
            reporter.write_line(github.of_group(one, condition, path, implementation))

    def _listed_cases(self, reporter: pytest.TerminalReporter) -> None:
        """Cases of a status by implementation, operator and reason; operators that are not implemented are in the
        summary."""
        for status in sorted(self._listed - {terminal.DETAILS}):
            reporter.section(status)
            alike: defaultdict[str, list[Record]] = defaultdict(list)
            for record in self._cases:
                if record.status == status and not has_no_kernel(record):
                    alike[f"{record.implementation} {record.operator}: {record.headline}"].append(record)
            for title, records in alike.items():
                reporter.write_line(f"{title}: {many(sum(record.cases for record in records), 'case')}")
                for case in filter(None, map(described, records)):
                    reporter.write_line(f"    {case}")


def _width(reporter: pytest.TerminalReporter) -> int:
    return reporter._tw.fullwidth - 1


def _show(reporter: pytest.TerminalReporter, one: Group, raised: Any, details: bool) -> None:
    """What the kernel raised, without the line on the worker that had it; else the reason, without what the group's
    heading says of all cases: a small problem is often explained by several mistakes or precisions."""
    record = one.smallest
    if record.status == "error" and hasattr(raised, "toterminal") and "\nreproduce: " not in str(raised):
        raised.toterminal(reporter._tw)
        return
    text = record.explanation if details else record.brief
    for line in f"{record.status.upper()}: {text}".splitlines():
        reporter.write_line(harmless(line))
