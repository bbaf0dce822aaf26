"""TVM on the CPU: a Relax function for each problem, legalised, compiled for llvm and run by the Relax virtual machine.

Convolution is relax.op.nn.conv2d, a product relax.op.matmul, with `out_dtype` fp32 (fp64; int32 of int8), rounded
once at the end; batch norm is operations behind it. Backward-data is conv2d_transpose (NCHW only); gradients of filters
and batch norm are relax.transform.Gradient of sum(y * dy), which takes no bf16; those of pooling are in relax.op.grad,
without dilation. Averages have no divisor. A virtual machine keeps the frames of its calls, so that threads exclude one
another: calls at once end with a register that is not there, or by SIGSEGV.
"""

import os
from functools import lru_cache, partial

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from conformance import Implementation

os.environ.setdefault("TVM_NUM_THREADS", "1")
engine = Implementation("tvm-cpu", version=tvm.__version__, unsafe=("threads",), compiles_per_shape=True)
DTYPES = ("fp32", "fp64", "fp16", "bf16")
NCHW, BOTH = {"dtypes": DTYPES}, {"dtypes": DTYPES, "layouts": ("nchw", "nhwc")}
MATRICES = ("nn", "nt", "tn", "tt")
UNDIVIDED, UNDILATED = {"when": lambda p: not p.divisor_override}, {"when": lambda p: p.dilation == (1, 1)}


@lru_cache(maxsize=64)
def compiled(function, signature, parameters, wrt):
    """Compile `function` of these shapes and dtypes; with `wrt`, compile its gradients, dy being the last argument."""
    builder = relax.BlockBuilder()
    given = [t and relax.Var(f"a{i}", relax.TensorType(*t)) for i, t in enumerate(signature)]
    with builder.function("main", [a for a in given if a is not None]):
        with builder.dataflow():
            y = function(builder.emit, *given[: -1 if wrt else None], **dict(parameters))
            y = builder.emit(op.sum(builder.emit(op.multiply(y, given[-1])))) if wrt else y
            result = builder.emit_output(relax.Tuple(y) if isinstance(y, list) else y)
        builder.emit_func_output(result)
    module = builder.get()
    if wrt:
        module = relax.transform.Gradient("main", require_grads=[module["main"].params[i] for i in wrt])(module)
    return relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())["main_adjoint" if wrt else "main"]


def compute(function, *arrays, padding=None, wrt=(), **parameters):
    if padding is not None:
        parameters["padding"] = tuple(before for before, _ in padding) + tuple(after for _, after in padding)
    signature = tuple(a if a is None else (a.shape, a.dtype.name) for a in arrays)
    main = compiled(function, signature, tuple(parameters.items()), wrt)
    result = main(*(tvm.runtime.tensor(a) for a in arrays if a is not None))
    result = result[1] if wrt else result
    return result.numpy() if isinstance(result, tvm.runtime.Tensor) else tuple(r.numpy() for r in result)


def conv(emit, x, w, bias=None, *, stride, padding, dilation, groups, layout, narrow=True):
    layouts, shape = (("NCHW", "OIHW"), (1, -1, 1, 1)) if layout == "nchw" else (("NHWC", "OHWI"), (-1,))
    wide = "float64" if x.ty.dtype == "float64" else "float32"
    y = emit(op.nn.conv2d(x, w, stride, padding, dilation, groups, *layouts, out_dtype=wide))
    y = y if bias is None else emit(op.add(y, emit(op.reshape(emit(op.astype(bias, wide)), shape))))
    return emit(op.astype(y, x.ty.dtype)) if narrow else y


def transposed(emit, dy, w, *, stride, padding, dilation, groups, input_size, layout):
    reach = [dilation[i] * (int(w.ty.shape[i + 2]) - 1) + 1 for i in (0, 1)]
    more = tuple((input_size[i] + padding[i] + padding[i + 2] - reach[i]) % stride[i] for i in (0, 1))
    wide = "float64" if dy.ty.dtype == "float64" else "float32"
    dx = emit(op.nn.conv2d_transpose(dy, w, stride, padding, more, dilation, groups, out_dtype=wide))
    return emit(op.astype(dx, dy.ty.dtype))


