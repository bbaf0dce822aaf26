"""Finding implementations: in `impls/`, in files given by path, and in other installed packages."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from conformance.failure import Failure
from conformance.implementations import modules
from conformance.implementations.errors import described, printable
from conformance.implementations.implementation import Implementation
from conformance.implementations.source_files import SourceFiles
from conformance.import_path import SourceLoader
from conformance.resources import IMPLS, OWN_NAMES

GROUP = "conformance.implementations"
"""Group of the entry points of other packages."""
_PACKAGE = "conformance_impls"


class BrokenFile(Struct, frozen=True):
    """The reason why a file cannot be used, in words and as data."""

    reason: str
    failure: Failure

    def __str__(self) -> str:
        return self.reason


def unusable(reason: str, file: str = "", line: int = 0) -> BrokenFile:
    """Return the `BrokenFile` of a file that is wrong itself, with the line where one is known."""
    failure = Failure(kind="file", message=reason.partition("\n")[0], file=file, line=line)
    return BrokenFile(reason, failure)


@dataclass(slots=True)
class Registry:
    """Implementations that were found: usable ones, those that lack something here, and broken files."""

    implementations: dict[str, Implementation] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    """File stem of a module whose third-party import is missing -> reason."""
    broken: dict[str, BrokenFile] = field(default_factory=dict)
    """File -> what is wrong with it."""
    paths: dict[str, str] = field(default_factory=dict)
    """Implementation -> its file, or the package that it was installed with."""
    duplicates: list[str] = field(default_factory=list)
    """Broken files in which a name is used a second time."""

    def nameable(self, paths: Iterable[Path]) -> Iterator[Path]:
        """Yield the paths whose names can be printed; note the others as broken."""
        for path in paths:
            shown = printable(path.name).replace("\n", "\\n").replace("\t", "\\t")
            if shown == path.name:
                yield path
            else:
                why = "its name has characters that no terminal shows; rename it"
                self.broken[str(path.with_name(shown))] = unusable(why)


def load(paths: Iterable[Path], registry: Registry | None = None, *, hashes: bool = True) -> Registry:
    """Load files and folders, in order, into a new or the given registry. An error in one does not stop the others. A
    kernel's process computes no `hashes`, which its judge knows: it would open files that the kernel does not open."""
    registry = registry or Registry()
    for path in registry.nameable(paths):
        try:
            files = SourceFiles(path) if hashes else None  # before a file can change itself
            file = modules.ModuleFile(path)
            defined = vars(_import(path, file.tree))
            register(registry, str(path), files, file.implementations(defined))
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # SystemExit and pytest.skip are failures to load too
            _note(registry, path, problem)
    return registry


def load_installed(registry: Registry) -> None:
    """Load what other packages offer as entry points of the group `conformance.implementations`, each of which names a
    module or an Implementation in it. An error in one does not stop the others."""
    for entry in installed():
        load_entry(entry, registry)


def installed() -> list[EntryPoint]:
    """Return the entry points of other packages."""
    return sorted(entry_points(group=GROUP))


def place_of(entry: EntryPoint) -> str:
    """Return the package of an entry point and the object that it names, in words."""
    return f"{entry.dist.name if entry.dist else 'unknown package'} ({entry.value})"


def load_entry(entry: EntryPoint, registry: Registry, *, hashes: bool = True) -> None:
    """Load one entry point, as `load` loads a file."""
    place = place_of(entry)
    try:
        value = entry.load()
        if not isinstance(value, (ModuleType, Implementation)):
            raise TypeError(f"is a {type(value).__name__}; it must be a module or a conformance.Implementation")
        file = Path(sys.modules[entry.module].__file__ or "")
        source = file.parent if file.name == "__init__.py" else file
        files = SourceFiles(source) if hashes else None
        register(registry, place, files, vars(value).values() if isinstance(value, ModuleType) else [value])
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as problem:
        is_own = (problem.name or "").partition(".")[0] in ("conformance", entry.module.partition(".")[0])
        if is_own:
            registry.broken[place] = unusable(f"ModuleNotFoundError: {problem}")
        else:
            registry.unavailable[entry.name] = str(problem)
    except BaseException as problem:  # as in `load`
        registry.broken[place] = unusable(described(problem))


