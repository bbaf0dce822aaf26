"""Known-good: other right algorithms, declared as the guide's Contract section says."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ml_dtypes
import numpy as np
from _kit import *  # noqa
from _kit import A, Contract, Implementation, R, Unsupported, right, signature

np.seterr(all="ignore")


def good(name, ops, fn, dtypes=("fp32",), layouts=("nchw",), when=None, **contract):
    impl = Implementation("good-" + name)
    more = {"when": when} if when else {}
    if contract:
        more["contract"] = Contract(**contract)
    for op in ops:
        impl.implements(op, dtypes=dtypes, layouts=layouts, **more)(signature(op, lambda ins, kw, op=op: fn(op, ins, kw)))
    globals()["good_" + name.replace("-", "_")] = impl


# 01 fp64 accumulation, one rounding
good("01-fp64", R.OPS, lambda op, ins, kw: right(op, ins, kw, acc=np.float64), ("fp32", "fp16", "bf16"), BOTH, accumulate="fp64")


# 02 tf32 inputs, to nearest even
def tf32(a):
    if a is None or a.dtype != np.float32:
        return a
    b = np.ascontiguousarray(a).view(np.uint32)
    r = (b + 0xFFF + ((b >> 13) & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(a), r.astype(np.uint32).view(np.float32), a)


good("02-tf32", (CF, CD, CW), lambda op, ins, kw: right(op, [tf32(ins[0]), tf32(ins[1]), *ins[2:]], kw) if op != CW or not kw.with_bias
     else (right(op, [tf32(ins[0]), tf32(ins[1])], kw)[0], right(op, ins, kw)[1]), layouts=BOTH, inputs="tf32")


# 03 bf16 inputs
def b16(a):
    return a.astype(ml_dtypes.bfloat16).astype(np.float32)


good("03-bf16-inputs", (CF, CD), lambda op, ins, kw: right(op, [b16(ins[0]), b16(ins[1]), *ins[2:]], kw), inputs="bf16")


# 04 split-K with bf16 partials: channels in four parts; 05 with fp32 partials
def split(store):
    def run(op, ins, kw):
        x, w, bias = (R.wide(a) for a in ins)
        parts = np.array_split(np.arange(x.shape[1]), 4)
        y = sum(R.fwd(x[:, c], w[:, c], None, kw.stride, kw.padding, kw.dilation, 1).astype(store).astype(np.float32) for c in parts if len(c))
        y = y if bias is None else y + R.col(bias)
        return y.astype(ins[0].dtype)
    return run


good("04-splitk-bf16", (CF,), split(ml_dtypes.bfloat16), when=lambda p: p.groups == 1, splits=4, partials="bf16")
good("05-splitk-fp32", (CF,), split(np.float32), ("fp32", "bf16"), when=lambda p: p.groups == 1, splits=4, partials="fp32")


# 06 FFT
def fft(op, ins, kw):
    x, w, bias = ins
    xp = R.padded(x, kw.padding)
    k, cg, r, s = w.shape
    (dh, dw), g = kw.dilation, kw.groups
    wd = np.zeros((k, cg, (r - 1) * dh + 1, (s - 1) * dw + 1), np.float32)
    wd[:, :, ::dh, ::dw] = w
    shape = xp.shape[2:]
    fx, fw = np.fft.rfft2(xp), np.conj(np.fft.rfft2(wd, shape))
    n = x.shape[0]
    f = np.einsum("ngchw,gkchw->ngkhw", fx.reshape(n, g, cg, *fx.shape[2:]), fw.reshape(g, k // g, cg, *fw.shape[2:])).reshape(n, k, *fx.shape[2:])
    y = np.fft.irfft2(f, shape)[:, :, : shape[0] - wd.shape[2] + 1 : kw.stride[0], : shape[1] - wd.shape[3] + 1 : kw.stride[1]]
    y = y if bias is None else y + R.col(bias)
    return np.ascontiguousarray(y.astype(np.float32))


good("06-fft", (CF,), fft, algorithm="fft")

# 07 Winograd F(2x2, 3x3)
BT = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float32)
G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
AT = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32)


def winograd(op, ins, kw):
    x, w, bias = ins
    (t, b), (l, r) = kw.padding
    p, q = x.shape[2] + t + b - 2, x.shape[3] + l + r - 2
    ph, pw = -(-p // 2), -(-q // 2)
    xp = R.padded(x, kw.padding, (2 * ph + 2, 2 * pw + 2))
    tiles = np.lib.stride_tricks.sliding_window_view(xp, (4, 4), axis=(2, 3))[:, :, ::2, ::2][:, :, :ph, :pw]
    v = BT @ np.ascontiguousarray(tiles) @ BT.T
    u = G @ w @ G.T
    m = np.einsum("kcij,nchwij->nkhwij", u, v, optimize=True)
    y = (AT @ m @ AT.T).transpose(0, 1, 2, 4, 3, 5).reshape(x.shape[0], w.shape[0], 2 * ph, 2 * pw)[:, :, :p, :q]
    return np.ascontiguousarray(y if bias is None else y + R.col(bias)).astype(np.float32)


good("07-winograd-f2", (CF,), winograd, algorithm="winograd-f2", when=lambda p: p.r == p.s == 3 and p.groups == 1 and tuple(p.stride) == (1, 1) == tuple(p.dilation))


# 08 raw moments, for batch normalisation forward
def raw(op, ins, kw):
    x, w, gamma, beta, rm, rv = (R.wide(a) for a in ins)
    z = R.fwd(x, w, None, kw.stride, kw.padding, kw.dilation, kw.groups)
    f = R.per_channel(z)
    m = f.shape[1]
    mean = f.mean(1)
    biased = np.maximum(np.square(f).mean(1) - mean * mean, 0)
    unbiased = biased * np.float32(m / (m - 1))
    var = unbiased if kw.eps_outside else biased
    y = (z - R.col(mean)) / R.col(R.root(var, np.float32(kw.eps), kw.eps_outside))
    if gamma is not None:
        y = y * R.col(gamma) + R.col(beta)
    out = [y.astype(ins[0].dtype), mean, var]
    if rm is not None:
        a = np.float32(kw.momentum)
        out += [(1 - a) * rm + a * mean, (1 - a) * rv + a * unbiased]
    return tuple(out)


good("08-raw-variance", (BF,), raw, ("fp32", "bf16"), variance="raw")

# 09 separate kernels: the convolution's result is stored in the tensors' format
good("09-storage", (BF, BI), lambda op, ins, kw: right(op, ins, kw, between=True), ("bf16", "fp32"), BOTH, between="storage")


# 10 subnormals flushed, in and out
def flush(a):
    if a is None:
        return None
    return np.where(np.abs(a) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), a), a).astype(a.dtype)


good("10-flushed", (CF, CD), lambda op, ins, kw: flush(right(op, [flush(a) for a in ins], kw)), subnormals="flushed")


# 11 refuses strided inputs with a message; nhwc only
def dense(op, ins, kw):
    for a in ins:
        if a is not None and not a.flags.c_contiguous:
            raise Unsupported("strided inputs: call ascontiguousarray first")
    return right(op, ins, kw)


good("11-dense-nhwc", (CF, AF, MF), dense, ("fp32", "bf16"), ("nhwc",))


# 12 im2col and one product per image, only square odd windows
def im2col(op, ins, kw):
    x, w, bias = (R.wide(a) for a in ins)
    k, c, r, s = w.shape
    p, q = R.out_size(x.shape[2], kw.padding[0], r, kw.stride[0], kw.dilation[0]), R.out_size(x.shape[3], kw.padding[1], s, kw.stride[1], kw.dilation[1])
    xp = R.padded(x, kw.padding)
    cols = np.stack([xp[at] for _, _, at in R.taps(r, s, p, q, kw.stride, kw.dilation)], 2).reshape(x.shape[0], c * r * s, p * q)
    y = (w.reshape(k, -1) @ cols).reshape(x.shape[0], k, p, q)
    return (y if bias is None else y + R.col(bias)).astype(ins[0].dtype)


good("12-im2col", (CF,), im2col, ("fp32", "fp16", "bf16"), when=lambda p: p.groups == 1 and p.r == p.s and p.r % 2 == 1)
