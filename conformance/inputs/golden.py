"""Goldens: digests that pin every exact tensor up to `standard`, checked again whenever a suite computes one."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import cache

from conformance.floating_point import mode
from conformance.inputs import recipes
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import MANIFEST, REMEDY, SEED, GoldenError, differences, entry, read
from conformance.operators import OPERATORS
from conformance.problems import PROBLEMS, Problem, Variant, at_level, of_family

__all__ = ["SEED", "GoldenError", "check", "check_known"]

_pinned = cache(read)


def read_ahead() -> None:
    """Read the manifest, which the first verdict waits for otherwise; what is wrong with it is said there."""
    with suppress(GoldenError):
        _pinned()


@cache
def _tables(family: str) -> dict[str, list[tuple[Problem, tuple[Variant, ...]]]]:
    """Descriptor -> the rows of a family that goldens are made of."""
    found: dict[str, list[tuple[Problem, tuple[Variant, ...]]]] = {}
    for row in at_level(of_family(PROBLEMS, family), "standard"):
        found.setdefault(row[0].geometry.descriptor, []).append(row)
    return found


def required(recipe: Recipe) -> bool:
    """Whether it must have a golden."""
    if recipe.operator.name not in OPERATORS:  # of a check: a sum into an array of a table's problem was an error
        return False
    rows = _tables(recipe.operator.family).get(recipe.geometry.descriptor, [])
    return recipe.key in {one.key for one in recipes.from_rows(rows, SEED, [recipe.operator.name])}


def check(expected: Expectation) -> None:
    """Compare a recipe's tensors with its golden. Raises GoldenError where they differ, it has none and should, or this
    process computes in another floating-point mode than the default.

    A machine whose BLAS or generator computed something else must not pronounce verdicts. Other seeds than `SEED` and
    problems of no table, or of a higher level, have no golden.
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
        found = "; ".join(differences(golden, entry(expected)))
        if found:
            raise GoldenError(
                f"{MANIFEST}, entry {key!r}: {found}; no verdict can be trusted on this machine; "
                "run: conformance golden verify"
            )
    elif required(expected.recipe):
        raise GoldenError(f"{MANIFEST}: entry {key!r} is missing, which the tables ask for; {REMEDY}")
    expected.verified = True


def check_known(operators: Collection[str]) -> None:
    """Compute some small recipes of the families of these operators anew and compare them with their goldens. Raises
    GoldenError.

    They are those that are stored as files, of every dtype and of many distributions. Whatever the seed of a run, this
    tells whether the references that its verdicts rest on are still computed right in this process; in 10 to 30
    milliseconds after the first time.
    """
    families = {OPERATORS[name].family for name in operators}
    for recipe in recipes.stored(families):
        check(Expectation(recipe))
