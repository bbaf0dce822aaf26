"""One run, whatever front end shows it: its plan, its records, its results, and its exit status."""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from conformance.engine.arithmetic import Invalid, WrongArithmeticError
from conformance.engine.options import RunOptions
from conformance.engine.search import Searched
from conformance.engine.tasks import Key, key_of
from conformance.execution import environment
from conformance.execution.device_shares import Shares
from conformance.execution.plan import Plan
from conformance.execution.selection import SelectionError
from conformance.execution.trial import Claim
from conformance.execution.workers import Workers
from conformance.exit_codes import ExitCode
from conformance.failure import Failure
from conformance.files import content_of
from conformance.implementations import registry
from conformance.implementations.devices import Unavailable
from conformance.implementations.source_files import Covers, is_code
from conformance.reporting import modules, report_command
from conformance.reporting.claims_report import Compared
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.failures import has, is_deciding
from conformance.reporting.groups import Group, described, group
from conformance.reporting.report import Report
from conformance.reporting.tally import Tally
from conformance.results import build, claims_file
from conformance.results.reading import RecordError, earlier, read, shown
from conformance.results.schema import Attempt, CaseRecord, CheckRecord, Record, TrainingRecord, covered
from conformance.results.writing import Records, RecordsError, require_creatable

NOTHING = "NOTHING WAS VERIFIED"


