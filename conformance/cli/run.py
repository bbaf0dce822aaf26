"""`conformance run`: the front end of a run that needs no pytest."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from conformance import __version__, import_path, interrupts
from conformance.cli.choosing import LastRun, chosen, costs, named_by
from conformance.cli.judging import judge, judging
from conformance.cli.junit import JUnit
from conformance.cli.shipping import KERNELS, shipped
from conformance.cli.terminal import Terminal
from conformance.cli.words import read
from conformance.engine import options
from conformance.engine.arithmetic import WrongArithmeticError
from conformance.engine.cluster import Cluster, device_of
from conformance.engine.health import require_sentinel
from conformance.engine.options import EVERYDAY, RunOptions
from conformance.engine.pool import (
    Begun,
    Counted,
    Died,
    Done,
    Here,
    JudgeError,
    Pool,
    Processes,
    Suspected,
    TakenOut,
    share_cores,
)
from conformance.engine.progress import Progress, duration
from conformance.engine.run import Run
from conformance.engine.summary import Summary
from conformance.engine.tasks import Task, key_of, tasks
from conformance.engine.units import digest, divided, implementation_of
from conformance.execution.compiler_cache import CompilerCache, of_run
from conformance.execution.device_shares import Shares
from conformance.execution.process import SECONDS
from conformance.execution.remote import Raised
from conformance.execution.selection import SelectionError
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.execution.workers import Workers
from conformance.exit_codes import ExitCode
from conformance.failure import Failure
from conformance.files import require_own_kind
from conformance.implementations import devices, registry
from conformance.implementations.devices import DEVICES, missing
from conformance.implementations.errors import of_the_suite
from conformance.inputs import golden
from conformance.judge import threads
from conformance.problems import PROBLEMS, of_family
from conformance.reporting.failures import fails
from conformance.reporting.github import JobSummary
from conformance.reporting.table import many
from conformance.resources import IMPLS
from conformance.results import build
from conformance.results.schema import Record
from conformance.results.writing import require_creatable
from conformance.worker import wire

UNITS_OF_A_JUDGE = 8
"""Units for each judge of a cluster: a device that is lost costs an eighth of its part. A judge starts once, so that
these are more than the jobs that `conformance plan` counts for a device, each of which starts anew."""
INSTEAD = {
    "--html": "--report=DIR writes a page",
    "--json-report": "--records=FILE writes a line of JSON for each verdict",
    "--reruns": "a verdict does not change when it is asked for again, and calls are repeated by a check of their own",
    "--count": "--seed=N draws other data",
    "--cov": "measure the coverage of your own tests with pytest",
    "-p": "pytest --pyargs conformance.suites --impl=acme.py has plugins",
    "--benchmark-only": "pytest --pyargs conformance.benchmarks --benchmark-only --impl=acme.py times what it verifies",
    "--tb": "--show=details shows all that is known of a failure, -qq only the verdict",
}
"""Options of pytest and of its plugins -> the way to do the same here."""


def run(words: Sequence[str]) -> int:
    """Verify what is named, and return the exit status."""
    if not words:
        return _refuse(_what_to_give())
    for word in words:
        if (option := word.split("=")[0]) in INSTEAD:
            return _refuse(f"{option} is an option of pytest or of a plugin; {INSTEAD[option]}")
        if f"-{word}".split("=")[0] in EVERYDAY:
            return _refuse(f"{word}: an option of several letters has two dashes: -{word}")
    # a vendor's json.py in the current folder must not replace the standard library's, in other processes neither
    os.environ["PYTHONSAFEPATH"] = "1"
    with ExitStack() as stack:
        stack.callback(interrupts.handle_signals(interrupts.Interrupt()))
        try:
            return _FrontEnd(words, stack).run()
        except SelectionError as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return ExitCode.UNUSABLE


class _FrontEnd:
    """One run of the command: plans, hands the tasks to a pool, shows what comes of them."""

    def __init__(self, words: Sequence[str], stack: ExitStack) -> None:
        self._words, self._stack = tuple(words), stack
        self._given, self._processes, self.options = read(words)
        arguments = self._given
        self._maxfail = _maxfail(arguments.maxfail)
        _require_apart(self.options, arguments.junitxml)
        if arguments.junitxml:
            try:
                require_creatable(Path(arguments.junitxml))
                require_own_kind(Path(arguments.junitxml), "XML", b"<?xml", b"<testsuite")
            except OSError as error:
                raise SelectionError(f"--junitxml {arguments.junitxml}: cannot be written ({error.strerror})") from None
        if arguments.ray and (self._processes > 1 or self.options.part is not None):
            raise SelectionError(f"--ray and {'-n' if self._processes > 1 else '--unit'}: give one of them")
        if not arguments.ray and (option := arguments.resource or arguments.sentinel):
            raise SelectionError(
                f"--{'resource' if arguments.resource else 'sentinel'} {option}: give --ray ADDRESS too"
            )
        self._cluster: Cluster | None = None
        if self._processes > 1 and arguments.usepdb:
            raise SelectionError("--pdb and -n: give one of them")
        if arguments.keyword:
            named_by(arguments.keyword)  # an expression that cannot be read ends the run before it starts
        if self._processes > 1:
            share_cores(self._processes)
        self._cache, problem = (None, "") if self.options.in_process else of_run(stack)
        # after the cache, whose name tells variables of drivers: each device would have one of its own
        self._shares = stack.enter_context(Shares(self._processes, ("conformance", "run", *words)))
        if not arguments.ray:
            self._shares.take(self.options.devices, is_asked=True)
        self._workers = self._started(self._cache)
        self._run = Run(self.options, self._workers, ("conformance", "run", *words))
        self._run.unexplained += [problem] * bool(problem)
        self._progress = Progress()
        self._screen = Terminal(self.options.verbosity, is_live=arguments.capture != "no" and not arguments.usepdb)
        self._job, self._junit = JobSummary(), JUnit()
        self._last_run = LastRun()
        self._raised: dict[int, list[str]] = {}
        """A record by its id -> what the kernel raised in this process, in lines."""
        self._failing: list[str] = []
        self._ran: list[str] = []
        self._deselected = self._is_empty = False
        self._suspects = 0
        self._compiled = wire.Compiled()
        """Programs that other processes of the run have compiled."""

    @property
    def _is_first(self) -> bool:
        """Return whether what is counted once, and is no task, is counted here: in the first unit of a divided run."""
        return self.options.part is None or self.options.part.number == 1

    @property
    def _is_part(self) -> bool:
        """Return whether what was given may be verified elsewhere."""
        return self._given.lf or self.options.part is not None

    def _started(self, compiled: CompilerCache | None) -> Workers | None:
        limits = self.options.limits
        if limits is None:
            return None
        workers = Workers(limits, self.options.workers, compiled=compiled)
        self._stack.enter_context(threads.spared())
        self._stack.callback(workers.close)  # however the run ends, no kernel's process is left
        return workers

    def run(self) -> int:
        """Carry out the run, and return the exit status."""
        run, begin = self._run, time.monotonic()
        if self._given.sentinel:
            require_sentinel(self._given.sentinel, ())
        if self._given.ray:
            self._cluster = self._joined()
        if run.records is not None:
            self._stack.callback(run.records.close)
        status: int = ExitCode.INTERRUPTED
        try:
            with self._screen.showing(self._progress):
                self._begin()
                _ = run.plan  # an error in the plan ends the run before it starts
                if self._cluster is None:
                    run.share_devices(self._shares, elsewhere=self._processes > 1)
                    self._processes = self._shares.processes
                run.resume()
                self._head()
                planned, absences = tasks(run.plan, run.workers)
                chosen = self._chosen(planned)
                if self._given.sentinel:
                    require_sentinel(self._given.sentinel, {*map(device_of, chosen)})
                is_asked = bool(chosen or absences or not self._given.keyword)
                if self._is_first:
                    self._take_absences(absences)
                self._progress.tests = len(chosen) + len(run.plan.registry.broken)
                with closing(self._pool()) as pool:
                    self._carry_out(pool, chosen)
                    self._compiled = pool.compiled
                if self._is_first:
                    self._take_broken()
            status = run.status(is_asked=is_asked, is_part=self._is_part)
            if self._is_empty and not self._is_first:
                status = ExitCode.GOOD
            if run.stopped:
                is_bad = run.stopped.startswith("stopping")
                status = ExitCode.BAD if is_bad else ExitCode.INTERRUPTED
            if self._suspects:
                run.stopped = run.stopped or f"{many(self._suspects, 'verdict')} of suspect devices left out"
                status = ExitCode.INTERNAL
            if not devices.elsewhere:  # what was verified on another machine's device may not run here
                self._shares.occupy()
                run.decide()
        except KeyboardInterrupt:
            run.stopped, status = "interrupted", ExitCode.INTERRUPTED
        except WrongArithmeticError as error:
            run.distrust(error)
            run.stopped, status = "verdicts cannot be trusted", ExitCode.INTERNAL
        except JudgeError as error:
            print(f"ERROR: {error}", file=sys.stderr)
            run.stopped, status = str(error), ExitCode.INTERNAL
        interrupts.write_summary_in_peace()
        status = run.end(status)
        return self._write(status, time.monotonic() - begin)

    def _begin(self) -> None:
        """Start the process of the first file that is given, and meanwhile read what verdicts will need, which is a
        tenth of the time to the first one. Most kernels are convolutions."""
        if self._workers is not None and self.options.selection.paths:
            self._workers.begin(self.options.selection.paths[0])
            golden.read_ahead()
            of_family(PROBLEMS, "conv")

    def _head(self) -> None:
        if self.options.verbosity < 0:
            return
        here = ", ".join(device for device in DEVICES if not missing(device))
        level, seed = self.options.level, self._given.seed
        self._screen.line(f"kernel-conformance {__version__}: level {level}, seed {seed}, devices {here}")
        for note in self._shares.notes:
            self._screen.line(note)
        records = self._run.records
        if records is not None and (earlier := records.earlier.records):
            self._screen.line(f"resumed: {len(earlier):,} records of {records.path}")

    def _chosen(self, planned: Sequence[Task]) -> list[Task]:
        """Return the tasks that options of this command leave, those that failed before first, if that is asked for."""
        failed, run = self._last_run.failed, self._run
        remaining = chosen(planned, self._given.keyword, self._given.markexpr or "")
        self._deselected = bool(planned) and not remaining
        if (part := self.options.part) is not None:
            units = divided(remaining, part.count, costs(self._given.costs))
            run.require_plan(digest(units))
            remaining = [*units[part.number - 1].tasks]
            self._is_empty = not remaining
        if run.recorded:
            remaining = [task for task in remaining if not run.is_recorded(task.key)]
        if self._given.lf and (again := [task for task in remaining if task.id in failed]):
            remaining = again
        if self._given.failedfirst:
            remaining.sort(key=lambda task: task.id not in failed)
        return remaining

    def _joined(self) -> Cluster:
        """Return the devices of a cluster; kinds that are not here count from now on as if they were."""
        arguments, paths = self._given, [*self.options.selection.paths]
        paths += [
            Path(file) for file in (arguments.sentinel, *(arguments.problems or ())) if file and Path(file).exists()
        ]
        cluster = Cluster(
            arguments.ray,
            judging,
            self._words,
            shipped(paths, self._stack),
            KERNELS,
            resource=arguments.resource or "",
            sentinel=arguments.sentinel or "",
            seconds=self.options.limits.seconds if self.options.limits else SECONDS,
        )
        self._stack.callback(cluster.close)
        devices.elsewhere.update(device for device in cluster.offers if missing(device))
        return cluster

    def _pool(self) -> Pool:
        if self._cluster is not None:
            return self._cluster
        if self._processes == 1:
            return Here(self._run)
        cache = str(self._cache.folder) if self._cache else ""
        return Processes(
            self._processes,
            judge,
            lambda name, place: (
                self._words, self._processes, cache, name, import_path.OF_KERNELS, self._shares.of(place),
            ),
        )  # fmt: skip

    def _carry_out(self, pool: Pool, chosen: Sequence[Task]) -> None:
        """Have all tasks carried out, and take what comes of them."""
        run, progress = self._run, self._progress
        failed = set[str]()

        def wants(task: Task) -> bool:
            is_over = self._given.first_failure and isinstance(task.subject, Trial)
            return not (is_over and task.subject.implementation.name in failed)  # type: ignore[union-attr]

        if self._cluster is not None:
            count = max(self._cluster.devices * UNITS_OF_A_JUDGE, len({*map(implementation_of, chosen)}), 1)
            parts = divided(chosen, count, costs(self._given.costs))
            longest_first = sorted((part for part in parts if part.tasks), key=lambda part: -part.seconds)
            units: Sequence[Sequence[Task]] = [part.tasks for part in longest_first]
        else:
            units = _units(chosen, self._processes, run.workers)
        for event in pool.run(units, wants):
            interrupts.require_none()
            match event:
                case Begun(task):
                    progress.begin(task)
                case Died(task, reason):
                    lost = task.record(Verdict("error", reason, Failure(kind="suite", message=reason)))
                    self._take(task, lost, time.time())
                case Suspected(task, device, other, (status, repeated)):
                    self._suspects += 1
                    self._screen.line(
                        f"suspect device: {task.id}: {status} on {device}, {repeated} on {other}", "yellow"
                    )
                case TakenOut(device, reason):
                    self._screen.line(f"device taken out: {device}: {reason}", "yellow")
                case Counted():
                    progress.fleet = event
                case Done(task, start, record, beside, exception):
                    if beside is not None:
                        self._job.add(run.take(beside))
                    taken = self._take(task, record, start)
                    if fails(taken):
                        failed.add(taken.implementation)
                    self._debug(taken, exception)
            if run.stopped:
                return

    def _take(self, task: Task, record: Record, start: float) -> Record:
        record = self._run.take(record, start)
        self._ran.append(task.id)
        if fails(record):
            self._failing.append(task.id)
            if self._maxfail and len(self._failing) >= self._maxfail:
                self._run.stopped = f"stopping after {many(self._maxfail, 'failure')}"
        self._junit.add(task.id, record)
        self._show(task.id, record)
        return record

    def _show(self, name: str, record: Record) -> None:
        self._job.add(record)
        lines = self._progress.add(record)
        if self.options.verbosity == 0:
            for line in lines:
                self._screen.line(line)
        elif self.options.verbosity > 0:
            share = 100 * self._progress.done // max(1, self._progress.tests)
            self._screen.line(f"{name} {record.status.upper()} [{share:3}%]")

    def _take_absences(self, absences: Sequence[Record]) -> None:
        """Count absences that -m selects. They have no name that -k could choose; yet that a file needs something that
        is missing is said all the same."""
        run, expression = self._run, self._given.markexpr or ""
        for record in absences:
            if self._given.keyword and record.status != "unavailable":
                continue
            markers = {record.device} if record.device else {*DEVICES}
            kind = "behaves" if record.check else "verifies"
            if options.selects(expression, {kind, *markers}) and not (run.recorded and run.is_recorded(key_of(record))):
                self._job.add(run.take(record))

    def _take_broken(self) -> None:
        """Count files that cannot be used, after all tasks: each is an error, and the others have run."""
        run = self._run
        for path, broken in run.plan.registry.broken.items() if not run.stopped else ():
            record = build.broken_record(path, broken)
            if run.recorded and run.is_recorded(key_of(record)):
                continue
            taken = run.take(record, time.time())
            self._junit.add(path, taken)
            self._show(path, taken)

    def _debug(self, record: Record, exception: BaseException | None) -> None:
        """Keep what a kernel raised in this process, from the kernel on; with --pdb stop there."""
        if not isinstance(exception, Exception) or isinstance(exception, Raised):
            return
        frames = [frame for frame, _ in traceback.walk_tb(exception.__traceback__)]
        inside = [of_the_suite(frame.f_code.co_filename) for frame in frames]
        if not inside or inside[-1]:
            return
        last, raised = exception.__traceback__, exception.__traceback__
        for is_ours in inside:
            if raised is not None:
                raised = raised.tb_next
                last = raised if is_ours else last
        self._raised[id(record)] = "".join(traceback.format_exception(type(exception), exception, last)).splitlines()
        if self._given.usepdb:
            self._screen.line(self._raised[id(record)][-1], "red")
            import pdb  # which no other run waits for

            debugger = pdb.Pdb()
            debugger.reset()
            debugger.interaction(None, last)
            if debugger.quitting:
                self._run.stopped = "stopping in the debugger"

    def _write(self, status: int, seconds: float) -> int:
        """Write the end of the run, and return the exit status, which is another one where a file that was asked for
        cannot be written."""
        run, screen = self._run, self._screen

        def finished() -> str:
            return f"{len(self._ran):,} of {self._progress.tests:,} cases have a verdict"

        compiled = self._compiled + (run.workers.compiled if run.workers is not None else wire.Compiled())
        summary = Summary(
            run,
            screen,
            finished=finished,
            raised=lambda record: self._raised.get(id(record), []),
            compiled=compiled,
            job=self._job,
            is_part=self._is_part,
        )
        summary.write(self.options.verbosity)
        if not summary.is_reported and status not in (ExitCode.INTERRUPTED, ExitCode.INTERNAL):
            status = ExitCode.UNUSABLE
        if run.invalid is not None:
            screen.line(f"VERDICTS CANNOT BE TRUSTED: {run.invalid}", "red")
        if self._given.junitxml:
            try:
                self._junit.write(Path(self._given.junitxml))
            except OSError as error:
                screen.line(f"ERROR: --junitxml {self._given.junitxml}: cannot be written ({error.strerror})", "red")
                status = ExitCode.UNUSABLE
        self._last_run.end(self._failing, self._ran)
        if self._is_empty and not self._is_first:
            text, color = f"unit {self.options.part} has no case", "green"
        else:
            text, color = summary.last_line("-k or -m leaves no case" if self._deselected else "")
        screen.last(f"{text} ({duration(seconds)})", color)
        return status


def _units(chosen: Sequence[Task], processes: int, workers: Workers | None) -> list[list[Task]]:
    """Return tasks that share references and compiled programs: of one problem, and where files take turns in a
    kernel's process of one implementation. In the order of their first ones; one process takes them as they come."""
    if processes == 1:
        return [[*chosen]]
    crowded = workers is not None and workers.crowded
    units: defaultdict[tuple[str, str], list[Task]] = defaultdict(list)
    for task in chosen:
        owner = task.subject.implementation.name if crowded and isinstance(task.subject, Trial) else ""
        units[owner, task.problem or task.id].append(task)
    return [*units.values()]


