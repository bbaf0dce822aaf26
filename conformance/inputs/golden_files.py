"""Golden files: verification of the project's own, with one sentence per defect, and export for other languages."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from conformance.files import content_of
from conformance.inputs import npz, recipes
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import (
    MANIFEST,
    REMEDY,
    TENSORS,
    GoldenError,
    Manifest,
    Stored,
    differences,
    entry,
    read,
    render,
)


def export(folder: Path, chosen: Sequence[Recipe], seed: int) -> str:
    """Write a manifest and a tensor file for every recipe; return a summary. Raises GoldenError if writing fails.

    Files of the same names are replaced, others stay. The manifest is written last and lists this export only.
    """
    after, size = Manifest(), 0
    for recipe in recipes.progress(chosen, len(chosen), "recipes"):
        expected, name = Expectation(recipe), npz.file_name(recipe)
        content = npz.encode(npz.arrays(expected))
        replace_all({folder / TENSORS / name: content})
        after.entries[recipe.key] = entry(expected)
        after.tensors[name] = Stored(recipe.key, npz.sha256(content))
        size += len(content)
    replace_all({folder / MANIFEST.name: render(after, seed).encode()})
    return f"{folder / MANIFEST.name}: {len(chosen)} tensor files, {size / 1e6:.1f} MB"


def replace_all(contents: Mapping[Path, bytes]) -> None:
    """Write files so that neither an interrupt nor a full disk leaves a file half-written.

    All files are written under temporary names before the first is moved to its place, in the given order. Folders are
    created. Raises GoldenError, and then leaves no temporary file.
    """
    staged = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    try:
        for path, temporary in staged.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())  # otherwise the move may survive a crash, and the bytes may not
        for path, temporary in staged.items():
            temporary.replace(path)
    except OSError as problem:
        raise unwritable(problem, next(iter(contents))) from None
    finally:
        for temporary in staged.values():
            with suppress(OSError):
                temporary.unlink()


def unwritable(problem: OSError, path: Path) -> GoldenError:
    """Return the exception to raise if a file or a folder cannot be written."""
    return GoldenError(
        f"{problem.filename or path}: cannot be written ({problem.strerror or problem}); "
        "nothing is half-written: make room or give access, then run the command again"
    )


def defects(folder: Path, pinned: Sequence[Recipe], stored: Sequence[Recipe], jobs: int) -> Iterator[str]:
    """Yield the defects of the goldens in `folder`, compared with the recipes that must be pinned and stored.

    Every sentence names the file, the entry or field, and the remedy. Raises GoldenError if the manifest is unusable.
    """
    path, tensors = folder / MANIFEST.name, folder / TENSORS
    manifest = read(path)
    for defect in _unmatched("entry", manifest.entries, [recipe.key for recipe in pinned], "the tables"):
        yield f"{path}: {defect}; {REMEDY}"
    checkable = [recipe for recipe in pinned if recipe.key in manifest.entries]
    for recipe, computed in recipes.entries(checkable, jobs):
        for difference in differences(manifest.entries[recipe.key], computed):
            yield f"{path}: entry {recipe.key!a}: {difference}; {REMEDY}"

    recipe_of = {npz.file_name(recipe): recipe for recipe in stored}
    for defect in _unmatched("tensors, file", manifest.tensors, recipe_of, "the stored recipes"):
        yield f"{path}: {defect}; {REMEDY}"
    for name, listed in manifest.tensors.items():
        for defect in _file_defects(tensors / name, listed, recipe_of.get(name)):
            yield f"{tensors / name}: {defect}; {REMEDY}"
    for file in sorted(tensors.glob("*.npz")):
        if file.name not in manifest.tensors:
            yield f"{file}: {path} does not list this file; delete it"


def _unmatched(what: str, listed: Collection[str], required: Collection[str], where: str) -> Iterator[str]:
    required_names = set(required)
    for name in required:
        if name not in listed:
            yield f"{what} {name!a} is missing, which {where} ask for"
    for name in listed:
        if name not in required_names:
            yield f"{what} {name!a} is nothing that {where} ask for"


def _file_defects(path: Path, listed: Stored, recipe: Recipe | None) -> Iterator[str]:
    try:
        content = content_of(path)
    except OSError as problem:
        yield f"cannot be read ({problem.strerror})"
        return
    if npz.sha256(content) != listed.sha256:
        yield f"edited or truncated: SHA-256 is {npz.sha256(content)[:12]}, the manifest says {listed.sha256[:12]}"
        return
    if recipe is None:
        return
    if listed.recipe != recipe.key:
        yield f"the manifest's field recipe is {listed.recipe!a} instead of {recipe.key!a}"
    try:
        stored_arrays, computed = npz.decode(content), npz.arrays(Expectation(recipe))
    except ValueError as problem:
        yield str(problem)
        return
    for name in sorted(stored_arrays.keys() | computed.keys()):
        if name not in computed:
            yield f"array {name!a} is not of this recipe"
        elif name not in stored_arrays:
            yield f"array {name!a} is missing"
        else:
            first, second = (
                (array.dtype, array.shape, array.tobytes()) for array in (stored_arrays[name], computed[name])
            )
            if first != second:  # compared bit by bit
                yield f"array {name!a} is not what the recipe gives"
