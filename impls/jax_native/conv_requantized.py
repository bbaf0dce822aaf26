"""Convolution of 8 bits with a result of 8 bits, scaled in fp32. Sums of whole numbers are exact in fp64, which XLA
computes much faster than int32."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from . import layout as axes
from .conv import STATIC, convolved


@partial(jax.jit, static_argnames=(*STATIC, "x_zero_point", "y_zero_point"))
def conv_requantized(x, w, bias, scale, *, stride, padding, dilation, groups, x_zero_point, y_zero_point, layout):
    stored = x.dtype
    whole = jnp.issubdtype(stored, jnp.integer)
    wide = jnp.float64 if whole else jnp.float32
    if whole:
        x, w = x.astype(wide) - x_zero_point, w.astype(wide)
    y = convolved(x, w, stride, padding, dilation, groups, layout, wide)
    if bias is not None:
        y += axes.along_channels(bias, layout)
    y = y.astype(jnp.float32) * axes.along_channels(scale, layout)
    if whole:
        ends = jnp.iinfo(stored)
        return jnp.clip(jnp.round(y) + y_zero_point, ends.min, ends.max).astype(stored)
    largest = float(jnp.finfo(stored).max)
    return jnp.clip(y, -largest, largest).astype(stored)
