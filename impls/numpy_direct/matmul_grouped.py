"""Grouped matrix products and their gradients: group after group, each as a sum of products in fp32."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from .declared import LARGEST, direct
from .matmul import LAYOUTS, product, turned
from .windows import accumulator, result

FLOATING = ("fp32", "bf16", "fp16", "fp64", "fp8_e4m3", "fp8_e5m2", "fp8_e5m2_e4m3")


def small_product(sizes):
    """Return whether there are few enough products."""
    return sizes.m * sizes.n * sizes.k < LARGEST


def _groups(sizes, rows, groups=None):
    """Return the rows of each group as a slice. Raises ValueError for sizes that do not divide the rows among them."""
    if min(sizes, default=0) < 0 or sum(sizes) != rows or (groups or len(sizes)) != len(sizes):
        raise ValueError(f"sizes {sizes} do not divide {rows} rows among {groups or 'some'} groups")
    return [slice(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]


@direct("matmul_grouped", dtypes=(*FLOATING[:-1], "int8"), layouts=LAYOUTS, when=small_product)
def matmul_grouped(a, b, *, layout, sizes):
    """Return y = a b, each row with the b of its group."""
    a, b = turned(a, layout[0]), turned(b, layout[1])
    y = np.zeros((len(a), b.shape[-1]), accumulator(a))
    for rows, of_group in zip(_groups(sizes, len(a), len(b)), b, strict=True):
        y[rows] = product(a[rows], of_group)
    return y.astype(result(a))


@direct("matmul_grouped_backward_a", dtypes=FLOATING, layouts=LAYOUTS, when=small_product)
def matmul_grouped_backward_a(dy, b, *, layout, sizes):
    """Return da = dy b^T, as a lies."""
    b = turned(b, layout[1]).swapaxes(-1, -2)
    da = np.zeros((len(dy), b.shape[-1]), accumulator(dy))
    for rows, of_group in zip(_groups(sizes, len(dy), len(b)), b, strict=True):
        da[rows] = product(dy[rows], of_group)
    return turned(da, layout[0]).astype(result(dy))


@direct("matmul_grouped_backward_b", dtypes=FLOATING, layouts=LAYOUTS, when=small_product)
def matmul_grouped_backward_b(a, dy, *, layout, sizes):
    """Return db = a^T dy of the rows of each group, as b lies; zeros for a group that has none."""
    a = turned(a, layout[0])
    if len(a) != len(dy):
        raise ValueError(f"a has {len(a)} rows and dy {len(dy)}")
    db = np.stack([product(a[rows].T, dy[rows]) for rows in _groups(sizes, len(a))])
    return turned(db, layout[1]).astype(result(a))
