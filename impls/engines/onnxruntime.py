"""ONNX Runtime on the CPU (CPUExecutionProvider, kernels of MLAS), all graph optimisations (the default).

A problem becomes a model of one or two nodes (opset 22). ``onnxruntime-cpu`` has parameters as inputs and caches
sessions; ``onnxruntime-cpu-const`` has them as initializers, which are folded and prepacked, a session a call.
Not taken: bf16; fp64 but for max pooling and products; nhwc; divisors; most gradients; epsilon outside the root."""

from functools import lru_cache

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

from conformance import Implementation, Unsupported

TYPES = {
    np.dtype(name): helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in ("f2", "f4", "f8", "i1", "u1", "i4")
}
FLOATS, OPTIONS, LEVEL = ("fp32", "fp64", "fp16"), ort.SessionOptions(), "graph_optimization_level"
OPTIONS.intra_op_num_threads = OPTIONS.inter_op_num_threads = 1


@lru_cache(maxsize=64)
def session(nodes, inputs, outputs, constants=()):  # nodes (operator, inputs, outputs, attributes); (name, dtype)
    steps = [helper.make_node(op, ins.split(), outs.split(), **dict(how)) for op, ins, outs, how in nodes]
    ends = ([helper.make_tensor_value_info(name, TYPES[d], None) for name, d in info] for info in (inputs, outputs))
    initializers = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants]
    graph = helper.make_graph(steps, "problem", *ends, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), OPTIONS, providers=["CPUExecutionProvider"])


def run(nodes, feeds, outputs, constants=False):
    """Run the nodes; with ``constants`` every feed but the first is an initializer."""
    outputs = tuple((name, feeds[like].dtype if like in feeds else np.dtype(like)) for name, like in outputs.items())
    (first, x), *others = feeds.items()
    if constants:
        return session.__wrapped__(nodes, [(first, x.dtype)], outputs, others).run(None, {first: x})
    return session(nodes, tuple((n, a.dtype) for n, a in feeds.items()), outputs).run(None, feeds)


def attributes(stride, padding, **more):
    return tuple({"strides": stride, "pads": (*(p[0] for p in padding), *(p[1] for p in padding)), **more}.items())


def transposed(layout):
    return tuple((f"trans{operand}", int(letter == "t")) for operand, letter in zip("AB", layout, strict=True))


def mix(old, new, momentum, factor=1.0):  # (1 - momentum) * old + momentum * factor * new, in the engine
    nodes = ("Mul", "old keep", "a", ()), ("Mul", "new take", "b", ()), ("Add", "a b", "sum", ())
    keep, take = np.array(1 - momentum, np.float32), np.array(momentum * factor, np.float32)
    return run(nodes, {"old": old, "keep": keep, "new": new, "take": take}, {"sum": "old"})[0]


