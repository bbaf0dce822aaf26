"""`conformance fuzz`: a search of so many minutes, what it found, and how much of the parameters it covered."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from conformance.dtypes import DECLARABLE
from conformance.execution.case import absence_reason
from conformance.execution.plan import Plan
from conformance.execution.process import Limits
from conformance.execution.selection import Selection, SelectionError, require_known, seed_number, split
from conformance.execution.workers import Workers, share
from conformance.exit_codes import ExitCode
from conformance.fuzzing.search import Search, ShrunkFailure
from conformance.implementations.implementation import Implementation
from conformance.inputs import DISTRIBUTIONS
from conformance.operators import OPERATORS
from conformance.problems import LAYOUTS, PROBLEMS
from conformance.problems.regressions import TableError, read, rows
from conformance.resources import IMPLS

PROGRESS = "# searched: "
"""What the line of a table begins with from which `--resume` goes on."""
_PROGRESS = re.compile(rf"^{PROGRESS}(?P<name>.*), seed (?P<seed>\d+), (?P<rounds>\d+) rounds$", re.MULTILINE)


def declare(parser: argparse.ArgumentParser) -> None:
    """Search for cases that fail among problems that are in no table."""
    parser.add_argument("kernel", metavar="NAME|PATH", help="a file that defines an implementation, or a shipped one")
    parser.add_argument("--impl", metavar="NAME", help="which of several implementations that the file defines")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="how long to draw (default: 10)")
    parser.add_argument("--operator", action="append", metavar="NAME", help="only this operator")
    parser.add_argument("--seed", default="0", metavar="N", help="what problems, data and their order are drawn from")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="add what is found to this table: run --problems FILE"
    )
    parser.add_argument("--resume", action="store_true", help="go on where the search that wrote --save FILE stopped")
    parser.add_argument("--replay", metavar="ROW", help="only the calls of this row of a table, in a new process")
    parser.add_argument("--timeout", type=float, default=20.0, metavar="SECONDS", help="longest call (default: 20)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        seed = seed_number(arguments.seed)
        if arguments.replay is not None:
            rows(arguments.replay)
        if not (0 < arguments.minutes <= 1e5 and 0.1 <= arguments.timeout <= 1e6):
            raise SelectionError("--minutes, --timeout: must be numbers, above 0 and at least 0.1")
        require_known("--operator", arguments.operator or (), OPERATORS)
        if arguments.resume and arguments.save is None:
            raise SelectionError("--resume: give the table of the search, --save FILE")
        with Workers(Limits(arguments.timeout, share(1)), ahead=True) as workers:
            return _searched(arguments, seed, workers)
    except (SelectionError, TableError) as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {arguments.save}: {error.strerror}", file=sys.stderr)
    return ExitCode.UNUSABLE


def _searched(arguments: argparse.Namespace, seed: int, workers: Workers) -> int:
    plan, one = _chosen(arguments, workers)
    if reason := absence_reason(one):
        print(f"unavailable: {reason}")
        return ExitCode.NOTHING
    home, program = Path(plan.registry.paths[one.name]), plan.program(one)
    search = Search(
        one, arguments.operator or tuple(OPERATORS), seed, restart=lambda: workers.forget(home), program=program
    )
    if not search.operators:
        print(f"{one.name} implements none of the operators asked for")
        return ExitCode.NOTHING
    if arguments.replay is not None:
        return _replayed(search, arguments.replay)
    again = shlex.join(["conformance", "fuzz", *program[2:]])
    first = _begun(arguments, search)
    print(f"{one.name}: {', '.join(search.operators)}; seed {seed}, rounds from {first}", flush=True)
    began = time.monotonic()
    deadline, number, interrupted = began + 60 * arguments.minutes, first, False
    try:
        while time.monotonic() < deadline:
            for finding in search.run(number, deadline):
                print("\n".join(["", *described(finding, len(search.findings), again)]), flush=True)
                if arguments.save is not None:
                    with arguments.save.open("a", encoding="utf-8") as file:
                        print(f"# {one.name}: {finding.kind}", "; ".join(map(str, finding.rows)), sep="\n", file=file)
            number += time.monotonic() < deadline  # a round that was cut off is drawn again
            if arguments.save is not None:
                _note(arguments.save, f"{PROGRESS}{one.name}, seed {seed}, {number} rounds")
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted", file=sys.stderr)
    print("\n".join(["", *summary(search, time.monotonic() - began)]))
    if interrupted:
        return ExitCode.INTERRUPTED
    if search.findings:
        return ExitCode.BAD
    return ExitCode.GOOD if search.statuses["pass"] else ExitCode.NOTHING


def _chosen(arguments: argparse.Namespace, workers: Workers) -> tuple[Plan, Implementation]:
    """The one implementation that is meant. Raises SelectionError."""
    names, paths = split([arguments.kernel, *([arguments.impl] if arguments.impl else [])])
    selection = Selection(
        names, paths, "standard", PROBLEMS, tuple(OPERATORS), DECLARABLE, LAYOUTS, tuple(DISTRIBUTIONS), 0, "auto",
        program="conformance run",
    )  # fmt: skip
    plan = Plan(selection, IMPLS, loader=workers)
    reasons = [*plan.registry.broken.values(), *plan.registry.unavailable.values()]
    found = plan.registry.implementations
    if len(found) != 1:
        many = f"defines several implementations; give --impl, one of {', '.join(found)}"
        raise SelectionError(f"{arguments.kernel}: {many if found else '; '.join(reasons)}")
    return plan, next(iter(found.values()))


def _begun(arguments: argparse.Namespace, search: Search) -> int:
    """The first round. With `--resume` that after those which the table names, and what they found is known."""
    file, name = arguments.save, search.implementation.name
    if file is None or not file.exists():
        if file is not None:
            file.touch()
        return 0
    known = read(file)  # a file of something else is not added to
    text = file.read_text("utf-8")
    if not arguments.resume:
        return 0
    done = [int(m["rounds"]) for m in _PROGRESS.finditer(text) if (m["name"], int(m["seed"])) == (name, search.seed)]
    for found in known:
        search.known(found)
    return max(done, default=0)


def _note(file: Path, line: str) -> None:
    """Write the progress of a search in the place of its earlier one."""
    start = line.rpartition(",")[0]
    kept = [one for one in file.read_text("utf-8").splitlines() if not one.startswith(start)]
    file.write_text("\n".join([line, *kept]) + "\n", "utf-8")


def _replayed(search: Search, text: str) -> int:
    """The verdict on the last call of a row, after the others."""
    for row in rows(text):
        verdict = search.verify(row)
        print(f"{verdict.status}: {row}")
    if verdict.reason:
        print(verdict.explanation)
    if verdict.status in ("fail", "error"):
        return ExitCode.BAD
    return ExitCode.GOOD if verdict.status == "pass" else ExitCode.NOTHING


def described(finding: ShrunkFailure, number: int, again: str) -> Iterator[str]:
    """A finding as it is shown: what fails, the smallest problem, one line that reproduces it."""
    row = finding.rows[-1]
    variant = " ".join(str(row).split(" | ")[2:])
    yield f"{number}. {finding.kind}"
    yield f"found after {finding.drawn} cases, {finding.seconds:.1f} s of round on: {finding.original}"
    calls = f" after {len(finding.rows) - 1} other calls" * (len(finding.rows) > 1)
    yield f"smallest: {row.geometry.descriptor} ({variant}){calls}"
    yield f"{finding.verdict.status.upper()}: {finding.verdict.explanation}"
    if not finding.reproduced:
        yield "does not fail again, neither alone nor after the same calls: not deterministic, or out of memory or time"
    elif len(finding.rows) > 1:
        yield f"reproduce: {again} --replay {shlex.quote('; '.join(map(str, finding.rows)))}"
    else:
        yield f"reproduce: {finding.command}"


def summary(search: Search, seconds: float) -> Iterator[str]:
    """Counts, what was covered, and each failure once."""
    counts = ", ".join(f"{count:,} {status}" for status, count in search.statuses.most_common())
    yield f"{search.cases:,} cases in {seconds:.0f} s: {counts or 'none'}"
    yield f"{'covered':22}{'values':>8}{'pairs':>16}{'triples':>20}"
    for operator, coverage in search.coverage.items():
        (values, _), *others = (coverage.share(size) for size in (1, 2, 3))
        pairs, triples = (f"{seen:,} ({seen / max(1, most):.0%})" for seen, most in others)
        yield f"{operator:22}{values:>8}{pairs:>16}{triples:>20}"
    for number, finding in enumerate(search.findings, 1):
        yield f"{number}. {finding.kind}: {finding.cases} cases, smallest {finding.rows[-1].geometry.descriptor}"
    if not search.findings:
        yield "nothing found"
