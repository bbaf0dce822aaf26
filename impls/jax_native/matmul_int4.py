"""Weights of 4 bits, unpacked and made in fp32, and jax.lax.dot_general."""

from __future__ import annotations

from functools import partial

import jax
from jax import numpy as jnp

from .matmul import product, stored


def _unpacked(both, count):
    """Return the numbers [..., count] of bytes of two, the first one in the low half."""
    return jnp.stack([both & 15, both >> 4], axis=-1).reshape(*both.shape[:-1], -1)[..., :count]


@partial(jax.jit, static_argnames=("layout", "block"))
def matmul_int4(a, b, scale, zero_point, bias, *, layout, block):
    """Return a w + bias, w = (b - zero) * scale."""
    turned = layout[0] == "t"
    k, shared = a.shape[0 if turned else 1], scale.shape[1]
    zero = jnp.full(scale.shape, 8) if zero_point is None else _unpacked(zero_point, shared)
    zero, wide = (jnp.repeat(part.astype(jnp.float32), block or k, axis=1)[:, :k] for part in (zero, scale))
    weights = (_unpacked(b, k).astype(jnp.float32) - zero) * wide
    y = product(a.astype(jnp.float32), weights, (turned, True))
    return stored(y if bias is None else y + bias.astype(jnp.float32), a)