def register(name, constants):
    impl = Implementation(name, version=ort.__version__)

    @impl.implements("conv_forward", dtypes=("fp32", "fp16"))
    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        how = attributes(stride, padding, dilations=dilation, group=groups)
        feeds = {"x": x, "w": w} if bias is None else {"x": x, "w": w, "bias": bias}
        return run((("Conv", " ".join(feeds), "y", how),), feeds, {"y": "x"}, constants)[0]

    @impl.implements("conv_forward", dtypes=("uint8",), when=lambda p: not p.bias)
    def conv_integer(x, w, bias, *, stride, padding, dilation, groups):
        how = attributes(stride, padding, dilations=dilation, group=groups)
        return run((("ConvInteger", "x w", "y", how),), {"x": x, "w": w}, {"y": "i4"}, constants)[0]

    @impl.implements("conv_requantized", dtypes=("int8", "uint8"))
    def conv_requantized(x, w, bias, scale, *, stride, padding, dilation, groups, x_zero_point, y_zero_point):
        how, one, zw = (
            attributes(stride, padding, dilations=dilation, group=groups),
            np.ones(1, "f4"),
            np.zeros(1, "i1"),
        )
        zx, zy = (np.full(1, point, x.dtype) for point in (x_zero_point, y_zero_point))
        feeds = {"x": x, "1": one, "zx": zx, "w": w, "s": scale, "zw": zw, "zy": zy}
        feeds |= {} if bias is None else {"bias": bias}
        names = "x 1 zx w s zw 1 zy" + ("" if bias is None else " bias")
        return run((("QLinearConv", names, "y", how),), feeds, {"y": "x"}, constants)[0]

    @impl.implements("conv_backward_data", dtypes=("fp32", "fp16"))
    def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
        full = [(dy.shape[i + 2] - 1) * stride[i] + dilation[i] * (w.shape[i + 2] - 1) + 1 for i in (0, 1)]
        rest = tuple(input_size[i] + sum(padding[i]) - full[i] for i in (0, 1))
        how = attributes(stride, padding, dilations=dilation, group=groups, output_padding=rest)
        return run((("ConvTranspose", "dy w", "dx", how),), {"dy": dy, "w": w}, {"dx": "dy"}, constants)[0]

    def conv_bn(x, w, gamma, beta, mean, var, geometry, outputs, **norm):  # scale 1 and shift 0 where there is none
        gamma, beta = (np.full(len(w), v, np.float32) if a is None else a for a, v in ((gamma, 1), (beta, 0)))
        bn = "BatchNormalization", "z gamma beta mean var", " ".join(outputs), tuple(norm.items())
        feeds = {"x": x, "w": w, "gamma": gamma, "beta": beta, "mean": mean, "var": var}
        conv = "Conv", "x w", "z", attributes(*geometry[:2], dilations=geometry[2], group=geometry[3])
        return run((conv, bn), feeds, outputs, constants)

    @impl.implements("conv_bn_inference", dtypes=("fp32", "fp16"), when=lambda p: not p.eps_outside)
    def conv_bn_inference(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps):
        return conv_bn(x, w, gamma, beta, mean, var, (stride, padding, dilation, groups), {"y": "x"}, epsilon=eps)[0]

    @impl.implements("conv_bn_forward", dtypes=("fp32", "fp16"), when=lambda p: not p.eps_outside)
    def conv_bn_forward(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, momentum):
        old, outputs = np.zeros(len(w), np.float32), {"y": "x", "new_mean": "mean", "new_var": "var"}
        norm = {"epsilon": eps, "momentum": 0.0, "training_mode": 1}  # momentum 0: the batch's own statistics
        y, mu, v = conv_bn(x, w, gamma, beta, old, old, (stride, padding, dilation, groups), outputs, **norm)
        m = y.size // len(w)  # the node would mix in the biased variance: running statistics have nodes of their own
        return y, mu, v, *(() if mean is None else (mix(mean, mu, momentum), mix(var, v, momentum, m / (m - 1))))

    @impl.implements("matmul", dtypes=("fp32", "fp64", "fp16", "int8", "uint8"), when=lambda p: not p.bias)
    @impl.implements("matmul", dtypes=FLOATS, layouts=("nn", "nt", "tn", "tt"), when=lambda p: p.batch == 1)
    def matmul(a, b, bias, *, layout):
        feeds = {"a": a, "b": b} if bias is None else {"a": a, "b": b, "bias": bias}
        kind = "Gemm" if bias is not None or layout != "nn" else "MatMulInteger" if a.itemsize == 1 else "MatMul"
        how = transposed(layout) if kind == "Gemm" else ()
        return run(((kind, " ".join(feeds), "y", how),), feeds, {"y": "i4" if a.itemsize == 1 else "a"}, constants)[0]

    @impl.implements("gemm", dtypes=FLOATS, layouts=("nn", "nt", "tn", "tt"), when=lambda p: p.batch == 1)
    def gemm(a, b, c, *, layout, alpha, beta):
        how = (*transposed(layout), ("alpha", alpha), ("beta", beta))
        return run((("Gemm", "a b c", "y", how),), {"a": a, "b": b, "c": c}, {"y": "a"}, constants)[0]

    @impl.implements("matmul_requantized", dtypes=("int8", "uint8"), layouts=("nn",), when=lambda p: not p.bias)
    def matmul_requantized(a, b, bias, scale, *, a_zero_point, b_zero_point, y_zero_point):
        s, one, zb = np.tile(scale, (*b.shape[:-2], 1, 1)), np.ones(1, "f4"), np.array(b_zero_point, "i1")
        za, zy = (np.full(1, point, a.dtype) for point in (a_zero_point, y_zero_point))
        feeds = {"a": a, "b": b, "s": s, "1": one, "za": za, "zb": np.broadcast_to(zb, s.shape).copy(), "zy": zy}
        node = "QLinearMatMul", "a 1 za b s zb 1 zy", "y", ()
        return run((node,), feeds, {"y": "a"}, constants)[0]

    return impl


inputs, initializers = register("onnxruntime-cpu", False), register("onnxruntime-cpu-const", True)


@inputs.implements("avg_pool_forward", dtypes=("fp32", "fp16"), when=lambda p: p.divisor_override is None)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad):
    more = {"kernel_shape": kernel_size, "ceil_mode": int(ceil_mode), "count_include_pad": int(count_include_pad)}
    return run((("AveragePool", "x", "y", attributes(stride, padding, **more)),), {"x": x}, {"y": "x"})[0]


@inputs.implements("max_pool_forward", dtypes=("fp32", "fp16", "fp64"))
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode):
    if any(max(pads) >= size for pads, size in zip(padding, kernel_size, strict=True)):
        raise Unsupported("MaxPool: Pad should be smaller than kernel (even where the dilated kernel is larger)")
    how = attributes(stride, padding, kernel_shape=kernel_size, dilations=dilation, ceil_mode=int(ceil_mode))
    return run((("MaxPool", "x", "y", how),), {"x": x}, {"y": "x"})[0]