def discover(folder: Path) -> list[Path]:
    """Return the files and packages in a folder, sorted, or the path itself if it is one of these; names that start
    with an underscore or a dot are left out."""
    if folder.suffix == ".py" or (folder / "__init__.py").exists():
        return [folder]
    paths = (
        path
        for path in folder.iterdir()
        if path.name[0] not in "._" and (path.suffix == ".py" or (path / "__init__.py").exists())
    )
    return sorted(paths)


def _import(path: Path, tree: ast.Module | None) -> ModuleType:
    """Import a file by location, so that `impls` is never on sys.path and a file may have a package's name. A `tree` is
    run instead of the file's content.

    The module's name differs for files of the same name in two folders: their relative imports depend on it.
    """
    entry = path / "__init__.py" if path.is_dir() else path
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"{_PACKAGE}.{place}.{path.stem}"
    sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    for loaded in [module for module in sys.modules if module.startswith(f"{name}.")]:
        del sys.modules[loaded]  # a package that is loaded once more is read anew, its modules too
    spec = importlib.util.spec_from_file_location(
        name,
        entry,
        loader=SourceLoader(name, str(entry.absolute())),
        submodule_search_locations=[str(path)] if path.is_dir() else None,
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Python tells compiled files apart by size and second: a kernel that is corrected and loaded again within a second
    # would run as the old one; and none are left in a vendor's folder
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        if tree is None:
            spec.loader.exec_module(module)
        else:
            exec(compile(tree, entry, "exec", dont_inherit=True), vars(module))
    finally:
        sys.dont_write_bytecode = written
    return module


def register(registry: Registry, place: str, files: SourceFiles | None, values: Iterable[object]) -> None:
    """Register the implementations among some values, which `files` define, where these are known. Raises ValueError
    where none of the values is one."""
    implementations = {id(value): value for value in values if isinstance(value, Implementation)}
    if not implementations:
        raise ValueError("defines no conformance.Implementation at module level, as acme = Implementation('acme')")
    is_own = Path(place).resolve().is_relative_to(IMPLS.resolve())
    for implementation in implementations.values():
        implementation.require_effect()
        if not is_own and (home := OWN_NAMES.get(implementation.name)):
            where = f"here and in {home} of the suite, whose verdicts these would be taken for"
            registry.broken[place] = unusable(f"the name {implementation.name!r} is defined {where}; rename it")
            registry.duplicates.append(place)
            continue
        other = registry.paths.get(implementation.name)
        if other is not None:
            where = "twice" if other == place else f"here and in {other}"
            registry.broken[place] = unusable(f"the name {implementation.name!r} is defined {where}; rename one")
            registry.duplicates.append(place)
            continue
        implementation.source, implementation.files = files.digest if files else "", files
        registry.implementations[implementation.name] = implementation
        registry.paths[implementation.name] = place


def _note(registry: Registry, path: Path, problem: BaseException) -> None:
    """Note why a file failed to load: as unavailable if a dependency is missing, for all else as broken."""
    here = path.absolute()
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if Path(f.filename).is_relative_to(here)]
    if isinstance(problem, ImportError) and path.is_file():
        name = (problem.name or "").partition(".")[0]
        beside = (here.parent / f"{name}.py", here.parent / name / "__init__.py")
        if name == _PACKAGE or any(file.exists() for file in beside if file != here):
            what, name = ("it is in no package", "helper") if name == _PACKAGE else (str(problem), name)
            registry.broken[str(path)] = unusable(
                f"{type(problem).__name__}: {what}; files beside it are not imported: put both into a folder with an "
                f"__init__.py, which gives the implementation, and import with `from . import {name}`"
            )
            return
    if isinstance(problem, ModuleNotFoundError) and not (problem.name or "").startswith(("conformance", _PACKAGE)):
        registry.unavailable[path.stem] = str(problem)
        return
    if isinstance(problem, SyntaxError):  # which says itself where it is
        file, line = problem.filename, problem.lineno
        registry.broken[str(path)] = unusable(described(problem), str(file or ""), int(line or 0))
        return
    place = f"{Path(frames[-1].filename).relative_to(here.parent)}, line {frames[-1].lineno}" if frames else path.name
    at = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
    registry.broken[str(path)] = unusable(f"{described(problem)} ({place})", *at)
