"""Transposes of jax.lax's convolution: lax.conv_transpose has no output padding and no dilation of both operands."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from . import layout as axes
from .conv import STATIC, convolved

PARAMETERS = (*STATIC, "output_padding")


def cropping(stride, padding, output_padding, dilation):
    """Return the padding of the convolution of y: output padding is subtracted at the end, and where the result is
    negative, y is cropped before."""
    for more, u, d in zip(output_padding, stride, dilation, strict=True):
        if more >= max(u, d):
            raise ValueError(f"output padding {more} must be smaller than the stride, {u}, or the dilation, {d}")
    return tuple((before, after - more) for (before, after), more in zip(padding, output_padding, strict=True))


def extents(size, kernel_size, stride, padding, output_padding, dilation):
    """Return the output's size. Raises ValueError where padding leaves no output."""
    given = zip(size, kernel_size, stride, padding, output_padding, dilation, strict=True)
    found = tuple((n - 1) * u - sum(sides) + d * (taps - 1) + 1 + more for n, taps, u, sides, more, d in given)
    if min(found) < 1:
        raise ValueError(f"padding leaves an output of {found}")
    return found


@partial(jax.jit, static_argnames=PARAMETERS)
def conv_transpose_forward(x, w, bias, *, stride, padding, output_padding, dilation, groups, layout):
    """Return y; the bias is added in the accumulator's precision, so that the result is rounded once."""
    size = extents(axes.size(x, layout), axes.size(w, layout), stride, padding, output_padding, dilation)
    result = x.dtype if bias is None else axes.wide(x.dtype)
    shape = axes.shape(layout, x.shape[0], axes.channels(w, layout) * groups, size)
    window = (stride, cropping(stride, padding, output_padding, dilation), dilation, groups, layout)
    wide, weights = x.astype(result), w.astype(result)
    y = jax.linear_transpose(lambda image: convolved(image, weights, *window), jax.ShapeDtypeStruct(shape, result))
    (found,) = y(wide)
    return found if bias is None else (found + axes.along_channels(bias, layout)).astype(x.dtype)


@partial(jax.jit, static_argnames=PARAMETERS)
def conv_transpose_backward_data(dy, w, *, stride, padding, output_padding, dilation, groups, layout):
    border = cropping(stride, padding, output_padding, dilation)
    given = zip(axes.size(dy, layout), axes.size(w, layout), border, dilation, strict=True)
    if any(extent + sum(sides) <= d * (taps - 1) for extent, taps, sides, d in given):
        raise ValueError(f"dy is {axes.size(dy, layout)}, smaller than a window of {axes.size(w, layout)}")
    return convolved(dy, w, stride, border, dilation, groups, layout)


@partial(jax.jit, static_argnames=(*PARAMETERS, "kernel_size", "with_bias"))
def conv_transpose_backward_weight(
    x, dy, *, kernel_size, with_bias, stride, padding, output_padding, dilation, groups, layout
):
    """Return dw, the transpose of the convolution in w; dbias, the sum of dy."""
    size = extents(axes.size(x, layout), kernel_size, stride, padding, output_padding, dilation)
    if axes.size(dy, layout) != size:
        raise ValueError(f"dy is {axes.size(dy, layout)}, the output {size}")
    window = (stride, cropping(stride, padding, output_padding, dilation), dilation, groups, layout)
    c, k = axes.channels(x, layout), axes.channels(dy, layout) // groups
    w = jax.ShapeDtypeStruct(axes.shape(layout, c, k, kernel_size), x.dtype)
    (dw,) = jax.linear_transpose(lambda weights: convolved(dy, weights, *window), w)(x)
    return (dw, jnp.sum(dy, axis=axes.BUT_CHANNELS[layout])) if with_bias else dw
