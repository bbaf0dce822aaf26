"""`conformance run`: pytest on the shipped suites, undisturbed by the project that it is called in."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import platformdirs
import pytest

from conformance import __version__
from conformance.exit_codes import ExitCode, meanings
from conformance.implementations import registry
from conformance.operators import OPERATORS
from conformance.plugin import options
from conformance.plugin.entry import FOLDERS
from conformance.problems import PROBLEMS
from conformance.resources import IMPLS, PACKAGE


def _remembered() -> Path:
    """Where the failures of the last run are kept for --lf and --ff: not in the folder that it is given in, but for it.
    Raises nothing where that folder is gone."""
    try:
        here = bytes(Path.cwd())
    except OSError:
        here = b""
    return platformdirs.user_cache_path("kernel-conformance", appauthor=False) / "runs" / f"{crc32(here):08x}"


ARGUMENTS = (
    # no settings and no conftest.py of the project; names of tests begin with `conformance/`, wherever that lies
    *("-c", os.devnull, f"--rootdir={PACKAGE.parent}", "--noconftest", "--assert=plain"),
    f"-ocache_dir={_remembered()}",
    # no plugins but these: others change the order of tests, repeat them, or have options and fixtures of our names
    *("--disable-plugin-autoload", "-pxdist", "-pconformance.plugin", f"-p{__name__}"),
    "--no-header",
)


INSTEAD = {
    "--html": "--report=DIR writes a page",
    "--json-report": "--records=FILE writes a line of JSON for each verdict",
    "--reruns": "a verdict does not change when it is asked for again, and calls are repeated by a check of their own",
    "--count": "--seed=N draws other data",
    "--cov": "measure the coverage of your own tests with pytest",
}
"""Options of well-known plugins, which the suite does not load -> what does the same here."""
ALL = "all implementations that are here"
FIELD = re.compile(r"(n|c|d|h|w|k|t|r|s|u|p|g|b|dil)\d\S*")
"""Of a problem that was given without quotes."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Verify implementations: files, folders or names; all that are installed, if none is given."""
    parser.usage = "conformance run [FILE|FOLDER|NAME ...] [option of the suite or of pytest ...]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = textwrap.fill(
        "Also any option of pytest, pytest-xdist and pytest-benchmark: -k, -x, -n, --tb, --pdb, --junitxml; with "
        "--benchmark-only, what is verified is timed. Settings, conftest.py and plugins of the project, and "
        "PYTEST_ADDOPTS, are ignored; -p NAME loads a plugin.",
        width=80,
    )
    parser.epilog += f"\n\nexit codes:\n{meanings()}"
    everyday, expert = parser.add_argument_group("options of the suite"), parser.add_argument_group("for experts")
    hidden: dict[argparse.Action, str] = {}

    def add(name: str, *, help: str, **told: Any) -> None:
        if name in options.EVERYDAY:
            everyday.add_argument(name, help=help, **told)
        else:
            hidden[expert.add_argument(name, help=argparse.SUPPRESS, **told)] = help

    options.add(SimpleNamespace(getgroup=lambda *_: SimpleNamespace(addoption=add)))
    everyday.add_argument("--all", action="store_true", help=ALL)
    parser.add_argument("--help-expert", action=_Expert, const=hidden, nargs=0, help="all options of the suite")


