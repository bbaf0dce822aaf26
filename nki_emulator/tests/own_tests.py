"""Running the unit tests that a public file of kernels carries, with the project's tolerance in place of their own.

The SDK's documentation takes its examples from such files: kernels, and a `unittest.TestCase` that calls them with
NumPy arrays and compares with NumPy. Whatever they compare by `np.allclose` is compared here by `agrees`.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

SUMMED = 512
"""Roundings to float32 that an element may have gone through on either side, of terms up to the largest result."""
SEED = 20

_PRECISION = {
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
    np.dtype(ml_dtypes.float8_e4m3): 2.0**-4,
    np.dtype(ml_dtypes.float8_e4m3fn): 2.0**-4,
    np.dtype(ml_dtypes.float8_e5m2): 2.0**-3,
}


def precision(dtype: np.dtype) -> float:
    """Unit roundoff of a float format; of integers 0."""
    dtype = np.dtype(dtype)
    return _PRECISION.get(dtype, 0.0 if dtype.kind in "iub" else 2.0**-24)


def agrees(found: Any, golden: Any, through: str | None = None) -> bool:
    """Whether two arrays differ by no more than roundings to the coarser of their formats, or to `through`.

    Two roundings of each element to that format, and SUMMED roundings to float32 of the largest magnitude. Infinities
    and NaN must be the same. Integers must be equal.
    """
    found, golden = np.asarray(found), np.asarray(golden)
    unit = max(precision(found.dtype), precision(golden.dtype))
    if through is not None:
        unit = max(unit, precision(np.dtype(getattr(ml_dtypes, through, through))))
    a, b = np.broadcast_arrays(found.astype(np.float64), golden.astype(np.float64))
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return False
    if not unit:
        return bool(np.array_equal(a, b))
    a, b = a[finite], np.abs(b[finite]) * np.sign(b[finite])
    largest = np.abs(b).max(initial=0.0)
    return bool((np.abs(a - b) <= 2 * unit * np.abs(b) + SUMMED * 2.0**-24 * largest).all())


@contextmanager
def _compared(through: str | None) -> Iterator[None]:
    """np.allclose is `agrees`, whatever tolerance it is given."""
    with patch.object(np, "allclose", lambda a, b, *_, **__: agrees(a, b, through)):
        yield


def named(module: ModuleType) -> Iterator[tuple[str, type[unittest.TestCase], str]]:
    """Class and method of each test of a module."""
    for name, case in list(vars(module).items()):
        if isinstance(case, type) and issubclass(case, unittest.TestCase):
            for method in unittest.defaultTestLoader.getTestCaseNames(case):
                yield f"{name}.{method}", case, method


def run(case: type[unittest.TestCase], method: str, through: str | None = None) -> None:
    """Run one test.

    Raises:
        AssertionError: its kernel gave something else.
        EmulationError: its kernel was refused, or uses what is not implemented.
    """
    np.random.seed(SEED)  # the tests draw from this generator
    with _compared(through):
        getattr(case(method), method)()
