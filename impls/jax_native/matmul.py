"""jax.lax.dot_general, whose sums have a type of their own, and the gradients of a product."""

from __future__ import annotations

from functools import partial

import jax
from jax import lax
from jax import numpy as jnp

SUMS = {jnp.dtype(jnp.int8): jnp.int32, jnp.dtype(jnp.uint8): jnp.int32, jnp.dtype(jnp.float64): jnp.float64}


def stored(sums, like):
    """Return sums in the format of results: that of the inputs, if they have more than 8 bits."""
    return sums if like.dtype.itemsize == 1 else sums.astype(like.dtype)


def product(a, b, turned):
    """Return a b; `turned` says of each operand whether it lies transposed."""
    batch = tuple(range(a.ndim - 2))
    terms = (a.ndim - (2 if turned[0] else 1),), (b.ndim - (1 if turned[1] else 2),)
    sums = SUMS.get(a.dtype, jnp.float32)
    return lax.dot_general(a, b, (terms, (batch, batch)), precision=lax.Precision.HIGHEST, preferred_element_type=sums)


@partial(jax.jit, static_argnames="layout")
def matmul(a, b, bias, *, layout):
    """Return a b + bias of matrices, or of batches of them."""
    y = product(a, b, (layout[0] == "t", layout[1] == "t"))
    return stored(y if bias is None else y + bias.astype(y.dtype), a)


@partial(jax.jit, static_argnames="layout")
def matmul_backward_a(dy, b, *, layout):
    """Return dy b^T, as a lies."""
    da = product(dy, b, (False, layout[1] == "n"))
    return stored(da.swapaxes(-1, -2) if layout[0] == "t" else da, dy)


@partial(jax.jit, static_argnames=("layout", "with_bias"))
def matmul_backward_b(a, dy, *, layout, with_bias):
    """Return a^T dy, as b lies, and the sum of dy's rows."""
    db = product(a, dy, (layout[0] == "n", False))
    db = stored(db.swapaxes(-1, -2) if layout[1] == "t" else db, a)
    return (db, stored(dy.sum(0, dtype=SUMS.get(dy.dtype, jnp.float32)), dy)) if with_bias else db
