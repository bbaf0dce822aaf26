"""Support claims: the command that writes them, and the lines on them at the end of a run."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from conformance.checks import CHECKS
from conformance.execution.trial import Claim
from conformance.files import write
from conformance.implementations.source_files import Covers, SourceFiles
from conformance.problems import descriptors
from conformance.problems.case import Case
from conformance.results.claims_file import (
    ClaimsError,
    ImplementationClaims,
    beside,
    claimed_as,
    imported,
    read,
    section,
    text,
)
from conformance.results.reading import RecordError, verdicts
from conformance.results.schema import AbsenceRecord, Attempt, Record, covered
from conformance.training.tables import EMULATED


@cache
def comparable_descriptors() -> frozenset[str]:
    """Return the descriptor of every problem that a claim may be compared on."""
    of_checks = (problem.geometry.descriptor for check in CHECKS.values() for problem in check.problems)
    return frozenset((*descriptors().values(), *of_checks, *EMULATED))


class Compared:
    """Compares the verdicts of a run with the claims of its implementations."""

    def __init__(self, claims: Mapping[str, Claim]) -> None:
        self.claims = claims
        self._run: Counter[str] = Counter()
        self._verified: defaultdict[str, set[Case]] = defaultdict(set)
        self._unclaimed: defaultdict[str, set[Case]] = defaultdict(set)

    def add(self, record: Record) -> None:
        """Count one record."""
        name = record.implementation
        if name not in self.claims:
            return
        case = claimed_as(record)
        claimed = case in self.claims[name].cases
        if claimed or (isinstance(record, AbsenceRecord) and record.status == "fail"):
            self._run[name] += record.cases
        if record.status == "pass":
            (self._verified if claimed else self._unclaimed)[name].add(case)

    def lines(self, width: int) -> list[str]:
        """Return lines of at most `width` columns: cases claimed, verified, and verified without being claimed."""
        texts = []
        for name, claim in self.claims.items():
            if run := self._run[name]:
                ran = "" if run >= len(claim.cases) else f"{run:,} run, "
                texts.append(f"{name}: {len(claim.cases):,} cases claimed, {ran}{len(self._verified[name]):,} verified")
            if unclaimed := self._unclaimed[name]:
                add = f"add them with `conformance claims write {claim.source} RECORDS`"
                texts.append(f"{name}: {len(unclaimed):,} verified but not claimed: {_counted(unclaimed)}; {add}")
            # problems named by their descriptor, and drawn problems, were never in a table
            named = ((n, d) for n, d in claim.problems.items() if not n.endswith(d.replace(" ", "_") or "?"))
            removed = (n for n, d in named if (d or n) not in comparable_descriptors())
            if (run or unclaimed) and (names := ", ".join(removed)):
                texts.append(f"{name}: problems that are claimed and in no table any more: {names}")
        return [line for long in texts for line in textwrap.wrap(long, width, subsequent_indent="  ")]


def _counted(cases: Iterable[Case]) -> str:
    """Return the number of cases by operator and dtype: `conv_forward bf16 (35), conv_forward fp32 (2)`."""
    counts = Counter(f"{case.operator} {case.dtype}" for case in cases)
    return ", ".join(f"{name} ({count:,})" for name, count in sorted(counts.items()))


def declare(parser: argparse.ArgumentParser) -> None:
    """Support claims: what an implementation verified, in a file beside it, which later runs hold it to."""
    words = "write what an implementation verified to a file beside it: acme.claims.json, or claims.json in a folder"
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = commands.add_parser("write", help="write or replace claims", description=words)
    command.add_argument("source", type=Path, metavar="FILE", help="the implementation's file or folder")
    command.add_argument(
        "records", type=Path, nargs="?", metavar="RECORDS", help="what --records=FILE wrote of one run"
    )
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Write claims. Returns 0; 4 if an argument cannot be used, 5 if nothing was verified."""
    source, records = arguments.source, arguments.records
    try:
        if not source.exists():
            raise ClaimsError(f"{source}: no such file; give the file or folder of an implementation")
        if records is None:
            make = f"conformance run {source} --records=records.jsonl"
            raise ClaimsError(f"RECORDS is missing: make them with `{make}`, then give records.jsonl after {source}")
        verified, before = sections(source, records), read(source)
        if not any(claimed.cases for claimed in verified.values()):
            print(f"{records}: nothing was verified; {beside(source)} stays as it is", file=sys.stderr)
            return 5
        try:
            write(beside(source), text(before | verified))
        except OSError as problem:
            raise ClaimsError(f"{beside(source)}: cannot be written ({problem.strerror})") from None
    except ClaimsError as problem:
        print(f"claims: {problem}", file=sys.stderr)
        return 4
    for name, new in verified.items():
        old = before.get(name)
        had = old.keys if old else frozenset[Case]()
        print(f"{name}: {len(new.keys):,} cases claimed in {beside(source)}")
        for words, keys in (("added", new.keys - had), ("no longer claimed", had - new.keys)):
            if keys:
                print(f"  {words}: {_counted(keys)}")
    return 0


def sections(source: Path, records: Path) -> dict[str, ImplementationClaims]:
    """Return the claims that a run verified of a source as it is now, by implementation. Raises ClaimsError."""
    by_name, files = defaultdict[str, list[Attempt]](list), SourceFiles(source)
    outdated, runs = 0, set()
    try:
        attempts = [record for _, record in verdicts(records) if isinstance(record, Attempt)]
        covers = covered(attempts)
        current = {
            key
            for key in {(r.implementation, r.source) for r in attempts}
            if files.ran(key[1], covers.get(key, Covers()))
        }
        for record in attempts:
            if (record.implementation, record.source) in current:
                by_name[record.implementation].append(record)
                runs.add(f"--level={record.run_level} --seed={record.seed}")
            else:
                outdated += 1
    except RecordError as problem:
        raise ClaimsError(str(problem)) from None
    if not by_name:
        raise ClaimsError(
            f"{records}: no verdict on {source} as it is now ({outdated:,} on other sources); run it again"
        )
    if len(runs) > 1:
        raise ClaimsError(f"{records}: of several runs ({', '.join(sorted(runs))}); give the records of one")
    imports = imported(source)
    try:
        return {name: section(by_name[name], imports) for name in sorted(by_name)}
    except ValueError as problem:
        raise ClaimsError(f"{records}: {problem}; give what --records=FILE wrote, unchanged") from None
