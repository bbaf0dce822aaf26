"""tinygrad on its CPU device: lazy graphs of Tensor.conv2d, dot, avg_pool2d, max_pool2d; nn.BatchNorm; by clang.

A problem becomes a graph of Tensors; each new shape is scheduled, fused and compiled. Gradients are Tensor.gradient,
the layout is NCHW, bf16 goes in and out by bitcast. Not taken: a divisor of averages, epsilon outside the root.
"""

import importlib.metadata
import os
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import ziglang
from tinygrad import Context, Tensor, dtypes, nn

from conformance import Contract, Implementation

clang = Path(tempfile.mkdtemp(), "clang")  # the one in ziglang, under a name of its own
clang.write_text(f'#!/bin/sh\nexec "{Path(ziglang.__file__).with_name("zig")}" clang "$@"\n')
clang.chmod(0o700)
os.environ |= {"CC": str(clang), "DEV": "CPU"}
impl = Implementation("tinygrad-cpu", version=importlib.metadata.version("tinygrad"), compiles_per_shape=True)
MATRICES = ("nn", "nt", "tn", "tt")
ALL = {"dtypes": ("fp32", "fp64", "fp16", "bf16")}
BATCH_NORM = ALL | {"contract": Contract(between="storage"), "when": lambda p: not p.eps_outside}
AVERAGE = ALL | {"when": lambda p: p.divisor_override is None}


def tensor(a):
    if a is not None and a.dtype == ml_dtypes.bfloat16:
        return Tensor(a.view(np.uint16), device="CPU").bitcast(dtypes.bfloat16)
    return None if a is None else Tensor(a, device="CPU")


def array(t):
    return t.bitcast(dtypes.uint16).numpy().view(ml_dtypes.bfloat16) if t.dtype == dtypes.bfloat16 else t.numpy()


def pads(padding):
    return *padding[1], *padding[0]


@impl.implements("conv_forward", **ALL)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    return array(tensor(x).conv2d(tensor(w), tensor(bias), groups, stride, dilation, pads(padding)))


@impl.implements("conv_backward_data", **ALL)
def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
    dy, w = tensor(dy), tensor(w)
    x = Tensor.zeros(dy.shape[0], w.shape[1] * groups, *input_size, dtype=dy.dtype, device="CPU")
    return array(x.conv2d(w, None, groups, stride, dilation, pads(padding)).gradient(x, gradient=dy)[0])


@impl.implements("conv_backward_weight", **ALL)
def conv_backward_weight(x, dy, *, stride, padding, dilation, groups, kernel_size, with_bias):
    x, dy = tensor(x), tensor(dy)
    shapes = (dy.shape[1], x.shape[1] // groups, *kernel_size), (dy.shape[1],)
    w, bias = (Tensor.zeros(*shape, dtype=x.dtype, device="CPU") for shape in shapes)
    dw, dbias = x.conv2d(w, bias, groups, stride, dilation, pads(padding)).gradient(w, bias, gradient=dy)
    return (array(dw), array(dbias)) if with_bias else array(dw)


def batch_norm(gamma, beta, mean, var, eps, momentum=0.0):
    layer = nn.BatchNorm(1, eps, affine=False, track_running_stats=mean is not None, momentum=momentum)
    layer.weight, layer.bias, layer.running_mean, layer.running_var = gamma, beta, mean, var
    return layer


@impl.implements("conv_bn_forward", **BATCH_NORM)
def conv_bn_forward(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, momentum):
    x, w, gamma, beta, mean, var = map(tensor, (x, w, gamma, beta, mean, var))
    layer = batch_norm(gamma, beta, mean, var, eps, momentum)
    with Context(TRAINING=1):
        z = x.conv2d(w, None, groups, stride, dilation, pads(padding))
        wide = dtypes.float64 if x.dtype == dtypes.float64 else dtypes.float32
        results = [layer(z).cast(x.dtype), *(t.cast(wide) for t in layer.calc_stats(z))]
    return tuple(map(array, results if mean is None else [*results, layer.running_mean, layer.running_var]))


@impl.implements("conv_bn_inference", **BATCH_NORM)
def conv_bn_inference(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps):
    x, w, *parameters = map(tensor, (x, w, gamma, beta, mean, var))
    z = x.conv2d(w, None, groups, stride, dilation, pads(padding))
    return array(batch_norm(*parameters, eps)(z).cast(x.dtype))


@impl.implements("conv_bn_backward", **BATCH_NORM)
def conv_bn_backward(dy, x, w, gamma, *, stride, padding, dilation, groups, eps):
    dy, x, w, gamma, beta = map(tensor, (dy, x, w, gamma, None if gamma is None else np.zeros_like(gamma)))
    with Context(TRAINING=1):
        z = x.conv2d(w, None, groups, stride, dilation, pads(padding))
        y = batch_norm(gamma, beta, None, None, eps)(z).cast(x.dtype)
    return tuple(map(array, y.gradient(x, w, *(() if gamma is None else (gamma, beta)), gradient=dy)))


@impl.implements("avg_pool_forward", **AVERAGE)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad):
    return array(tensor(x).avg_pool2d(kernel_size, stride, 1, pads(padding), ceil_mode, count_include_pad))


@impl.implements("avg_pool_backward", **AVERAGE)
def avg_pool_backward(dy, *, kernel_size, stride, padding, ceil_mode, count_include_pad, input_size):
    dy = tensor(dy)
    x = Tensor.zeros(*dy.shape[:2], *input_size, dtype=dy.dtype, device="CPU")
    y = x.avg_pool2d(kernel_size, stride, 1, pads(padding), ceil_mode, count_include_pad)
    return array(y.gradient(x, gradient=dy)[0])


@impl.implements("max_pool_forward", **ALL)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode):
    return array(tensor(x).max_pool2d(kernel_size, stride, dilation, pads(padding), ceil_mode))


@impl.implements("max_pool_backward", **ALL)
def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode):
    y = (x := tensor(x)).max_pool2d(kernel_size, stride, dilation, pads(padding), ceil_mode)
    return array(y.gradient(x, gradient=tensor(dy))[0])


@impl.implements("matmul", dtypes=("fp32", "fp64", "int8"), layouts=MATRICES)
@impl.implements("matmul", dtypes=("fp16", "bf16"), layouts=MATRICES, when=lambda p: not p.bias)  # it rounds again
def matmul(a, b, bias, *, layout):
    a, b = (tensor(t).transpose(-1, -2) if turn == "t" else tensor(t) for t, turn in zip((a, b), layout, strict=True))
    y = a.dot(b, dtype=dtypes.int32 if a.dtype == dtypes.int8 else None)
    return array(y if bias is None else y + tensor(bias))
