"""MLX on its CPU device: mx.conv_general, matmul, addmm, mlx.nn.BatchNorm, MaxPool2d and AvgPool2d; mx.vjp. NHWC.

A problem is one lazy expression, evaluated when its results go to NumPy (bf16 as a view of uint16). Not taken: what MLX
refuses when it evaluates (some float64 convolutions); a bias in 16 bits, which an operation of its own adds and rounds
again; epsilon outside the root; pooling with dilation, divisor, windows of ceil mode, uncounted or asymmetric padding.
"""

import mlx.core as mx
import numpy as np
from ml_dtypes import bfloat16
from mlx import nn

from conformance import Contract, Implementation, Unsupported

mx.set_default_device(mx.cpu)
mx.set_cache_limit(0)  # freed buffers go back to the system
impl = Implementation("mlx-cpu", version=mx.__version__, unsafe=("fork",))
NHWC = {"layouts": ("nhwc",), "dtypes": ("fp32", "fp64", "fp16", "bf16")}
ADDMM = "https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.addmm.html"
MATRICES = NHWC | {"layouts": ("nn", "nt", "tn", "tt")}
BATCH_NORM = NHWC | {"contract": Contract(between="storage")}  # convolution and normalisation are two operations


def tensor(a):
    return None if a is None else mx.array(a, dtype=mx.float64 if a.dtype == np.float64 else None)


def arrays(*results):
    try:
        mx.eval(*results)
    except ValueError as e:  # [Convolution::eval] got unsupported data type.
        raise Unsupported(str(e)) from e
    found = [np.array(t.view(mx.uint16)).view(bfloat16) if t.dtype == mx.bfloat16 else np.array(t) for t in results]
    return tuple(found) if len(found) > 1 else found[0]


def convolve(x, w, stride, padding, dilation, groups):
    return mx.conv_general(x, w, stride, tuple(zip(*padding, strict=True)), dilation, groups=groups)


@impl.implements("conv_forward", **NHWC)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    if bias is not None and x.dtype.itemsize == 2:
        raise Unsupported("the bias is added by an operation of its own: the result would be rounded twice")
    y = convolve(tensor(x), tensor(w), stride, padding, dilation, groups)
    return arrays(y if bias is None else y + tensor(bias))


@impl.implements("conv_backward_data", **NHWC)
def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
    dy, w = tensor(dy), tensor(w)
    x = mx.zeros((dy.shape[0], *input_size, w.shape[3] * groups), dy.dtype)
    return arrays(*mx.vjp(lambda x: convolve(x, w, stride, padding, dilation, groups), [x], [dy])[1])


