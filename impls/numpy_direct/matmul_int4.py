"""Products with weights of 4 bits: numbers are unpacked, made into weights in fp32, and multiplied term after term."""

from __future__ import annotations

import numpy as np

from .declared import LARGEST, direct
from .matmul import product, turned


def small(sizes):
    """Return whether there are few enough products."""
    return sizes.m * sizes.n * sizes.k < LARGEST


def unpacked(both, count):
    """Return the numbers [..., count] of bytes of two, the first one in the low half. Raises ValueError for bytes of
    another number."""
    if both.shape[-1] != -(-count // 2):
        raise ValueError(f"{both.shape[-1]} bytes do not hold {count} numbers of 4 bits")
    return np.stack([both & 15, both >> 4], axis=-1).reshape(*both.shape[:-1], -1)[..., :count]


@direct("matmul_int4", dtypes=("fp32", "bf16", "fp16"), layouts=("nn", "nt", "tn", "tt"), when=small)
def matmul_int4(a, b, scale, zero_point, bias, *, layout, block):
    """Return y = a w + bias, w = (b - zero) * scale."""
    a = turned(a, layout[0])
    k = a.shape[1]
    length = block or k
    if scale.shape != (len(b), -(-k // length)):
        raise ValueError(f"scales {scale.shape} are not those of {len(b)} columns and {k} terms")
    zero = np.float32(8) if zero_point is None else unpacked(zero_point, scale.shape[1]).astype(np.float32)
    scale, zero = (np.repeat(np.broadcast_to(part, scale.shape), length, axis=1)[:, :k] for part in (scale, zero))
    weights = (unpacked(b, k).astype(np.float32) - zero) * scale.astype(np.float32)
    y = product(a.astype(np.float32), weights.T)
    if bias is not None:
        y += bias.astype(np.float32)
    return y.astype(a.dtype)
