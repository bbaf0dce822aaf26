"""`conformance fuzz`: a search of a number of minutes, its findings, and how much of the parameters it covered."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from conformance.dtypes import DECLARABLE
from conformance.execution.plan import Plan
from conformance.execution.process import SECONDS, Limits
from conformance.execution.selection import Selection, SelectionError, require_known, seed_number, split
from conformance.execution.trial import absence_reason
from conformance.execution.workers import Workers, share
from conformance.exit_codes import ExitCode
from conformance.explaining import explaining
from conformance.files import write
from conformance.fuzzing.search import Search, ShrunkFailure
from conformance.implementations.implementation import Implementation
from conformance.inputs import DISTRIBUTIONS
from conformance.interrupts import write_summary_in_peace
from conformance.operators import OPERATORS
from conformance.problems import LAYOUTS, PROBLEMS
from conformance.problems.case import CaseError, read, sequence
from conformance.resources import IMPLS
from conformance.results import units
from conformance.results.schema import Part


def declare(parser: argparse.ArgumentParser) -> None:
    """Search for cases that fail among problems that are in no table."""
    parser.add_argument("kernel", metavar="NAME|PATH", help="a file that defines an implementation, or a shipped one")
    parser.add_argument("--impl", metavar="NAME", help="which of several implementations that the file defines")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="how long to draw (default: 10)")
    parser.add_argument("--operator", action="append", metavar="NAME", help="only this operator")
    parser.add_argument("--seed", default="0", metavar="N", help="what problems, data and their order are drawn from")
    units.declare(parser, "rounds, which together are those of one search")
    units.declare_cluster(parser)
    parser.add_argument("--save", type=Path, metavar="FILE", help="add what it does not hold to this table of failures")
    parser.add_argument("--replay", metavar="ROW", help="only the calls of this row of a table, in a new process")
    parser.add_argument("--timeout", type=float, default=20.0, metavar="SECONDS", help="longest call (default: 20)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        seed, unit = seed_number(arguments.seed), units.read(arguments.unit)
        if arguments.replay is not None:
            sequence(arguments.replay)
        if not (0 < arguments.minutes <= 1e5 and 0.1 <= arguments.timeout <= 1e6):
            raise SelectionError("--minutes, --timeout: must be numbers, above 0 and at least 0.1")
        require_known("--operator", arguments.operator or (), OPERATORS)
        with Workers(Limits(arguments.timeout, share(1)), ahead=True) as workers:
            return _searched(arguments, seed, unit, workers)
    except (SelectionError, CaseError) as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {arguments.save}: {error.strerror}", file=sys.stderr)
    return ExitCode.UNUSABLE


def _searched(arguments: argparse.Namespace, seed: int, unit: Part | None, workers: Workers) -> int:
    plan, implementation = _chosen(arguments, workers)
    if reason := absence_reason(implementation):
        print(f"unavailable: {reason}")
        return ExitCode.NOTHING
    home, named = Path(plan.registry.paths[implementation.name]), plan.named(implementation)
    search = Search(
        implementation, arguments.operator or tuple(OPERATORS), seed, restart=lambda: workers.forget(home), named=named
    )
    if not search.operators:
        print(f"{implementation.name} implements none of the operators asked for")
        return ExitCode.NOTHING
    if arguments.replay is not None:
        return _replayed(search, arguments.replay)
    again = shlex.join(["conformance", "fuzz", named.kernel, *named.options])
    if arguments.save is not None:
        _learn(arguments.save, search)
    of_whole = f", unit {unit}" if unit else ""
    print(f"{implementation.name}: {', '.join(search.operators)}; seed {seed}{of_whole}", flush=True)
    began = time.monotonic()
    deadline, interrupted = began + 60 * arguments.minutes, False
    try:
        for number in units.share(count(), unit):
            if time.monotonic() >= deadline:
                break
            for finding in search.run(number, deadline):
                lines = [f"{implementation.name}: {finding.rows[-1]}"]
                with explaining(lines[0]):
                    lines = ["", *described(finding, len(search.findings), again)]
                print("\n".join(lines), flush=True)
                if arguments.save is not None:
                    rows = "; ".join(map(str, finding.rows))
                    write(arguments.save, f"# {implementation.name}: {finding.kind}\n{rows}\n".encode(), at_end=True)
    except KeyboardInterrupt:
        interrupted = True
        write_summary_in_peace()
        print("interrupted", file=sys.stderr)
    lines = [f"{implementation.name}: {len(search.findings)} found"]
    with explaining(lines[0]):
        lines = ["", *summary(search, time.monotonic() - began)]
    print("\n".join(lines))
    if interrupted:
        return ExitCode.INTERRUPTED
    if search.findings:
        return ExitCode.BAD
    return ExitCode.GOOD if search.statuses["pass"] else ExitCode.NOTHING


def _chosen(arguments: argparse.Namespace, workers: Workers) -> tuple[Plan, Implementation]:
    """Return the plan and its only implementation. Raises SelectionError for none or several."""
    names, paths = split([arguments.kernel, *([arguments.impl] if arguments.impl else [])])
    selection = Selection(
        names, paths, "standard", PROBLEMS, tuple(OPERATORS), DECLARABLE, LAYOUTS, tuple(DISTRIBUTIONS), 0, "auto",
        seconds=max(SECONDS, arguments.timeout),
    )  # fmt: skip
    plan = Plan(selection, IMPLS, loader=workers)
    reasons = [*map(str, plan.registry.broken.values()), *plan.registry.unavailable.values()]
    implementations = plan.registry.implementations
    if len(implementations) != 1:
        many = f"defines several implementations; give --impl, one of {', '.join(implementations)}"
        raise SelectionError(f"{arguments.kernel}: {many if implementations else '; '.join(reasons)}")
    return plan, next(iter(implementations.values()))


def _learn(file: Path, search: Search) -> None:
    """Read the failures of an earlier search's table, so that they are not reported anew. Raises CaseError for another
    file."""
    if file.exists():
        for rows in read(file):
            search.remember(rows)
    else:
        file.touch()


def _replayed(search: Search, text: str) -> int:
    """Run the calls of a row, print their verdicts, and return the exit code of the last one."""
    for row in sequence(text):
        verdict = search.verify(row)
        print(f"{verdict.status}: {row}")
    if verdict.reason:
        print(verdict.explanation)
    if verdict.status in ("fail", "error"):
        return ExitCode.BAD
    return ExitCode.GOOD if verdict.status == "pass" else ExitCode.NOTHING


def described(finding: ShrunkFailure, number: int, again: str) -> Iterator[str]:
    """Yield the lines of a finding: the failure, its smallest problem, one line that reproduces it."""
    row = finding.rows[-1]
    yield f"{number}. {finding.kind}"
    yield f"found after {finding.drawn} cases, {finding.seconds:.1f} s of round on: {finding.original}"
    calls = f" after {len(finding.rows) - 1} other calls" * (len(finding.rows) > 1)
    yield f"smallest: {row}{calls}"
    yield f"{finding.verdict.status.upper()}: {finding.verdict.explanation}"
    if not finding.reproduced:
        yield "does not fail again, neither alone nor after the same calls: not deterministic, or out of memory or time"
    elif len(finding.rows) > 1:
        yield f"reproduce: {again} --replay {shlex.quote('; '.join(map(str, finding.rows)))}"
    else:
        yield f"reproduce: {finding.command}"


def summary(search: Search, seconds: float) -> Iterator[str]:
    """Yield the counts, the coverage, and each failure once."""
    counts = ", ".join(f"{count:,} {status}" for status, count in search.statuses.most_common())
    yield f"{search.cases:,} cases in {seconds:.0f} s: {counts or 'none'}"
    yield f"{'covered':22}{'values':>8}{'pairs':>16}{'triples':>20}"
    for operator, coverage in search.coverage.items():
        (values, _), *larger = (coverage.share(size) for size in (1, 2, 3))
        pairs, triples = (f"{count:,} ({count / max(1, most):.0%})" for count, most in larger)
        yield f"{operator:22}{values:>8}{pairs:>16}{triples:>20}"
    for number, finding in enumerate(search.findings, 1):
        yield f"{number}. {finding.kind}: {finding.cases} cases, smallest {finding.rows[-1].geometry.descriptor}"
    if not search.findings:
        yield "nothing found"
