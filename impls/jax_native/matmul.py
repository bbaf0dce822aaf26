"""jax.lax.dot_general, whose sums have a type of their own."""

from __future__ import annotations

from functools import partial

import jax
from jax import lax
from jax import numpy as jnp

SUMS = {jnp.dtype(jnp.int8): jnp.int32, jnp.dtype(jnp.float64): jnp.float64}


@partial(jax.jit, static_argnames="layout")
def matmul(a, b, bias, *, layout):
    """Return a b + bias of matrices, or of batches of them."""
    batch = tuple(range(a.ndim - 2))
    terms = (a.ndim - (2 if layout[0] == "t" else 1),), (b.ndim - (1 if layout[1] == "t" else 2),)
    y = lax.dot_general(
        a, b, (terms, (batch, batch)), precision=lax.Precision.HIGHEST,
        preferred_element_type=SUMS.get(a.dtype, jnp.float32),
    )  # fmt: skip
    y = y if bias is None else y + bias.astype(y.dtype)
    return y if a.dtype == jnp.int8 or a.dtype.itemsize == 1 else y.astype(a.dtype)
