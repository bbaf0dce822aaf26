"""OpenVINO, CPU plugin: native graphs of opset15, compiled with the inference precision hint f32, one thread.

A problem becomes a graph of static shapes with filters and parameters as constants, as in a deployed network, compiled
for each call. Operators are NCHW; nhwc operands are transposed in the graph, as OpenVINO's PrePostProcessor does.
Normalisation by the batch's statistics is ReduceMean and MVN, for 16-bit tensors in f32, as its parameters are.

Not taken: fp64 (the plugin executes f64 as f32); other gradients (no operators); `divisor_override` (no attribute);
epsilon outside the root; pooling of an empty batch ("Batch size is zero").
"""

import ml_dtypes
import numpy as np
import openvino as ov
from openvino import opset15 as ops

from conformance import Contract, Implementation

CORE, BF16 = ov.Core(), np.dtype(ml_dtypes.bfloat16)
TYPES = {np.dtype("f4"): ov.Type.f32, np.dtype("f2"): ov.Type.f16, BF16: ov.Type.bf16}
CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
TAKES = {"dtypes": ("fp32", "fp16", "bf16"), "layouts": ("nchw", "nhwc")}
INNER = {"when": lambda p: not p.eps_outside, "layouts": ("nchw", "nhwc")}
WIDE, STORED = {"dtypes": ("fp32", "fp16")}, {"dtypes": ("bf16",), "contract": Contract(between="storage")}
FLUSHED = Contract(subnormals="flushed")  # of matrix products, in every dtype
impl = Implementation("openvino-cpu", version=ov.__version__, unsafe=("fork",), compiles_per_shape=True)  # forks hang


def tensor(array):
    copy = ov.Tensor(TYPES[array.dtype], ov.Shape(array.shape))
    copy.data[...] = array.view("f2") if array.dtype == BF16 else array  # the bindings show bf16 as f2
    return copy


def run(graph, layout, x, *constants):
    """Return the results of a graph, which is a function of nodes in NCHW that returns a list of nodes."""
    parameter = ops.parameter(x.shape, TYPES[x.dtype])
    nodes = [parameter, *(a if a is None else ops.constant(tensor(a)) for a in constants)]
    if layout == "nhwc":
        nodes = [n if n is None or len(n.shape) == 1 else ops.transpose(n, [0, 3, 1, 2]) for n in nodes]
    nodes = graph(*nodes)
    if layout == "nhwc":
        nodes = [n if len(n.shape) == 1 else ops.transpose(n, [0, 2, 3, 1]) for n in nodes]
    model = ov.Model(nodes, [parameter])
    found = CORE.compile_model(model, "CPU", CONFIG).create_infer_request().infer([tensor(x)]).to_tuple()
    return tuple(y.view(BF16) if x.dtype == BF16 and y.dtype == np.float16 else y for y in found)


def ends(padding):
    return [p[0] for p in padding], [p[1] for p in padding]


def grouped(w, groups):
    return w if groups == 1 else ops.reshape(w, [groups, w.shape[0] // groups, *list(w.shape)[1:]], False)


def convolution(x, w, stride, padding, dilation, groups):
    convolve = ops.convolution if groups == 1 else ops.group_convolution
    return convolve(x, grouped(w, groups), list(stride), *ends(padding), list(dilation))


@impl.implements("conv_forward", **TAKES)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    def graph(x, w, bias):
        y = convolution(x, w, stride, padding, dilation, groups)
        return [y if bias is None else ops.add(y, ops.unsqueeze(bias, [0, 2, 3]))]

    return run(graph, layout, x, w, bias)[0]


@impl.implements("conv_backward_data", **TAKES)
def conv_backward_data(dy, w, *, stride, padding, dilation, groups, layout, input_size):
    convolve = ops.convolution_backprop_data if groups == 1 else ops.group_convolution_backprop_data

    def graph(dy, w):
        full = [(dy.shape[i + 2] - 1) * stride[i] + dilation[i] * (w.shape[i + 2] - 1) + 1 for i in (0, 1)]
        more = [input_size[i] + sum(padding[i]) - full[i] for i in (0, 1)]
        how = {"output_padding": more, "dilations": list(dilation)}
        return [convolve(dy, grouped(w, groups), list(stride), None, *ends(padding), **how)]

    return run(graph, layout, dy, w)[0]


@impl.implements("conv_bn_inference", **STORED, **INNER)
@impl.implements("conv_bn_inference", **WIDE, **INNER)
def conv_bn_inference(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, layout, eps):
    def graph(x, w, *parameters):
        z = ops.convert(convolution(x, w, stride, padding, dilation, groups), "f32")
        return [ops.convert_like(ops.batch_norm_inference(z, *parameters, eps), x)]

    affine = (np.ones_like(mean), np.zeros_like(mean)) if gamma is None else (gamma, beta)
    return run(graph, layout, x, w, *affine, mean, var)[0]


@impl.implements("conv_bn_forward", **STORED, **INNER)
@impl.implements("conv_bn_forward", **WIDE, **INNER)
def conv_bn_forward(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, layout, eps, momentum):
    def graph(x, w, gamma, beta, *running):
        z = ops.convert(convolution(x, w, stride, padding, dilation, groups), "f32")
        y = ops.mvn(z, [0, 2, 3], True, eps, "inside_sqrt")
        affine = [] if gamma is None else [ops.unsqueeze(n, [0, 2, 3]) for n in (gamma, beta)]
        y = ops.add(ops.multiply(y, affine[0]), affine[1]) if affine else y
        mean = ops.reduce_mean(z, [0, 2, 3])
        var = ops.reduce_mean(ops.squared_difference(z, ops.unsqueeze(mean, [0, 2, 3])), [0, 2, 3])
        m = z.shape[0] * z.shape[2] * z.shape[3]
        new = [ops.multiply(mean, np.float32(momentum)), ops.multiply(var, np.float32(momentum * m / (m - 1)))]
        old = [ops.multiply(a, np.float32(1 - momentum)) for a in running if a is not None]
        return [ops.convert_like(y, x), mean, var, *(ops.add(a, b) for a, b in zip(old, new, strict=False))]

    return run(graph, layout, x, w, gamma, beta, mean, var)


@impl.implements("avg_pool_forward", when=lambda p: p.n > 0 and p.divisor_override is None, **TAKES)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, layout):
    how = list(kernel_size), not count_include_pad, "ceil_torch" if ceil_mode else "floor"
    return run(lambda x: [ops.avg_pool(x, list(stride), *ends(padding), *how)], layout, x)[0]


@impl.implements("max_pool_forward", when=lambda p: p.n > 0, **TAKES)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode, layout):
    how = list(dilation), *ends(padding), list(kernel_size), "ceil_torch" if ceil_mode else "floor"
    return run(lambda x: ops.max_pool(x, list(stride), *how).outputs()[:1], layout, x)[0]


@impl.implements("matmul", dtypes=TAKES["dtypes"], layouts=("nn", "nt", "tn", "tt"), contract=FLUSHED)
def matmul(a, b, bias, *, layout):
    def graph(x, w, offset):
        y = ops.matmul(x, w, layout[0] == "t", layout[1] == "t")
        return [y if offset is None else ops.add(y, offset)]

    return run(graph, layout, a, b, bias)[0]
