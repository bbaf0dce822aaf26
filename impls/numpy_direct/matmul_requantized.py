"""Matrix product of 8 bits with a result of 8 bits: exact sums, one multiplication in fp32, one rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .declared import direct
from .matmul import LAYOUTS, product, small_product, turned


@direct("matmul_requantized", dtypes=("int8", "fp8_e4m3", "fp8_e5m2"), layouts=LAYOUTS, when=small_product)
def matmul_requantized(a, b, bias, scale, *, layout, a_zero_point, b_zero_point, y_zero_point):
    """Return y; operands less their zero points take 16 bits."""
    stored, whole = a.dtype, a.dtype == np.int8
    a, b = turned(a, layout[0]), turned(b, layout[1])
    if whole:
        a, b = a.astype(np.int32) - np.int32(a_zero_point), b.astype(np.int32) - np.int32(b_zero_point)
    sums = product(a, b)
    if bias is not None:
        sums += bias
    y = sums.astype(np.float32) * scale
    if whole:
        return np.clip(np.rint(y) + np.float32(y_zero_point), -128, 127).astype(np.int8)
    largest = np.float32(ml_dtypes.finfo(stored).max)
    return np.clip(y, -largest, largest).astype(stored)
