"""Matrix products and their gradients: one sum of products in fp32, term after term."""

from __future__ import annotations

import numpy as np

from .declared import LARGEST, direct
from .windows import accumulator, result

LAYOUTS = ("nn", "nt", "tn", "tt")


def small_product(sizes):
    """Return whether there are few enough products."""
    return sizes.batch * sizes.m * sizes.n * sizes.k < LARGEST


def product(a, b):
    """Return a b of matrices or of batches of them, in the accumulator's format."""
    wide = accumulator(a)
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"{a.shape} and {b.shape} cannot be multiplied")
    y = np.zeros((*a.shape[:-1], b.shape[-1]), wide)
    for term in range(a.shape[-1]):
        y += a[..., :, term, None].astype(wide) * b[..., term, None, :].astype(wide)
    return y


def turned(array, letter):
    """Return the transpose of a matrix where its letter of the layout says that it lies transposed."""
    return array.swapaxes(-1, -2) if letter == "t" else array


@direct("matmul", dtypes=("int8", "uint8"), layouts=LAYOUTS, when=small_product)
@direct("matmul", layouts=LAYOUTS, when=small_product)
def matmul(a, b, bias, *, layout):
    """Return y = a b + bias."""
    y = product(turned(a, layout[0]), turned(b, layout[1]))
    if bias is not None:
        y += bias.astype(y.dtype)
    return y.astype(result(a))


@direct("matmul_backward_a", layouts=LAYOUTS, when=small_product)
def matmul_backward_a(dy, b, *, layout):
    """Return da = dy b^T, as a lies."""
    return turned(product(dy, turned(b, layout[1]).swapaxes(-1, -2)), layout[0]).astype(dy.dtype)


@direct("matmul_backward_b", layouts=LAYOUTS, when=small_product)
def matmul_backward_b(a, dy, *, layout, with_bias):
    """Return db = a^T dy, as b lies, and dbias."""
    db = turned(product(turned(a, layout[0]).swapaxes(-1, -2), dy), layout[1]).astype(a.dtype)
    if not with_bias:
        return db
    dbias = np.zeros(dy.shape[-1], accumulator(dy))
    for row in dy:
        dbias += row
    return db, dbias.astype(dy.dtype)
