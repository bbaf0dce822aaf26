"""TensorFlow's own CPU kernels (oneDNN and Eigen), called eagerly in NHWC: Conv2D, DepthwiseConv2dNative (where groups
equal channels), FusedBatchNormV3, pooling of tf.nn; gradients are those of GradientTape.

Not taken: a bias in 16 bits (BiasAdd is a second kernel and rounds again); gradients with groups (but depthwise) or
dilation; batch norm in float64 or with epsilon outside the root; dilated pooling; averages with a divisor, or padding
that is neither counted nor that of "SAME" (which is what ceil mode adds).
"""

import numpy as np
import tensorflow as tf

from conformance import Contract, Implementation, Unsupported

tf.config.threading.set_intra_op_parallelism_threads(1)
impl = Implementation("tensorflow-cpu", version=tf.__version__)
impl.variant("onednn=off", environment={"TF_ENABLE_ONEDNN_OPTS": "0"})
NHWC = {"layouts": ("nhwc",), "dtypes": ("fp32", "fp64", "fp16", "bf16")}
FLUSHED = Contract(subnormals="flushed")  # of matrix products, in every dtype
BATCH_NORM = {"layouts": ("nhwc",), "dtypes": ("fp32", "fp16", "bf16"), "contract": Contract(between="storage")}
GRADIENT = {"when": lambda p: p.dilation == (1, 1) and (p.groups == 1 or (p.groups == p.c and len({*p.stride}) == 1))}


def gradients(function, inputs, dy):
    with tf.GradientTape() as tape:
        tape.watch(inputs := [tf.convert_to_tensor(t) for t in inputs])
        return tuple(g.numpy() for g in tape.gradient(function(*inputs), inputs, dy))


def convolve(x, w, stride, padding, dilation, groups):
    w, pads = tf.transpose(w, (1, 2, 3, 0)), (0, 0, *padding[0], *padding[1], 0, 0)
    how = {"strides": (1, *stride, 1), "dilations": (1, *dilation, 1), "padding": "EXPLICIT", "explicit_paddings": pads}
    if w.shape[2] == 1 < groups and stride[0] == stride[1] and tuple(dilation) == (1, 1):
        return tf.raw_ops.DepthwiseConv2dNative(input=x, filter=tf.reshape(w, (*w.shape[:2], groups, -1)), **how)
    return tf.raw_ops.Conv2D(input=x, filter=w, **how)


@impl.implements("conv_forward", **NHWC)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    if bias is not None and x.dtype.itemsize == 2:
        raise Unsupported("BiasAdd is a second kernel: the result would be rounded twice")
    y = convolve(x, w, stride, padding, dilation, groups)
    return (y if bias is None else tf.nn.bias_add(y, bias)).numpy()


@impl.implements("conv_backward_data", **GRADIENT, **NHWC)
def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
    x = tf.zeros((len(dy), *input_size, w.shape[3] * groups), dy.dtype)
    return gradients(lambda x: convolve(x, w, stride, padding, dilation, groups), [x], dy)[0]


