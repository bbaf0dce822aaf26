"""Goldens: a manifest of recipes and digests that pins every exact output up to `standard`."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conformance.data.expectation import Expectation
from conformance.data.stream import GENERATOR

FOLDER = Path(__file__).parents[2] / "golden"
MANIFEST = FOLDER / "manifest.json"
FORMAT = 1
SEED = 0
"""The seed whose tensors the manifest pins."""

Manifest = dict[str, dict[str, dict[str, str]]]
"""Recipe key -> {"inputs": {tensor: SHA-256}, "outputs": {tensor: SHA-256}}."""


class GoldenError(Exception):
    """A golden that cannot be read or does not hold; the message names the file, the entry and what to do."""


def digest(array: np.ndarray) -> str:
    """SHA-256 of the values as little-endian float64 in row-major order, which every storage dtype converts to exactly.

    NaN has one bit pattern and zero one sign here: neither is determined by the mathematics.
    """
    values = array.astype("<f8", order="C") + 0.0
    values[np.isnan(values)] = np.nan
    return hashlib.sha256(values.data).hexdigest()


def entry(expected: Expectation) -> dict[str, dict[str, str]]:
    """The manifest entry of a recipe: digests of its inputs and of its exact outputs."""
    return {
        "inputs": {name: digest(array) for name, array in expected.inputs.items()},
        "outputs": {name: digest(array) for name, array in expected.reference.items()},
    }


def read(path: Path = MANIFEST) -> Manifest:
    """The entries of a manifest. Raises GoldenError naming the file, the defect and the remedy."""
    remedy = "restore it from version control, or run: python -m conformance golden regenerate"
    try:
        manifest: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GoldenError(f"{path} is missing; {remedy}") from None
    except (OSError, ValueError) as problem:
        raise GoldenError(f"{path} is not readable JSON ({problem}); {remedy}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise GoldenError(f"{path}: field 'format' is not {FORMAT}; {remedy}")
    if manifest.get("generator") != GENERATOR:
        raise GoldenError(f"{path}: field 'generator' is not {GENERATOR!r}; {remedy}")
    if not isinstance(manifest.get("entries"), dict):
        raise GoldenError(f"{path}: field 'entries' is missing; {remedy}")
    entries: Manifest = manifest["entries"]
    return entries


@cache
def _pinned() -> Manifest:
    return read()


def check(expected: Expectation) -> None:
    """Compare a recipe's tensors with its golden, if it has one. Raises GoldenError where they differ.

    A machine whose BLAS or generator computed something else must not pronounce verdicts.
    """
    if expected.recipe.seed != SEED or expected.verified:
        return
    golden = _pinned().get(expected.recipe.key)
    if golden is not None and golden != entry(expected):
        raise GoldenError(
            f"the reference computed here differs from {MANIFEST}, entry {expected.recipe.key!r}: "
            "no verdict can be trusted; run: python -m conformance golden verify"
        )
    expected.verified = True
