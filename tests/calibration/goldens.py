"""`python -m tests.calibration goldens`: writes the goldens of the project anew from the tables."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance.exit_codes import ExitCode
from conformance.inputs import npz, recipes
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.golden_files import replace_all, unwritable
from conformance.inputs.manifest import MANIFEST, TENSORS, GoldenError, Manifest, Stored, read, render
from conformance.resources import GOLDEN


def declare(parser: argparse.ArgumentParser) -> None:
    """Write the goldens anew, after an intended change of tables, distributions or generator."""
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.set_defaults(run=_command)


def _command(arguments: argparse.Namespace) -> int:
    start = time.perf_counter()
    try:
        done = regenerate(GOLDEN, recipes.pinned(), recipes.stored(), arguments.jobs)
    except GoldenError as problem:
        print(f"goldens: {problem}", file=sys.stderr)
        return ExitCode.UNUSABLE
    print(f"{done}, {time.perf_counter() - start:.1f} s")
    return 0


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
        raise unwritable(problem, folder / TENSORS) from None
    counts = _changes(before.entries, after.entries), _changes(before.tensors, after.tensors)
    return f"{path}: {len(pinned)} recipes ({counts[0]}), {len(stored)} tensor files ({counts[1]})"


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    changed = sum(before[key] != after[key] for key in before.keys() & after.keys())
    return f"{len(after.keys() - before.keys())} added, {changed} changed, {len(before.keys() - after.keys())} removed"
