"""`conformance sanitize`: a run under NVIDIA's compute-sanitizer, whose report becomes verdicts on cases.

The tool prints while the run does, and pytest prints the name of a test before it begins: what stands between two names
is about the first of them, because the results of a case are fetched before it ends.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from conformance.exit_codes import ExitCode
from conformance.results.reading import RecordError, earlier
from conformance.results.schema import Record
from conformance.results.writing import Records, RecordsError

TOOL = "compute-sanitizer"
CHECKS = ("memcheck", "racecheck", "initcheck")
_CASE = re.compile(r"^\S*::(test_\w+\[\S+\])\s*")
_LINE = re.compile(r"^=========(?: (?P<text>.*))?$")
_FOUND = re.compile(
    r"Invalid |Misaligned |Uninitialized |Error: |ERROR: |Race |Potential |Barrier |Out-of-range ", re.I
)
_SUMMARY = re.compile(r"\w+ SUMMARY: ")


def declare(parser: argparse.ArgumentParser) -> None:
    """Run kernels under compute-sanitizer, one check after the other: memory, races, uninitialised reads."""
    parser.usage = "conformance sanitize [--check NAME] [--findings FILE] FILE|NAME [option of `conformance run` ...]"
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="FILE|OPTION")
    parser.add_argument("--check", action="append", choices=CHECKS, help="only this check (default: all three)")
    parser.add_argument("--findings", type=Path, metavar="FILE", help="records of all cases, to FILE.CHECK")
    parser.set_defaults(run=_sanitize)


def findings(output: Iterable[str]) -> dict[str, list[str]]:
    """Test of a case -> what the tool reported while it ran, each with the place that follows it; under an empty
    name what it reported before the first case."""
    found = defaultdict[str, list[str]](list)
    case, open_ = "", False
    for line in output:
        if name := _CASE.match(line):
            case, open_, line = name[1], False, line[name.end() :]  # the tool goes on in pytest's line
        said = _LINE.match(line.rstrip())
        text = (said["text"] or "").strip() if said else ""
        if said and _FOUND.match(text) and not _SUMMARY.match(text):
            found[case].append(text)
            open_ = True
        elif open_ and text.startswith("at "):
            found[case][-1] += f" {text}"
            open_ = False
    return dict(found)


def _sanitize(arguments: argparse.Namespace) -> int:
    program = shutil.which(TOOL)
    if program is None:
        print(f"unavailable: {TOOL} is not installed; it is part of the CUDA toolkit", file=sys.stderr)
        return ExitCode.NOTHING
    if not arguments.words:
        print("error: FILE|NAME: give what is to be run, such as acme.py", file=sys.stderr)
        return ExitCode.UNUSABLE
    statuses = []
    with tempfile.TemporaryDirectory() as folder:
        for check in arguments.check or CHECKS:
            statuses.append(_checked(program, check, arguments.words, Path(folder, check), arguments.findings))
    return max(statuses, key=lambda status: (status != ExitCode.NOTHING, status))


def _checked(program: str, check: str, words: Sequence[str], file: Path, findings_file: Path | None) -> int:
    """The exit status of the run under one check of the tool."""
    # in the judge's process: one process to watch, and its output in one stream
    run = [sys.executable, "-m", "conformance", "run", *words, "--in-process", "-v", "-s", f"--records={file}"]
    done = subprocess.run(
        [program, f"--tool={check}", "--target-processes=application-only", *run],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    try:
        before = earlier(file.read_bytes())
    except (OSError, RecordError):
        print(f"{done.stdout}\nerror: the run under {TOOL} --tool={check} wrote no records", file=sys.stderr)
        return ExitCode.UNUSABLE if done.returncode == ExitCode.UNUSABLE else ExitCode.INTERNAL
    reported = findings(done.stdout.splitlines())
    records = [_judged(record, check, reported) for record in before.records]
    wrong = [record for record in records if record.status in ("fail", "error")]
    for record in wrong:
        print(f"{record.status.upper()}: {record.implementation}: {record.reason}\nreproduce: {record.command}\n")
    for text in reported.get("", ()):
        print(f"{check}: outside of all cases: {text}")
    print(f"{check}: {sum(r.cases for r in records)} cases, {len(wrong)} failed")
    if findings_file is not None and before.headers:
        path = findings_file.with_name(f"{findings_file.name}.{check}")
        try:
            written = Records(path, before.headers[-1])
            for record in records:
                written.write(record)
            written.end(ExitCode.BAD if wrong else done.returncode, False)
        except (OSError, RecordsError) as error:
            print(f"error: --findings {path}: {error}", file=sys.stderr)
            return ExitCode.UNUSABLE
    return ExitCode.BAD if wrong or reported else done.returncode


def _judged(record: Record, check: str, reported: dict[str, list[str]]) -> Record:
    """The record; an error where the tool reported something during its case."""
    fields = ("problem", "dtype", "layout", "distribution", "storage")
    name = "-".join(filter(None, (record.implementation, *map(record.text, fields))))
    if asked := record.text("check"):
        name = f"{asked}-{record.operator}-{name}"
    tests = [test for test in reported if test.endswith(f"[{name}]") and (asked or record.operator in test)]
    said = dict.fromkeys(text for test in tests for text in reported[test])
    if not said:
        return record
    return msgspec.structs.replace(record, status="error", waiver=None, reason="\n".join(f"{check}: {t}" for t in said))