@impl.implements("conv_backward_weight", **GRADIENT, **NHWC)
def conv_backward_weight(x, dy, *, stride, padding, dilation, groups, kernel_size, with_bias):
    w = tf.zeros((dy.shape[3], *kernel_size, x.shape[3] // groups), x.dtype)
    dw = gradients(lambda w: convolve(x, w, stride, padding, dilation, groups), [w], dy)[0]
    return (dw, tf.raw_ops.BiasAddGrad(out_backprop=dy).numpy()) if with_bias else dw


def conv_bn(x, w, gamma, beta, mean, var, geometry, eps, eps_outside, factor=1.0, training=True):
    if eps_outside:
        raise Unsupported("TensorFlow adds epsilon to the variance")
    gamma, beta = (tf.ones(len(w)), tf.zeros(len(w))) if gamma is None else (gamma, beta)
    mean, var, factor = (tf.zeros(0), tf.zeros(0), 1.0) if mean is None else (mean, var, factor)
    how = {"mean": mean, "variance": var, "epsilon": eps, "exponential_avg_factor": factor, "is_training": training}
    return tf.raw_ops.FusedBatchNormV3(x=convolve(x, w, *geometry), scale=gamma, offset=beta, **how)


@impl.implements("conv_bn_forward", **BATCH_NORM)
def conv_bn_forward(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, eps_outside, momentum):
    how = ((stride, padding, dilation, groups), eps, eps_outside, momentum)
    y, *running, batch_mean, batch_var, _ = conv_bn(x, w, gamma, beta, mean, var, *how)
    return tuple(t.numpy() for t in (y, batch_mean, batch_var, *(() if mean is None else running)))


@impl.implements("conv_bn_inference", **BATCH_NORM)
def conv_bn_inference(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, eps_outside):
    how = ((stride, padding, dilation, groups), eps, eps_outside)
    return conv_bn(x, w, gamma, beta, mean, var, *how, training=False)[0].numpy()


@impl.implements("conv_bn_backward", **GRADIENT, **BATCH_NORM)
def conv_bn_backward(dy, x, w, gamma, *, stride, padding, dilation, groups, eps, eps_outside):
    how = ((stride, padding, dilation, groups), eps, eps_outside)
    inputs = [x, w] if gamma is None else [x, w, gamma, np.zeros_like(gamma)]
    return gradients(lambda x, w, g=None, b=None: conv_bn(x, w, g, b, None, None, *how)[0], inputs, dy)


def pool(x, kernel, stride, padding, ceil_mode, counted=None, divisor=None):
    x, pads, same = tf.convert_to_tensor(x), [], True  # tf.nn.max_pool2d converts NumPy arrays to float32
    for size, k, s, (before, after) in zip(x.shape[1:3], kernel, stride, padding, strict=True):
        n = (size + before + after - k + (s - 1) * ceil_mode) // s + 1
        n -= ceil_mode and (n - 1) * s >= size + before
        pads.append((before, max(after, (n - 1) * s + k - size - before)))
        same &= (n, before) == (-(-size // s), max(0, (n - 1) * s + k - size) // 2)
    explicit, simple, outside = [(0, 0), *pads, (0, 0)], not np.any(pads), counted and np.any(padding)
    if counted is None:  # a maximum
        return tf.nn.max_pool2d(x, kernel, stride, "VALID" if simple else explicit)
    if divisor or not (simple or (pads == list(padding) if outside else same)):
        raise Unsupported("a divisor, or padding neither counted nor that of SAME")
    x = tf.pad(x, explicit) if outside else x
    return tf.nn.avg_pool2d(x, kernel, stride, "VALID" if simple or outside else "SAME")


@impl.implements("max_pool_forward", when=lambda p: tuple(p.dilation) == (1, 1), **NHWC)
def max_pool_forward(x, *, kernel_size, stride, padding, ceil_mode):
    return pool(x, kernel_size, stride, padding, ceil_mode).numpy()


@impl.implements("max_pool_backward", when=lambda p: tuple(p.dilation) == (1, 1), **NHWC)
def max_pool_backward(dy, x, *, kernel_size, stride, padding, ceil_mode):
    return gradients(lambda x: pool(x, kernel_size, stride, padding, ceil_mode), [x], dy)[0]


@impl.implements("avg_pool_forward", **NHWC)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return pool(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override).numpy()


@impl.implements("avg_pool_backward", **NHWC)
def avg_pool_backward(dy, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, input_size):
    x, how = tf.zeros((len(dy), *input_size, dy.shape[3]), dy.dtype), (ceil_mode, count_include_pad, divisor_override)
    return gradients(lambda x: pool(x, kernel_size, stride, padding, *how), [x], dy)[0]


@impl.implements("matmul", dtypes=NHWC["dtypes"], layouts=("nn", "nt", "tn", "tt"), contract=FLUSHED)
def matmul(a, b, bias, *, layout):
    if bias is not None and a.dtype.itemsize == 2:
        raise Unsupported("BiasAdd is a second kernel: the result would be rounded twice")
    y = tf.linalg.matmul(a, b, transpose_a=layout[0] == "t", transpose_b=layout[1] == "t")
    return (y if bias is None else tf.nn.bias_add(y, bias)).numpy()
