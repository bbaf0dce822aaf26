"""Rounding to any binary format, exactly: in float64, by whole numbers of the format's spacing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, Format

_EXPONENT = np.uint64(0x7FF << 52)

Way = Callable[[np.ndarray], np.ndarray]
"""How a number of spacings becomes a whole number: np.rint (to nearest, ties to even) or np.trunc (toward zero)."""


def rounded(values: np.ndarray, format: Format, way: Way = np.rint) -> np.ndarray:
    """Float64 `values` as numbers of `format`, subnormals included.

    Powers of two scale without error, so `way` is the only rounding. Numbers beyond the format's range keep its
    precision and are left to the storage dtype to turn into infinities.
    """
    power = (values.view(np.uint64) & _EXPONENT).view(np.float64)
    power = np.minimum(np.maximum(power, format.smallest_normal), 2.0**format.emax)
    spacing = power * (2 * format.unit_roundoff)
    found: np.ndarray = way(values / spacing) * spacing
    return found


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """One rounding of an accumulator to its storage dtype; a plain cast of float64 to bfloat16 would make two."""
    return rounded(values.astype(np.float64), FORMATS[dtype]).astype(STORAGE[dtype])


def halves(values: np.ndarray, format: Format) -> tuple[np.ndarray, np.ndarray]:
    """High and low part: `values` rounded to `format`, and what that lost, rounded to it as well."""
    high = rounded(values, format)
    return high, rounded(values - high, format)
