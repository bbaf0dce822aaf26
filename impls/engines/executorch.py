"""ExecuTorch's XNNPACK delegate on the CPU, through the Python runtime.

A problem becomes a module of one PyTorch call (two with one-sided padding or batch normalisation): torch.export ->
to_edge_transform_and_lower(XnnpackPartitioner) -> .pte -> executorch.runtime. Filters and parameters are constants of
the program. What the partitioner leaves outside the delegate is refused: a portable kernel would run it.

Not taken: fp64 and bf16 (the partitioner takes fp32 and fp16; in batch normalisation fp32 only), empty tensors,
gradients and batch statistics (XNNPACK has none; conv_backward_data is its transposed convolution). x is not copied.
"""

import threading
from importlib.metadata import version

import torch
from executorch.backends.xnnpack.partition import config
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
from executorch.runtime import Runtime
from torch.nn import functional as F  # noqa: N812

from conformance import Contract, Implementation, Unsupported, torch_arrays

# pthreadpool.h, PTHREADPOOL_FLAG_DISABLE_DENORMALS: "Disable support for denormalized numbers to the maximum extent"
FLUSHED, CPU = Contract(subnormals="flushed"), torch_arrays("cpu")
executorch = Implementation("executorch-xnnpack", "cpu", CPU, FLUSHED, version("executorch"), compiles_per_shape=True)
FAST = EdgeCompileConfig(_check_ir_validity=False)  # halves the time to lower, as does a list of partitioner configs
NAMES = ("Convolution", "BatchNorm", "AvgPooling", "MaxPool2d", "ConstantPad")
CONFIGS = [getattr(config, f"{name}Config") for name in NAMES]
LOCK = threading.Lock()  # a loaded method has one set of buffers, and torch.export is not reentrant
PROGRAMS, FORMATS = {}, {"nchw": "contiguous_format", "nhwc": "channels_last"}
BOTH = {"dtypes": ("fp32", "fp16"), "layouts": ("nchw", "nhwc")}
_unsafe_reset_threadpool(1)


class Call(torch.nn.Module):
    def __init__(self, function, constants):
        super().__init__()
        self.function, self.count = function, len(constants)
        for i, constant in enumerate(constants):  # lowering asserts that filters are not channels-last
            setattr(self, f"constant{i}", constant if constant is None else constant.contiguous())

    def forward(self, x):
        return self.function(x, *(getattr(self, f"constant{i}") for i in range(self.count)))


def build(function, constants, shape, dtype, layout):
    x = torch.zeros(shape, dtype=dtype).to(memory_format=getattr(torch, FORMATS[layout]))
    with torch.no_grad():
        program = torch.export.export(Call(function, constants).eval(), (x,))
        edge = to_edge_transform_and_lower(program, None, [XnnpackPartitioner(configs=CONFIGS)], None, FAST)
    nodes = edge.exported_program().graph.nodes
    names = {getattr(node.target, "__name__", str(node.target)) for node in nodes if node.op == "call_function"}
    if names != {"executorch_call_delegate", "getitem"}:
        raise Unsupported(f"not delegated to XNNPACK: {', '.join(sorted(names))}")
    return Runtime.get().load_program(edge.to_executorch().buffer)


def run(function, arguments, x, constants, layout):
    if not x.numel():
        raise Unsupported("the partitioner leaves out empty tensors")
    if layout == "nhwc":
        x, *constants = (t.permute(0, 3, 1, 2) if t is not None and t.ndim == 4 else t for t in (x, *constants))
    values = tuple(c if c is None else (c.shape, c.numpy().tobytes()) for c in constants)
    key = (arguments, x.shape, x.dtype, layout, values)
    with LOCK:
        if key not in PROGRAMS:
            PROGRAMS[key] = build(function, constants, x.shape, x.dtype, layout)
        if len(PROGRAMS) > 16:
            del PROGRAMS[next(iter(PROGRAMS))]
        y = PROGRAMS[key].load_method("forward").execute([x])[0]
    return y.contiguous() if layout == "nchw" else y.permute(0, 2, 3, 1).contiguous()


def split(padding, most=(1 << 30, 1 << 30), value=0.0):
    (top, bottom), (left, right) = padding
    if top == bottom <= most[0] and left == right <= most[1]:
        return (top, left), lambda x: x
    return (0, 0), lambda x: F.pad(x, (left, right, top, bottom), "constant", value)


@executorch.implements("conv_forward", **BOTH)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    p, pad = split(padding)
    a = (stride, p, dilation, groups)
    return run(lambda x, w, b: F.conv2d(pad(x), w, b, *a), ("conv", padding, *a), x, (w, bias), layout)


@executorch.implements("conv_backward_data", **BOTH, when=lambda p: all(a == b for a, b in p.padding))
def conv_backward_data(dy, w, *, stride, padding, dilation, groups, layout, input_size):
    p = tuple(before for before, _ in padding)
    (size, window) = (dy.shape[2:], w.shape[2:]) if layout == "nchw" else (dy.shape[1:3], w.shape[1:3])
    parts = zip(input_size, size, window, stride, p, dilation, strict=True)
    a = (stride, p, tuple(i - ((o - 1) * u - 2 * b + d * (r - 1) + 1) for i, o, r, u, b, d in parts), groups, dilation)
    return run(lambda dy, w: F.conv_transpose2d(dy, w, None, *a), ("data", *a), dy, (w,), layout)


@executorch.implements("conv_bn_inference", layouts=BOTH["layouts"], when=lambda p: not p.eps_outside)
def conv_bn_inference(x, w, gamma, beta, mean, var, *, stride, padding, dilation, groups, eps, layout):
    p, pad = split(padding)
    a = (stride, p, dilation, groups)
    fused = lambda x, w, *more: F.batch_norm(F.conv2d(pad(x), w, None, *a), *more, eps=eps)  # noqa: E731
    return run(fused, ("bn", padding, *a, eps), x, (w, mean, var, gamma, beta), layout)


@executorch.implements("avg_pool_forward", **BOTH)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout):
    counted = count_include_pad or divisor_override is not None
    p, pad = split(padding, (0, 0) if counted else [k // 2 for k in kernel_size])
    if not counted and p == (0, 0) and any(map(any, padding)):
        raise Unsupported("padding that is not counted is the same on both sides, and at most half a window")
    a = (kernel_size, stride, p, ceil_mode, counted, divisor_override)
    return run(lambda x: F.avg_pool2d(pad(x), *a), ("avg", padding, *a), x, (), layout)


@executorch.implements("max_pool_forward", **BOTH)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode, layout):
    p, pad = split(padding, [k // 2 for k in kernel_size], float("-inf"))
    a = (kernel_size, stride, p, dilation, ceil_mode)
    return run(lambda x: F.max_pool2d(pad(x), *a), ("max", padding, *a), x, (), layout)