class _Expert(argparse.Action):
    """Prints the help with what it hides."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for action, text in self.const.items():
            action.help = text
        parser.print_help()
        parser.exit()


def run(words: Sequence[str]) -> int:
    """Run pytest; positional arguments are implementations. Returns the exit status."""
    if not words:
        return _refuse(_what_to_give())
    if {"-V", "--version"} & {*words}:
        print(f"kernel-conformance {__version__}, pytest {pytest.__version__}")
        return ExitCode.GOOD
    for option in (word.split("=")[0] for word in words if not any(word.startswith("-p") for word in words)):
        if option in INSTEAD:
            return _refuse(f"{option} is of a plugin of pytest that is not loaded; {INSTEAD[option]}")
    for word in words:
        if f"-{word}".split("=")[0] in options.EVERYDAY:
            return _refuse(f"{word}: an option of several letters has two dashes: -{word}")
    for variable in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        os.environ.pop(variable, None)  # meant for the tests of the project
    # a vendor's json.py in the current folder is not the standard library's, in workers neither
    os.environ["PYTHONSAFEPATH"] = "1"
    # only where it is asked for: it leaves a folder behind
    timing = [word for word in words if word.startswith("--benchmark")]
    timed = ["-pbenchmark"] if timing else []
    timed += ["--benchmark-quiet"] if timing == ["--benchmark-only"] else []  # its table says what the suite's says
    try:
        return int(pytest.main([*ARGUMENTS, *timed, *words]))
    except ValueError as error:
        if "already" not in str(error):
            raise
        print(f"error: a plugin that -p names has an option of the suite: {error}", file=sys.stderr)
        return ExitCode.UNUSABLE


def _refuse(why: str) -> int:
    print(f"conformance run: {why}", file=sys.stderr)
    return ExitCode.UNUSABLE


def _what_to_give() -> str:
    """What would run without an argument, and what to give instead."""
    here = [path.stem for path in registry.discover(IMPLS)] + [point.name for point in registry.installed()]
    return (
        "give a file, a folder or a name, as in `conformance run acme.py`.\n"
        f"--all verifies everything that is here: {', '.join(here)};\n"
        "each is up to 10,000 cases and takes minutes; with --level smoke it is up to 1,600."
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Errors of the command line speak of this command, and not of pytest's files."""
    parser.prog = "conformance run"
    parser.extra_info.clear()
    parser.extra_info["options"] = "conformance run --help-expert; those of a plugin of pytest need -p NAME"
    parser.getgroup("conformance").addoption("--all", action="store_true", help=ALL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --benchmark-only, what times no kernel of the run is no test: it would be skipped by name."""
    if getattr(config.option, "benchmark_only", False):
        items[:] = [item for item in items if item.get_closest_marker("benchmarks")]


def is_running(config: pytest.Config) -> bool:
    """Whether this command has started pytest, which is told so by having to load this file."""
    return config.pluginmanager.has_plugin(__name__)


def take_implementations(config: pytest.Config) -> None:
    """Take positional arguments for implementations; collect the suites, or what is timed with --benchmark-only."""
    if config.option.all and config.option.file_or_dir:
        raise pytest.UsageError(f"--all and {config.option.file_or_dir[0]}: give one of them")
    given = config.option.file_or_dir
    config.option.impl = [*(_file(word, config.option.problem) for word in given), *(config.option.impl or ())]
    timed = getattr(config.option, "benchmark_only", False)
    config.args = [str(FOLDERS["conformance.benchmarks" if timed else "conformance.suites"])]


def _file(word: str, problems: Sequence[str] | None) -> str:
    """`acme.py` where `acme` is given and that file is here. Raises pytest.UsageError for what is no implementation:
    the name of a test, a problem, an operator, a file that is not here."""
    name, _, one = word.partition("::")
    if one.startswith("test_"):
        raise pytest.UsageError(f"{word}: an implementation stands behind ::, not a test; choose with --operator or -k")
    if Path(name).exists():
        return word
    if Path(f"{name}.py").is_file():
        return f"{name}.py{word.removeprefix(name)}"
    if " " in word or (problems and FIELD.fullmatch(word)) or any(word == problem.name for problem in PROBLEMS):
        raise pytest.UsageError(f"{word}: a problem is given with --problem, in quotes: --problem 'n1 c8 h9 w9 k4'")
    if word in OPERATORS:
        raise pytest.UsageError(f"{word} is an operator: give --operator {word}")
    if name.endswith(".py"):
        here = {path.name.lower(): path.name for path in Path().glob("*.py")}
        near = difflib.get_close_matches(name.lower(), here, 1)
        raise pytest.UsageError(f"{name}: no such file" + (f"; did you mean {here[near[0]]}?" if near else ""))
    return word


def _short(test: str) -> str:
    """`conv_forward[acme-edge.plain-fp32-nchw-fixed]` of the name of a test."""
    return (test.partition("::")[2] or test).removeprefix("test_")


def begin_and_end_otherwise(reporter: Any, end: Callable[[], None]) -> None:
    """Pytest's first lines count tests of which some are none, its line at the end what did not run; its words on an
    interrupt are of its own files, and its names of tests begin with where the suite is installed."""
    separate = reporter.write_sep
    reporter.write_sep = lambda sign, text=None, **how: text == "test session starts" or separate(sign, text, **how)
    reporter.report_collect = lambda final=False: reporter.isatty() and reporter._tw.write("\r\x1b[K")
    reporter.summary_stats = end
    reporter._locationline = lambda test, *_: f"{_short(str(test))} "
    reporter._report_keyboardinterrupt = lambda: None if reporter._session else reporter.write_line("interrupted")
