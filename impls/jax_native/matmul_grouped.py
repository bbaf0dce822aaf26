"""jax.lax.ragged_dot, and ragged_dot_general for the gradient of b, whose sums are ragged."""

from __future__ import annotations

from functools import partial

import jax
from jax import lax
from jax import numpy as jnp

from .matmul import SUMS, stored

RAGGED_SUM = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=(0,), rhs_group_dimensions=()
)
"""Rows of both operands are summed over, those of each group into a matrix of their own."""


def _turned(array, letter):
    return array.swapaxes(-1, -2) if letter == "t" else array


def _options(sizes, like):
    return {
        "group_sizes": jnp.array(sizes, jnp.int32),
        "precision": lax.Precision.HIGHEST,
        "preferred_element_type": SUMS.get(like.dtype, jnp.float32),
    }


@partial(jax.jit, static_argnames=("layout", "sizes"))
def matmul_grouped(a, b, *, layout, sizes):
    """Return a b, each row with the b of its group."""
    return stored(lax.ragged_dot(_turned(a, layout[0]), _turned(b, layout[1]), **_options(sizes, a)), a)


@partial(jax.jit, static_argnames=("layout", "sizes"))
def matmul_grouped_backward_a(dy, b, *, layout, sizes):
    """Return dy b^T, as a lies."""
    da = lax.ragged_dot(dy, _turned(b, layout[1]).swapaxes(-1, -2), **_options(sizes, dy))
    return stored(_turned(da, layout[0]), dy)


@partial(jax.jit, static_argnames=("layout", "sizes"))
def matmul_grouped_backward_b(a, dy, *, layout, sizes):
    """Return a^T dy of the rows of each group, as b lies."""
    options = {"ragged_dot_dimension_numbers": RAGGED_SUM} | _options(sizes, a)
    return stored(_turned(lax.ragged_dot_general(_turned(a, layout[0]), dy, **options), layout[1]), a)
