"""ncnn on the CPU (x86): a Net of one or two layers for each problem, run by an Extractor.

The filter and the bias of (de)convolutions are inputs of the net (`dynamic_weight`), so that a net belongs to a problem
and not to its data; only BatchNorm has no such form, its four vectors are loaded from a file. ncnn takes NCHW alone.
A Mat of `batch_index=0` is a batch. Backward-data is Deconvolution, with its output padding for rows that no window
reaches. Gemm multiplies c by alpha, too. No other gradient, batch statistics, empty Mat, pooling dilation, divisor;
full padding (ceil mode) keeps a last window that starts beyond the image and counts what it adds as padding. x86 has no
fp16 storage; `use_bf16_storage` is bf16, by instructions (VDPBF16PS, VCVTNEPS2BF16) that flush subnormal numbers.
`ncnn-cpu` is without Winograd, ncnn's default; `ncnn-winograd-cpu` has F(2x2) and F(4x4), but not F(6x6), which no
contract describes.
"""

import tempfile

import ml_dtypes
import ncnn
import numpy as np

from conformance import Contract, Implementation, Unsupported

engine = Implementation("ncnn-cpu", version=ncnn.__version__)
winograd = Implementation("ncnn-winograd-cpu", version=ncnn.__version__, contract=Contract(algorithm="winograd-f4"))
MATRICES = {"layouts": ("nn", "nt", "tn", "tt"), "when": lambda p: p.batch == 1 and p.m * p.k > 0}
SCALED = MATRICES | {"when": lambda p: MATRICES["when"](p) and (not p.beta or np.frexp(p.alpha)[0] in (0.5, -0.5))}
FLUSHED = {"dtypes": ("bf16",), "contract": Contract(subnormals="flushed")}
STORED = {"dtypes": ("bf16",), "contract": Contract(subnormals="flushed", between="storage")}


def build(inputs, layers, bf16, winograd, weights=None):
    net = ncnn.Net()
    net.opt.num_threads, net.opt.use_bf16_storage = 1, bf16
    net.opt.use_fp16_storage = net.opt.use_fp16_packed = net.opt.use_fp16_arithmetic = False
    net.opt.use_winograd_convolution, net.opt.use_winograd63_convolution = winograd, False
    lines = [*(f"Input {name} 0 1 {name}" for name in inputs), *layers]
    param = "\n".join(("7767517", f"{len(lines)} {len(lines)}", *lines, ""))
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        file.write(weights or b"")
        if net.load_param_mem(param) or net.load_model(file.name if weights else ncnn.DataReaderFromEmpty()):
            raise RuntimeError(f"ncnn does not load {param}")
    return net


def compute(layers, x, *, winograd=False, weights=None, batch=0, **others):  # 233: no batch
    bf16 = x.dtype == ml_dtypes.bfloat16
    mats = {n: ncnn.Mat(v.view(np.uint16) if bf16 else v) for n, v in others.items() if v is not None}
    mats["x"] = ncnn.Mat(x.view(np.uint16) if bf16 else x, batch_index=batch)
    net = build(mats, layers, bf16, winograd, weights)
    extractor = net.create_extractor()
    for name, mat in mats.items():
        extractor.input(name, ncnn.cast_bfloat16_to_float32(mat, net.opt) if bf16 else mat)
    code, y = extractor.extract("y")  # fp32, whatever the storage
    if code:
        raise RuntimeError(f"ncnn: {code}")
    bits = ncnn.cast_float32_to_bfloat16(y, net.opt) if bf16 else y
    return bits.numpy("H" if bf16 else "f", batch_index=batch).view(x.dtype)


def conv_line(kind, output, w, bias, stride, padding, dilation, groups, more):
    (top, bottom), (left, right) = padding
    sources = "2 1 x w" if bias is None else "3 1 x w b"
    k = w.shape[0] if kind == "Convolution" else w.shape[1] * groups
    return (
        f"{kind + 'DepthWise' * (groups > 1)} conv {sources} {output} 0={k} 1={w.shape[3]} 11={w.shape[2]}"
        f" 2={dilation[1]} 12={dilation[0]} 3={stride[1]} 13={stride[0]} 4={left} 14={top} 15={right} 16={bottom}"
        f" 5={int(bias is not None)} 6={w.size} 7={groups} {more}"
    )


@engine.implements("conv_forward", when=lambda p: p.n > 0)
@engine.implements("conv_forward", when=lambda p: p.n > 0, **FLUSHED)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    return compute([conv_line("Convolution", "y", w, bias, stride, padding, dilation, groups, "19=1")], x, w=w, b=bias)


