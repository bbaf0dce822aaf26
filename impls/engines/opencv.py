"""OpenCV's dnn module on the CPU: ONNX models (opset 17) for readNetFromONNX, engine chosen by default, one thread.

A problem becomes a model of static shapes, read for each call. ``opencv-cpu`` has filters and parameters as constants,
as a deployed network has; ``opencv-cpu-inputs`` has them as inputs (pooling has none). The gradient of the data is
ConvTranspose. Batch normalisation is BatchNormalization or, by the batch's statistics, ReduceMean and elementwise
operators. Subnormals are flushed: Net::forward of its source opens an FPDenormalsIgnoreHintScope. Products are gemm.

Not taken: fp16 and bf16 (setInput takes fp32, networks of fp16 return fp32), fp64 (no kernels); nhwc (ONNX is NCHW);
other gradients (no operators); `divisor_override` (no attribute); empty batches (forward returns None).
"""

import cv2
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from conformance import Contract, Implementation

cv2.setNumThreads(1)
MATRICES = ("nn", "nt", "tn", "tt")


def run(nodes, feeds, outputs, constants=True):
    """Run nodes (operator, inputs, outputs, attributes); with ``constants`` all feeds but the first are constants."""
    inputs = dict(list(feeds.items())[:1]) if constants else feeds
    graph = helper.make_graph(
        [helper.make_node(op, ins.split(), outs.split(), **how) for op, ins, outs, how in nodes],
        "problem",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list("abcd")[:rank]) for name, rank in outputs.items()],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in feeds.items() if name not in inputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
    for name, array in inputs.items():
        net.setInput(np.ascontiguousarray(array), name)
    return tuple(y.copy() for y in net.forward(list(outputs)))


def geometry(stride, padding, **more):
    """Return attributes of a convolution or pooling."""
    return {"strides": stride, "pads": (*(p[0] for p in padding), *(p[1] for p in padding)), **more}


