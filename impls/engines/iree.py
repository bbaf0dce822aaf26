"""IREE on the CPU: ATen operations in the torch dialect, compiled for llvm-cpu (the host), run by local-sync.

This is what torch.export and iree-turbine give the compiler: NCHW, with the same padding on both sides. Transposed
convolution is backward-data. `avg_pool2d_backward` is no operation of the dialect, and `batch_norm` takes no fp32
parameters beside 16-bit tensors. One compilation a problem, which is kept. Subnormal numbers are flushed, see IREE's
runtime/src/iree/base/internal/fpu_state.h.
"""

import functools

import iree.compiler.api as compiler
import iree.compiler.version
import iree.runtime as rt

from conformance import Contract, Implementation

engine = Implementation("iree-cpu", version=iree.compiler.version.VERSION, contract=Contract(subnormals="flushed"))
TAKES = {"dtypes": ("fp32", "fp64", "fp16", "bf16"), "when": lambda p: all(a == b for a, b in p.padding)}
FLAGS = (
    "--iree-hal-target-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-input-type=torch",
    "--iree-input-demote-f64-to-f32=false",
)
device = rt.get_device("local-sync")


@functools.lru_cache(maxsize=64)
def compiled(text):
    session = compiler.Session()
    session.set_flags(*FLAGS)
    invocation, output = session.invocation(), compiler.Output.open_membuffer()
    source = compiler.Source.wrap_buffer(session, text.encode() + b"\0")
    if not (invocation.parse_source(source) and invocation.execute()):
        raise RuntimeError(f"IREE does not compile {text}")
    invocation.output_vm_bytecode(output)
    return rt.load_vm_flatbuffer(bytes(output.map_memory()), driver="local-sync").main


class Graph:
    """A function of `arrays`, line by line; a value is the pair of its name and type."""

    def __init__(self, *arrays):
        self.arrays, self.lines = [a for a in arrays if a is not None], []
        self.kind = arrays[0].dtype.name.replace("float", "f")
        self.args = [None if a is None else (f"%a{i}", self.type(a.shape)) for i, a in enumerate(arrays)]

    def type(self, shape, kind=None):
        return f"!torch.vtensor<[{','.join(map(str, shape))}],{kind or self.kind}>"

    def emit(self, text, *types):
        names = [f"%v{len(self.lines)}_{i}" for i in range(len(types))]
        self.lines.append(f"{', '.join(names)} = {text}")
        return list(zip(names, types, strict=True))

    def value(self, v):
        """A value of a Python number, list or None; values stay what they are."""
        if isinstance(v, list | tuple) and not isinstance(v[0], str):
            items = [self.value(x) for x in v]
            names, types = (", ".join(x) for x in zip(*items, strict=True))
            kind = f"!torch.list<{items[0][1].removeprefix('!torch.')}>"
            return self.emit(f"torch.prim.ListConstruct {names} : ({types}) -> {kind}", kind)[0]
        kind = "none" if v is None else type(v).__name__
        text = f"torch.constant.{kind} {'' if v is None else str(v).lower()}"
        return v if isinstance(v, tuple) else self.emit(text, f"!torch.{kind}")[0]

    def __call__(self, op, *operands, to):
        """Results of these shapes or types (None: one that is not asked for)."""
        types = ["!torch.none" if t is None else t if isinstance(t, str) else self.type(t) for t in to]
        names, kinds = (", ".join(x) for x in zip(*map(self.value, operands), strict=True))
        return self.emit(f"torch.aten.{op} {names} : {kinds} -> {', '.join(types)}", *types)

    def run(self, *results):
        names, types = (", ".join(x) for x in zip(*results, strict=True))
        head = ", ".join(": ".join(a) for a in self.args if a)
        text = "\n".join((f"func.func @main({head}) -> ({types}) {{", *self.lines, f"return {names} : {types}", "}"))
        out = compiled(text)(*(rt.asdevicearray(device, a) for a in self.arrays))
        return tuple(o.to_host() for o in out) if len(results) > 1 else out.to_host()


