"""Sums of products with a bias, a residual and an activation: one sum in fp32, then the activation, in fp32 as well."""

from __future__ import annotations

import math

import numpy as np

from .conv import convolved
from .declared import direct, small_conv
from .matmul import LAYOUTS, product, small_product, turned
from .windows import per_channel

ERF = np.frompyfunc(math.erf, 1, 1)


def activated(s, activation):
    """Return the activation of sums, in their format."""
    of_format = s.dtype.type
    if activation == "relu":
        return np.maximum(s, 0)
    if activation == "relu6":
        return np.clip(s, 0, 6)
    if activation == "gelu":
        return of_format(0.5) * s * (1 + ERF(s * of_format(math.sqrt(0.5))).astype(s.dtype))
    if activation == "gelu_tanh":
        inside = of_format(math.sqrt(2 / math.pi)) * (s + of_format(0.044715) * s * s * s)
        return of_format(0.5) * s * (1 + np.tanh(inside))
    return s / (1 + np.exp(-s)) if activation == "silu" else s


def finished(s, bias, residual, activation):
    """Return the activation of sums with bias and residual, all in the format of the sums."""
    for part in (bias, residual):
        if part is not None:
            s = s + part.astype(s.dtype)
    with np.errstate(over="ignore"):  # of e^-s and s^3, whose infinities end in 0 and 1
        return activated(s, activation)


@direct("conv_activation", when=small_conv)
def conv_activation(x, w, bias, residual, *, stride, padding, dilation, groups, activation):
    """Return y, rounded once."""
    s = convolved(x, w, stride, padding, dilation, groups)
    return finished(s, None if bias is None else per_channel(bias, s.shape[2:]), residual, activation).astype(x.dtype)


@direct("matmul_activation", layouts=LAYOUTS, when=small_product)
def matmul_activation(a, b, bias, residual, *, layout, activation):
    """Return y, rounded once."""
    s = product(turned(a, layout[0]), turned(b, layout[1]))
    return finished(s, bias, residual, activation).astype(a.dtype)
