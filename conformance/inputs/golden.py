"""Goldens: digests that pin every exact tensor up to `standard`, compared whenever a suite computes such a tensor."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import cache

from conformance.floating_point import mode
from conformance.inputs import recipes
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import (
    MANIFEST,
    REMEDY,
    SEED,
    GoldenError,
    MissingGoldenError,
    differences,
    entry,
    read,
)
from conformance.operators import OPERATORS
from conformance.problems import PROBLEMS, Problem, Variant, at_level, of_family

__all__ = ["SEED", "GoldenError", "check", "check_known"]

_pinned = cache(read)


def read_ahead() -> None:
    """Read the manifest before the first verdict needs it. Its defects are ignored here and reported then."""
    with suppress(GoldenError):
        _pinned()


@cache
def _tables(family: str) -> dict[str, list[tuple[Problem, tuple[Variant, ...]]]]:
    """Return descriptor -> rows of a family's tables for which goldens are made."""
    rows_of: dict[str, list[tuple[Problem, tuple[Variant, ...]]]] = {}
    for row in at_level(of_family(PROBLEMS, family), "standard"):
        rows_of.setdefault(row[0].geometry.descriptor, []).append(row)
    return rows_of


def required(recipe: Recipe) -> bool:
    """Tell whether a recipe must have a golden."""
    operator = recipe.workload.operator
    if operator.name not in OPERATORS:  # a check's own operator, such as sums into an array: no golden
        return False
    rows = _tables(operator.family).get(recipe.workload.geometry.descriptor, [])
    return recipe.key in {table_recipe.key for table_recipe in recipes.from_rows(rows, SEED, [operator.name])}


def check(expected: Expectation) -> None:
    """Compare a recipe's tensors with its golden. Raises GoldenError if they differ, a required golden is missing, or
    this process computes in another floating-point mode than the default.

    A machine whose BLAS or generator computes something else must not give verdicts. Seeds other than `SEED`, problems
    that are not in a table, and problems of a higher level have no golden.
    """
    if expected.verified:
        return
    if changed := mode():
        raise GoldenError(
            f"in this process {', '.join(changed)}; no verdict can be trusted: switch that off, or find the library "
            "that switched it on"
        )
    if expected.recipe.seed != SEED:
        return
    key = expected.recipe.key
    golden = _pinned().entries.get(key)
    if golden is not None:
        changes = "; ".join(differences(golden, entry(expected)))
        if changes:
            raise GoldenError(
                f"{MANIFEST}, entry {key!r}: {changes}; no verdict can be trusted on this machine; "
                "run: conformance golden verify",
                "goldens differ: conformance golden verify",
            )
    elif required(expected.recipe):
        raise MissingGoldenError(
            f"{MANIFEST}: entry {key!r} is missing, which the tables ask for; {REMEDY}",
            "goldens are missing: python -m tests.calibration goldens",
        )
    expected.verified = True


def check_known(operators: Collection[str]) -> None:
    """Recompute some small recipes of the families of these operators and compare them with their goldens. Raises
    GoldenError.

    These recipes are the ones that are stored as files, with every dtype and many distributions. Whatever the seed of a
    run, this verifies that its references are still computed correctly in this process. After the first time it takes
    10 to 30 milliseconds. A missing golden is no sign of wrong arithmetic: the cases that need it report it.
    """
    families = {OPERATORS[name].family for name in operators}
    for recipe in recipes.stored(families):
        with suppress(MissingGoldenError):
            check(Expectation(recipe))