def out_shape(x, channels, window, stride, padding, dilation=(1, 1), ceil_mode=False):
    axes = list(zip(x.shape[2:], window, stride, padding, dilation, strict=True))
    steps = [(n + sum(p) - d * (r - 1) - 1 + (u - 1) * ceil_mode) // u for n, r, u, p, d in axes]
    starts = [k * u < n + p[0] or not ceil_mode for k, (n, _, u, p, _) in zip(steps, axes, strict=True)]
    return (x.shape[0], channels, *(k + more for k, more in zip(steps, starts, strict=True)))


def conv(g, x, w, bias, stride, padding, dilation, groups):
    shape, low = out_shape(x, w.shape[0], w.shape[2:], stride, padding, dilation), [a for a, _ in padding]
    return shape, g("convolution", *g.args[:2], bias, stride, low, dilation, False, [0, 0], groups, to=[shape])[0]


@engine.implements("conv_forward", **TAKES)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    g = Graph(x, w, bias)
    return g.run(conv(g, x, w, g.args[2], stride, padding, dilation, groups)[1])


@engine.implements("conv_bn_inference", dtypes=("fp32", "fp64"), when=lambda p: TAKES["when"](p) and not p.eps_outside)
def conv_bn_inference(x, w, gamma, beta, running_mean, running_var, *, stride, padding, dilation, groups, eps):
    g = Graph(x, w, gamma, beta, running_mean, running_var)
    shape, z = conv(g, x, w, None, stride, padding, dilation, groups)
    return g.run(*g("batch_norm", z, *g.args[2:], False, 0.1, eps, False, to=[shape]))


@engine.implements("conv_backward_data", **TAKES)
def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
    g, low, shape = Graph(dy, w), [a for a, _ in padding], (dy.shape[0], w.shape[1] * groups, *input_size)
    sizes = zip(input_size, dy.shape[2:], stride, dilation, w.shape[2:], low, strict=True)
    more = [h - (n - 1) * u - d * (r - 1) - 1 + 2 * p for h, n, u, d, r, p in sizes]
    return g.run(*g("convolution", *g.args, None, stride, low, dilation, True, more, groups, to=[shape]))


@engine.implements("conv_backward_weight", **TAKES)
def conv_backward_weight(x, dy, *, stride, padding, dilation, groups, kernel_size, with_bias):
    g, k, shape = Graph(x, dy), dy.shape[1], (dy.shape[1], x.shape[1] // groups, *kernel_size)
    (w,) = g("zeros", shape, None, None, None, None, to=[shape])
    results = g(
        "convolution_backward",
        g.args[1],
        g.args[0],
        w,
        [k],
        stride,
        [a for a, _ in padding],
        dilation,
        False,
        [0, 0],
        groups,
        [False, True, with_bias],
        to=[None, shape, (k,) if with_bias else None],
    )
    return g.run(*results[1 : 2 + with_bias])


@engine.implements("avg_pool_forward", **TAKES)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    g, shape = Graph(x), out_shape(x, x.shape[1], kernel_size, stride, padding, ceil_mode=ceil_mode)
    pool = kernel_size, stride, [a for a, _ in padding], ceil_mode, count_include_pad, divisor_override or None
    return g.run(*g("avg_pool2d", *g.args, *pool, to=[shape]))


@engine.implements("max_pool_forward", **TAKES)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode):
    g, shape = Graph(x), out_shape(x, x.shape[1], kernel_size, stride, padding, dilation, ceil_mode)
    pool = kernel_size, stride, [a for a, _ in padding], dilation, ceil_mode
    return g.run(*g("max_pool2d", *g.args, *pool, to=[shape]))


@engine.implements("max_pool_backward", **TAKES)
def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode):
    g, pool = Graph(dy, x), (kernel_size, stride, [a for a, _ in padding], dilation, ceil_mode)
    indices = g("max_pool2d_with_indices", g.args[1], *pool, to=[dy.shape, g.type(dy.shape, "si64")])[1]
    return g.run(*g("max_pool2d_with_indices_backward", *g.args, *pool, indices, to=[x.shape]))