@impl.implements("conv_backward_weight", **NHWC)
def conv_backward_weight(x, dy, *, stride, padding, dilation, groups, kernel_size, with_bias):
    x, dy = tensor(x), tensor(dy)
    inputs = [mx.zeros((dy.shape[3], *kernel_size, x.shape[3] // groups), x.dtype), mx.zeros(dy.shape[3], x.dtype)]
    _, (dw, dbias) = mx.vjp(lambda w, b: convolve(x, w, stride, padding, dilation, groups) + b, inputs, [dy])
    return arrays(dw, dbias) if with_bias else arrays(dw)


def conv_bn(x, w, gamma, beta, mean, var, geometry, eps, eps_outside, momentum=0.1, training=True):
    if eps_outside:
        raise Unsupported("nn.BatchNorm adds epsilon to the variance")
    z, layer = convolve(x, w, *geometry), nn.BatchNorm(len(w), eps, momentum, gamma is not None, mean is not None)
    if gamma is not None:
        layer.weight, layer.bias = gamma, beta
    layer.running_mean, layer.running_var = mean, var
    return layer.train(training)(z).astype(z.dtype), layer, z


@impl.implements("conv_bn_forward", **BATCH_NORM)
def conv_bn_forward(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, eps_outside, momentum):
    inputs, geometry = map(tensor, (x, w, gamma, beta, mean, var)), (stride, padding, dilation, groups)
    y, layer, z = conv_bn(*inputs, geometry, eps, eps_outside, momentum)
    dtype, running = mx.float64 if z.dtype == mx.float64 else mx.float32, (layer.running_mean, layer.running_var)
    return arrays(y, *(f(z, (0, 1, 2)).astype(dtype) for f in (mx.mean, mx.var)), *(() if mean is None else running))


@impl.implements("conv_bn_inference", **BATCH_NORM)
def conv_bn_inference(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, eps_outside):
    inputs, geometry = map(tensor, (x, w, gamma, beta, mean, var)), (stride, padding, dilation, groups)
    return arrays(conv_bn(*inputs, geometry, eps, eps_outside, training=False)[0])


@impl.implements("conv_bn_backward", **BATCH_NORM)
def conv_bn_backward(dy, x, w, gamma, *, stride, padding, dilation, groups, eps, eps_outside):
    dy, how = tensor(dy), ((stride, padding, dilation, groups), eps, eps_outside)
    inputs = [tensor(a) for a in ((x, w) if gamma is None else (x, w, gamma, np.zeros_like(gamma)))]
    return arrays(*mx.vjp(lambda x, w, g=None, b=None: conv_bn(x, w, g, b, None, None, *how)[0], inputs, [dy])[1])


def pool(layer, size, kernel, stride, padding, ceil_mode, counted=True, divisor=None):
    cut = ceil_mode and any((n + sum(p) - k) % s for n, k, s, p in zip(size, kernel, stride, padding, strict=True))
    if cut or divisor or any(p[0] != p[1] or (p[0] and not counted) for p in padding):
        raise Unsupported("a divisor, windows of ceil mode, padding not counted or not symmetric")
    return layer(kernel, stride, tuple(p[0] for p in padding))


@impl.implements("max_pool_forward", when=lambda p: tuple(p.dilation) == (1, 1), **NHWC)
def max_pool_forward(x, *, kernel_size, stride, padding, ceil_mode):
    return arrays(pool(nn.MaxPool2d, x.shape[1:3], kernel_size, stride, padding, ceil_mode)(tensor(x)))


@impl.implements("max_pool_backward", when=lambda p: tuple(p.dilation) == (1, 1), **NHWC)
def max_pool_backward(dy, x, *, kernel_size, stride, padding, ceil_mode):
    layer = pool(nn.MaxPool2d, x.shape[1:3], kernel_size, stride, padding, ceil_mode)
    return arrays(*mx.vjp(layer, [tensor(x)], [tensor(dy)])[1])


@impl.implements("avg_pool_forward", **NHWC)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    how = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return arrays(pool(nn.AvgPool2d, x.shape[1:3], *how)(tensor(x)))


@impl.implements("avg_pool_backward", **NHWC)
def avg_pool_backward(dy, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, input_size):
    layer = pool(nn.AvgPool2d, input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return arrays(*mx.vjp(layer, [mx.zeros((len(dy), *input_size, dy.shape[3]), tensor(dy).dtype)], [tensor(dy)])[1])


def turned(a, b, layout):
    return (tensor(t) if lies == "n" else tensor(t).swapaxes(-1, -2) for t, lies in zip((a, b), layout, strict=True))


@impl.implements("matmul", **MATRICES)
def matmul(a, b, bias, *, layout):
    a, b = turned(a, b, layout)
    return arrays(a @ b if bias is None else mx.addmm(tensor(bias), a, b))


@impl.implements("gemm", **MATRICES)
def gemm(a, b, c, *, layout, alpha, beta):
    return arrays(mx.addmm(tensor(c), *turned(a, b, layout), alpha, beta))


impl.waive("gemm", reason="no terms: c times beta = 0, with its NaN", url=ADDMM, when=lambda p: p.beta == 0 == p.k)
