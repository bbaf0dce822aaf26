"""`conformance verify`: check that a file of records is consistent, and that cases drawn from it end alike here."""

from __future__ import annotations

import argparse
import random
import secrets
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from conformance.engine.check import check
from conformance.execution.implementation_names import base_of, load_named, vary
from conformance.execution.process import Limits
from conformance.execution.selection import SelectionError, seed_number, split
from conformance.execution.trial import Claim
from conformance.execution.workers import Workers, share
from conformance.exit_codes import ExitCode
from conformance.implementations.registry import Registry, discover, unusable
from conformance.implementations.source_files import is_code
from conformance.inputs import manifest
from conformance.judge import Contract, ContractError
from conformance.operators import FAMILIES, OPERATORS, GeometryError, parse, takes
from conformance.problems import typed
from conformance.resources import IMPLS
from conformance.results import build, claims_file
from conformance.results.reading import ChangedError, RecordError, Run, read, shown
from conformance.results.schema import STATUSES, VERIFIED, Attempt, CaseRecord, Header, Record
from conformance.results.units import UnitRun, missing, mixed

MAX_LISTED = 20
"""Most defects that are listed."""
UNSEEN = (
    "Not seen: lines that were taken out, changed or made up together with the digest in the footer, or before a run "
    "that was cut off was gone on with, unless their cases are run again; checks of behaviour and trainings, which are "
    "never run again; level, limits, date, machine and times that were made up; and whether a kernel of the records is "
    "the one here, unless the hashes of their sources agree."
)
SAME, DIFFERS, NOT_RUN = "the same", "DIFFERS", "not run"
Placed = tuple[str, Record]
"""A record after its place in words: file and line."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Check a file of records: does it hold together, and do cases drawn from it end alike here."""
    parser.set_defaults(run=_run)
    words = "what --records=FILE wrote; several files are the units of one run"
    parser.add_argument("records", type=Path, nargs="+", metavar="RECORDS", help=words)
    parser.add_argument("--rerun", type=_count, default=0, metavar="N", help="run N of its verified cases again")
    parser.add_argument("--seed", metavar="S", help="draw the cases that an earlier command drew, which printed S")
    words = "a file or folder of kernels that the suite does not bring; as often as needed"
    parser.add_argument("--impl", action="append", default=[], metavar="PATH", help=words)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number below 10^9")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    """Return 0; 1 where something is wrong or differs, 4 where an argument cannot be used, 5 where nothing was verified
    or nothing could be run again."""
    try:
        seed = secrets.randbelow(10**9) if arguments.seed is None else seed_number(arguments.seed)
        _, paths = split(arguments.impl)
        claimed = claims_file.load([*paths, *claims_file.sources(IMPLS)])
        files = [read_placed(path) for path in dict.fromkeys(arguments.records)]
    except (RecordError, SelectionError, claims_file.ClaimsError) as problem:
        print(f"verify: {problem}", file=sys.stderr)
        return ExitCode.UNUSABLE
    runs = [run for of_file, _ in files for run in of_file]
    placed = [record for _, of_file in files for record in of_file]
    for header in _headers(runs):
        options = ((option, values) for option, values in header.selection.items() if option.startswith("-"))
        selection = "".join(f", {option} {' '.join(values)}" for option, values in options)
        print(shown(f"run of {header.started}: level {header.level}, seed {header.seed}{selection}", 300))
    again = repeated(runs, placed)
    print("\n".join(totals([record for place, record in placed if place not in again])))
    print("".join(f"{line}\n" for line in missing(_units(runs))), end="")
    wrong = list(defects(runs, placed, again))
    for line in wrong[:MAX_LISTED]:
        print(f"WRONG: {line}")
    if len(wrong) > MAX_LISTED:
        print(f"WRONG: and {len(wrong) - MAX_LISTED:,} more")
    cases = [
        record
        for place, record in placed
        if isinstance(record, CaseRecord) and record.status in VERIFIED and place not in again
    ]
    status = ExitCode.BAD if wrong else ExitCode.GOOD if cases else ExitCode.NOTHING
    if not wrong and not cases:
        print("nothing was verified: no record compares results with the reference")
    elif not wrong and arguments.rerun:
        drawn = random.Random(seed).sample(cases, min(arguments.rerun, len(cases)))
        print(f"running {len(drawn):,} of {len(cases):,} verified cases again, --seed {seed}", flush=True)
        words = set()
        for word, text in reran(drawn, paths, claimed):
            print(f"  {word}: {text}", flush=True)
            words.add(word)
        status = ExitCode.BAD if DIFFERS in words else ExitCode.GOOD if SAME in words else ExitCode.NOTHING
    print(UNSEEN)
    return status


def read_placed(path: Path) -> tuple[list[Run], list[Placed]]:
    """Return the runs and records of a file. Raises RecordError naming the file, the line and the field, and where a
    run did not come to its end."""
    runs = read(path)
    for run in runs:
        with suppress(ChangedError):  # which is one of the defects
            run.require_whole()
    return runs, [placed for run in runs for placed in run.records()]


def totals(records: Sequence[Record]) -> Iterator[str]:
    """Yield the numbers of cases by status, for each implementation and operator."""
    counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[record.implementation, record.operator][record.status] += record.cases
    for (implementation, operator), by_status in sorted(counts.items()):
        words = ", ".join(f"{by_status[status]:,} {status}" for status in STATUSES if by_status[status])
        yield f"{shown(f'{implementation} {operator}'.strip())}: {words}"


def _headers(runs: Sequence[Run]) -> list[Header]:
    return [header for run in runs for header in run.headers]


def _units(runs: Sequence[Run]) -> list[UnitRun]:
    units = (UnitRun.of(header, run.name) for run in runs for header in run.headers[:1])
    return [unit for unit in units if unit is not None]


def repeated(runs: Sequence[Run], placed: Sequence[Placed]) -> set[str]:
    """Return the places of verdicts that units of a run have in common: each looks for the cause of a failure, and runs
    the same problems for it. They are one verdict, and are counted once."""
    first, again = set[tuple[object, ...]](), set[str]()
    for place, record in placed if _units(runs) else ():
        if isinstance(record, Attempt) and record.origin in AGAIN:
            contract = msgspec.json.encode(record.contract, order="sorted")
            verdict = *_case(record), record.origin, record.reading, record.status, record.source, contract
            if verdict in first:
                again.add(place)
            first.add(verdict)
    return again


def defects(runs: Sequence[Run], placed: Sequence[Placed], again: Collection[str] = ()) -> Iterator[str]:
    """Yield the defects of files of records: whatever cannot be true if this suite wrote them. Places where a verdict
    is had `again` are none."""
    begun = _headers(runs)
    try:
        manifest.read()
    except manifest.GoldenError as problem:
        yield str(problem)
    for run in runs:
        try:
            run.require_whole()
        except ChangedError as problem:
            yield str(problem)
    yield from mixed(_units(runs))
    goldens = manifest.digest()
    for golden in sorted({header.golden for header in begun} - {goldens}):
        what = f"field golden of a header: {shown(golden[:12] or 'none')}, in this suite it is {goldens[:12]}"
        yield f"{what}; use the version of kernel-conformance that wrote the file, or run again with this one"
    first: dict[tuple[object, ...], str] = {}
    sources: dict[str, str] = {}
    covers = dict[tuple[str, str], str]()
    for place, record in placed:
        if record.source and sources.setdefault(record.implementation, record.source) != record.source:
            yield f"{place}: {shown(record.implementation)} has another source than in the lines above it"
        for file, digest in (record.covers.files if record.covers else {}).items():
            if is_code(file) and covers.setdefault((record.implementation, file), digest) != digest:
                yield f"{place}: {shown(record.implementation)} has another {shown(file)} than in the lines above it"
        if isinstance(record, Attempt):
            case = *_case(record), record.origin in AGAIN and record.origin  # what a run did again is no second verdict
            if first.setdefault(case, place) != place and place not in again:
                yield f"{place}: {_name(record)} has a verdict already ({first[case]}); give the records of one run"
            yield from (f"{place}: {_name(record)}: {defect}" for defect in _defects(record))


AGAIN = ("where", "alone")
"""Origins of records of what a run did once more to explain a failure."""


def _case(record: Attempt) -> tuple[str, ...]:
    return record.implementation, str(record.case)


def _name(record: Attempt) -> str:
    return shown(" ".join(filter(None, _case(record))))


def _defects(record: Attempt) -> Iterator[str]:
    """Yield what cannot be true of a verdict, as far as its record tells."""
    if record.cases != 1:
        yield f"field cases: one case counts as {record.cases}"
    if record.status != "pass":
        return
    for output, checks in record.checks.items():
        for name, (value, limit) in checks.items():
            if not abs(float(value)) <= float(limit):
                yield f"field checks: passes, although {shown(f'{output} {name}')} is {value}, which exceeds {limit}"
    if isinstance(record, CaseRecord):
        yield from _of_pass(record)


def _of_pass(record: CaseRecord) -> Iterator[str]:
    """Yield what a pass lacks: a case of the suite, a contract that verifies it, or some of its outputs."""
    operator = OPERATORS.get(record.operator)
    try:
        geometry, contract = parse(record.descriptor), Contract.of_record(record.contract or {})
    except (GeometryError, ContractError, TypeError) as problem:
        yield f"field {'descriptor' if isinstance(problem, GeometryError) else 'contract'}: {shown(problem)}"
        return
    fits = operator is not None and takes(operator.name, geometry) and record.dtype in operator.dtypes
    if operator is None or not fits or record.distribution not in FAMILIES[operator.family].distributions:
        yield "operator, descriptor, dtype and distribution are no case of this suite"
    elif exempt := contract.on(geometry, record.dtype).exempts(record.distribution, record.dtype):
        yield f"field status: passes, although it is not verified: {exempt}"
    elif record.checks.keys() != operator.outputs(geometry).keys():
        yield f"field checks: of {shown(', '.join(record.checks)) or 'no output'}, not of all that {operator.name} has"


def reran(
    drawn: Sequence[CaseRecord], paths: Sequence[Path], claimed: Mapping[str, Claim]
) -> Iterator[tuple[str, str]]:
    """Yield for each case, in a word, whether the kernel here gets the same verdict under the same contract, and the
    verdict."""
    with Workers(Limits(memory=share(1))) as workers:
        catalogue = _loaded({record.implementation for record in drawn}, paths, workers)
        for record in drawn:
            name, here = _name(record), catalogue.implementations.get(record.implementation)
            if here is None:
                why = "; ".join(
                    [
                        "not here, give --impl=PATH",
                        *map(str, catalogue.broken.values()),
                        *catalogue.unavailable.values(),
                    ]
                )
                yield NOT_RUN, f"{name}: {shown(why, 300)}"
                continue
            try:
                result = check(
                    here, replace(typed(record.descriptor), name=record.problem), operator=record.operator,
                    dtype=record.dtype, layout=record.layout, distribution=record.distribution,
                    storage=record.storage, seed=record.seed, method=record.method,
                )  # fmt: skip
            except ValueError as problem:
                yield NOT_RUN, f"{name}: {shown(problem)}"
                continue
            now = claims_file.enforced(build.record(result.trial, result.verdict), claimed)
            other = "" if record.source == here.source else " (other sources than those of the records)"
            if now.status == "unavailable":
                yield NOT_RUN, f"{name}: {shown(now.headline)}"
            elif now.status != record.status:
                why = f", {shown(now.headline)}" if now.headline else ""
                yield DIFFERS, f"{name}: {record.status}, here {now.status}{why}{other}"
            elif now.contract != record.contract:
                yield DIFFERS, f"{name}: {record.status}, under another contract than the kernel here declares{other}"
            else:
                yield SAME, f"{name}: {record.status}{other}"


def _loaded(names: set[str], paths: Sequence[Path], workers: Workers) -> Registry:
    """Load the implementations of given files, and those of these names that the suite brings or that are installed."""
    catalogue = workers.load(paths)
    if missing := {base_of(name) for name in names} - catalogue.implementations.keys():
        load_named(workers, missing, discover(IMPLS), catalogue)
        workers.load_installed(catalogue)
    for name in sorted(names):
        try:
            vary(catalogue, workers, [name])
        except SelectionError as problem:
            catalogue.broken[name] = unusable(str(problem))
    return catalogue
