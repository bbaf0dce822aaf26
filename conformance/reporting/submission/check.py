"""`conformance verify`: whether a submission is complete, consistent and reproducible."""

from __future__ import annotations

import argparse
import hashlib
import re
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from conformance.checks.required import CHECKS
from conformance.checks.sample import NOT_CHECKED, WRONG
from conformance.execution.claims import Key
from conformance.exit_codes import ExitCode
from conformance.inputs.golden import SEED
from conformance.inputs.manifest import GoldenError
from conformance.inputs.manifest import read as read_golden
from conformance.inputs.stream import GENERATOR
from conformance.judge import ContractError
from conformance.problems import PROBLEMS
from conformance.problems.table import DRAWN
from conformance.reporting.reproduce import is_reproducing
from conformance.reporting.submission import archive, complete, contents, numbers, rerun
from conformance.reporting.submission.archive import ArchiveError
from conformance.reporting.submission.contents import Contents, SubmissionError
from conformance.reporting.submission.required import Required, required_cases
from conformance.results.reading import RecordError, shown, strict_json
from conformance.results.schema import STATUSES, VERIFIED, Attempt, CaseRecord, CheckRecord, Record, TrainingRecord
from conformance.training.tables import OPERATOR as TRAINING

MAX_LISTED = 20
"""Defects of a kind that are listed."""
UNSEEN = """\
A file cannot prove that a kernel ran. Not seen without --rerun: a failure recorded as a pass, as unsupported or as
waived; errors, contracts or verdicts of another kernel. Never seen: times that were made up, another device or
machine than is named, a kernel that computes differently when it is verified, who signed."""
LINK = re.compile(r"https?://[!-~]+", re.ASCII)
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
REQUIRED = frozenset({"manifest.json", "statement.txt", "environment.json", "waivers.json"})


def declare(parser: argparse.ArgumentParser) -> None:
    """Check a submission: is it complete and consistent, and does a sample of its verdicts reproduce."""
    parser.set_defaults(run=_run)
    parser.add_argument("archive", type=Path, metavar="acme.zip")
    parser.add_argument("--rerun", type=_count, default=0, metavar="N", help="run N verdicts again, drawn at random")
    parser.add_argument("--draw", type=_count, metavar="SEED", help="draw the same ones as before")
    parser.add_argument("--impl", type=Path, action="append", default=[], metavar="PATH", help="where kernels are")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    try:
        content = archive.read(arguments.archive, archive.PACKED)
        found = opened(content)
    except OSError as problem:
        print(f"{arguments.archive}: cannot be read ({problem.strerror})", file=sys.stderr)
        return ExitCode.UNUSABLE
    except (ArchiveError, SubmissionError) as problem:
        print(f"REFUSED: {shown(arguments.archive)}: {problem}")
        return 1
    print("\n".join(summary(found, content)))
    wrong = list(defects(found))
    for line in islice(wrong, MAX_LISTED):
        print(f"REFUSED: {line}")
    if len(wrong) > MAX_LISTED:
        print(f"REFUSED: and {len(wrong) - MAX_LISTED} more")
    if wrong:
        return 1
    print(f"complete: every required case of level {found.statement.level} has a verdict")
    print(UNSEEN)
    if not arguments.rerun:
        return ExitCode.GOOD
    drawn = secrets.randbelow(10**9) if arguments.draw is None else arguments.draw
    print(f"running {arguments.rerun} again, --draw {drawn}", flush=True)
    return reran(rerun.repeated(found, arguments.rerun, drawn, arguments.impl))


