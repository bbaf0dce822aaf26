"""jax's operators on a Neuron device: lax.conv_general_dilated and its transposes, jitted."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from conformance import Implementation, jax_neuron_arrays, neuron_device

DTYPES = ("fp32", "bf16", "fp16")
NCHW = ("NCHW", "OIHW", "NCHW")

jax_neuronx = Implementation("jax-neuronx", device=neuron_device(), arrays=jax_neuron_arrays())


@cache
def _jitted(function, *static):
    """Return the function, compiled at its first call, when jax is imported."""
    return import_module("jax").jit(function, static_argnames=("geometry", *static))


def _convolved(x, w, geometry, result=None):
    """Convolve. `geometry` is stride, padding, dilation and groups; `result` a format wider than that of x."""
    lax, (stride, padding, dilation, groups) = import_module("jax").lax, geometry
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=stride,
        padding=padding,
        rhs_dilation=dilation,
        dimension_numbers=NCHW,
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=result,
    )


def _forward(x, w, bias, geometry):
    """Return y. The bias is added to the accumulator's fp32, so that the result is rounded once."""
    if bias is None:
        return _convolved(x, w, geometry)
    y = _convolved(x, w, geometry, "float32")
    return (y + bias[:, None, None].astype("float32")).astype(x.dtype)


def _backward_data(dy, w, geometry, input_size):
    jax = import_module("jax")
    x = jax.ShapeDtypeStruct((dy.shape[0], w.shape[1] * geometry[-1], *input_size), dy.dtype)
    return jax.linear_transpose(lambda x: _convolved(x, w, geometry), x)(dy)[0]


def _backward_weight(x, dy, geometry, kernel_size, with_bias):
    jax = import_module("jax")
    w = jax.ShapeDtypeStruct((dy.shape[1], x.shape[1] // geometry[-1], *kernel_size), x.dtype)
    dw = jax.linear_transpose(lambda w: _convolved(x, w, geometry), w)(dy)[0]
    return (dw, dy.sum(axis=(0, 2, 3))) if with_bias else dw


@jax_neuronx.implements("conv_forward", dtypes=DTYPES)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    """Return y."""
    return _jitted(_forward)(x, w, bias, geometry=(stride, padding, dilation, groups))


@jax_neuronx.implements("conv_backward_data", dtypes=DTYPES)
def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
    """Return dx, the transpose of the convolution in x."""
    compiled, geometry = _jitted(_backward_data, "input_size"), (stride, padding, dilation, groups)
    return compiled(dy, w, geometry=geometry, input_size=input_size)


@jax_neuronx.implements("conv_backward_weight", dtypes=DTYPES)
def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
    """Return dw, the transpose of the convolution in w; dbias, the sum of dy."""
    compiled, geometry = _jitted(_backward_weight, "kernel_size", "with_bias"), (stride, padding, dilation, groups)
    return compiled(x, dy, geometry=geometry, kernel_size=kernel_size, with_bias=with_bias)