def _require_apart(options: RunOptions, junitxml: str | None) -> None:
    """Raise SelectionError where two options name one file: JUnit's XML took the place of the records."""
    page = [Path(options.report, name) for name in ("index.html", "summary.md")] if options.report else []
    written = [("--records", options.records), ("--junitxml", junitxml), *(("--report", path) for path in page)]
    first = dict[Path, str]()
    for option, name in written:
        path = Path(name).resolve() if name else None
        if path is not None and first.setdefault(path, option) != option:
            raise SelectionError(f"{option} and {first[path]} name one file, {path}; give another one")


def _maxfail(text: str | None) -> int:
    if text is not None and not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise SelectionError(f"--maxfail {text}: must be a whole number")
    return int(text or 0)


def _refuse(why: str) -> int:
    print(f"conformance run: {why}", file=sys.stderr)
    return ExitCode.UNUSABLE


def _what_to_give() -> str:
    """Return the message of a command without arguments: what would run, and what to give instead."""
    here = [path.stem for path in registry.discover(IMPLS)] + [point.name for point in registry.installed()]
    return (
        "give a file, a folder or a name, as in `conformance run acme.py`.\n"
        f"--all verifies everything that is here: {', '.join(here)};\n"
        "each is up to 10,000 cases and takes minutes; with --level smoke it is up to 1,600."
    )