def register(name, constants):
    """Register one implementation, with parameters as constants or as inputs of the graph."""
    impl = Implementation(name, version=cv2.__version__, contract=Contract(subnormals="flushed"))

    @impl.implements("conv_forward", when=lambda p: p.n > 0)
    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        how = geometry(stride, padding, dilations=dilation, group=groups)
        feeds = {"x": x, "w": w} if bias is None else {"x": x, "w": w, "bias": bias}
        return run([("Conv", " ".join(feeds), "y", how)], feeds, {"y": 4}, constants)[0]

    @impl.implements("conv_backward_data", when=lambda p: p.n > 0)
    def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
        full = [(dy.shape[i + 2] - 1) * stride[i] + dilation[i] * (w.shape[i + 2] - 1) + 1 for i in (0, 1)]
        rest = [input_size[i] + sum(padding[i]) - full[i] for i in (0, 1)]
        how = geometry(stride, padding, dilations=dilation, group=groups, output_padding=rest)
        return run([("ConvTranspose", "dy w", "dx", how)], {"dy": dy, "w": w}, {"dx": 4}, constants)[0]

    @impl.implements("conv_bn_inference", when=lambda p: p.n > 0 and not p.eps_outside)
    def conv_bn_inference(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps):
        how = geometry(stride, padding, dilations=dilation, group=groups)
        gamma, beta = np.ones_like(mean) if gamma is None else gamma, np.zeros_like(mean) if beta is None else beta
        feeds = {"x": x, "w": w, "gamma": gamma, "beta": beta, "mean": mean, "var": var}
        bn = "BatchNormalization", "z gamma beta mean var", "y", {"epsilon": eps}
        return run([("Conv", "x w", "z", how), bn], feeds, {"y": 4}, constants)[0]

    @impl.implements("conv_bn_forward", when=lambda p: p.n > 0)
    def conv_bn_forward(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, eps_outside, momentum):
        sizes = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
        m = len(x) * np.prod([(h + sum(p) - d * (r - 1) - 1) // u + 1 for h, r, u, p, d in sizes])
        feeds = {"x": x, "w": w, "eps": eps, "keep": 1 - momentum, "take": momentum, "unbias": m / (m - 1)}
        feeds |= {} if gamma is None else {"gamma": gamma[:, None, None], "beta": beta[:, None, None]}
        feeds |= {} if mean is None else {"old_mean": mean, "old_var": var}
        channel, keep = {"axes": [0, 2, 3], "keepdims": 0}, {"axes": [0, 2, 3], "keepdims": 1}
        nodes = [("Conv", "x w", "z", geometry(stride, padding, dilations=dilation, group=groups))]
        nodes += [("ReduceMean", "z", "mean", channel), ("ReduceMean", "z", "m", keep), ("Sub", "z m", "d", {})]
        nodes += [("Mul", "d d", "dd", {}), ("ReduceMean", "dd", "biased", channel), ("ReduceMean", "dd", "b", keep)]
        nodes += [("Mul", "biased unbias", "unbiased", {}), ("Mul", "b unbias", "u", {})]
        root = [("Sqrt", "u", "s", {}), ("Add", "s eps", "t", {})]
        nodes += root if eps_outside else [("Add", "b eps", "s", {}), ("Sqrt", "s", "t", {})]
        nodes += [("Div", "d t", "y" if gamma is None else "n", {})]
        nodes += [] if gamma is None else [("Mul", "n gamma", "g", {}), ("Add", "g beta", "y", {})]
        for name, new in () if mean is None else (("mean", "mean"), ("var", "unbiased")):
            nodes += [("Mul", f"old_{name} keep", f"o_{name}", {}), ("Mul", f"{new} take", f"n_{name}", {})]
            nodes += [("Add", f"o_{name} n_{name}", f"new_{name}", {})]
        outputs = {"y": 4, "mean": 1, "unbiased" if eps_outside else "biased": 1}
        feeds = {name: np.asarray(a, np.float32) for name, a in feeds.items()}
        return run(nodes, feeds, outputs | ({} if mean is None else {"new_mean": 1, "new_var": 1}), constants)

    return impl


as_constants, as_inputs = register("opencv-cpu", True), register("opencv-cpu-inputs", False)


@as_constants.implements("avg_pool_forward", when=lambda p: p.n > 0 and p.divisor_override is None)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad):
    """Run AveragePool."""
    more = {"ceil_mode": int(ceil_mode), "count_include_pad": int(count_include_pad)}
    how = geometry(stride, padding, kernel_shape=kernel_size, **more)
    return run([("AveragePool", "x", "y", how)], {"x": x}, {"y": 4})[0]


@as_constants.implements("max_pool_forward", when=lambda p: p.n > 0)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode):
    """Run MaxPool."""
    how = geometry(stride, padding, kernel_shape=kernel_size, dilations=dilation, ceil_mode=int(ceil_mode))
    return run([("MaxPool", "x", "y", how)], {"x": x}, {"y": 4})[0]


@as_constants.implements(
    "matmul", dtypes=("fp32", "fp64"), contract=Contract(), layouts=MATRICES, when=lambda p: p.batch == 1 and p.m > 0
)
def matmul(a, b, bias, *, layout):
    """Run cv2.gemm, whose third matrix is the bias in every row."""
    return gemm(a, b, None if bias is None else np.tile(bias, (a.shape[layout[0] == "t"], 1)), layout=layout)


@as_constants.implements(
    "gemm", dtypes=("fp32", "fp64"), contract=Contract(), layouts=MATRICES, when=lambda p: p.batch == 1 and p.m > 0
)
def gemm(a, b, c, *, layout, alpha=1.0, beta=1.0):
    """Run cv2.gemm."""
    flags = cv2.GEMM_1_T * (layout[0] == "t") + cv2.GEMM_2_T * (layout[1] == "t")
    return cv2.gemm(a, b, alpha, c, beta, flags=flags)
