"""Writing goldens: those of the project, and those that another language asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance.inputs import npz, recipes
from conformance.inputs.distributions import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.files import replace_all
from conformance.inputs.golden import entry
from conformance.inputs.manifest import MANIFEST, TENSORS, GoldenError, Manifest, Stored, read, render


def regenerate(folder: Path, pinned: Sequence[Recipe], stored: Sequence[Recipe], jobs: int) -> str:
    """Write the goldens of `folder` anew, all or nothing; say what changed. Raises GoldenError if it cannot write.

    Whatever was there is replaced, however broken, and npz files that the manifest does not list are removed.
    """
    path, before = folder / MANIFEST.name, _before(folder)
    contents = {folder / TENSORS / npz.file_name(recipe): _encoded(Expectation(recipe)) for recipe in stored}
    files = {file.name: _listed(recipe, contents[file]) for file, recipe in zip(contents, stored, strict=True)}
    after = Manifest({recipe.key: found for recipe, found in recipes.entries(pinned, jobs)}, files)
    _write(contents | {path: render(after).encode()})
    _remove_all_but(set(contents), folder / TENSORS)
    counts = _changes(before.entries, after.entries), _changes(before.tensors, after.tensors)
    return f"{path}: {len(pinned)} recipes ({counts[0]}), {len(stored)} tensor files ({counts[1]})"


def export(folder: Path, chosen: Sequence[Recipe], seed: int) -> str:
    """Write a manifest and a tensor file for every recipe; say how much. Raises GoldenError if it cannot write.

    Files of the same names are replaced, others stay. The manifest comes last and lists this export alone.
    """
    after, size = Manifest(), 0
    for recipe in recipes.progress(chosen):
        expected = Expectation(recipe)
        content = _encoded(expected)
        _write({folder / TENSORS / npz.file_name(recipe): content})
        after.entries[recipe.key] = entry(expected)
        after.tensors[npz.file_name(recipe)] = _listed(recipe, content)
        size += len(content)
    _write({folder / MANIFEST.name: render(after, seed).encode()})
    return f"{folder / MANIFEST.name}: {len(chosen)} tensor files, {size / 1e6:.1f} MB"


def _encoded(expected: Expectation) -> bytes:
    return npz.encode(npz.arrays(expected))


def _listed(recipe: Recipe, content: bytes) -> Stored:
    return Stored(recipe.key, npz.sha256(content))


def _before(folder: Path) -> Manifest:
    """What was there, for counting; what is no manifest counts as an empty one."""
    try:
        return read(folder / MANIFEST.name)
    except GoldenError:
        return Manifest()


def _write(contents: Mapping[Path, bytes]) -> None:
    try:
        replace_all(contents)
    except OSError as problem:
        raise _unwritable(problem, next(iter(contents))) from None


def _remove_all_but(kept: set[Path], folder: Path) -> None:
    try:
        for stray in set(folder.glob("*.npz")) - kept:
            stray.unlink()
    except OSError as problem:
        raise _unwritable(problem, folder) from None


def _unwritable(problem: OSError, path: Path) -> GoldenError:
    return GoldenError(
        f"{problem.filename or path}: cannot be written ({problem.strerror or problem}); "
        "nothing is half-written: make room or give access, then run the command again"
    )


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    changed = sum(before[key] != after[key] for key in before.keys() & after.keys())
    return f"{len(after.keys() - before.keys())} added, {changed} changed, {len(before.keys() - after.keys())} removed"
