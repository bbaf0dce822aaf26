"""`conformance run`: pytest on the shipped suites, undisturbed by the project that it is called in."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import platformdirs
import pytest

from conformance.exit_codes import ExitCode
from conformance.plugin import options
from conformance.plugin.entry import FOLDERS
from conformance.resources import PACKAGE


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


def declare(parser: argparse.ArgumentParser) -> None:
    """Verify implementations: files, folders or names; all that are installed, if none is given."""
    parser.usage = "conformance run [FILE|FOLDER|NAME ...] [option of the suite or of pytest ...]"
    parser.epilog = (
        "Also any option of pytest, pytest-xdist and pytest-benchmark: -k, -x, -n, --tb, --pdb, --junitxml; with "
        "--benchmark-only, what is verified is timed. Settings, conftest.py and plugins of the project, and "
        "PYTEST_ADDOPTS, are ignored; -p NAME loads a plugin."
    )
    everyday, expert = parser.add_argument_group("options of the suite"), parser.add_argument_group("for experts")
    hidden: dict[argparse.Action, str] = {}

    def add(name: str, *, help: str, **told: Any) -> None:
        if name in options.EVERYDAY:
            everyday.add_argument(name, help=help, **told)
        else:
            hidden[expert.add_argument(name, help=argparse.SUPPRESS, **told)] = help

    options.add(SimpleNamespace(getgroup=lambda *_: SimpleNamespace(addoption=add)))
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
    for variable in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        os.environ.pop(variable, None)  # meant for the tests of the project
    # a vendor's json.py in the current folder is not the standard library's, in workers neither
    os.environ["PYTHONSAFEPATH"] = "1"
    # only where it is asked for: it leaves a folder behind
    timed = ["-pbenchmark"] if any(word.startswith("--benchmark") for word in words) else []
    try:
        return int(pytest.main([*ARGUMENTS, *timed, *words]))
    except ValueError as error:
        if "already" not in str(error):
            raise
        print(f"error: a plugin that -p names has an option of the suite: {error}", file=sys.stderr)
        return ExitCode.UNUSABLE


def is_running(config: pytest.Config) -> bool:
    """Whether this command has started pytest, which is told so by having to load this file."""
    return config.pluginmanager.has_plugin(__name__)


def take_implementations(config: pytest.Config) -> None:
    """Take positional arguments for implementations; collect the suites, or what is timed with --benchmark-only."""
    config.option.impl = [*config.option.file_or_dir, *(config.option.impl or ())]
    timed = getattr(config.option, "benchmark_only", False)
    config.args = [str(FOLDERS["conformance.benchmarks" if timed else "conformance.suites"])]


def end_with(reporter: Any, end: Callable[[Any], None]) -> None:
    """Pytest's reporter writes `end` last. Its own line counts what did not run, and its words on an interrupt are of
    its own files."""
    reporter.summary_stats = lambda: end(reporter)
    reporter._report_keyboardinterrupt = lambda: None
