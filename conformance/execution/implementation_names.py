"""Names that `--impl` takes: of implementations, their variants, files and engines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from conformance.execution.selection import SelectionError, require_known
from conformance.execution.workers import Loader, Workers
from conformance.implementations import registry
from conformance.implementations.implementation import variant_name
from conformance.resources import ENGINES

PREFIX = "engine-"
"""Prefix of the name of an engine's environment, which is then a name of the engine as well."""


def base_of(name: str) -> str:
    """Return the name of the implementation that a variant belongs to; return any other name as it is."""
    return re.sub(r"\[[^\[\]]+\]\Z", "", name)


def engines_named(names: Collection[str]) -> list[Path]:
    """Return the files of the engines that go by these names: an engine's own names begin with its file's."""
    engines = registry.discover(ENGINES) if names and ENGINES.is_dir() else []
    words = [word(name) for name in names]
    return [path for path in engines if any(word == path.stem or word.startswith(f"{path.stem}_") for word in words)]


def load_named(loader: Loader, names: Collection[str], files: Collection[Path], catalogue: registry.Registry) -> None:
    """Load the files that define the named implementations, or have these names: files that begin with the same word,
    engines, and only if a name is still unknown every other file, as one that imports a framework takes seconds."""
    words = {word(name).partition("_")[0] for name in names}
    alike = [file for file in files if file.stem.partition("_")[0] in words]
    loader.load(alike, catalogue)
    loader.load(engines_named([name for name in names if name not in catalogue.implementations]), catalogue)
    stems = {Path(path).stem for path in catalogue.paths.values()}
    if any(name not in catalogue.implementations and word(name) not in stems for name in names):
        loader.load([file for file in files if file not in alike], catalogue)


def word(name: str) -> str:
    """Return a name as files are called: without the engine prefix, and with underscores."""
    return name.removeprefix(PREFIX).replace("-", "_")


def vary(catalogue: registry.Registry, loader: Loader, names: Iterable[str], option: str = "--impl") -> dict[str, str]:
    """Load those of the names that are variants, `NAME[label]`; return name -> file. Raises SelectionError."""
    files = {}
    for name in sorted(set(names) - catalogue.implementations.keys()):
        base = catalogue.implementations.get(base_of(name))
        if base is None or base.name == name:
            continue  # reported with all names that are unknown
        labels = {variant_name(base.name, setting.label): setting.label for setting in base.settings}
        require_known(option, [name], labels or [base.name])
        if not isinstance(loader, Workers):
            raise SelectionError(f"{option} {name}: a variant needs a process of its own; leave out --in-process")
        loader.vary(base, labels[name], catalogue)
        files[name] = catalogue.paths[base.name]
    return files
