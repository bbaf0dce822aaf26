"""`conformance golden`: verify, export.

Only the command line imports this module; `conformance.inputs` itself does not.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.dtypes import DECLARABLE
from conformance.exit_codes import ExitCode
from conformance.inputs import golden_files, recipes
from conformance.inputs.distributions import DISTRIBUTIONS
from conformance.inputs.drawing import Recipe
from conformance.inputs.golden_files import defects
from conformance.inputs.manifest import SEED, GoldenError
from conformance.operators import OPERATORS, GeometryError
from conformance.problems import PROBLEMS, Problem, at_level, named
from conformance.resources import GOLDEN

SHOWN = 20
"""Number of defects that are printed; the others are only counted."""
LARGEST = 1 << 29
"""Most elements of a recipe that can be exported: 4 GiB of float64."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Goldens, the recipes and digests that pin every exact tensor: verify, export."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    text = "recompute every golden and compare"
    command = commands.add_parser("verify", help=text, description=text)
    command.set_defaults(run=lambda given: verify(GOLDEN, None, None, given.jobs))
    command.add_argument("--jobs", type=_whole(1, 99), default=2, metavar="N", help="processes (default: 2)")
    text = "write inputs and exact outputs as npz files for other languages"
    command = commands.add_parser("export", help=text, description=text)
    command.set_defaults(run=_export)
    command.add_argument("folder", type=Path, metavar="DIR", help="created if absent; gets manifest.json and tensors/")
    command.add_argument("--level", choices=("smoke", "standard"), default="smoke", help="tables (default: smoke)")
    command.add_argument("--problem", action="append", type=_problem, metavar="TEXT", help="a name or a descriptor")
    for option, choices in (("operator", OPERATORS), ("dtype", DECLARABLE), ("distribution", DISTRIBUTIONS)):
        text = f"only this {option}, as often as needed"
        command.add_argument(f"--{option}", action="append", choices=tuple(choices), help=text)
    command.add_argument("--seed", type=_whole(0, 10**18 - 1), default=SEED, metavar="N", help=f"default: {SEED}")


def _whole(least: int, largest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (re.fullmatch(r"\d{1,18}", text, re.ASCII) and least <= int(text) <= largest):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {largest}")
        return int(text)

    return parse


def _problem(text: str) -> Problem:
    """Return a problem by its name in the tables or by its descriptor; in every variant either way."""
    try:
        return named(text)
    except GeometryError as defect:
        raise argparse.ArgumentTypeError(f"{text!r} {defect}") from None


def verify(folder: Path, pinned: Sequence[Recipe] | None, stored: Sequence[Recipe] | None, jobs: int) -> int:
    """Recompute the goldens in `folder` and compare; print the outcome; return the exit status.

    `pinned` and `stored` are the recipes that must be there, by default those of the tables.
    """
    start = time.perf_counter()
    try:
        pinned = recipes.pinned() if pinned is None else pinned
        stored = recipes.stored() if stored is None else stored
        sentences = list(defects(folder, pinned, stored, jobs))
    except GoldenError as problem:
        return _refused(str(problem))
    seconds = time.perf_counter() - start
    if not sentences:
        print(f"goldens hold: {len(pinned)} recipes, {len(stored)} tensor files, {seconds:.1f} s")
        return 0
    for line in sentences[:SHOWN]:
        print(line, file=sys.stderr)
    more = f", {len(sentences) - SHOWN} of them not shown" if len(sentences) > SHOWN else ""
    return _refused(f"goldens do not hold: {len(sentences)} defects{more}; {seconds:.1f} s")


def _export(arguments: argparse.Namespace) -> int:
    try:
        chosen = _chosen(arguments)
        print(golden_files.export(arguments.folder, chosen, arguments.seed))
    except GoldenError as problem:
        return _refused(f"export {arguments.folder}: {problem}", ExitCode.UNUSABLE)
    return 0


def _chosen(arguments: argparse.Namespace) -> list[Recipe]:
    """Return the recipes to export. Raises GoldenError if there are none, or if one is too large."""
    if arguments.folder.resolve() == GOLDEN:
        raise GoldenError("DIR is the folder of the project's goldens; choose another")
    rows = [(p, p.variants) for p in arguments.problem or ()] or at_level(PROBLEMS, arguments.level)
    chosen = [
        recipe
        for recipe in recipes.from_rows(rows, arguments.seed, arguments.operator or tuple(OPERATORS))
        if recipe.dtype in (arguments.dtype or DECLARABLE)
        and recipe.distribution in (arguments.distribution or DISTRIBUTIONS)
    ]
    if not chosen:
        raise GoldenError(
            "no recipe has that dtype and distribution; name problems with --problem, or use --level standard"
        )
    for recipe in chosen:
        tensors = recipe.workload.inputs | recipe.workload.outputs
        if sum(tensor.size for tensor in tensors.values()) > LARGEST:
            raise GoldenError(f"{recipe.key} has more than {LARGEST} elements; choose a smaller --problem")
    return chosen


def _refused(message: str, status: int = 1) -> int:
    print(message, file=sys.stderr)
    return status
