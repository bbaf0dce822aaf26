"""The end of a run on a terminal: failures grouped by their cause, then what the run amounted to."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Protocol

from conformance.engine.run import Run
from conformance.engine.search import MAX_WHOLE
from conformance.implementations.devices import missing
from conformance.reporting import github, modules, report_command, terminal, training
from conformance.reporting.failures import has, has_no_kernel
from conformance.reporting.groups import Group, amount, described, located
from conformance.reporting.report import total
from conformance.reporting.report_command import ReportError
from conformance.reporting.table import many
from conformance.reporting.terminal import harmless
from conformance.results.schema import Record
from conformance.streams import is_github, own
from conformance.worker import wire

MAX_GROUPS = 10
"""Groups of an implementation that are shown."""
FEW = 10
"""Number of problems below which it is said why no more were run to find out where a kernel fails."""
LONG, MANY = 10.0, 100
"""Seconds of compiling, and number of programs that were read, from which on a user is told of them."""


class Screen(Protocol):
    """The screen that a front end writes on."""

    @property
    def width(self) -> int:
        """Number of columns."""
        ...

    def line(self, text: str, color: str = "", *, bold: bool = False) -> None: ...

    def section(self, title: str) -> None: ...


class Summary:
    """Writes the end of a run.

    finished  how many of the tasks have a verdict, in words
    raised    what a kernel raised in this process, in lines; none if it ran in another one
    compiled  what kernels' processes have compiled
    job       summary of a runner's job, to which the contents of a report are appended
    is_part   whether what was given may be in another part of the run
    is_last   whether the last line of the front end says the verdict too
    """

    def __init__(
        self,
        run: Run,
        screen: Screen,
        *,
        finished: Callable[[], str],
        raised: Callable[[Record], list[str]],
        compiled: wire.Compiled,
        job: github.JobSummary | None = None,
        is_part: bool = False,
        is_last: bool = True,
    ) -> None:
        self._run, self._screen, self._compiled, self._job = run, screen, compiled, job
        self._finished, self._raised, self._is_part, self._is_last = finished, raised, is_part, is_last
        self.is_reported = True
        """Whether the report that was asked for could be written."""

    def write(self, verbosity: int) -> None:
        """Write all parts that a verbosity has, the failures last; an error in one part does not stop the others."""
        run = self._run
        parts: dict[str, Callable[[], None]] = {}
        if verbosity >= 0:
            parts |= {"tables": self._tables, "cases": self._listed_cases, "modules": self._modules}
            parts |= {"verdicts": self._counts, "notes": self._notes, "failures": lambda: self._failures(verbosity)}
        elif verbosity == -1:
            parts |= {"cases": self._listed_cases, "failures": lambda: self._failures(verbosity)}
            parts |= {"verdicts": self._quiet_counts}
        parts |= {"report": lambda: self._report(verbosity), "summary of the job": self._append_to_job}
        for name, write in parts.items():
            with run.evidence.explaining(f"{name} of this run"):
                write()
        for line in dict.fromkeys(run.unexplained):
            self._screen.line(harmless(line), "yellow")
        if run.unwritable:
            self._screen.line(f"ERROR: {run.unwritable}", "red")

    def incompletely(self) -> str:
        """Return a line that says that not all was run."""
        return f"INCOMPLETE: {self._finished()}"

    def last_line(self, deselected: str) -> tuple[str, str]:
        """Return the verdict of the run, and its color; `deselected` says why there is nothing to run, if so."""
        run = self._run
        nothing = run.nothing(is_part=self._is_part)
        text = total(run.report.verdicts) if run.report.verdicts else ""
        if run.stopped:
            text = f"INCOMPLETE, {run.stopped.rstrip('.')}: {text or 'nothing was verified'}"
        elif nothing:
            text = "; ".join(filter(None, (text, deselected, *nothing)))
        is_wrong = run.stopped or nothing or any(verdict.failed for verdict in run.report.verdicts)
        return harmless(text), "red" if is_wrong else "green"

    def _append_to_job(self) -> None:
        if self._job is None:
            return
        notes = [self.incompletely()] if self._run.stopped else [*self._run.idle(is_part=self._is_part).values()]
        try:
            self._job.append(notes)
        except OSError as error:
            self._screen.line(f"GITHUB_STEP_SUMMARY: cannot be written ({error.strerror})", "red")

    def _report(self, verbosity: int) -> None:
        run = self._run
        if run.records is None or not run.options.report:
            return
        if not run.records.path.exists():
            self._screen.line("report: none, since nothing was verified")
            return
        try:
            for text in report_command.of_run(run.records.path, Path(run.options.report)):
                if verbosity >= 0:
                    self._screen.line(text)
        except ReportError as problem:
            self._screen.line(f"report: {problem}", "red")
            self.is_reported = False

    def _tables(self) -> None:
        """Write the tables of memory and training."""
        records = self._run.tables
        networks, width = training.table(records), self._screen.width
        for table in (*training.memory_tables(records), *([networks] if networks else [])):
            self._screen.section(table.title)
            for text in (*table.lines(width), *textwrap.wrap(table.note, width)):
                self._screen.line(text)

    def _modules(self) -> None:
        """Write a row for each torch module and, if not all was run, say so."""
        run, screen = self._run, self._screen
        screen.section("conformance")
        if run.stopped:  # the counts below look like those of a whole run
            screen.line(self.incompletely(), "red")
        rows = run.report.modules(run.of_modules)
        unverified = [
            f"{name}: {implementation.adapted.unverified}"
            for name, implementation in run.plan.registry.implementations.items()
            if implementation.adapted and implementation.adapted.unverified
        ]
        if rows:
            table = modules.lines(*rows[0]) if len(rows) == 1 else modules.table(rows).lines(10**6)
            for text in (*table, *unverified, ""):
                screen.line(text)

    def _counts(self) -> None:
        """Write the verdicts. What the last line of the run says is not written twice, except for failures."""
        report = self._run.report
        verdicts = report.verdicts
        again = any(verdict.operator and verdict.failed for verdict in verdicts)
        if len(verdicts) > 1 or again or not self._is_last:
            self._lines(terminal.verdict_lines(report, self._screen.width))

    def _quiet_counts(self) -> None:
        """Write the verdicts of several kernels; if nothing was verified, say why, which nothing else does."""
        run = self._run
        if len(run.report.verdicts) > 1:
            self._lines(terminal.verdict_lines(run.report, 10**6))
        if not run.tally.verified:
            self._lines(terminal.notes(run.report, self._screen.width, run.options.shown))

    def _notes(self) -> None:
        """Write notes for users who trust the verdicts."""
        run, width = self._run, self._screen.width
        self._lines(terminal.notes(run.report, width, run.options.shown))
        if self._compiled.kept >= MANY or self._compiled.seconds >= LONG:
            programs = many(self._compiled.programs - self._compiled.kept, "program")
            text = f"JAX compiled {programs} and read {self._compiled.kept:,}, in {self._compiled.seconds:,.0f} s"
            for line in textwrap.wrap(text, width):
                self._screen.line(line)
        for device in run.options.devices:
            if not run.tally.verified_on(device):
                reason = missing(device) or (
                    "no implementation of this device could run"
                    if run.tally.devices[device]
                    else "no implementation selected"
                )
                self._screen.line(f"{device}: nothing verified: {reason}", "yellow")
                for text in terminal.simulators(device, run.plan.simulators(device), width):
                    self._screen.line(text, "yellow")
        for text in run.compared.lines(width):
            self._screen.line(text)
        if not self._is_last:
            self._lines((text, "red") for text in run.nothing(is_part=self._is_part))

    def _lines(self, lines: Iterable[terminal.Line]) -> None:
        for text, color in lines:
            self._screen.line(text, color)

    def _failures(self, verbosity: int) -> None:
        """Write the smallest case of each cause in full, and the number of the others. What a file that cannot be used
        raised is in its verdict."""
        run, screen = self._run, self._screen
        unusable = [
            group for group in run.report.groups if not (any(group.operators) or "\n" in group.smallest.explanation)
        ]
        for group in unusable:
            self._annotate(group, "", group.implementation)
        for text, said in run.idle(is_part=self._is_part).items() if is_github() else ():
            screen.line(own(github.annotation(text, said, [(Path(text.partition("::")[0]), 0)])))
        failed = [group for group in run.report.groups if group not in unusable]
        if not failed:
            return
        if verbosity >= 0:
            screen.section("failures")
        for name, members in groupby(failed, key=lambda group: group.implementation):
            groups = list(members)
            where = [located(group, run.evidence) for group in groups[:MAX_GROUPS]]
            more = f"; {_search(run.deciding[name], run.left_out.get(name, Counter()), is_found=any(where))}"
            more *= bool(run.deciding[name])
            screen.line(f"{name}: {amount(groups)}{more}", bold=True)
            for number, (group, condition) in enumerate(zip(groups, where, strict=False), start=1):
                self._group(number, group, condition)
                with run.evidence.explaining(f"{name} {described(group.smallest)}"):
                    self._annotate(group, condition, run.plan.registry.paths.get(name, ""))
            if rest := groups[MAX_GROUPS:]:
                screen.line(f"and more: {amount(rest)}")
        if len(run.failed) > 1 and not run.options.shown & {"fail", "error"}:
            screen.line("every failing case: --show fail --show error")

    def _group(self, number: int, group: Group, condition: str) -> None:
        """Write the smallest case of a group, of the first groups in full: what the kernel raised, or else the reason,
        without what the heading says of all cases: a small problem is often explained by several mistakes or
        precisions. Of goldens only the heading is written, which says what to run."""
        run, screen, smallest = self._run, self._screen, group.smallest
        screen.line(f"{number}. {harmless(group.title)}: {group.counted}", "red", bold=True)
        if has(smallest, "golden"):
            return
        for text in (condition, group.shown):
            for line in textwrap.wrap(text, screen.width):
                screen.line(line)
        if number <= MAX_WHOLE and run.options.explains:
            with run.evidence.explaining(f"{group.implementation} {described(smallest)}"):
                raised = self._raised(smallest) if smallest.status == "error" else []
                for line in raised or _whole(smallest, details=terminal.DETAILS in run.options.shown):
                    screen.line(line)
        if group.command:
            screen.line(f"reproduce: {group.command}")

    def _annotate(self, group: Group, condition: str, path: str) -> None:
        """Write an annotation of a group, which a runner shows beside the change, if it can."""
        if is_github():
            implementation = self._run.plan.registry.implementations.get(group.implementation)
            self._screen.line(own(github.of_group(group, condition, path, implementation)))

    def _listed_cases(self) -> None:
        """Write the cases of a status by implementation, operator and reason; operators that are not implemented are in
        notes."""
        for status in sorted(self._run.options.shown - {terminal.DETAILS}):
            self._screen.section(status)
            alike: defaultdict[str, list[Record]] = defaultdict(list)
            for record in self._run.listed:
                if record.status == status and not has_no_kernel(record):
                    alike[f"{record.implementation} {record.operator}: {record.headline}"].append(record)
            for title, records in alike.items():
                self._screen.line(f"{title}: {many(sum(record.cases for record in records), 'case')}")
                for case in filter(None, map(described, records)):
                    self._screen.line(f"    {case}")


def _search(problems: int, left_out: Counter[str], *, is_found: bool) -> str:
    """Return a text that says how many problems were run to find out where a kernel fails, and why so few."""
    ran = f"ran {many(problems, 'more problem')}"
    if is_found:
        return f"{ran} to locate the failure"
    why = f" ({left_out.most_common(1)[0][0]})" if problems < FEW and left_out else ""
    return f"{ran}; found no common condition{why}"


def _whole(record: Record, *, details: bool) -> list[str]:
    """Return the reason of a failure in lines, with its details or in brief."""
    text = record.explanation if details else record.brief
    return [harmless(line) for line in f"{record.status.upper()}: {text}".splitlines()]