def conv_norm(emit, x, w, *vectors, eps, eps_outside, layout, given=False, momentum=None, **parameters):
    """Convolve and normalise by the batch's statistics or `given` ones; with a momentum, return new ones too."""
    z = conv(emit, x, w, layout=layout, narrow=False, **parameters)
    axes, shape = ([0, 2, 3], (1, -1, 1, 1)) if layout == "nchw" else ([0, 1, 2], (-1,))
    n, const = np.prod([int(z.ty.shape[i]) for i in axes]), partial(relax.const, dtype=z.ty.dtype)
    gamma, beta, *running = (v if v is None else emit(op.reshape(v, shape)) for v in vectors)
    mean, var = running if given else (emit(op.mean(z, axes, True)), emit(op.variance(z, axes, True)))
    unbiased = emit(op.multiply(var, const(n / (n - 1))))
    var = unbiased if eps_outside and not given else var
    root = op.add(op.sqrt(var), const(eps)) if eps_outside else op.sqrt(op.add(var, const(eps)))
    y = op.divide(op.subtract(z, mean), root)
    y = emit(op.astype(y if gamma is None else op.add(op.multiply(y, gamma), beta), x.ty.dtype))
    if momentum is None:
        return y
    pairs = [pair for pair in zip(running, (mean, unbiased), strict=True) if pair[0] is not None]
    running = [emit(op.add(op.multiply(const(1 - momentum), v), op.multiply(const(momentum), u))) for v, u in pairs]
    return [y, *(emit(op.reshape(v, (-1,))) for v in (mean, var, *running))]


def pool(emit, x, *more, kind, kernel_size, stride, padding, ceil_mode, layout, dilation=(1, 1), **parameters):
    how = {"count_include_pad": parameters.get("count_include_pad", False), "layout": layout.upper()}
    return emit(kind(x, *more, kernel_size, stride, padding, dilation, ceil_mode, **how))


def product(emit, a, b, bias=None, *, layout):
    axes = [*range(a.ty.ndim - 2), a.ty.ndim - 1, a.ty.ndim - 2]
    a, b = (t if lies == "n" else emit(op.permute_dims(t, axes)) for t, lies in zip((a, b), layout, strict=True))
    whole = a.ty.dtype == "int8"
    wide = "int32" if whole else "float64" if a.ty.dtype == "float64" else "float32"
    y = emit(op.matmul(a, b, out_dtype=wide))
    y = y if bias is None else emit(op.add(y, emit(op.astype(bias, wide))))
    return y if whole else emit(op.astype(y, a.ty.dtype))


@engine.implements("conv_backward_weight", dtypes=DTYPES[:3])
def conv_backward_weight(x, dy, *, kernel_size, with_bias, groups, **parameters):
    w, bias = np.zeros((dy.shape[1], x.shape[1] // groups, *kernel_size), x.dtype), np.zeros(dy.shape[1], x.dtype)
    arrays, wrt = ((x, w, bias, dy), (1, 2)) if with_bias else ((x, w, dy), (1,))  # of the zeros only the shape counts
    grads = compute(conv, *arrays, wrt=wrt, groups=groups, **parameters)
    return grads if with_bias else grads[0]


@engine.implements("conv_bn_backward", dtypes=DTYPES[:3])
def conv_bn_backward(dy, x, w, gamma, **parameters):
    beta, wrt = (None, (0, 1)) if gamma is None else (np.zeros_like(gamma), (0, 1, 2, 3))  # dbeta needs no beta
    return compute(conv_norm, x, w, gamma, beta, dy, wrt=wrt, **parameters)


def avg_pool_backward(dy, *, input_size, **parameters):
    x = np.zeros((*dy.shape[:2], *input_size), dy.dtype)  # for its shape
    return compute(pool, dy, x, kind=op.grad.avg_pool2d_backward, **parameters)


for operator, kernel, how in (
    ("matmul", partial(compute, product), {"dtypes": (*DTYPES, "int8"), "layouts": MATRICES}),
    ("conv_forward", partial(compute, conv), BOTH),
    ("conv_backward_data", partial(compute, transposed), NCHW),
    ("conv_bn_forward", partial(compute, conv_norm), BOTH),
    ("conv_bn_inference", partial(compute, conv_norm, given=True), BOTH),
    ("avg_pool_forward", partial(compute, pool, kind=op.nn.avg_pool2d), BOTH | UNDIVIDED),
    ("avg_pool_backward", avg_pool_backward, NCHW | UNDIVIDED),
    ("max_pool_forward", partial(compute, pool, kind=op.nn.max_pool2d), BOTH),
    ("max_pool_backward", partial(compute, pool, kind=op.grad.max_pool2d_backward), NCHW | UNDILATED),
):
    engine.implements(operator, **how)(kernel)
