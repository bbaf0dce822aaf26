"""The part of the plugin that pytest loads wherever the suite is installed: it loads the rest in runs that ask for it.

A run that does not ask gets none of the suite's options, whose short names another plugin may use, too, and does not
wait for the suite's imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.resources import CHECKOUT

PLUGIN = "conformance.plugin"
FOLDERS = {f"conformance.{name}": Path(__file__).parents[1] / name for name in ("suites", "benchmarks")}
"""Folders of the package that pytest collects: with `--pyargs` by name, otherwise by path."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting that makes every run of a project load the plugin."""
    parser.addini("impls", "file or folder of implementations, relative to the root directory", "string", "")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> Iterator[None]:
    """Load the plugin if the run asks for it. Raises pytest.UsageError if another plugin has one of its options."""
    try:
        if _asked(early_config, args):
            early_config.pluginmanager.import_plugin(PLUGIN)
        return (yield)
    except ValueError as error:
        if "already" not in str(error) or not early_config.pluginmanager.has_plugin(PLUGIN):
            raise
        raise pytest.UsageError(
            f"{error}: another plugin or conftest.py and kernel-conformance both have this option; "
            "run the suite with `conformance run`, which loads neither other plugins nor conftest.py"
        ) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise pytest.UsageError for tests of the suite in a run that does not ask for it: they would miss fixtures."""
    modules = (getattr(getattr(item, "function", None), "__module__", "") for item in items)
    if not config.pluginmanager.has_plugin(PLUGIN) and any(
        module.startswith("conformance.suites.") for module in modules
    ):
        raise pytest.UsageError(
            "the tests of conformance.suites have nothing to verify: set impls = acme.py (a file or folder) in the "
            "settings of pytest, or give --impl=acme.py"
        )


def collect_suites(config: pytest.Config) -> None:
    """Let the root of a checkout stand for the suites, so that pytest collects the suites there, and not the tests of
    the suite itself."""
    if CHECKOUT is not None:
        paths = {word: Path(os.path.realpath(config.invocation_params.dir / word)) for word in config.args}
        config.args = [str(FOLDERS["conformance.suites"]) if paths[w] == CHECKOUT else w for w in config.args]


def _asked(config: pytest.Config, args: list[str]) -> bool:
    """Return whether a run asks for the plugin: by the setting, by an implementation, or by naming one of its
    folders."""
    if config.getini("impls") or any(word.split("=")[0] == "--impl" for word in args):
        return True
    parsed = config.known_args_namespace
    names = [word.split("::")[0] for word in parsed.file_or_dir]
    if parsed.pyargs and any(name == word or name.startswith(f"{word}.") for name in names for word in FOLDERS):
        return True
    # realpath, because Path.resolve raises if links form a circle
    real = [Path(os.path.realpath(name)) for name in names]
    return any(path.is_relative_to(folder) for path in real for folder in FOLDERS.values())
