"""`python -m conformance golden`: verify, regenerate, export.

Not imported by the package itself: `conformance.problems` imports it.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from conformance.dtypes import STORAGE
from conformance.inputs import recipes, writing
from conformance.inputs.distributions import DISTRIBUTIONS, Recipe
from conformance.inputs.manifest import FOLDER, SEED, GoldenError
from conformance.inputs.verification import defects
from conformance.operators import OPERATORS
from conformance.problems import PROBLEMS, Problem, at_level, typed

SHOWN = 20
"""Defects printed before the rest is only counted."""
LARGEST = 1 << 29
"""Most elements of a recipe that export takes on: 4 GiB of float64."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Goldens, the recipes and digests that pin every exact tensor: verify, regenerate, export."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, run, text in (
        ("verify", _verify, "recompute every golden and compare"),
        ("regenerate", _regenerate, "write the goldens anew from the tables"),
        ("export", _export, "write inputs and exact outputs as npz files for other languages"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if name == "export":
            _declare_export(command)
        else:
            command.add_argument("--jobs", type=_jobs, default=2, metavar="N", help="processes (default: 2)")


def _declare_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=Path, metavar="DIR", help="created if absent; gets manifest.json and tensors/")
    command.add_argument("--level", choices=("smoke", "standard"), default="smoke", help="tables (default: smoke)")
    command.add_argument("--problem", action="append", type=_problem, metavar="TEXT", help="a name or a descriptor")
    command.add_argument("--operator", action="append", choices=tuple(OPERATORS), help="only this operator")
    command.add_argument("--dtype", action="append", choices=tuple(STORAGE), help="only this dtype")
    command.add_argument(
        "--distribution", action="append", choices=tuple(DISTRIBUTIONS), help="only this way of drawing inputs"
    )
    command.add_argument("--seed", type=_seed, default=SEED, metavar="N", help=f"other data (default: {SEED})")


def _jobs(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 99")
    return int(text)


def _seed(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 10^18 - 1")
    return int(text)


def _problem(text: str) -> Problem:
    """A problem of the tables by its name, or a descriptor; in every variant either way."""
    named = {problem.name: problem.geometry.descriptor for problem in PROBLEMS}
    try:
        return typed(named.get(text, text))
    except ValueError as defect:  # GeometryError, or a number of thousands of digits
        raise argparse.ArgumentTypeError(f"{text!r} is no problem's name, and as a descriptor: {defect}") from None


def _verify(arguments: argparse.Namespace) -> int:
    return verify(FOLDER, None, None, arguments.jobs)


def verify(folder: Path, pinned: Sequence[Recipe] | None, stored: Sequence[Recipe] | None, jobs: int) -> int:
    """Compare the goldens in `folder` with what is computed here; print the outcome; return the exit status.

    `pinned` and `stored` are the recipes asked for, by default those of the tables.
    """
    start = time.perf_counter()
    try:
        pinned = recipes.pinned() if pinned is None else pinned
        stored = recipes.stored() if stored is None else stored
        found = list(defects(folder, pinned, stored, jobs))
    except GoldenError as problem:
        return _refused(str(problem))
    seconds = time.perf_counter() - start
    if not found:
        print(f"goldens hold: {len(pinned)} recipes, {len(stored)} tensor files, {seconds:.1f} s")
        return 0
    for line in found[:SHOWN]:
        print(line, file=sys.stderr)
    more = f", {len(found) - SHOWN} of them not shown" if len(found) > SHOWN else ""
    return _refused(f"goldens do not hold: {len(found)} defects{more}; {seconds:.1f} s")


def _regenerate(arguments: argparse.Namespace) -> int:
    start = time.perf_counter()
    try:
        done = writing.regenerate(FOLDER, recipes.pinned(), recipes.stored(), arguments.jobs)
    except GoldenError as problem:
        return _refused(str(problem))
    print(f"{done}, {time.perf_counter() - start:.1f} s")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    try:
        chosen = _chosen(arguments)
        print(writing.export(arguments.folder, chosen, arguments.seed))
    except GoldenError as problem:
        return _refused(f"export {arguments.folder}: {problem}", 2)
    return 0


def _chosen(arguments: argparse.Namespace) -> list[Recipe]:
    """The recipes that an export asks for. Raises GoldenError where there are none, or one is out of reach."""
    if arguments.folder.resolve() == FOLDER:
        raise GoldenError("DIR is the folder of the project's goldens; choose another, or run regenerate")
    rows = [(p, p.variants) for p in arguments.problem or ()] or at_level(PROBLEMS, arguments.level)
    found = [
        recipe
        for recipe in recipes.from_rows(rows, arguments.seed, arguments.operator or tuple(OPERATORS))
        if recipe.dtype in (arguments.dtype or STORAGE)
        and recipe.distribution in (arguments.distribution or DISTRIBUTIONS)
    ]
    if not found:
        raise GoldenError(
            "no recipe has that dtype and distribution; name problems with --problem, or use --level standard"
        )
    for recipe in found:
        if _elements(recipe) > LARGEST:
            raise GoldenError(f"{recipe.key} has more than {LARGEST} elements; choose a smaller --problem")
    return found


def _elements(recipe: Recipe) -> int:
    operator, geometry = recipe.operator, recipe.geometry
    return sum(tensor.size for tensor in (operator.inputs(geometry) | operator.outputs(geometry)).values())


def _refused(message: str, status: int = 1) -> int:
    print(message, file=sys.stderr)
    return status
