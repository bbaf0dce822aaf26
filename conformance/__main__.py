"""The command line, `conformance` or `python -m conformance`. Commands live in their rooms and are wired here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from conformance import __version__
from conformance.calibration import false_alarms, mutation
from conformance.execution import commands
from conformance.exit_codes import ExitCode
from conformance.fuzzing import command as fuzz
from conformance.implementations import cuda_compile
from conformance.inputs import goldens
from conformance.plugin import listing, run, sanitize
from conformance.reporting import claims, documents
from conformance.reporting import command as report
from conformance.reporting.comparison import compare
from conformance.reporting.submission import check, pack
from conformance.survey import command as survey
from conformance.survey import findings
from conformance.timing import neuron_model, unet

FAMILIES: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "run": run.declare,
    "sanitize": sanitize.declare,
    "list": listing.declare,
    "check": commands.declare_check,
    "fuzz": fuzz.declare,
    "export": commands.declare_export,
    "report": report.declare,
    "claims": claims.declare,
    "compare": compare.declare,
    "survey": survey.declare,
    "findings": findings.declare,
    "submit": pack.declare,
    "verify": check.declare,
    "unet": unet.declare,
    "neuron-model": neuron_model.declare,
    "ptx": cuda_compile.declare,
    "golden": goldens.declare,
    "mutation": mutation.declare,
    "false-alarms": false_alarms.declare,
    "docs": documents.declare,
}
"""Name of a family -> the function that declares its commands and sets `run`, a function of the parsed arguments that
returns the exit status. The first line of its docstring is the help text. In the order in which a user meets them."""

EXAMPLE = """\
example:
  conformance run acme.py                      verify the kernels that acme.py connects
  conformance run acme.py --level smoke -n 4   in seconds; options are those of pytest and of the suite
  conformance list operators                   what a kernel can be

exit codes:
"""


class Parser(argparse.ArgumentParser):
    """argparse, whose own status for a wrong command line is the one that an interrupted run has here."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit."""
        self.print_usage(sys.stderr)
        self.exit(ExitCode.UNUSABLE, f"{self.prog}: error: {message}\n")


def _parser() -> Parser:
    parser = Parser(
        prog="conformance",
        description="Verify convolution, pooling and batch-norm kernels, and time them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=EXAMPLE + "\n".join(f"  {code:d}  {code.meaning}" for code in ExitCode),
    )
    parser.add_argument("--version", action="version", version=f"kernel-conformance {__version__}")
    families = parser.add_subparsers(metavar="COMMAND")
    for name, declare in FAMILIES.items():
        text = (declare.__doc__ or name).splitlines()[0]
        declare(families.add_parser(name, help=text, description=text, allow_abbrev=False))
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit status, one of `conformance.exit_codes`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the locale cannot show is no reason to fail
    words = sys.argv[1:] if words is None else list(words)
    try:
        if words[:1] == ["run"] and not {"-h", "--help"} & {*words}:
            return run.run(words[1:])
        parser = _parser()
        arguments = parser.parse_args(words)
        if not hasattr(arguments, "run"):
            parser.print_help()
            return ExitCode.GOOD
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # whoever read the output has left; Python would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BAD
    return status


if __name__ == "__main__":
    sys.exit(main())
