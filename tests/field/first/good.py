"""Class 0: right kernels with other algorithms, declared as the guide says."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
import scipy.fft
from conformance import Contract, Unsupported
import _right as right
from _right import *

kit = Kit(globals(), "good")


@kit("plain", OPS, "", dtypes=ALL)
def _(R, i, p, o):
    return R(i, p)


@kit("fp64-accumulation", OPS, "", dtypes=("fp32", "bf16", "fp16"), contract=Contract(accumulate="fp64"))
def _(R, i, p, o):
    return R(i, p, acc=np.float64)


@kit("fp64-undeclared", OPS, "", dtypes=("fp32", "bf16", "fp16"))
def _(R, i, p, o):
    return R(i, p, acc=np.float64)


def patches(x, w, p, acc):
    """im2col: [N,G,Cg*R*S,PQ], [G,Kg,Cg*R*S]."""
    x, g = pad2(x.astype(acc), p["padding"]), p["groups"]
    n, c, h, wd = x.shape
    k, cg, R, S = w.shape
    (u, v), (d, e) = p["stride"], p["dilation"]
    P, Q = (h - d * (R - 1) - 1) // u + 1, (wd - e * (S - 1) - 1) // v + 1
    cols = np.stack([tap(x, r, s, p, P, Q) for r in range(R) for s in range(S)], 2)
    return cols.reshape(n, g, cg * R * S, P * Q), w.astype(acc).reshape(g, k // g, cg * R * S), (n, k, P, Q)


def im2col(x, w, p, acc):
    a, f, shape = patches(x, w, p, acc)
    return np.matmul(f, a).reshape(shape)


@kit("im2col-gemm", CONVS[:1], "", dtypes=ALL)
def _(R, i, p, o):
    return R(i, p, conv=im2col)


@kit("pairwise-fp32", CONVS[:1], "", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    def f(x, w, p, acc):
        a, f, shape = patches(x, w, p, acc)
        prod = np.ascontiguousarray((f[None, :, :, :, None] * a[:, :, None]).swapaxes(3, 4))
        return prod.sum(-1).reshape(shape)
    return R(i, p, conv=f)


@kit("fft", CONVS[:1], "", dtypes=("fp32",), when=lambda p: p.groups == 1, contract=Contract(algorithm="fft"))
def _(R, i, p, o):
    def f(x, w, p, acc):
        x = pad2(x.astype(acc), p["padding"])
        (u, v), (d, e) = p["stride"], p["dilation"]
        h, wd = x.shape[2:]
        k, c, R_, S_ = w.shape
        f = np.zeros((k, c, d * (R_ - 1) + 1, e * (S_ - 1) + 1), acc)
        f[:, :, ::d, ::e] = w
        s = (scipy.fft.next_fast_len(h, True), scipy.fft.next_fast_len(wd, True))
        X, F = scipy.fft.rfft2(x, s), scipy.fft.rfft2(f, s).conj()
        y = scipy.fft.irfft2(np.einsum("ncab,kcab->nkab", X, F), s)
        return y[:, :, : h - d * (R_ - 1) : u, : wd - e * (S_ - 1) : v].astype(acc)
    return R(i, p, conv=f)


WINO = {
    2: (np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]), np.array([[1, 0, 0], [.5, .5, .5], [.5, -.5, .5], [0, 0, 1]]), np.array([[1, 1, 1, 0], [0, 1, -1, -1]])),
    4: (np.array([[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]]),
        np.array([[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]),
        np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])),
}


def winograd(m):
    B, G, A = WINO[m]

    def f(x, w, p, acc):
        Bt, Gm, At = B.astype(acc), G.astype(acc), A.astype(acc)
        x, g = pad2(x.astype(acc), p["padding"]), p["groups"]
        n, c, h, wd = x.shape
        k, cg = w.shape[:2]
        P, Q = h - 2, wd - 2
        a, b = -(-P // m), -(-Q // m)
        x = np.pad(x, ((0, 0), (0, 0), (0, a * m + 2 - h), (0, b * m + 2 - wd)))
        t = np.lib.stride_tricks.sliding_window_view(x, (m + 2, m + 2), (2, 3))[:, :, ::m, ::m]
        V = (Bt @ t @ Bt.T).reshape(n, g, cg, a, b, m + 2, m + 2)
        U = (Gm @ w.astype(acc) @ Gm.T).reshape(g, k // g, cg, m + 2, m + 2)
        M = np.einsum("gkcij,ngcabij->ngkabij", U, V)
        y = At @ M @ At.T
        return y.reshape(n, k, a, b, m, m).transpose(0, 1, 2, 4, 3, 5).reshape(n, k, a * m, b * m)[:, :, :P, :Q]
    return f


THREE = lambda p: p.r == p.s == 3 and tuple(p.stride) == (1, 1) and tuple(p.dilation) == (1, 1)


@kit("winograd-f2", CONVS[:1], "", dtypes=("fp32", "bf16", "fp64"), when=THREE, contract=Contract(algorithm="winograd-f2"))
def _(R, i, p, o):
    return R(i, p, conv=winograd(2))


@kit("winograd-f4", CONVS[:1], "", dtypes=("fp32", "bf16", "fp64"), when=THREE, contract=Contract(algorithm="winograd-f4"))
def _(R, i, p, o):
    return R(i, p, conv=winograd(4))


def tf32(a):
    """Round to nearest even, 10 bits of fraction; NaN and Inf as they are."""
    b = np.ascontiguousarray(a).view(np.uint32)
    r = ((b + np.uint32(0xFFF) + ((b >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(a), r, a)


def rounding_inputs(f):
    def run(R, i, p, o):
        names = ARGS[o.op][0].split()
        return R([f(a) if n in IMAGES else a for n, a in zip(names, i)], p)
    return run


kit("tf32-inputs", CONVS, "", dtypes=("fp32",), contract=Contract(inputs="tf32"))(rounding_inputs(tf32))
kit("bf16-inputs", CONVS[:2], "", dtypes=("fp32",), contract=Contract(inputs="bf16"))(rounding_inputs(lambda a: a.astype(BF16).astype(np.float32)))


@kit("tf32-bias-exact-dw", CONVS[2:], "", dtypes=("fp32",), contract=Contract(inputs="tf32"))
def _(R, i, p, o):
    out = R([tf32(a) for a in i], p)
    return (out[0], R(i, p)[1]) if p["with_bias"] else out


def split(parts, dt):
    def f(x, w, p, acc):
        a, f, shape = patches(x, w, p, acc)
        y = np.zeros((shape[0], p["groups"], f.shape[1], a.shape[3]), acc)
        for idx in np.array_split(np.arange(f.shape[2]), parts):
            if idx.size:
                y += np.matmul(np.ascontiguousarray(f[:, :, idx]), a[:, :, idx]).astype(dt).astype(acc)
        return y.reshape(shape)
    return f


@kit("split-k-fp32", CONVS[:1], "", dtypes=("fp32", "bf16"), contract=Contract(splits=4, partials="fp32"))
def _(R, i, p, o):
    return R(i, p, conv=split(4, np.float32))


@kit("split-k-bf16", CONVS[:1], "", dtypes=("bf16",), contract=Contract(splits=4, partials="bf16"))
def _(R, i, p, o):
    return R(i, p, conv=split(4, BF16))


@kit("split-k-fp16", CONVS[:1], "", dtypes=("fp16",), contract=Contract(splits=3, partials="fp16"))
def _(R, i, p, o):
    return R(i, p, conv=split(3, np.float16))


def narrow(dt):
    def f(x, w, p, acc):
        a, f, shape = patches(x, w, p, np.float32)
        y = np.zeros((shape[0], p["groups"], f.shape[1], a.shape[3]), dt)
        for q in range(f.shape[2]):
            y = (y.astype(np.float32) + f[:, :, q, None] * a[:, :, None, q]).astype(dt)
        return y.reshape(shape).astype(np.float32)
    return f


@kit("fp16-accumulator", CONVS[:1], "", dtypes=("fp16",), contract=Contract(accumulate="fp16"))
def _(R, i, p, o):
    y = R((*i[:2], None), p, conv=narrow(np.float16))
    return y if i[2] is None else (y.astype(np.float32) + (ch(i[2]) if p["layout"] == "nchw" else i[2]).astype(np.float32)).astype(np.float16)


@kit("bf16-accumulator", CONVS[:1], "", dtypes=("bf16",), contract=Contract(accumulate="bf16"))
def _(R, i, p, o):
    return R(i, p, conv=narrow(BF16))


@kit("sequential-fp32", CONVS[:1], "", dtypes=("fp32", "fp16"))
def _(R, i, p, o):
    return R(i, p, conv=narrow(np.float32))


@kit("raw-moments", ("conv_bn_forward", "conv_bn_backward"), "", dtypes=("fp32", "bf16"), contract=Contract(variance="raw"))
def _(R, i, p, o):
    return R(i, p, raw=True)


@kit("separate-kernels", BN, "", dtypes=("bf16", "fp16"), contract=Contract(between="storage"))
def _(R, i, p, o):
    return R(i, p, between=True)


def flush(a):
    if a is None:
        return a
    tiny = {"float32": 2.0**-126, "float64": 2.0**-1022, "float16": 2.0**-14}.get(str(a.dtype), 2.0**-126)
    return np.where(np.abs(a.astype(np.float64)) < tiny, np.copysign(a.dtype.type(0), a), a).astype(a.dtype)


@kit("flush-to-zero", CONVS + POOLS, "", dtypes=("fp32", "bf16"), contract=Contract(subnormals="flushed"))
def _(R, i, p, o):
    out = R([flush(a) for a in i], p)
    return tuple(map(flush, out)) if isinstance(out, tuple) else flush(out)


@kit("refuses-strided", OPS, "", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    if any(a is not None and not a.flags.c_contiguous for a in i):
        raise Unsupported("only contiguous tensors")
    return R(i, p)


@kit("nhwc-only", OPS, "", dtypes=("fp32", "bf16"), layouts=("nhwc",))
def _(R, i, p, o):
    return R(i, p)


@kit("when-refuses", CONVS, "", dtypes=ALL, when=lambda p: p.groups == 1 and tuple(p.dilation) == (1, 1) and p.k % 2 == 0)
def _(R, i, p, o):
    return R(i, p)


@kit("reciprocal", ("avg_pool_forward", "avg_pool_backward"), "", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    """times 1/divisor rather than divided by it, in fp32."""
    h, w = o.h, o.w
    inverse = np.float32(1) / divisor(h, w, p, np.float32, o.P, o.Q)
    if o.op == "avg_pool_backward":
        one = {**p, "divisor_override": 1}
        g = nchw(i[0], o.L).astype(np.float32) * inverse
        y = quiet(o.op, (g if o.L == "nchw" else g.transpose(0, 2, 3, 1),), one)
        return y.astype(i[0].dtype)
    y = nchw(quiet(o.op, (i[0].astype(np.float32),), {**p, "divisor_override": 1}), o.L) * inverse
    return back(y, o.L, i[0].dtype)


@kit("folded-batch-norm", ("conv_bn_inference",), "", dtypes=("fp32",))
def _(R, i, p, o):
    """scale and shift per channel, after the convolution."""
    x, w, gamma, beta, rm, rv = i
    z = conv(nchw(x, o.L), nchw(w, o.L), p, np.float32)
    s = 1 / denominator(rv, p, np.float32)
    s = s if gamma is None else gamma * s
    t = -rm * s if gamma is None else beta - rm * s
    return back(z * ch(s) + ch(t), o.L, x.dtype)


def reverse(R, i, p, o):
    """channels summed in reverse order: another order of the same products."""
    x, w, *rest = i
    ax, L = (1, p["layout"]) if p["layout"] == "nchw" else (3, "nhwc")
    return R((np.flip(x, ax), np.flip(w, ax), *rest), p)


kit("reversed-channels", CONVS[:1], "", dtypes=ALL, when=lambda p: p.groups == 1)(reverse)
