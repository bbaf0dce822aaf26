"""Finding implementations: every file or folder in `impls/`, and files given by path."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from conformance.harness.implementation import Implementation

_PACKAGE = "conformance_impls"


@dataclass(slots=True)
class Registry:
    """What was found: usable implementations, those that lack something here, and files that are broken."""

    implementations: dict[str, Implementation] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    """File stem of a module whose third-party import is missing -> reason."""
    broken: dict[str, str] = field(default_factory=dict)
    """File -> what is wrong with it."""
    paths: dict[str, str] = field(default_factory=dict)
    """Implementation -> its file."""


def load(paths: Iterable[Path]) -> Registry:
    """Load the given files and folders, in order. Nothing a file does wrong stops the others."""
    registry = Registry()
    for path in paths:
        try:
            _register(registry, path, _import(path))
        except Exception as problem:
            _note(registry, path, problem)
    return registry


def discover(folder: Path) -> list[Path]:
    """Files and packages of an `impls` folder, sorted; names that start with an underscore or a dot are not ours."""
    found = (
        path
        for path in folder.iterdir()
        if path.name[0] not in "._" and (path.suffix == ".py" or (path / "__init__.py").exists())
    )
    return sorted(found)


def source_hash(path: Path) -> str:
    """SHA-256 over an implementation's Python files, names and contents, so that a verdict names its source."""
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _import(path: Path) -> ModuleType:
    """Import by location, so that `impls` never is on sys.path and a file may be called like a package."""
    entry = path / "__init__.py" if path.is_dir() else path
    name = f"{_PACKAGE}.{path.stem}"
    sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    spec = importlib.util.spec_from_file_location(
        name, entry, submodule_search_locations=[str(path)] if path.is_dir() else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{entry} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _register(registry: Registry, path: Path, module: ModuleType) -> None:
    found = [value for value in vars(module).values() if isinstance(value, Implementation)]
    if not found:
        raise ValueError("defines no conformance.Implementation at module level")
    for implementation in found:
        other = registry.paths.get(implementation.name)
        if other is not None:
            where = "twice" if other == str(path) else f"here and in {other}"
            registry.broken[f"{path}"] = f"the name {implementation.name!r} is defined {where}; rename one"
            continue
        implementation.source = source_hash(path)
        registry.implementations[implementation.name] = implementation
        registry.paths[implementation.name] = str(path)


def _note(registry: Registry, path: Path, problem: Exception) -> None:
    """A missing dependency makes a module unavailable; everything else is its own fault."""
    own = [frame for frame in traceback.extract_tb(problem.__traceback__) if str(path) in frame.filename]
    if isinstance(problem, ModuleNotFoundError) and not (problem.name or "").startswith(("conformance", _PACKAGE)):
        registry.unavailable[path.stem] = str(problem)
        return
    line = f", line {own[-1].lineno}" if own else ""
    registry.broken[str(path)] = f"{type(problem).__name__}: {problem} ({path.name}{line})"
