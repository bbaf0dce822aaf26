"""`python -m conformance`: whatever is not a pytest run. A family's commands live in its room and are wired here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from conformance.calibration import false_alarms, mutation
from conformance.implementations import cuda_compile
from conformance.inputs import goldens
from conformance.reporting import claims, documents
from conformance.reporting import command as report
from conformance.reporting.comparison import compare
from conformance.reporting.submission import check, pack
from conformance.timing import unet

FAMILIES: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "false-alarms": false_alarms.declare,
    "claims": claims.declare,
    "compare": compare.declare,
    "docs": documents.declare,
    "golden": goldens.declare,
    "mutation": mutation.declare,
    "ptx": cuda_compile.declare,
    "report": report.declare,
    "submit": pack.declare,
    "unet": unet.declare,
    "verify": check.declare,
}
"""Name of a family -> the function that declares its commands and sets `run`, a function of the parsed arguments that
returns the exit status. The first line of its docstring is the help text."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance", description="Kernel conformance: the tools.")
    families = parser.add_subparsers(metavar="FAMILY")
    for name, declare in FAMILIES.items():
        text = (declare.__doc__ or name).splitlines()[0]
        declare(families.add_parser(name, help=text, description=text))
    # the former name, to be removed after one release; without a help text it is not listed
    FAMILIES["false-alarms"](families.add_parser("acquittal", description="The former name of false-alarms."))
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit status: 0 good, 1 bad outcome, 2 bad command line, 130 interrupted."""
    parser = _parser()
    arguments = parser.parse_args(words)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whoever read the output has left; Python would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