def reran(sample: rerun.Sample) -> ExitCode:
    """Print what became of a sample, and what it says about the verdicts that are not in it."""
    for outcome in sample.outcomes:
        print(f"  {outcome.word}: {outcome.text}")
    if all(outcome.word == rerun.NOT_HERE for outcome in sample.outcomes):
        print("NOTHING WAS RUN AGAIN")
        return ExitCode.NOTHING
    if sample.declared:
        print(f"{sample.declared:,} others are unsupported, as the sources here declare too")
    forged = sorted({1, sample.of // 100, sample.of // 10} - {0})
    if sample.fresh:
        print(f"{sample.fresh:,} problems that no table has were drawn now and run")
    chances = ", ".join(f"{sample.escape(count):.2%} if {count:,} {'is' if count == 1 else 'are'}" for count in forged)
    print(f"{sample.drawn:,} of {sample.of:,} verdicts were drawn and run again")
    print(f"probability that all forged ones escape: {chances} forged")
    if sample.bias < rerun.SIGNIFICANCE:
        print(f"REFUSED: errors that differ are smaller as recorded than here; by chance, with p = {sample.bias:.2g}")
        return ExitCode.BAD
    return ExitCode.BAD if any(outcome.word == rerun.OTHER for outcome in sample.outcomes) else ExitCode.GOOD


def opened(content: bytes) -> Contents:
    """The contents of an archive whose members are what its manifest says. Raises ArchiveError, SubmissionError."""
    members = archive.unpacked(content)
    missing = sorted(REQUIRED - members.keys())
    if missing or not any(name.startswith("records/") for name in members):
        raise SubmissionError(f"has no {', '.join(missing) or 'records'}")
    stated, manifest = _json(members, "manifest.json"), contents.manifest(members)
    if not isinstance(stated, dict) or stated.get("format") != contents.FORMAT:
        raise SubmissionError(f"manifest.json is not of format {contents.FORMAT}")
    rows = stated.get("members")
    if not isinstance(rows, dict) or rows.keys() != manifest["members"].keys():
        raise SubmissionError("manifest.json does not list exactly the members of the archive")
    for name, row in manifest["members"].items():
        if rows[name] != row:
            raise SubmissionError(f"{name} is not the file that the manifest names (SHA-256 {row['sha256'][:12]}...)")
    if stated != manifest:
        raise SubmissionError("manifest.json says more than format and members")
    found = contents.understood(members)
    # what is derived from the records must be so here as well: same suite, same goldens, same counts
    if _json(members, "waivers.json") != contents.waivers(found.records):
        raise SubmissionError("waivers.json does not say what the records say")
    stated, here = _json(members, "environment.json"), contents.environment(found)
    if stated != here:
        stated = stated if isinstance(stated, dict) else {}
        other = sorted(key for key in stated.keys() | here.keys() if stated.get(key) != here.get(key))
        words = (f"{shown(k)} {shown(stated.get(k), 60)}, here {shown(here.get(k), 60)}" for k in other)
        raise SubmissionError(f"environment.json: {'; '.join(words)}")
    return found


def _json(members: Mapping[str, bytes], name: str) -> Any:
    try:
        return strict_json(members[name], _ANYTHING)
    except RecordError as problem:
        raise SubmissionError(f"{name} {problem}") from None


def defects(found: Contents) -> Iterator[str]:
    """Everything that speaks against a submission whose parts could be read."""
    names = found.statement.implementations
    for other in sorted({record.implementation for record in found.records} - set(names)):
        yield f"records of {shown(other)}, which the statement does not name"
    try:
        read_golden()
    except GoldenError as problem:
        yield str(problem)
    for seed in {record.seed for record in found.cases} - {SEED}:
        yield f"records of seed {seed}, not that of the goldens ({SEED})"
    for generator in {record.generator for record in found.cases if record.generator} - {GENERATOR}:
        yield f"records of generator {shown(generator)}, here it is {GENERATOR}"
    for waiver in contents.waivers(found.records):
        if not LINK.fullmatch(waiver["url"]):
            yield f"{shown(waiver['implementation'])}: {waiver['cases']} waived cases give no link"
    yield from _runs(found)
    for name in names:
        records = found.of(name)
        required = complete.with_layouts(required_cases(found.statement.level), records)
        looks = (_facts(records), complete.defects(records, required), _verdicts(records, required))
        yield from (f"{shown(name)}: {defect}" for look in looks for defect in dict.fromkeys(look))


def _runs(found: Contents) -> Iterator[str]:
    """Times are those of a kernel that was verified, and of the same sources."""
    sources = {record.implementation: record.source for record in found.cases}
    for run in found.runs:
        for key, timed in run.benchmarks.items():
            name = f"{shown(run.name)}: {shown(key.implementation)} {shown(key.problem)}"
            if timed.record.status != "pass":
                yield f"{name} is timed, although its status is {timed.record.status}"
            if timed.record.source != sources.get(key.implementation, timed.record.source):
                yield f"{name} is timed with other sources than those verified"


def _facts(records: list[Record]) -> Iterator[str]:
    """One implementation is one set of sources, on one device, in one environment, at one level."""
    facts: dict[str, set[str]] = {}
    for record in records:
        own = {"source": record.source, "device": record.device, "run_level": record.run_level} | record.versions
        for name, value in own.items():
            facts.setdefault(name, set()).update({value} if value else ())
    for name, values in sorted(facts.items()):
        if len(values) > 1:
            yield f"{shown(name)} is not the same in all records: {shown(', '.join(sorted(values)))}"


def _verdicts(records: list[Record], required: Required) -> Iterator[str]:
    """Each record by itself, those of the same tensors together."""
    if not any(record.status == "pass" and isinstance(record, CaseRecord) for record in records):
        yield "no case passes: nothing was verified"
    keys = frozenset[Key]().union(*(share.keys for share in (*required.verdicts, *required.drawn)))
    measured = (problem for required in CHECKS.values() for problem in required.problems)
    descriptors = {problem.name: problem.geometry.descriptor for problem in (*PROBLEMS, *measured)}
    wrong = {_place(r) for r in records if r.check and (r.status == "error" or r.reason.startswith(WRONG))}
    for record in sorted(records, key=lambda r: (r.operator, r.descriptor, r.dtype, r.distribution)):
        name = shown(" ".join(filter(None, (record.operator, record.problem, record.check))))
        if record.status not in ("pass", "waived") and not record.reason.strip():
            yield f"{name}: {record.status} without a reason"
        if record.status == "unavailable" and record.operator != TRAINING:
            yield f"{name}: unavailable ({shown(record.reason)}); run it where it is available"
        if not isinstance(record, Attempt):
            if record.status not in ("unsupported", "unavailable"):
                yield f"{name}: {record.status} for {record.cases} cases that no record names"
            continue
        if record.cases != 1:
            yield f"{name}: one case counts as {record.cases}"
        drawn = record.problem.startswith(DRAWN) and record.problem.removeprefix(DRAWN).replace("_", " ")
        if (drawn or descriptors.get(record.problem, record.descriptor)) != record.descriptor:
            yield f"{name}: the problem of this name is another one here"
            continue
        if not is_reproducing(record):
            yield f"{name}: command {shown(record.command, 200)} is not the one that reproduces it"
        phases = sum(seconds for phase, seconds in record.seconds.items() if phase != "total")
        if phases > record.seconds.get("total", 0) + 1e-6 * len(record.seconds):  # each is rounded to microseconds
            yield f"{name}: its phases take {phases:.6g} s, all of it {record.seconds.get('total', 0):.6g} s"
        if record.reason == NOT_CHECKED and _place(record) not in wrong:
            yield f"{name}: {record.reason}, but no check of the case says so"
        if record.status != "pass":
            continue
        for output, checks in record.checks.items():
            for check, (value, limit) in checks.items():
                if not abs(float(value)) <= limit:
                    yield f"{name}: passes, although {shown(output)} {shown(check)} is {value}, which exceeds {limit}"
        if isinstance(record, CaseRecord) and Key._make(getattr(record, f) for f in Key._fields) in keys:
            yield from (f"{name} {record.dtype} {record.distribution}: {defect}" for defect in numbers.defects(record))
        elif isinstance(record, CheckRecord):
            yield from (f"{name}: {defect}" for defect in numbers.check_defects(record))
        elif isinstance(record, TrainingRecord):
            yield from (f"{name}: {defect}" for defect in numbers.training_defects(record))


def _declared(record: CaseRecord) -> str:
    try:
        return numbers.contract_of(record.contract or {}).describe(record.dtype)
    except (ContractError, KeyError):  # a defect, as is an unknown dtype
        return "no contract"


def _place(record: Record) -> tuple[str, ...]:
    return record.operator, record.problem, record.dtype, record.layout


def summary(found: Contents, content: bytes) -> Iterator[str]:
    """What an archive claims; nothing in it acts on a terminal."""
    stated = found.statement
    yield f"archive SHA-256 {hashlib.sha256(content).hexdigest()}"
    for label, value in (("submitter", stated.submitter), ("contact", stated.contact), ("device", stated.device)):
        yield f"{label}: {shown(value)}"
    for line in stated.signed:
        yield f"signed off by: {shown(line)}"
    for name in stated.implementations:
        counts: Counter[str] = Counter()
        for record in found.of(name):
            counts[record.status] += record.cases
        words = ", ".join(f"{counts[status]:,} {status}" for status in STATUSES if counts[status]) or "no records"
        yield f"{shown(name)}, level {stated.level}: {words}"
        # a weak contract is no defect, but what a pass is worth depends on it
        cases = [r for r in found.of(name) if isinstance(r, CaseRecord) and r.status in VERIFIED]
        contracts = Counter((shown(r.dtype), _declared(r)) for r in cases)
        yield from (f"{dtype} under {words}: {count:,} cases" for (dtype, words), count in sorted(contracts.items()))
    for waiver in contents.waivers(found.records):
        texts = (shown(waiver[key], 300) for key in ("implementation", "operator", "reason", "url"))
        yield "waived: {} {}: {} ({}), {} cases".format(*texts, waiver["cases"])
    for run in found.runs:
        yield f"{shown(run.name)}: {len(run.benchmarks)} times, {shown(run.machine['CPU'])}"
