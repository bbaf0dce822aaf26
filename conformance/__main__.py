"""The command line, `conformance` or `python -m conformance`. Commands live in their rooms and are wired here."""

from __future__ import annotations

import sys

AS_STARTED = sys.path[:]
if not sys.flags.safe_path:  # `python -m` looks in the current folder first, where a kernel may have left a shlex.py
    sys.path[:] = sys.path[1:]

import argparse
import gc
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from conformance import __version__, import_path
from conformance.exit_codes import ExitCode, meanings
from conformance.interrupts import SIGNALS, Interrupt, handle_signals
from conformance.meant import hint, near
from conformance.streams import RunnerStream, is_obeyed

sys.path[:] = AS_STARTED

FAMILIES = {
    "run": "cli.words:declare",
    "plan": "cli.plan:declare",
    "list": "cli.listing:declare",
    "check": "cli.check:declare_check",
    "contract": "cli.contract:declare",
    "fuzz": "fuzzing.command:declare",
    "export": "cli.check:declare_export",
    "report": "reporting.report_command:declare",
    "claims": "reporting.claims_report:declare",
    "compare": "reporting.comparison.compare:declare",
    "survey": "survey.survey_command:declare",
    "verify": "cli.verify:declare",
    "golden": "inputs.golden_command:declare",
}
"""Name of a family -> the function that declares its commands and sets `run`, a function of the parsed arguments that
returns the exit status; but `run` and `plan` read their own words. The first line of its docstring is the help text. In
the order in which a user meets them.

Functions are given by name, so that a command does not wait for the imports of others."""

MAINTAINERS = ("golden",)
"""Commands of those who work on the suite itself, which are named in one line."""

EXAMPLE = """\
example:
  conformance run acme.py                      verify the kernels that acme.py connects
  conformance run acme.py --level smoke -n 4   in seconds, by four processes
  conformance list operators                   what a kernel can be

exit codes:
"""


ISOLATING, IN_PROCESS = (
    ("run", "plan", "check", "contract", "verify", "fuzz", "report", "compare"),
    {"--in-process", "--pdb", "--trace"},
)
"""Commands that run no kernel in their process, and options with which they do."""


class Parser(argparse.ArgumentParser):
    """Parser of argparse with another status for a wrong command line: argparse's own is that of an interrupted run
    here."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit."""
        self.print_usage(sys.stderr)
        self.exit(ExitCode.UNUSABLE, f"{self.prog}: error: {message}\n")

    def parse_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse all words, and name the option that is meant by one that does not exist."""
        parsed, left = self.parse_known_intermixed_args(args, namespace)
        if left:
            meant = hint(left[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(left)}{meant}")
        return parsed


def _parser(names: Iterable[str]) -> Parser:
    """Return the parser of these commands."""
    parser = Parser(
        prog="conformance",
        description="Verify convolution, pooling and batch-norm kernels, and time them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=EXAMPLE + meanings() + f"\n\nfor those who work on the suite itself:\n  {', '.join(MAINTAINERS)}",
    )
    parser.add_argument("--version", action="version", version=f"kernel-conformance {__version__}")
    families = parser.add_subparsers(metavar="COMMAND")
    for name in names:
        module, _, function = FAMILIES[name].partition(":")
        declare: Callable[[argparse.ArgumentParser], None] = getattr(import_module(f"conformance.{module}"), function)
        text = (declare.__doc__ or name).splitlines()[0]
        listed: dict[str, Any] = {} if name in MAINTAINERS else {"help": text}
        declare(families.add_parser(name, description=text, allow_abbrev=False, **listed))
    return parser


@contextmanager
def _collecting_no_garbage() -> Iterator[None]:
    """Keep the garbage collector from what is imported, now and later: none of it goes, and looking took a fifth of a
    start."""
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
        gc.enable()


def _meant(words: Sequence[str]) -> str:
    """Return what to type instead, where the first word is no command."""
    commands = near(words[0], FAMILIES)
    if commands and not Path(words[0]).exists():
        return f"did you mean {commands[0]}?"
    verb = "check" if re.match(r"(\w+ )?n\d", " ".join(words[1:])) else "run"
    meant = shlex.join(["conformance", verb, *words])
    return f"to verify a file or an implementation: {meant} (commands: conformance --help)"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit status, one of `conformance.exit_codes`."""
    for descriptor in range(3):  # a closed one would be the next file that is opened
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the locale cannot show is no reason to fail
    with ExitStack() as stack:
        if is_obeyed():
            for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
                filtered = RunnerStream(stream)
                stack.callback(filtered.end)
                stack.enter_context(redirect(cast("IO[str]", filtered)))
        return _run(sys.argv[1:] if words is None else list(words))


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words and words[0] not in FAMILIES and not words[0].startswith("-"):
        print(f"conformance: error: {words[0]} is no command; {_meant(words)}", file=sys.stderr)
        return ExitCode.UNUSABLE
    try:
        if words[:1] in (["run"], ["plan"]):
            with _collecting_no_garbage():
                module = import_module(f"conformance.cli.{words[0]}")
            status: int = module.run(words[1:])
            return status
        named = [word for word in words[:1] if word in FAMILIES]
        with _collecting_no_garbage():
            parser = _parser(named if named or words[:1] == ["--version"] else FAMILIES)
        arguments, left = parser.parse_known_args(words)
        if "text" in arguments and not any(word.startswith("-") for word in left):
            # a problem without quotes, or behind an option
            arguments.text = " ".join(filter(None, [arguments.text, *left])) or None
        elif left:
            parser.error(f"unrecognized arguments: {' '.join(left)} (options: conformance {words[0]} --help)")
        if not hasattr(arguments, "run"):
            parser.print_help()
            return ExitCode.GOOD
        with ExitStack() as stack:
            stack.callback(handle_signals(Interrupt()))
            is_for_cluster = getattr(arguments, "ray", None) is not None
            scattered = import_module("conformance.cli.scattered") if is_for_cluster else None
            status = scattered.run(words, arguments) if scattered else arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except OSError as error:
        status = ExitCode.BAD  # the reader of the output has left
        if not isinstance(error, BrokenPipeError):
            status = ExitCode.UNUSABLE
            with suppress(OSError):
                print(f"conformance: {error}", file=sys.stderr, flush=True)
        # Python would complain once more when it closes what could not be written to, and end with 120
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def command() -> int:
    """Run as a program; signals that arrive while Python ends do not change its exit status."""
    words = sys.argv[1:]
    if words[:1] and words[0] in ISOLATING and not {*words} & IN_PROCESS:
        import_path.trust()
    status = main(words)
    for number in (*SIGNALS, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return status


if __name__ == "__main__":
    sys.exit(command())
