"""`conformance contract`: the arithmetic of kernels, read off them, and the line that declares it."""

from __future__ import annotations

import argparse
import shutil
import sys

from conformance.dtypes import DECLARABLE
from conformance.engine.reading import AbsentError, results
from conformance.execution.process import SECONDS
from conformance.exit_codes import ExitCode
from conformance.explaining import explaining
from conformance.implementations.errors import printable

WIDEST = 120
"""Most columns of a line."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Read the arithmetic off kernels, and print the contract that fits."""
    parser.add_argument("kernel", metavar="NAME|PATH", help="a file that defines an implementation, or a shipped one")
    parser.add_argument("--impl", metavar="NAME", help="which of several implementations that the file defines")
    parser.add_argument("--operator", metavar="NAME", help="only this operator")
    parser.add_argument("--dtype", metavar="|".join(DECLARABLE), help="only this dtype")
    parser.add_argument("--in-process", action="store_true", help="run the kernel in this process, for debuggers")
    parser.add_argument("--timeout", default=SECONDS, type=float, metavar="SECONDS", help="longest call")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Print the readings, and return the exit code: BAD if a call failed or a declared contract is contradicted."""
    named = arguments.impl and arguments.impl != arguments.kernel
    kernel = f"{arguments.kernel}::{arguments.impl}" if named else arguments.kernel
    width = min(shutil.get_terminal_size().columns - 1, WIDEST)
    bad = read = 0
    try:
        for result in results(kernel, arguments.operator, arguments.dtype, arguments.in_process, arguments.timeout):
            text = f"{result.reading.operator} in {result.reading.dtype}"
            with explaining(text):
                text = result.explain(width)
            for line in text.splitlines():
                print(printable(line), flush=True)
            bad += bool(result.error or result.contradictions or result.reading.wrong)
            read += not result.reading.nothing
    except AbsentError as error:
        print(printable(f"unavailable: {error}"))
        return ExitCode.NOTHING
    except ValueError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return ExitCode.UNUSABLE
    if bad:
        return ExitCode.BAD
    return ExitCode.GOOD if read else ExitCode.NOTHING
