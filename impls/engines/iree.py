"""IREE on the CPU: ATen operations in the torch dialect, compiled for llvm-cpu (the host), run by local-sync.

As torch.export gives it: NCHW, the same padding on both sides. Transposed convolution is backward-data. Not lowered:
`avg_pool2d_backward`, fp32 parameters beside 16-bit tensors, int8. Not taken: what is added to a product in 16 bits,
which is rounded twice; sums of no terms (k0). Subnormals are flushed: iree/base/internal/fpu_state.h.
"""

import functools

import iree.runtime as rt
from iree.compiler import api, version

from conformance import Contract, Implementation
from conformance.implementations.windows import windows

FLUSHED = Contract(subnormals="flushed")
engine = Implementation("iree-cpu", version=version.VERSION, contract=FLUSHED, compiles_per_shape=True)
TAKES = {"dtypes": ("fp32", "fp64", "fp16", "bf16"), "when": lambda p: all(a == b for a, b in p.padding)}
MATRICES, ADDMM = ("nn", "nt", "tn", "tt"), "https://docs.pytorch.org/docs/stable/generated/torch.addmm.html"
FLAGS = "hal-target-backends=llvm-cpu", "llvmcpu-target-cpu=host", "input-type=torch", "input-demote-f64-to-f32=false"


@functools.lru_cache(maxsize=64)
def compiled(text):
    session = api.Session()
    session.set_flags(*(f"--iree-{flag}" for flag in FLAGS))
    invocation, output = session.invocation(), api.Output.open_membuffer()
    source = api.Source.wrap_buffer(session, text.encode() + b"\0")
    if not (invocation.parse_source(source) and invocation.execute()):
        raise RuntimeError(f"IREE does not compile {text}")
    invocation.output_vm_bytecode(output)
    return rt.load_vm_flatbuffer(bytes(output.map_memory()), driver="local-sync").main


class Graph:  # a function of `arrays`, line by line; a value is the pair of its name and type
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

    def value(self, v):  # of a Python number, list or None; values stay as they are
        if isinstance(v, tuple) and isinstance(v[0], str):
            return v
        if isinstance(v, list | tuple):
            names, types = (", ".join(x) for x in zip(*map(self.value, v), strict=True))
            kind = types.split(",")[0].replace("torch.", "torch.list<") + ">"
            return self.emit(f"torch.prim.ListConstruct {names} : ({types}) -> {kind}", kind)[0]
        kind = "none" if v is None else type(v).__name__
        literal = {"none": "", "float": f"{v:.17e}" if kind == "float" else ""}.get(kind, str(v).lower())
        return self.emit(f"torch.constant.{kind} {literal}", f"!torch.{kind}")[0]

    def __call__(self, op, *operands, to):
        types = ["!torch.none" if t is None else t if isinstance(t, str) else self.type(t) for t in to]
        names, kinds = (", ".join(x) for x in zip(*map(self.value, operands), strict=True))
        return self.emit(f"torch.aten.{op} {names} : {kinds} -> {', '.join(types)}", *types)

    def run(self, *results):
        names, types = (", ".join(x) for x in zip(*results, strict=True))
        head = ", ".join(": ".join(a) for a in self.args if a)
        text = "\n".join((f"func.func @main({head}) -> ({types}) {{", *self.lines, f"return {names} : {types}", "}"))
        out = compiled(text)(*(rt.asdevicearray(rt.get_device("local-sync"), a) for a in self.arrays))
        return tuple(o.to_host() for o in out) if len(results) > 1 else out.to_host()


@engine.implements("conv_forward", **TAKES)
def conv_forward(x, w, bias, norm=(), eps=0.0, *, stride, padding, dilation, groups):
    g, axes = Graph(x, w, bias, *norm), windows(x.shape[2:], w.shape[2:], stride, padding, dilation)
    low, shape = [a for a, _ in padding], [len(x), len(w), *(a.outputs for a in axes)]
    (y,) = g("convolution", *g.args[:3], stride, low, dilation, False, [0, 0], groups, to=[shape])
    return g.run(*g("batch_norm", y, *g.args[3:], False, 0.1, eps, False, to=[shape])) if norm else g.run(y)


