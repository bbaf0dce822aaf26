"""Products that are scaled and added to a matrix: the sum of products in fp32, then both factors."""

from __future__ import annotations

from .declared import direct
from .matmul import LAYOUTS, product, small_product, turned


@direct("gemm", layouts=LAYOUTS, when=small_product)
def gemm(a, b, c, *, layout, alpha, beta):
    """Return y = alpha a b + beta c; c is not read if beta is 0."""
    y = product(turned(a, layout[0]), turned(b, layout[1]))
    y *= y.dtype.type(alpha)
    if beta:
        y += y.dtype.type(beta) * c.astype(y.dtype)
    return y.astype(a.dtype)
