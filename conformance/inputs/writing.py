"""Writing goldens: those of the project, and those that another language asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from conformance.inputs import npz, recipes
from conformance.inputs.digests import entry
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import MANIFEST, TENSORS, GoldenError, Manifest, Stored, read, render


def regenerate(folder: Path, pinned: Sequence[Recipe], stored: Sequence[Recipe], jobs: int) -> str:
    """Write the goldens of `folder` anew, all or nothing; say what changed. Raises GoldenError if it cannot write.

    Whatever was there is replaced, however broken, and npz files that the manifest does not list are removed.
    """
    path = folder / MANIFEST.name
    try:
        before = read(path)
    except GoldenError:  # counts as an empty one
        before = Manifest()
    contents = {
        folder / TENSORS / npz.file_name(recipe): npz.encode(npz.arrays(Expectation(recipe))) for recipe in stored
    }
    after = Manifest(
        {recipe.key: found for recipe, found in recipes.entries(pinned, jobs)},
        {
            file.name: Stored(recipe.key, npz.sha256(contents[file]))
            for file, recipe in zip(contents, stored, strict=True)
        },
    )
    replace_all(contents | {path: render(after).encode()})
    try:
        for stray in set((folder / TENSORS).glob("*.npz")) - contents.keys():
            stray.unlink()
    except OSError as problem:
        raise _unwritable(problem, folder / TENSORS) from None
    counts = _changes(before.entries, after.entries), _changes(before.tensors, after.tensors)
    return f"{path}: {len(pinned)} recipes ({counts[0]}), {len(stored)} tensor files ({counts[1]})"


def export(folder: Path, chosen: Sequence[Recipe], seed: int) -> str:
    """Write a manifest and a tensor file for every recipe; say how much. Raises GoldenError if it cannot write.

    Files of the same names are replaced, others stay. The manifest comes last and lists this export alone.
    """
    after, size = Manifest(), 0
    for recipe in recipes.progress(chosen):
        expected, name = Expectation(recipe), npz.file_name(recipe)
        content = npz.encode(npz.arrays(expected))
        replace_all({folder / TENSORS / name: content})
        after.entries[recipe.key] = entry(expected)
        after.tensors[name] = Stored(recipe.key, npz.sha256(content))
        size += len(content)
    replace_all({folder / MANIFEST.name: render(after, seed).encode()})
    return f"{folder / MANIFEST.name}: {len(chosen)} tensor files, {size / 1e6:.1f} MB"


def replace_all(contents: Mapping[Path, bytes]) -> None:
    """Write files so that neither an interrupt nor a full disk leaves one half-written.

    All are written beside their places before the first is moved there, in the order given. Folders are created.
    Raises GoldenError, and then leaves no temporary file.
    """
    staged = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    try:
        for path, temporary in staged.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())  # a move may otherwise outlive the bytes
        for path, temporary in staged.items():
            temporary.replace(path)
    except OSError as problem:
        raise _unwritable(problem, next(iter(contents))) from None
    finally:
        for temporary in staged.values():
            with suppress(OSError):
                temporary.unlink()


def _unwritable(problem: OSError, path: Path) -> GoldenError:
    return GoldenError(
        f"{problem.filename or path}: cannot be written ({problem.strerror or problem}); "
        "nothing is half-written: make room or give access, then run the command again"
    )


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    changed = sum(before[key] != after[key] for key in before.keys() & after.keys())
    return f"{len(after.keys() - before.keys())} added, {changed} changed, {len(before.keys() - after.keys())} removed"
