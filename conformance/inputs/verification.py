"""Whether goldens hold: everything recomputed and compared, one sentence a defect."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from conformance.inputs import npz, recipes
from conformance.inputs.distributions import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.golden import differences
from conformance.inputs.manifest import MANIFEST, REMEDY, TENSORS, Manifest, Stored, read
from conformance.operators import Arrays


def defects(folder: Path, pinned: Sequence[Recipe], stored: Sequence[Recipe], jobs: int) -> Iterator[str]:
    """What is wrong with the goldens in `folder`, given what the tables and the list of stored tensors ask for.

    Every sentence names file, entry or field, and remedy. Raises GoldenError where the manifest cannot be used.
    """
    path = folder / MANIFEST.name
    manifest = read(path)
    for defect in _entry_defects(manifest, pinned, jobs):
        yield f"{path}: {defect}; {REMEDY}"
    yield from _tensor_defects(folder, manifest, {npz.file_name(recipe): recipe for recipe in stored})


def _entry_defects(manifest: Manifest, pinned: Sequence[Recipe], jobs: int) -> Iterator[str]:
    yield from _unmatched("entry", manifest.entries.keys(), [recipe.key for recipe in pinned], "the tables")
    known = [recipe for recipe in pinned if recipe.key in manifest.entries]
    for recipe, computed in recipes.entries(known, jobs):
        for difference in differences(manifest.entries[recipe.key], computed):
            yield f"entry {recipe.key!a}: {difference}"


def _unmatched(what: str, listed: Collection[str], wanted: Collection[str], where: str) -> Iterator[str]:
    asked = set(wanted)
    for name in wanted:
        if name not in listed:
            yield f"{what} {name!a} is missing, which {where} ask for"
    for name in listed:
        if name not in asked:
            yield f"{what} {name!a} is nothing that {where} ask for"


def _tensor_defects(folder: Path, manifest: Manifest, stored: dict[str, Recipe]) -> Iterator[str]:
    for defect in _unmatched("tensors, file", manifest.tensors, stored, "the stored recipes"):
        yield f"{folder / MANIFEST.name}: {defect}; {REMEDY}"
    for name, listed in manifest.tensors.items():
        for defect in _file_defects(folder / TENSORS / name, listed, stored.get(name)):
            yield f"{folder / TENSORS / name}: {defect}; {REMEDY}"
    for path in sorted((folder / TENSORS).glob("*.npz")):
        if path.name not in manifest.tensors:
            yield f"{path}: {folder / MANIFEST.name} does not list this file; delete it"


def _file_defects(path: Path, listed: Stored, recipe: Recipe | None) -> Iterator[str]:
    try:
        content = path.read_bytes()
    except OSError as problem:
        yield f"cannot be read ({problem.strerror})"
        return
    if npz.sha256(content) != listed.sha256:
        yield f"edited or truncated: SHA-256 is {npz.sha256(content)[:12]}, the manifest says {listed.sha256[:12]}"
    elif recipe is not None:
        if listed.recipe != recipe.key:
            yield f"the manifest's field recipe is {listed.recipe!a} instead of {recipe.key!a}"
        yield from _content_defects(content, npz.arrays(Expectation(recipe)))


def _content_defects(content: bytes, wanted: Arrays) -> Iterator[str]:
    try:
        found = npz.decode(content)
    except ValueError as problem:
        yield str(problem)
        return
    for name in sorted(found.keys() | wanted.keys()):
        if name not in wanted:
            yield f"array {name!a} is not of this recipe"
        elif name not in found:
            yield f"array {name!a} is missing"
        elif not _same(found[name], wanted[name]):
            yield f"array {name!a} is not what the recipe gives"


def _same(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Equal to the bit, in a dtype and shape that are the same."""
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()
