"""Matrix product of 8 bits with a result of 8 bits: exact sums, one multiplication in fp32, one rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .declared import direct
from .matmul import LAYOUTS, product, small_product, turned


@direct("matmul_requantized", dtypes=("int8", "uint8", "fp8_e4m3", "fp8_e5m2"), layouts=LAYOUTS, when=small_product)
def matmul_requantized(a, b, bias, scale, *, layout, a_zero_point, b_zero_point, y_zero_point):
    """Return y; operands less their zero points take 16 bits."""
    stored, whole = a.dtype, np.issubdtype(a.dtype, np.integer)
    a, b = turned(a, layout[0]), turned(b, layout[1])
    if whole:
        a, b = a.astype(np.int32) - np.int32(a_zero_point), b.astype(np.int32) - np.int32(b_zero_point)
    sums = product(a, b)
    if bias is not None:
        sums += bias
    y = sums.astype(np.float32) * scale
    if whole:
        ends = np.iinfo(stored)
        return np.clip(np.rint(y) + np.float32(y_zero_point), ends.min, ends.max).astype(stored)
    largest = np.float32(ml_dtypes.finfo(stored).max)
    return np.clip(y, -largest, largest).astype(stored)
