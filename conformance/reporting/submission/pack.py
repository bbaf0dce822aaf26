"""`conformance submit`: records, benchmark runs and a signed statement, packed into one archive."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from conformance.exit_codes import ExitCode
from conformance.reporting.submission import archive, check, contents, statement
from conformance.reporting.submission.archive import ArchiveError
from conformance.reporting.submission.contents import SubmissionError
from conformance.reporting.submission.statement import EXAMPLE, StatementError


def declare(parser: argparse.ArgumentParser) -> None:
    """Pack records and benchmark runs with a signed statement into an archive that others can verify."""
    parser.set_defaults(run=_run)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"A statement reads like this:\n\n{EXAMPLE}"
    parser.add_argument("--statement", type=Path, required=True, metavar="FILE", help="who, what, and the signature")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="acme.zip")
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS", help="records (.jsonl), benchmarks (.json)")


def _run(arguments: argparse.Namespace) -> int:
    try:
        content, left = packed(arguments.statement, arguments.results)
    except (SubmissionError, ArchiveError, StatementError) as problem:
        print(problem, file=sys.stderr)
        return ExitCode.UNUSABLE
    found = check.opened(content)
    print("\n".join(check.summary(found, content)))
    if left:
        print(f"left out: {left} records of implementations that the statement does not name")
    wrong = list(check.defects(found))
    for line in islice(wrong, check.MAX_LISTED):
        print(f"NOT PACKED: {line}")
    if wrong:
        print(f"NOT PACKED: {len(wrong)} defects")
        return 1
    draft = arguments.output.with_name(f".{arguments.output.name}.{os.getpid()}")
    try:  # all of it or nothing
        draft.write_bytes(content)
        draft.replace(arguments.output)
    except OSError as problem:
        print(f"{arguments.output}: cannot be written ({problem.strerror})", file=sys.stderr)
        return ExitCode.UNUSABLE
    print(f"{arguments.output}: {len(content):,} bytes")
    return 0


def packed(signed: Path, results: Sequence[Path]) -> tuple[bytes, int]:
    """The bytes of an archive, and how many records belong to implementations that are not in it.

    Raises SubmissionError, StatementError and ArchiveError naming the file and the defect.
    """
    text = _bytes(signed)
    try:
        names = statement.understood(text).implementations
    except StatementError as problem:
        raise StatementError(f"{signed} {problem}") from None
    members, left = {"statement.txt": text}, 0
    for kind, suffix in (("records", ".jsonl"), ("benchmarks", ".json")):
        for number, path in enumerate(path for path in results if path.suffix == suffix):
            content = _bytes(path)
            if kind == "records":
                found = list(contents.records_of(content, str(path)))
                own = [line + b"\n" for line, record in found if record.implementation in names]
                content, left = b"".join(own), left + len(found) - len(own)
            members[f"{kind}/{number:02d}{suffix}"] = content
    unknown = [str(path) for path in results if path.suffix not in (".jsonl", ".json")]
    if unknown:
        raise SubmissionError(f"{', '.join(unknown)}: neither records (.jsonl) nor benchmarks (.json)")
    whole = contents.understood(members)
    members["waivers.json"] = contents.as_json(contents.waivers(whole.records))
    members["environment.json"] = contents.as_json(contents.environment(whole))
    members["manifest.json"] = contents.as_json(contents.manifest(members))
    return archive.written(members), left


def _bytes(path: Path) -> bytes:
    try:
        return archive.read(path, archive.UNPACKED)
    except ArchiveError as problem:
        raise SubmissionError(f"{path}: {problem}") from None
    except OSError as problem:
        raise SubmissionError(f"{path}: cannot be read ({problem.strerror})") from None
