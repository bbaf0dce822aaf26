"""tinygrad on its CPU device: lazy graphs of Tensor.conv2d, avg_pool2d, max_pool2d and nn.BatchNorm, compiled by clang.

A problem becomes a graph of Tensors, realized by one call; every new shape is scheduled, fused and compiled. Gradients
are Tensor.gradient, the layout is NCHW, bf16 goes in and out by Tensor.bitcast. Needs DEV=CPU and clang. Not taken:
epsilon outside the root, a divisor of averages.
"""

import importlib.metadata

import ml_dtypes
import numpy as np
from tinygrad import Context, Tensor, dtypes, nn

from conformance import Contract, Implementation, Unsupported

impl = Implementation("tinygrad-cpu", version=importlib.metadata.version("tinygrad"))
ALL = {"dtypes": ("fp32", "fp64", "fp16", "bf16")}
BATCH_NORM = ALL | {"contract": Contract(between="storage")}  # convolution and normalisation are two operations


def tensor(a):
    if a is not None and a.dtype == ml_dtypes.bfloat16:
        return Tensor(a.view(np.uint16), device="CPU").bitcast(dtypes.bfloat16)
    return None if a is None else Tensor(a, device="CPU")


def array(t):
    return t.bitcast(dtypes.uint16).numpy().view(ml_dtypes.bfloat16) if t.dtype == dtypes.bfloat16 else t.numpy()


def pads(padding):
    (top, bottom), (left, right) = padding
    return left, right, top, bottom


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
    w = Tensor.zeros(dy.shape[1], x.shape[1] // groups, *kernel_size, dtype=x.dtype, device="CPU")
    bias = Tensor.zeros(dy.shape[1], dtype=x.dtype, device="CPU")
    dw, dbias = x.conv2d(w, bias, groups, stride, dilation, pads(padding)).gradient(w, bias, gradient=dy)
    return (array(dw), array(dbias)) if with_bias else array(dw)


def batch_norm(gamma, beta, mean, var, eps, eps_outside, momentum=0.0):
    if eps_outside:
        raise Unsupported("nn.BatchNorm adds epsilon to the variance")
    layer = nn.BatchNorm(1, eps, affine=False, track_running_stats=mean is not None, momentum=momentum)
    layer.weight, layer.bias, layer.running_mean, layer.running_var = gamma, beta, mean, var
    return layer


@impl.implements("conv_bn_forward", **BATCH_NORM)
def conv_bn_forward(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, eps_outside, momentum):
    x, w, gamma, beta, mean, var = map(tensor, (x, w, gamma, beta, mean, var))
    layer = batch_norm(gamma, beta, mean, var, eps, eps_outside, momentum)
    with Context(TRAINING=1):
        z = x.conv2d(w, None, groups, stride, dilation, pads(padding))
        wide = dtypes.float64 if x.dtype == dtypes.float64 else dtypes.float32
        results = [layer(z).cast(x.dtype), *(t.cast(wide) for t in layer.calc_stats(z))]
    return tuple(map(array, results if mean is None else [*results, layer.running_mean, layer.running_var]))


@impl.implements("conv_bn_inference", **BATCH_NORM)
def conv_bn_inference(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, eps_outside):
    x, w, *parameters = map(tensor, (x, w, gamma, beta, mean, var))
    z = x.conv2d(w, None, groups, stride, dilation, pads(padding))
    return array(batch_norm(*parameters, eps, eps_outside)(z).cast(x.dtype))


@impl.implements("conv_bn_backward", **BATCH_NORM)
def conv_bn_backward(dy, x, w, gamma, *, stride, padding, dilation, groups, eps, eps_outside):
    dy, x, w, gamma = map(tensor, (dy, x, w, gamma))
    beta = None if gamma is None else gamma.zeros_like()
    with Context(TRAINING=1):
        z = x.conv2d(w, None, groups, stride, dilation, pads(padding))
        y = batch_norm(gamma, beta, None, None, eps, eps_outside)(z).cast(x.dtype)
    return tuple(map(array, y.gradient(x, w, *(() if gamma is None else (gamma, beta)), gradient=dy)))


def average(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor):
    if divisor is not None:
        raise Unsupported("avg_pool2d has no divisor")
    return x.avg_pool2d(kernel_size, stride, 1, pads(padding), ceil_mode, count_include_pad)


@impl.implements("avg_pool_forward", **ALL)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return array(average(tensor(x), kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override))


@impl.implements("avg_pool_backward", **ALL)
def avg_pool_backward(dy, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, input_size):
    dy = tensor(dy)
    x = Tensor.zeros(*dy.shape[:2], *input_size, dtype=dy.dtype, device="CPU")
    y = average(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return array(y.gradient(x, gradient=dy)[0])


@impl.implements("max_pool_forward", **ALL)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode):
    return array(tensor(x).max_pool2d(kernel_size, stride, dilation, pads(padding), ceil_mode))


@impl.implements("max_pool_backward", **ALL)
def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode):
    x = tensor(x)
    y = x.max_pool2d(kernel_size, stride, dilation, pads(padding), ceil_mode)
    return array(y.gradient(x, gradient=tensor(dy))[0])