@winograd.implements("conv_forward", when=lambda p: p.n > 0 and p.r == p.s == 3 and p.groups == 1)
def conv_winograd(x, w, bias, *, stride, padding, dilation, groups):
    line = conv_line("Convolution", "y", w, bias, stride, padding, dilation, groups, "19=1")
    return compute([line], x, winograd=True, w=w, b=bias)


@engine.implements("conv_backward_data", when=lambda p: p.n > 0)  # in bf16, other groups crash ncnn 1.0.20261020
@engine.implements("conv_backward_data", when=lambda p: p.n and p.groups in (1, p.c == p.k and p.c), **FLUSHED)
def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
    sizes = zip(input_size, dy.shape[2:], stride, dilation, w.shape[2:], padding, strict=True)
    bottom, right = (size - ((n - 1) * u + d * (r - 1) + 1 - sum(p)) for size, n, u, d, r, p in sizes)
    line = conv_line("Deconvolution", "y", w, None, stride, padding, dilation, groups, f"18={right} 19={bottom} 28=1")
    return compute([line], dy, w=w)


@engine.implements("conv_bn_inference", when=lambda p: p.n and not p.eps_outside)
@engine.implements("conv_bn_inference", when=lambda p: p.n and not p.eps_outside, **STORED)
def conv_bn_inference(x, w, gamma, beta, running_mean, running_var, *, stride, padding, dilation, groups, eps):
    slope, shift = (np.ones_like(running_mean), np.zeros_like(running_mean)) if gamma is None else (gamma, beta)
    line = conv_line("Convolution", "z", w, None, stride, padding, dilation, groups, "19=1")
    weights = np.stack([slope, running_mean, running_var, shift]).tobytes()
    return compute([line, f"BatchNorm bn 1 1 z y 0={w.shape[0]} 1={eps}"], x, w=w, weights=weights)


def pool(x, kind, kernel_size, stride, padding, ceil_mode, more=""):
    (top, bottom), (left, right) = padding
    for n, r, u, p in zip(x.shape[2:], kernel_size, stride, padding, strict=True):
        if ceil_mode and -(-(n + sum(p) - r) // u) * u >= n + p[0]:
            raise Unsupported("full padding keeps a last window that starts beyond the image")
    line = f"Pooling pool 1 1 x y 0={kind} 1={kernel_size[1]} 11={kernel_size[0]} 2={stride[1]} 12={stride[0]}"
    return compute([f"{line} 3={left} 13={top} 14={right} 15={bottom} 5={0 if ceil_mode else 1} {more}"], x)


@engine.implements("avg_pool_forward", when=lambda p: p.n and not p.divisor_override)
@engine.implements("avg_pool_forward", when=lambda p: p.n and not p.divisor_override, **FLUSHED)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad):
    counted = count_include_pad and padding != ((0, 0), (0, 0))
    axes = zip(x.shape[2:], kernel_size, stride, padding, strict=True)
    if counted and ceil_mode and any((n + sum(p) - r) % u for n, r, u, p in axes):
        raise Unsupported("full padding counts what it adds where padding is counted")
    return pool(x, 1, kernel_size, stride, padding, ceil_mode, f"6={int(counted)}")


@engine.implements("max_pool_forward", when=lambda p: p.n and p.dilation == (1, 1))
@engine.implements("max_pool_forward", when=lambda p: p.n and p.dilation == (1, 1), **FLUSHED)
def max_pool_forward(x, *, kernel_size, stride, padding, ceil_mode):
    return pool(x, 0, kernel_size, stride, padding, ceil_mode)


@engine.implements("matmul", layouts=("nn", "nt"), when=lambda p: not p.bias and p.m * p.k > 0)
@engine.implements("matmul", layouts=("nn", "nt"), when=lambda p: not p.bias and p.m * p.k > 0, **FLUSHED)
def matmul(a, b, bias, *, layout):
    return compute([f"MatMul product 2 1 x b y 0={int(layout[1] == 't')}"], a, b=b, batch=233)


def gemm(a, b, c, *, layout, alpha=1.0, beta=1.0):  # ncnn's beta is multiplied by alpha
    names, turned = "3 1 x b c" if beta and c is not None else "2 1 x b", [int(lies == "t") for lies in layout]
    line = f"Gemm product {names} y 0={alpha} 1={beta / alpha} 2={turned[0]} 3={turned[1]}"
    return compute([line], a, b=b, c=c if beta else None, batch=233)


for how in ({}, FLUSHED):
    engine.implements("gemm", **SCALED, **how)(gemm)
    engine.implements("matmul", **MATRICES, **how)(
        lambda a, b, bias, *, layout: gemm(a, b, None if bias is None else bias[None], layout=layout)
    )
