"""The words of a run's command line, read and checked, in each process of the run."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance import __version__
from conformance.engine import options
from conformance.engine.options import EVERYDAY, OPTIONS, RunOptions
from conformance.execution.selection import SelectionError
from conformance.exit_codes import meanings
from conformance.implementations.devices import DEVICES
from conformance.meant import hint
from conformance.operators import OPERATORS
from conformance.problems import descriptors
from conformance.resources import IMPLS

ALL = "all implementations that are here"
FIELD = re.compile(r"(n|c|d|h|w|k|t|r|s|u|p|g|b|dil)\d\S*")
"""Field of a problem that was given without quotes."""
ON_SEVERAL_MACHINES = (
    ("--unit", "K/N", "only unit K of N, for a job of an array (conformance plan)"),
    ("--costs", "FILE", "divide by the seconds in these records, of an earlier run"),
    ("--ray", "ADDRESS", "by the devices of a Ray cluster; auto: the one that is up here"),
    ("--resource", "NAME", "with --ray: what the cluster calls the device"),
    ("--sentinel", "FILE", "with --ray: a kernel that is right on a device in order"),
)
"""Options of a run on several machines: their names, values and help."""


def parser_of(command: str, usage: str, description: str) -> argparse.ArgumentParser:
    """Return a parser without arguments, for a command that reads the words of a run."""
    from conformance.__main__ import Parser

    return Parser(
        prog=f"conformance {command}",
        usage=f"conformance {command} {usage}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=f"exit codes:\n{meanings()}",
    )


def _parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = parser_of(
        "run",
        "[FILE|FOLDER|NAME ...] [option ...]",
        "Verify implementations: files, folders or names; all that are installed, if none is given.",
    )
    declare(parser)
    return parser


def declare(parser: argparse.ArgumentParser) -> None:
    """Verify implementations: files, folders or names; all that are installed, if none is given."""
    parser.add_argument("file_or_dir", nargs="*", metavar="FILE", help=argparse.SUPPRESS)
    everyday, expert = parser.add_argument_group("options of the suite"), parser.add_argument_group("for experts")
    hidden: dict[argparse.Action, str] = {}
    for name, described in OPTIONS.items():
        if name in EVERYDAY:
            everyday.add_argument(name, **described)
        else:
            hidden[expert.add_argument(name, **described | {"help": argparse.SUPPRESS})] = described["help"]
    over = expert.add_argument("--first-failure", action="store_true", help=argparse.SUPPRESS)
    hidden[over] = "run no more of an implementation that has failed"
    everyday.add_argument("--all", action="store_true", help=ALL)
    how = parser.add_argument_group("how it is run and shown")
    how.add_argument("-n", dest="processes", metavar="N", help="processes that judge; auto: one a core, or a device")
    how.add_argument("-k", dest="keyword", metavar="EXPRESSION", help="only cases whose names hold these words")
    how.add_argument("-m", dest="markexpr", metavar="EXPRESSION", help="only these devices, such as cpu or trn1")
    how.add_argument("-x", dest="maxfail", action="store_const", const="1", help="stop at the first failure")
    how.add_argument("--maxfail", metavar="N", help="stop after so many failures")
    how.add_argument("--lf", action="store_true", help="only what failed in the last run; all of it, if nothing did")
    how.add_argument("--ff", dest="failedfirst", action="store_true", help="what failed in the last run first")
    how.add_argument("-v", dest="verbose", action="count", default=0, help="a line for each case")
    how.add_argument("-q", dest="quiet", action="count", default=0, help="failures and verdicts; -qq: one line")
    how.add_argument(
        "-s", dest="capture", action="store_const", const="no", default="fd", help="show what kernels print"
    )
    how.add_argument("--pdb", dest="usepdb", action="store_true", help="a debugger where a kernel raises")
    how.add_argument("--junitxml", metavar="FILE", help="write JUnit's XML")
    for name, metavar, text in ON_SEVERAL_MACHINES:
        hidden[expert.add_argument(name, metavar=metavar, help=argparse.SUPPRESS)] = text
    how.add_argument("-V", "--version", action="version", version=f"kernel-conformance {__version__}")
    parser.add_argument("--help-expert", action=_Expert, const=hidden, nargs=0, help="all options of the suite")


class _Expert(argparse.Action):
    """Prints the help with what it hides."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for action, text in self.const.items():
            action.help = text
        parser.print_help()
        parser.exit()


def read(
    words: Sequence[str], parser: argparse.ArgumentParser | None = None, *, processes: int = 0
) -> tuple[argparse.Namespace, int, RunOptions]:
    """Return what was given, how many processes judge, unless that is known, and the options of the run. Raises
    SelectionError."""
    arguments = (parser or _parser()).parse_intermixed_args(words)
    if arguments.all and arguments.file_or_dir:
        raise SelectionError(f"--all and {arguments.file_or_dir[0]}: give one of them")
    arguments.impl = [*(_file(word, arguments.problem) for word in arguments.file_or_dir), *(arguments.impl or ())]
    arguments.file_or_dir = []
    if arguments.costs and not (arguments.unit or parser):
        raise SelectionError("--costs: give --unit K/N too")
    arguments.verbose -= arguments.quiet
    arguments.tbstyle = "no" if arguments.verbose < -1 else ""
    options.require_markers(arguments.markexpr or "", (*DEVICES, "verifies", "behaves", "trains"))
    try:
        options.selects(arguments.markexpr or "", ())
    except SyntaxError:
        raise SelectionError(f"-m {arguments.markexpr}: cannot be read; give devices with and, or, not") from None
    processes = processes or _count(arguments)
    chosen = options.read(arguments, tuple(words), impls=IMPLS, folder=Path(), processes=processes)
    return arguments, processes, chosen


def _count(arguments: argparse.Namespace) -> int:
    """Return how many processes judge. Raises SelectionError."""
    text = arguments.processes
    if text is None or text == "0":
        return 1
    if text in ("auto", "logical"):
        return options.automatic(arguments.markexpr or "", arguments.require or ()) or os.cpu_count() or 1
    if not re.fullmatch(r"[1-9]\d{0,4}", text, re.ASCII):
        raise SelectionError(f"-n {text}: must be a whole number, or auto")
    return int(text)


def _file(word: str, problems: Sequence[str] | None) -> str:
    """Return the word for an implementation: `acme.py` where `acme` is given and that file is here. Raises
    SelectionError for the name of a test, a problem or an operator, and for a file that is not here."""
    name, _, test = word.partition("::")
    if test.startswith("test_"):
        raise SelectionError(f"{word}: an implementation stands behind ::, not a test; choose with --operator or -k")
    if Path(name).exists():
        return word
    if Path(f"{name}.py").is_file():
        return f"{name}.py{word.removeprefix(name)}"
    if " " in word or (problems and FIELD.fullmatch(word)) or word in descriptors():
        raise SelectionError(f"{word}: a problem is given with --problem, in quotes: --problem 'n1 c8 h9 w9 k4'")
    if word in OPERATORS:
        raise SelectionError(f"{word} is an operator: give --operator {word}")
    if name.endswith(".py"):
        raise SelectionError(f"{name}: no such file{hint(name, (path.name for path in Path().glob('*.py')))}")
    return word
