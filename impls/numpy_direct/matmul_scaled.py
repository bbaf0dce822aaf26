"""Products with scales: the sum of each block of terms in fp32, or in int32, times the product of its two scales."""

from __future__ import annotations

import numpy as np

from .declared import LARGEST, direct
from .matmul import LAYOUTS, product, turned


def small(sizes):
    """Return whether there are few enough products."""
    return sizes.m * sizes.n * sizes.k < LARGEST


def _lines(scale, shared, extent):
    """Return the scales of each row or column [extent, blocks of terms]. Raises ValueError for too few or too many."""
    if len(scale) != (-(-extent // shared) if shared else 1):
        raise ValueError(f"{len(scale)} scales are not those of {extent} rows or columns")
    return np.repeat(scale, shared or extent, axis=0)[:extent]


@direct("matmul_scaled", dtypes=("fp8_e4m3", "fp8_e5m2", "int8"), layouts=LAYOUTS, when=small)
def matmul_scaled(a, b, scale_a, scale_b, bias, *, layout, sm, sn, sk):
    """Return y = a b + bias, with scales."""
    a, b = turned(a, layout[0]), turned(b, layout[1])
    (m, k), n = a.shape, b.shape[1]
    length = sk or k
    if len(b) != k or scale_a.shape[1] != scale_b.shape[1] or scale_a.shape[1] != -(-k // length):
        raise ValueError(f"{a.shape} and {b.shape} with scales {scale_a.shape} and {scale_b.shape} do not fit")
    rows, columns = _lines(scale_a, sm, m), _lines(scale_b, sn, n)
    y = np.zeros((m, n), np.float32)
    for block, start in enumerate(range(0, k, length)):
        sums = product(a[:, start : start + length], b[start : start + length]).astype(np.float32)
        y += sums * (rows[:, block, None] * columns[:, block])
    return y if bias is None else y + bias
