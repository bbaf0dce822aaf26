"""Convolution of 8 bits with a result of 8 bits, scaled in fp32. Sums of int8 are exact in fp64, which XLA computes
much faster than int32."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from . import layout as axes
from .conv import STATIC, convolved


@partial(jax.jit, static_argnames=(*STATIC, "x_zero_point", "y_zero_point"))
def conv_requantized(x, w, bias, scale, *, stride, padding, dilation, groups, x_zero_point, y_zero_point, layout):
    stored = x.dtype
    wide = jnp.float64 if stored == jnp.int8 else jnp.float32
    if stored == jnp.int8:
        x, w = x.astype(wide) - x_zero_point, w.astype(wide)
    y = convolved(x, w, stride, padding, dilation, groups, layout, wide)
    if bias is not None:
        y += axes.along_channels(bias, layout)
    y = y.astype(jnp.float32) * axes.along_channels(scale, layout)
    if stored == jnp.int8:
        return jnp.clip(jnp.round(y) + y_zero_point, -128, 127).astype(stored)
    largest = float(jnp.finfo(stored).max)
    return jnp.clip(y, -largest, largest).astype(stored)
