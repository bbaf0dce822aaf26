"""jax.lax.conv_general_dilated and its transposes."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from . import layout as axes

DIMENSIONS = {
    layout: (image := layout.upper(), image.replace("N", "O").replace("C", "I"), image) for layout in axes.LAYOUTS
}
STATIC = ("stride", "padding", "dilation", "groups", "layout")


def convolved(x, w, stride, padding, dilation, groups, layout, result=None):
    """Return x * w, in the format `result` where it is not that of x. XLA convolves operands of one type alone."""
    if x.dtype != w.dtype:
        x, w = x.astype(result), w.astype(result)
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=stride,
        padding=padding,
        rhs_dilation=dilation,
        dimension_numbers=DIMENSIONS[layout],
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=result,
    )


@partial(jax.jit, static_argnames=STATIC)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    """Return y; the bias is added in the accumulator's precision, so that the result is rounded once."""
    if bias is None:
        return convolved(x, w, stride, padding, dilation, groups, layout, axes.result(x.dtype))
    y = convolved(x, w, stride, padding, dilation, groups, layout, axes.wide(x.dtype))
    return (y + axes.along_channels(bias, layout)).astype(axes.result(x.dtype))


@partial(jax.jit, static_argnames=(*STATIC, "input_size"))
def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups, layout):
    dy, w = (array.astype(axes.result(array.dtype)) for array in (dy, w))
    shape = axes.shape(layout, dy.shape[0], axes.channels(w, layout) * groups, input_size)
    x = jax.ShapeDtypeStruct(shape, dy.dtype)
    forward = partial(convolved, w=w, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout)
    return jax.linear_transpose(forward, x)(dy)[0]


@partial(jax.jit, static_argnames=(*STATIC, "kernel_size", "with_bias"))
def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, layout):
    """Return dw, the transpose of the convolution in w; dbias, the sum of dy."""
    x, dy = (array.astype(axes.result(array.dtype)) for array in (x, dy))
    k, c = axes.channels(dy, layout), axes.channels(x, layout) // groups
    w = jax.ShapeDtypeStruct(axes.shape(layout, k, c, kernel_size), x.dtype)

    def forward(weights):
        return convolved(x, weights, stride, padding, dilation, groups, layout)

    dw = jax.linear_transpose(forward, w)(dy)[0]
    return (dw, jnp.sum(dy, axis=axes.BUT_CHANNELS[layout])) if with_bias else dw
