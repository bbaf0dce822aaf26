"""Goldens: digests that pin every exact tensor up to `standard`, checked again whenever a suite computes one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache

import numpy as np

from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import MANIFEST, SEED, Entry, GoldenError, read

__all__ = ["SEED", "GoldenError", "canonical", "check", "differences", "digest", "entry"]

_pinned = cache(read)


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
    """What the manifest must say of a recipe."""
    tensors = expected.inputs, expected.reference
    inputs, outputs = ({name: digest(array) for name, array in arrays.items()} for arrays in tensors)
    return Entry(inputs, outputs)


def differences(pinned: Entry, computed: Entry) -> Iterator[str]:
    """What two entries of a recipe disagree about, one sentence a tensor."""
    for half in ("inputs", "outputs"):
        listed, found = getattr(pinned, half), getattr(computed, half)
        for name in sorted(listed.keys() | found.keys()):
            before, now = listed.get(name, "absent"), found.get(name, "absent")
            if before != now:
                shown = 12 if before[:12] != now[:12] else None
                yield f"{half}.{name} is {before[:shown]} there and {now[:shown]} here"


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
                "run: conformance golden verify"
            )
    expected.verified = True
