"""Digests of tensors: one value on every machine, because the tensors are exact."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import Entry

__all__ = ["canonical", "differences", "digest", "entry"]


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
