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
"""What the environment of an engine is called before its name, which then is a name of the engine as well."""


def base_of(name: str) -> str:
    """The implementation that a variant is one of; of another name, itself."""
    return re.sub(r"\[[^\[\]]+\]\Z", "", name)


def engines_named(names: Collection[str]) -> list[Path]:
    """Files of the engines that go by these names: their own begin with their file's."""
    every = registry.discover(ENGINES) if names and ENGINES.is_dir() else []
    words = [word(name) for name in names]
    return [path for path in every if any(word == path.stem or word.startswith(f"{path.stem}_") for word in words)]


def load_named(loader: Loader, names: Collection[str], files: Collection[Path], known: registry.Registry) -> None:
    """Load what defines implementations, or is called, as given: files that begin with the same word, engines, and only
    if that leaves a name unknown every other file, as one that imports a framework takes seconds."""
    words = {word(name).partition("_")[0] for name in names}
    alike = [file for file in files if file.stem.partition("_")[0] in words]
    loader.load(alike, known)
    loader.load(engines_named([name for name in names if name not in known.implementations]), known)
    stems = {Path(path).stem for path in known.paths.values()}
    if any(name not in known.implementations and word(name) not in stems for name in names):
        loader.load([file for file in files if file not in alike], known)


def word(name: str) -> str:
    """As files are called."""
    return name.removeprefix(PREFIX).replace("-", "_")


def vary(known: registry.Registry, loader: Loader, names: Iterable[str], option: str = "--impl") -> dict[str, str]:
    """Load those of the names that are variants, `NAME[label]`; name -> file. Raises SelectionError."""
    found = {}
    for name in sorted(set(names) - known.implementations.keys()):
        one = known.implementations.get(base_of(name))
        if one is None or one.name == name:
            continue  # reported with all names that are unknown
        labels = {variant_name(one.name, setting.label): setting.label for setting in one.settings}
        require_known(option, [name], labels or [one.name])
        if not isinstance(loader, Workers):
            raise SelectionError(f"{option} {name}: a variant needs a process of its own; leave out --in-process")
        loader.vary(one, labels[name], known)
        found[name] = known.paths[one.name]
    return found
