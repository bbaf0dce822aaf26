"""Rounding to any binary format, exactly: in float64, by whole numbers of the format's spacing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, Format

_EXPONENT = np.uint64(0x7FF << 52)

Way = Callable[[np.ndarray], np.ndarray]
"""Rounds a number of spacings to a whole number: np.rint (to nearest, ties to even), np.trunc, np.ceil, `outward`."""


def outward(spacings: np.ndarray) -> np.ndarray:
    """Round away from zero."""
    return np.copysign(np.ceil(np.abs(spacings)), spacings)


def rounded(values: np.ndarray, format: Format, way: Way = np.rint, at: np.ndarray | None = None) -> np.ndarray:
    """Round float64 `values` to numbers of `format`, subnormals included; or to multiples of the spacing that it has at
    other numbers.

    Powers of two scale without error, so `way` is the only rounding. Numbers beyond the format's range keep its
    precision and are left to the storage dtype to turn into infinities; see `overflowing`.
    """
    power = ((values if at is None else at).view(np.uint64) & _EXPONENT).view(np.float64)
    spacing = np.clip(power, format.smallest_normal, 2.0**format.emax) * (2 * format.unit_roundoff)
    return way(values / spacing) * spacing


def overflowing(values: np.ndarray, format: Format, way: Way = np.rint) -> np.ndarray:
    """Round as `rounded` does, and to infinity beyond the format's range."""
    finite = rounded(values, format, way)
    largest = (2 - 2.0 ** (1 - format.precision)) * 2.0**format.emax
    return np.where(np.abs(finite) > largest, np.copysign(np.inf, finite), finite)


def narrowed(values: np.ndarray, format: Format) -> np.ndarray:
    """Round to a narrower format, in the dtype that the values had."""
    return rounded(values.astype(np.float64), format).astype(values.dtype)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round an accumulator once to its storage dtype; a plain cast of float64 to bfloat16 would round twice."""
    return rounded(values.astype(np.float64), FORMATS[dtype]).astype(STORAGE[dtype])


def flushed(values: np.ndarray, format: Format) -> np.ndarray:
    """Replace numbers below the normal range by zeros."""
    return np.where(np.abs(values) < format.smallest_normal, 0.0, values)


def bits(precision: int) -> Format:
    """Return fp32 with fewer significant bits."""
    return Format(f"{precision} bits", precision, FORMATS["fp32"].emin, FORMATS["fp32"].emax)


def parts(values: np.ndarray, format: Format, count: int, way: Way = np.rint) -> list[np.ndarray]:
    """Return `values` rounded to `format`, and the loss of that, rounded to it as well; and so on."""
    found: list[np.ndarray] = []
    for _ in range(count):
        found.append(rounded(values - sum(found, start=np.zeros_like(values)), format, way))
    return found
