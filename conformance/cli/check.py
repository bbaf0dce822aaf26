"""`conformance check` and `conformance export`: one case from the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from conformance.checks import CHECKS
from conformance.dtypes import DECLARABLE
from conformance.engine.check import check, chosen
from conformance.engine.export import export
from conformance.engine.perform import perform
from conformance.engine.search import explained
from conformance.engine.tasks import Task
from conformance.execution.process import SECONDS
from conformance.execution.selection import require_known, seed_number
from conformance.execution.trial import absence_reason
from conformance.execution.workers import printed
from conformance.exit_codes import ExitCode
from conformance.explaining import explaining
from conformance.implementations.errors import printable
from conformance.inputs import DISTRIBUTIONS
from conformance.judge.expected import METHODS
from conformance.problems import LEVELS
from conformance.problems.case import BEHAVIOUR

EXIT = {"pass": 0, "waived": 5, "fail": 1, "error": 1, "unsupported": 5, "unavailable": 5}


def declare_check(parser: argparse.ArgumentParser) -> None:
    """Verify one kernel on one problem and explain the verdict."""
    _declare(parser)
    parser.add_argument("--check", default="", metavar="NAME", help="make this behaviour check on the problem")
    parser.add_argument("--where", action="store_true", help="run the operator's other cases: where does it fail?")
    parser.add_argument("--level", default="smoke", metavar="|".join(LEVELS), help="of these cases (default: smoke)")
    parser.set_defaults(run=_check)


def declare_export(parser: argparse.ArgumentParser) -> None:
    """Write one case as arrays, with a script that replays it without the suite."""
    _declare(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where to write the files")
    parser.set_defaults(run=_export)


def _declare(parser: argparse.ArgumentParser) -> None:
    # the options of a run, so that the line with which a failure is reproduced serves here too
    parser.add_argument("kernel", metavar="NAME|PATH", help="a file that defines an implementation, or a shipped one")
    parser.add_argument("text", nargs="?", metavar="PROBLEM", help="e.g. 'n1 c8 h9 w9 k4 r3 s3 p1', or edge.plain")
    parser.add_argument("--problem", metavar="PROBLEM", help="the same as an option")
    parser.add_argument("--impl", metavar="NAME", help="which of several implementations that the file defines")
    parser.add_argument("--operator", metavar="NAME", help="may be left out where only one takes the problem")
    parser.add_argument("--dtype", default="fp32", metavar="|".join(DECLARABLE))
    parser.add_argument("--layout", default="nchw", metavar="NAME", help="nchw, nhwgc, ... (default: nchw)")
    parser.add_argument("--distribution", metavar="NAME", help="one of " + ", ".join(DISTRIBUTIONS))
    parser.add_argument("--storage", default="", metavar="TEXT", help="e.g. x:crop,w:page-end (default: contiguous)")
    parser.add_argument("--seed", default="0", metavar="N")
    parser.add_argument("--in-process", action="store_true", help="run the kernel in this process, for debuggers")
    parser.add_argument("--timeout", default=SECONDS, type=float, metavar="SECONDS", help="longest call")
    parser.add_argument("--method", default="auto", metavar="|".join(METHODS), help="exact reference or probes")


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `check`. Raises ValueError."""
    problems = [text for text in (arguments.text, arguments.problem) if text is not None]
    if " " in arguments.kernel and ".py" not in arguments.kernel and not Path(arguments.kernel).exists():
        raise ValueError(f"{arguments.kernel!r}: give the file first, and then the problem")
    if len(problems) != 1:
        advice = f"or verify on all: conformance run {arguments.kernel}"
        raise ValueError(f"PROBLEM: give one, such as 'n1 c8 h9 w9 k4 r3 s3 p1', {advice}")
    named = arguments.impl and arguments.impl != arguments.kernel
    same = ("operator", "dtype", "layout", "distribution", "storage", "method", "in_process", "timeout")
    return {name: getattr(arguments, name) for name in same} | {
        "kernel": f"{arguments.kernel}::{arguments.impl}" if named else arguments.kernel,
        "problem": problems[0],
        "seed": seed_number(arguments.seed),
    }


def _show(text: str) -> None:
    for line in text.splitlines():
        print(printable(line), flush=True)


def _check(arguments: argparse.Namespace) -> int:
    try:
        require_known("--level", [arguments.level], LEVELS)
        if arguments.check:
            return _behaves(arguments)
        result = check(**_given(arguments))
    except ValueError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return ExitCode.UNUSABLE
    text = str(result)
    with explaining(text):
        text = result.explain(brief=True)
    _show(text)
    if arguments.where and (said := result.where(arguments.level)):
        _show(said)
    return EXIT[result.status]


def _behaves(arguments: argparse.Namespace) -> int:
    """Make a behaviour check on one problem, as a run does, and return the exit status. Raises ValueError."""
    require_known("--check", [arguments.check], CHECKS)
    if arguments.storage:
        raise ValueError("--storage: a behaviour check has contiguous operands; leave it out")
    trial, absent = chosen(**_given(arguments) | {"distribution": BEHAVIOUR}, behaviour=arguments.check)
    implementation, variant = trial.implementation, trial.variant
    what = f"{arguments.check} of {implementation.name}, {trial.operator.name} on {trial.problem.geometry.descriptor!r}"
    what = f"{what}, {variant.dtype} {variant.layout}"
    if reason := absent or absence_reason(implementation):
        _show(f"unavailable: {what}\n{reason}")
        return EXIT["unavailable"]
    performed = perform(Task("", trial, arguments.check), None, {})
    record = performed.record
    _show(f"{record.status}: {what}")
    _show("\n".join([record.explanation, *(f"printed: {line}" for line in printed(implementation))]))
    if performed.beside is not None:  # a case that is wrong by itself is not the check's finding
        _show(f"{performed.beside.status}: {performed.beside.case}\n{performed.beside.explanation}")
    if arguments.where and record.status in ("fail", "error"):
        with explaining(what):
            _show("\n".join(explained(trial, arguments.check, arguments.level)))
    return EXIT[record.status]


def _export(arguments: argparse.Namespace) -> int:
    try:
        if arguments.storage:
            raise ValueError("--storage: arrays are written contiguous; leave it out")
        result = check(**_given(arguments))
        _show(result.explain())
        if not result.outputs:
            return EXIT[result.status]
        script = export(result, arguments.output)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.UNUSABLE
    print(f"written to {arguments.output}; replay it with: python {script}")
    return 0
