"""Convolution of 8 bits with a result of 8 bits: exact sums, one multiplication in fp32, one rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .conv import convolved
from .declared import direct, small_conv
from .windows import per_channel


@direct("conv_requantized", dtypes=("int8", "uint8", "fp8_e4m3", "fp8_e5m2"), when=small_conv)
def conv_requantized(x, w, bias, scale, *, stride, padding, dilation, groups, x_zero_point, y_zero_point):
    """Return y; x less its zero point takes 16 bits."""
    stored, whole = x.dtype, np.issubdtype(x.dtype, np.integer)
    if whole:
        x, w = x.astype(np.int32) - np.int32(x_zero_point), w.astype(np.int32)
    sums = convolved(x, w, stride, padding, dilation, groups)
    if bias is not None:
        sums += per_channel(bias, sums.shape[2:])
    y = sums.astype(np.float32) * per_channel(scale, sums.shape[2:])
    if whole:
        ends = np.iinfo(stored)
        return np.clip(np.rint(y) + np.float32(y_zero_point), ends.min, ends.max).astype(stored)
    largest = np.float32(ml_dtypes.finfo(stored).max)
    return np.clip(y, -largest, largest).astype(stored)
