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

from conformance.exit_codes import ExitCode
from conformance.inputs.golden import SEED
from conformance.inputs.manifest import GoldenError
from conformance.inputs.manifest import read as read_golden
from conformance.inputs.stream import GENERATOR
from conformance.problems import PROBLEMS
from conformance.reporting.submission import archive, complete, contents, rerun
from conformance.reporting.submission.archive import ArchiveError
from conformance.reporting.submission.contents import Contents, SubmissionError
from conformance.reporting.submission.required import required_cases
from conformance.results.reading import RecordError, shown, strict_json
from conformance.results.schema import STATUSES, Attempt, CheckRecord, Record
from conformance.training.tables import OPERATOR as TRAINING

MAX_LISTED = 20
"""Defects of a kind that are listed."""
NOTHING = 5
"""Exit status where a case was to be run again and none could be, as pytest's."""
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
        if arguments.archive.stat().st_size > archive.PACKED:
            raise ArchiveError(f"is larger than {archive.PACKED >> 20} MiB")
        content = arguments.archive.read_bytes()
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
    if not arguments.rerun:
        return 0
    drawn = secrets.randbelow(10**9) if arguments.draw is None else arguments.draw
    print(f"running {arguments.rerun} again, --draw {drawn}")
    outcomes = list(rerun.repeated(found, arguments.rerun, drawn, arguments.impl))
    for outcome in outcomes:
        print(f"  {outcome.word}: {outcome.text}")
    if any(outcome.word == rerun.OTHER for outcome in outcomes):
        return 1
    if not any(outcome.word == rerun.AGREES for outcome in outcomes):
        print("NOTHING WAS RUN AGAIN")
        return NOTHING
    return 0


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
        for look in (_facts, _verdicts):
            yield from (f"{shown(name)}: {defect}" for defect in dict.fromkeys(look(records)))
        yield from (
            f"{shown(name)}: {defect}" for defect in complete.defects(records, required_cases(found.statement.level))
        )


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


def _verdicts(records: list[Record]) -> Iterator[str]:
    """Each record by itself."""
    descriptors = {problem.name: problem.geometry.descriptor for problem in PROBLEMS}
    for record in records:
        name = shown(" ".join((record.operator, record.problem, record.check)))
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
        if descriptors.get(record.problem, record.descriptor) != record.descriptor:
            yield f"{name}: the problem of this name is another one here"
        if record.status != "pass" or isinstance(record, CheckRecord):
            continue
        if not record.checks:
            yield f"{name}: passes without a single number"
        for output, checks in record.checks.items():
            for check, (value, limit) in checks.items():
                if not abs(float(value)) <= limit:
                    yield f"{name}: passes, although {shown(output)} {shown(check)} is {value}, which exceeds {limit}"


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
    for waiver in contents.waivers(found.records):
        texts = (shown(waiver[key], 300) for key in ("implementation", "operator", "reason", "url"))
        yield "waived: {} {}: {} ({}), {} cases".format(*texts, waiver["cases"])
    for run in found.runs:
        yield f"{shown(run.name)}: {len(run.benchmarks)} times, {shown(run.machine['CPU'])}"
