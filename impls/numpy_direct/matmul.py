"""Matrix products: one sum of products in fp32, term after term."""

from __future__ import annotations

import numpy as np

from .declared import LARGEST, direct
from .windows import accumulator

LAYOUTS = ("nn", "nt", "tn", "tt")


def small_product(sizes):
    """Return whether there are few enough products."""
    return sizes.batch * sizes.m * sizes.n * sizes.k < LARGEST


@direct("matmul", layouts=LAYOUTS, when=small_product)
def matmul(a, b, bias, *, layout):
    """Return y = a b + bias, in a batch or alone."""
    wide = accumulator(a)
    a = a.swapaxes(-1, -2) if layout[0] == "t" else a
    b = b.swapaxes(-1, -2) if layout[1] == "t" else b
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"a{a.shape} and b{b.shape} cannot be multiplied")
    y = np.zeros((*a.shape[:-1], b.shape[-1]), wide)
    for term in range(a.shape[-1]):
        y += a[..., :, term, None].astype(wide) * b[..., term, None, :].astype(wide)
    if bias is not None:
        y += bias.astype(wide)
    return y.astype(a.dtype)