class Run:
    """Takes the verdicts of a run: writes and counts them, and keeps what the end of the run needs. A front end plans
    with it, carries out the tasks, here or elsewhere, and hands every record to `take`.

    `command` is the command line, for the header of the records; empty in a process that only verifies, and whose
    records another one takes. Raises SelectionError if the options cannot be run.
    """

    def __init__(self, options: RunOptions, workers: Workers | None, command: Sequence[str] = ()) -> None:
        self.options, self.selection, self.workers = options, options.selection, workers
        self.claims = _claims(options)
        self.tally, self.compared = Tally(), Compared(self.claims)
        self.records: Records | None = None
        self.recorded = Counter[Key | None]()
        """Keys that have a record already -> how many they have."""
        self.failed: list[Record] = []
        self.tables: list[Record] = []
        """Records that have a row in a table of their own: memory, training."""
        self.listed: list[Record] = []
        """Records whose cases are to be listed."""
        self.of_modules: list[Record] = []
        """Records of the problems that torch modules are made for."""
        self.deciding = Counter[str]()
        """Implementation -> cases that were run to find out where it fails."""
        self.left_out: dict[str, Counter[str]] = {}
        """Implementation -> why other problems were not run for that -> how many."""
        self.unexplained: list[str] = []
        """Lines on what could not be explained; they change no verdict."""
        self.evidence = RunEvidence(tell=self._tell)
        self.report = Report(self.tally, self.evidence, self.failed)
        """Report of the run, which is computed when it has ended."""
        self.stopped = ""
        """Why the run ended before all of it was verified; empty where it did not."""
        self.invalid: Invalid | None = None
        self.unwritable = ""
        """Why the end of the records could not be written."""
        self._starts: list[float] = []
        """Times when the calls began whose verdicts are counted."""
        self._end = math.inf
        self._plan: Plan | None = None
        self._sources: dict[tuple[str, str], str] = {}
        """Implementation, and a file that its source covers (or none) -> the digest that its first record names."""
        self._first: dict[tuple[str, ...], CaseRecord] = {}
        """Problem, dtype, layout and storage of an implementation -> its first case that passed, or was refused when
        the kernel was called."""
        if command:
            self._open(command)

    @property
    def plan(self) -> Plan:
        """Plan of the run, made when first needed: the controller of a parallel run of pytest usually needs none."""
        if self._plan is None:
            self._plan = Plan(self.selection, self.options.impls, self.claims, self.workers or registry)
        return self._plan

    def share_devices(self, shares: Shares, *, elsewhere: bool) -> None:
        """Take devices for the implementations that are planned. If kernels see others now, all is planned anew, as
        bridges have described a device; if they are judged `elsewhere`, their processes here end, which may hold all of
        a device."""
        if self.workers is None:
            return
        if shares.take({implementation.device for implementation in self.plan.implementations}):
            self._plan = None
        if self._plan is None or (elsewhere and shares):
            self.workers.restart()

    def operators(self) -> set[str]:
        """Return the operators that implementations of the run have kernels of."""
        return {kernel.operator for implementation in self.plan.implementations for kernel in implementation.kernels}

    def _open(self, command: Sequence[str]) -> None:
        """Open the file of records: the one that is named, or one beside the report that is made from it. Before
        minutes are spent on the contents of a report, check that it can be made.

        The report's own file is replaced, if the run that wrote it came to its end.
        """
        options = self.options
        if options.records is None and options.report is None:
            return
        if options.report is not None:
            try:
                report_command.require()
                require_creatable(Path(options.report) / "index.html")
            except Unavailable as absence:
                raise SelectionError(f"--report: {absence}") from None
            except OSError as error:
                raise SelectionError(f"--report {options.report}: cannot be written ({error.strerror})") from None
        path = Path(options.records or Path(options.report or "") / "records.jsonl")
        variables = environment.of_users(options.limits.passed) if options.limits else ""
        header = build.header(
            command, options.level, self.selection.seed, self.selection.method, options.chosen, variables, options.part
        )
        overwrite = options.overwrite or (options.records is None and _is_whole(path))
        try:
            self.records = Records(path, header, resume=options.resume, overwrite=overwrite)
        except (OSError, RecordsError) as error:
            raise unwritable(path, error) from None
        self.recorded = Counter(map(key_of, self.records.earlier.records))

    def resume(self) -> None:
        """Count the records in the file. Raises SelectionError if an implementation is not the one that these records
        are about."""
        if self.records is None or not self.records.earlier.records:
            return
        implementations, covers = self.plan.registry.implementations, covered(self.records.earlier.records)
        attempts = [record for record in self.records.earlier.records if isinstance(record, Attempt)]
        for name, source in dict.fromkeys((record.implementation, record.source) for record in attempts):
            files = implementations[name].files if name in implementations else None
            changed = files.changed(covers.get((name, source), Covers())) if files is not None else ""
            if name not in implementations or implementations[name].source != source or changed:
                what = (
                    f"was changed since{f' ({shown(changed)})' * bool(changed)}"
                    if name in implementations
                    else "is not here"
                )
                raise SelectionError(
                    f"--records {self.records.path}: cannot be resumed: {shown(name)} {what}; begin again with "
                    "--overwrite"
                )
        for record in self.records.earlier.records:
            self._count(self._refused_or_not(record))

    def require_plan(self, plan: str) -> None:
        """Note the digest of the units that the run is one of. Raises SelectionError if its file of records has a unit
        of others."""
        if self.records is not None:
            try:
                self.records.require_plan(plan)
            except RecordsError as error:
                raise unwritable(self.records.path, error) from None

    def is_recorded(self, key: Key | None) -> bool:
        """Return whether a record has this key, and use that record up: of two tasks with the key, one is left."""
        self.recorded[key] -= 1
        return self.recorded[key] >= 0

    def take(self, record: Record, start: float | None = None, *, claimed: bool = True) -> Record:
        """Write and count a record, and return it as it was counted; `start` is the time of its call. Sets `stopped`
        when the run's time is up. Records of benchmarks are not `claimed`. Raises SelectionError if the file cannot be
        written."""
        patience = self.options.patience
        if patience is not None and start is not None:
            # from the first verdict on: loading frameworks is no part of it
            self._end = min(self._end, time.monotonic() + patience)
            if time.monotonic() > self._end:
                self.stopped = f"stopped after {patience / 60:g} minutes (--minutes)"
        if start is not None:
            self._starts.append(start)
        record = structs.replace(record, run_level=self.options.level, in_process=self.options.in_process)
        record = self._refused_or_not(self._of_one_source(record))
        if self.records is not None:
            try:
                self.records.write(record)
            except (OSError, RecordsError) as error:
                raise unwritable(self.records.path, error) from None
        self._count(record, claimed=claimed)
        return record

    def distrust(self, error: WrongArithmeticError) -> None:
        """Note that verdicts are invalid since the last good check of the arithmetic."""
        first = next((number for number, start in enumerate(self._starts) if start >= error.since), len(self._starts))
        self.invalid = Invalid(error.reason, error.since, len(self._starts) - first)

    def _count(self, record: Record, *, claimed: bool = True) -> None:
        self.tally.add(record)
        if claimed:
            self.compared.add(record)
        if isinstance(record, (CheckRecord, TrainingRecord)):
            self.tables.append(record)
        if record.status in self.options.shown:
            self.listed.append(record)
        if record.status in ("fail", "error"):
            self.failed.append(record)
        if modules.is_own(record):
            self.of_modules.append(record)
        with self.evidence.explaining(f"{record.implementation} {described(record)}"):
            self.evidence.add(record)
        self.deciding[record.implementation] += is_deciding(record)

    def _of_one_source(self, record: Record) -> Record:
        """Return the record, as an error if it passes and another process has loaded another source: one of them was
        changed during the run."""
        covers = record.covers or Covers()
        code = {file: digest for file, digest in covers.files.items() if is_code(file)}
        parts = {"": record.source} | code | {f"package {name}": digest for name, digest in covers.packages.items()}
        sources = [self._sources.setdefault((record.implementation, part), now) for part, now in parts.items() if now]
        if record.status != "pass" or sources == [*filter(None, parts.values())]:
            return record
        why = "its source was changed during the run: other records of the run are of another one; run again"
        return structs.replace(record, status="error", reason=why, failure=Failure(kind="source", message=why))

    def _refused_or_not(self, record: Record) -> Record:
        """Return the record, as a failure if it says that the kernel computes a problem, and an earlier one that it
        refuses other values of it, or the reverse: whichever process, or part of a resumed run, has made them."""
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
        return structs.replace(record, status="fail", refused=False, reason=why, failure=failure)

    def _tell(self, line: str, error: Exception) -> None:
        """Keep a line on what could not be explained; with -v, its traceback too."""
        self.unexplained.append(line)
        if self.options.verbosity > 0:
            self.unexplained += "".join(traceback.format_exception(error)).splitlines()

    def decide(self) -> None:
        """Run problems that show where kernels fail, for the failures that are shown whole, except of kernels that
        compile for each shape, and read what becomes of single terms. Do nothing if kernels run in this process, the
        run was cut short, or somebody has chosen what is run."""
        if self.workers is None or self.stopped or self.options.is_chosen or not self.options.explains:
            return
        for name in sorted({record.implementation for record in self.failed}):
            implementation = self.plan.registry.implementations.get(name)
            if implementation is None:
                continue

            def groups(implementation: str = name) -> list[Group]:
                return group(
                    (record for record in self.failed if record.implementation == implementation), self.evidence
                )

            named = self.plan.named(implementation)
            searched = Searched(implementation, self.selection, named, self.workers, self.take)
            if not implementation.compiles_per_shape:
                searched.decide(groups(), self.evidence)
                self.left_out[name] = searched.left_out
            searched.read(groups())
            self.deciding[name] -= len(searched.again)

    def idle(self, *, is_part: bool = False) -> dict[str, str]:
        """Return files, folders and names that were given and of which nothing was verified -> a line that says so,
        with what is missing; not what other options leave out, nor, in a part of a run, what may be in another part."""
        lines = {}
        for text, names_and_paths in () if self.stopped else self.options.kernels.items():
            names = self.plan.names_of(*names_and_paths) & {name for name, _ in self.tally.cells}
            lacks = [f": {why}" for name, why in self.tally.absent.items() if name in names][:1]
            if names and not self.tally.speaks_of(names) and (lacks or not is_part):
                lines[text] = "".join((f"{NOTHING} of {text}", *lacks))
        return lines

    def nothing(self, *, is_part: bool = False) -> list[str]:
        """Return lines that say that nothing was verified, or nothing of something that was given."""
        return [*self.idle(is_part=is_part).values()] or [NOTHING] * (not self.tally.verified)

    def status(self, *, is_asked: bool, is_part: bool = False) -> ExitCode:
        """Return the exit status of a run that has come to its end; a run in which nothing was verified does not end
        well, if it `is_asked` to verify something."""
        totals = self.tally.totals
        if any(has(record, "not repeatable") for record in self.failed):
            return ExitCode.INTERNAL
        if totals["fail"] or totals["error"]:
            return ExitCode.BAD
        if any(not self.tally.verified_on(device) for device in self.selection.required):
            return ExitCode.BAD
        if self.tally.verified:
            # also if all of it was verified before this run, which had nothing left
            return ExitCode.NOTHING if self.idle(is_part=is_part) else ExitCode.GOOD
        return ExitCode.NOTHING if is_asked or self.options.kernels else ExitCode.GOOD

    def end(self, status: int) -> int:
        """End kernels' processes and the file of records. Return the exit status: another one if the file cannot be
        written."""
        if self.workers is not None:
            self.workers.close()  # first: nobody would notice that one rewrites the file after its footer
        if self.invalid is not None:
            status = ExitCode.INTERNAL
        if self.records is None:
            return status
        try:
            self.records.end(status, bool(self.stopped), 0 if self.invalid is None else self.invalid.verdicts)
        except (OSError, RecordsError) as error:
            if status != ExitCode.UNUSABLE:  # else it has been said
                self.unwritable = str(unwritable(self.records.path, error))
                status = ExitCode.UNUSABLE if self.invalid is None else status
        return status


def unwritable(path: Path, error: OSError | RecordsError) -> SelectionError:
    """Return the error that ends a run whose records cannot be written."""
    reason = f"cannot be written ({error.strerror})" if isinstance(error, OSError) else str(error)
    return SelectionError(f"--records {path}: {reason}")


def recorded(path: Path, size: int) -> Counter[Key | None]:
    """Return how many records each key had in the first `size` bytes of a file: all processes must plan the same tasks,
    also one that replaces another in the middle of the run."""
    return Counter(map(key_of, earlier(content_of(path)[:size]).records))


def _claims(options: RunOptions) -> dict[str, Claim]:
    """Return the claims beside the given files, and in the folder where implementations are looked for."""
    selection = options.selection
    files = claims_file.sources(options.impls) if selection.implementations or not selection.paths else ()
    try:
        return claims_file.load([*selection.paths, *files])
    except claims_file.ClaimsError as error:
        raise SelectionError(str(error)) from None


def _is_whole(path: Path) -> bool:
    try:
        for run in read(path):
            run.require_whole()
    except RecordError:
        return False
    return True
