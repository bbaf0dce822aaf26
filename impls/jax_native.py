"""jax.lax.conv_general_dilated and its transposes, jitted, on the CPU, CUDA and TPU."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from conformance import Contract, Implementation, jax_arrays

jax.config.update("jax_enable_x64", True)

DIMENSIONS = {"nchw": ("NCHW", "OIHW", "NCHW"), "nhwc": ("NHWC", "OHWI", "NHWC")}
EVERY_DTYPE = ("fp32", "bf16", "fp16", "fp64")
BOTH_LAYOUTS = ("nchw", "nhwc")
STATIC = ("stride", "padding", "dilation", "groups", "layout")


def _conv(x, w, stride, padding, dilation, groups, layout, result=None):
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


def _shape(layout, batch, channels, size):
    return (batch, channels, *size) if layout == "nchw" else (batch, *size, channels)


def _channels(array, layout):
    return array.shape[1 if layout == "nchw" else 3]


@partial(jax.jit, static_argnames=STATIC)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    """y; the bias is added in the accumulator's precision, so that the result is rounded once."""
    if bias is None:
        return _conv(x, w, stride, padding, dilation, groups, layout)
    y = _conv(x, w, stride, padding, dilation, groups, layout, jnp.promote_types(x.dtype, jnp.float32))
    return (y + (bias[:, None, None] if layout == "nchw" else bias)).astype(x.dtype)


@partial(jax.jit, static_argnames=(*STATIC, "input_size"))
def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups, layout):
    """dx, the transpose of the convolution in x."""
    x = jax.ShapeDtypeStruct(_shape(layout, dy.shape[0], _channels(w, layout) * groups, input_size), dy.dtype)
    forward = partial(_conv, w=w, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout)
    return jax.linear_transpose(forward, x)(dy)[0]


@partial(jax.jit, static_argnames=(*STATIC, "kernel_size", "with_bias"))
def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, layout):
    """dw, the transpose of the convolution in w; dbias, the sum of dy."""
    k, c = _channels(dy, layout), _channels(x, layout) // groups
    w = jax.ShapeDtypeStruct(_shape(layout, k, c, kernel_size), x.dtype)

    def forward(weights):
        return _conv(x, weights, stride, padding, dilation, groups, layout)

    dw = jax.linear_transpose(forward, w)(dy)[0]
    if not with_bias:
        return dw
    return dw, jnp.sum(dy, axis=(0, 2, 3) if layout == "nchw" else (0, 1, 2))


def _register(name: str, device: str, platform: str, contract: Contract) -> Implementation:
    implementation = Implementation(
        name, device=device, arrays=jax_arrays(platform), contract=contract, version=jax.__version__
    )
    for kernel in (conv_forward, conv_backward_data, conv_backward_weight):
        implementation.implements(kernel.__name__, dtypes=EVERY_DTYPE, layouts=BOTH_LAYOUTS)(kernel)
    return implementation


# XLA sets flush-to-zero in the CPU's threads; the `wide` arm shows it in every direction.
jax_cpu = _register("jax-cpu", "cpu", "cpu", Contract(subnormals="flushed"))
jax_cuda = _register("jax-cuda", "cuda", "gpu", Contract())
jax_tpu = _register("jax-tpu", "tpu", "tpu", Contract(subnormals="flushed"))
