"""How a scaled sum becomes 8 bits: rounding, zero point, saturation."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from conformance.dtypes import STORAGE, WHOLE
from conformance.operators.conv_requantized.geometry import HIGHEST, LOWEST


def _up(values: np.ndarray) -> np.ndarray:
    """floor(v + 1/2), without the rounding of that sum."""
    below = np.floor(values)
    rounded: np.ndarray = below + (values - below >= 0.5)
    return rounded


def _away(values: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.copysign(_up(np.abs(values)), values)
    return rounded


TIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"even": np.rint, "away": _away, "up": _up}
"""Where a number half way between two integers goes -> rounding to the nearest integer (IEEE 754-2019, 4.3.1; `up` is
floor(v + 1/2))."""


LARGEST = {name: float(ml_dtypes.finfo(STORAGE[name]).max) for name in ("fp8_e4m3", "fp8_e5m2")}  # type: ignore[no-untyped-call]
"""The largest finite number of a format."""


def stored(
    values: np.ndarray, dtype: str, zero_point: int = 0, ties: str = "even", saturates: bool = True
) -> np.ndarray:
    """float64 `values` as they come out of 8 bits, in float64 again; it never decreases where the values do not.

    Whole numbers are rounded, moved by the zero point, and saturate. fp8 is rounded to nearest even; what overflows is
    the largest finite number or, where it does not saturate, infinite in e5m2 and NaN in e4m3, which has no infinity
    (Micikevicius et al. 2022, table 2; OCP 8-bit floating point specification, 2023, section 5.2). NaN stays NaN.
    """
    if dtype in WHOLE:
        whole: np.ndarray = np.clip(TIES[ties](values) + zero_point, LOWEST, HIGHEST)
        return whole
    if saturates:
        values = np.clip(values, -LARGEST[dtype], LARGEST[dtype])
    return values.astype(np.float32).astype(STORAGE[dtype]).astype(np.float64)
