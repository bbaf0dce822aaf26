"""Convolutions and products with a bias, a residual and an activation, which XLA fuses; all of it in fp32 or wider."""

from __future__ import annotations

from functools import partial

import jax

from . import layout as axes
from .conv import STATIC, convolved
from .matmul import product

ACTIVATIONS = {
    "none": lambda s: s,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
}


def _finished(sums, bias, residual, activation, like):
    for part in (bias, residual):
        if part is not None:
            sums = sums + part.astype(sums.dtype)
    return ACTIVATIONS[activation](sums).astype(like.dtype)


@partial(jax.jit, static_argnames=(*STATIC, "activation"))
def conv_activation(x, w, bias, residual, *, stride, padding, dilation, groups, activation, layout):
    """Return y, rounded once."""
    sums = convolved(x, w, stride, padding, dilation, groups, layout, axes.wide(x.dtype))
    bias = None if bias is None else axes.along_channels(bias, layout)
    return _finished(sums, bias, residual, activation, x)


@partial(jax.jit, static_argnames=("layout", "activation"))
def matmul_activation(a, b, bias, residual, *, layout, activation):
    """Return y, rounded once."""
    sums = product(a, b, (layout[0] == "t", layout[1] == "t"))
    return _finished(sums, bias, residual, activation, a)