@engine.implements("conv_bn_inference", dtypes=("fp32", "fp64"), when=lambda p: TAKES["when"](p) and not p.eps_outside)
def conv_bn_inference(x, w, gamma, beta, running_mean, running_var, *, stride, padding, dilation, groups, eps):
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return conv_forward(x, w, None, (gamma, beta, running_mean, running_var), eps, **how)


@engine.implements("conv_backward_data", **TAKES)
def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
    g, low, shape = Graph(dy, w), [a for a, _ in padding], [dy.shape[0], w.shape[1] * groups, *input_size]
    more = [a.room % a.stride for a in windows(input_size, w.shape[2:], stride, padding, dilation)]
    return g.run(*g("convolution", *g.args, None, stride, low, dilation, True, more, groups, to=[shape]))


@engine.implements("conv_backward_weight", **TAKES)
def conv_backward_weight(x, dy, *, stride, padding, dilation, groups, kernel_size, with_bias):
    g, shape = Graph(dy, x), (dy.shape[1], x.shape[1] // groups, *kernel_size)
    (w,) = g("zeros", shape, None, None, None, None, to=[shape])
    how = stride, [a for a, _ in padding], dilation, False, [0, 0], groups, [False, True, with_bias]
    to = [None, shape, shape[:1] if with_bias else None]
    return g.run(*g("convolution_backward", *g.args, w, shape[:1], *how, to=to)[1 : 2 + with_bias])


@engine.implements("avg_pool_forward", **TAKES)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    g, axes = Graph(x), windows(x.shape[2:], kernel_size, stride, padding, ceil=ceil_mode)
    pool = kernel_size, stride, [a for a, _ in padding], ceil_mode, count_include_pad, divisor_override or None
    return g.run(*g("avg_pool2d", *g.args, *pool, to=[[*x.shape[:2], *(a.outputs for a in axes)]]))


@engine.implements("max_pool_forward", **TAKES)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode):
    g, axes = Graph(x), windows(x.shape[2:], kernel_size, stride, padding, dilation, ceil_mode)
    pool = kernel_size, stride, [a for a, _ in padding], dilation, ceil_mode
    return g.run(*g("max_pool2d", *g.args, *pool, to=[[*x.shape[:2], *(a.outputs for a in axes)]]))


@engine.implements("max_pool_backward", **TAKES)
def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode):
    g, pool = Graph(dy, x), (kernel_size, stride, [a for a, _ in padding], dilation, ceil_mode)
    indices = g("max_pool2d_with_indices", g.args[1], *pool, to=[dy.shape, g.type(dy.shape, "si64")])[1]
    return g.run(*g("max_pool2d_with_indices_backward", *g.args, *pool, indices, to=[x.shape]))


@engine.implements("gemm", dtypes=("fp32", "fp64"), layouts=MATRICES, when=lambda p: p.k > 0)
def gemm(a, b, c, *, layout, alpha=1.0, beta=1.0):
    g, turned, kind = Graph(a, b, c), [], "addmm" if a.ndim == 2 else "baddbmm"
    for value, t, lies in zip(g.args, (a, b), layout, strict=False):
        turned += [value] if lies == "n" else g("transpose.int", value, -2, -1, to=[t.swapaxes(-1, -2).shape])
    shape = (*a.shape[:-2], a.shape[-2 + (layout[0] == "t")], b.shape[-1 - (layout[1] == "t")])
    added = () if c is None else (g.args[2], *turned, float(beta), float(alpha))
    return g.run(*(g(kind, *added, to=[shape]) if added else g("matmul", *turned, to=[shape])))


@engine.implements("matmul", dtypes=("fp16", "bf16"), layouts=MATRICES, when=lambda p: not p.bias and p.k > 0)
@engine.implements("matmul", dtypes=("fp32", "fp64"), layouts=MATRICES, when=lambda p: p.k > 0)
def matmul(a, b, bias, *, layout):
    return gemm(a, b, bias, layout=layout)


engine.waive("gemm", reason="NaN in c reach the result although beta is 0", url=ADDMM, when=lambda p: p.beta == 0)
