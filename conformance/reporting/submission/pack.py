"""`python -m conformance submit`: records, benchmark runs and a signed statement, packed into one archive."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from conformance.reporting.comparison.strict import StrictError, decoded, parsed, shown
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
        return 2
    found = check.opened(content)
    print("\n".join(check.summary(found, content)))
    if left:
        print(f"left out: {left} records of implementations that the statement does not name")
    wrong = list(check.defects(found))
    for line in islice(wrong, check.TOLD):
        print(f"NOT PACKED: {line}")
    if wrong:
        print(f"NOT PACKED: {len(wrong)} defects")
        return 1
    return _written(arguments.output, content)


def _written(path: Path, content: bytes) -> int:
    """All of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as problem:
        print(f"{path}: cannot be written ({problem.strerror})", file=sys.stderr)
        return 2
    print(f"{path}: {len(content):,} bytes")
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
                content, others = _own(content, names, path)
                left += others
            members[f"{kind}/{number:02d}{suffix}"] = content
    unknown = [str(path) for path in results if path.suffix not in (".jsonl", ".json")]
    if unknown:
        raise SubmissionError(f"{', '.join(unknown)}: neither records (.jsonl) nor benchmarks (.json)")
    found = contents.understood(members)
    members["waivers.json"] = contents.as_json(contents.waivers(found.records))
    members["environment.json"] = contents.as_json(contents.environment(found))
    members["manifest.json"] = contents.as_json(contents.manifest(members))
    return archive.written(members), left


def _own(content: bytes, names: Sequence[str], path: Path) -> tuple[bytes, int]:
    """The lines of a records file that are about these implementations, and how many are not."""
    lines = [line for line in content.split(b"\n") if line]
    try:
        kept = [line for line in lines if _about(line) in names]
    except StrictError as problem:
        raise SubmissionError(f"{path}: {problem}") from None
    return b"".join(line + b"\n" for line in kept), len(lines) - len(kept)


def _about(line: bytes) -> object:
    record = parsed(decoded(line))
    if not isinstance(record, dict) or not isinstance(record.get("implementation"), str):
        raise StrictError(f"{shown(line[:60])} is no record")
    return record["implementation"]


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > archive.UNPACKED:
            raise SubmissionError(f"{path}: is larger than {archive.UNPACKED >> 20} MiB")
        return path.read_bytes()
    except OSError as problem:
        raise SubmissionError(f"{path}: cannot be read ({problem.strerror})") from None
