"""Goldens: digests that pin every exact tensor up to `standard`, checked again whenever a suite computes one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache

import numpy as np

from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import FOLDER, MANIFEST, SEED, Entry, GoldenError, Manifest, read

__all__ = ["FOLDER", "MANIFEST", "SEED", "GoldenError", "canonical", "check", "differences", "digest", "entry"]


def canonical(array: np.ndarray) -> np.ndarray:
    """The values as little-endian float64 in row-major order, which every storage dtype converts to exactly.

    NaN has one bit pattern and zero one sign here: neither is determined by the mathematics.
    """
    values = array.astype("<f8", order="C")
    values += 0.0
    values[np.isnan(values)] = np.nan
    return values


def digest(array: np.ndarray) -> str:
    """SHA-256 of the canonical values."""
    return hashlib.sha256(canonical(array).data).hexdigest()


def entry(expected: Expectation) -> Entry:
    """The manifest entry of a recipe: digests of its inputs and of its exact outputs."""
    return {
        "inputs": {name: digest(array) for name, array in expected.inputs.items()},
        "outputs": {name: digest(array) for name, array in expected.reference.items()},
    }


def differences(pinned: Entry, computed: Entry) -> Iterator[str]:
    """What two entries of a recipe disagree about, one sentence a tensor."""
    for half, digests in computed.items():
        for name in sorted(pinned[half].keys() | digests.keys()):
            before, now = (found.get(name, "absent") for found in (pinned[half], digests))
            if before != now:
                shown = 12 if before[:12] != now[:12] else None
                yield f"{half}.{name} is {before[:shown]} there and {now[:shown]} here"


@cache
def _pinned() -> Manifest:
    return read()


def check(expected: Expectation) -> None:
    """Compare a recipe's tensors with its golden, if it has one. Raises GoldenError where they differ.

    A machine whose BLAS or generator computed something else must not pronounce verdicts.
    """
    if expected.recipe.seed != SEED or expected.verified:
        return
    golden = _pinned().entries.get(expected.recipe.key)
    if golden is not None:
        found = "; ".join(differences(golden, entry(expected)))
        if found:
            raise GoldenError(
                f"{MANIFEST}, entry {expected.recipe.key!r}: {found}; no verdict can be trusted on this machine; "
                "run: python -m conformance golden verify"
            )
    expected.verified = True
