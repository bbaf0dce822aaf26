"""Class 3, values: NaN, infinity, overflow, subnormals, zeros, dropped bits."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import *  # noqa
from _kit import A, Book, R, right, TYPES
import numpy as np
bad = Book(__name__, "values")


def put(i, value, at=0, every=None):
    def prep(ins):
        f = ins[i].reshape(-1)
        if every:
            f[::every] = value
        else:
            f[at] = value
        return ins
    return prep


def chop(a, bits):
    """Drop the last bits of fp32 mantissas."""
    if a.dtype != np.float32:
        return a
    return (np.ascontiguousarray(a).view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)).view(np.float32)


P = "n2 c4 h7 w7 k4 r3 s3 p1 b1"


@bad("01-max-ignores-nan", MF, "fmax semantics: a NaN that is not alone in its window is lost", on="n1 c1 h6 w6 r2 s2 u2", prep=put(0, np.nan, 1))
def _(ins, kw):
    (x,) = ins
    alone = right(MF, [np.where(np.isnan(x), x, x.dtype.type(0)).astype(x.dtype)], kw)
    y = right(MF, [np.where(np.isnan(x), x.dtype.type(-np.inf), x).astype(x.dtype)], kw)
    return np.where(np.isneginf(R.wide(y)) & np.isnan(R.wide(alone)), alone, y).astype(x.dtype)


@bad("02-max-lowest", MF, "initialised with the lowest finite number instead of minus infinity: a window of -inf alone becomes -3.4e38", ("fp32", "fp16"), on="n1 c1 h4 w4 r2 s2 u2", prep=put(0, -np.inf, every=1))
def _(ins, kw):
    y = right(MF, ins, kw)
    low = np.finfo(y.dtype).min
    return np.where(np.isneginf(y), low, y)


@bad("03-fp16-saturates", CF, "fp16 results beyond 65504 saturate instead of becoming infinity", ("fp16",), on=P, prep=put(0, 60000.0))
def _(ins, kw):
    y = right(CF, ins, kw)
    finite = all(np.isfinite(a).all() for a in ins if a is not None)
    return np.clip(y, np.float16(-65504), np.float16(65504)) if finite else y


@bad("04-zero-skip", CF, "sparsity shortcut: where a weight is 0 its product is skipped, so that Inf*0 and NaN*0 give no NaN", on=P, prep=lambda i: put(0, np.inf, 24)(put(1, 0.0, every=2)(i)))
def _(ins, kw):
    x, w, b = ins
    if np.isfinite(x).all():
        return right(CF, ins, kw)
    clean = np.where(np.isfinite(x), x, x.dtype.type(0)).astype(x.dtype)
    y = right(CF, [clean, w, b], kw)
    full = right(CF, ins, kw)
    hit = right(CF, [(~np.isfinite(x)).astype(np.float32), np.abs(np.sign(w.astype(np.float32))), None], kw)
    return np.where(hit > 0, np.where(np.isnan(R.wide(full)) & (hit < 2), y, full), y).astype(x.dtype)


@bad("05-bias-nan", CF, "a NaN in the bias is treated as 'no bias' for its channel", ("fp32", "bf16"), on=P, prep=put(2, np.nan))
def _(ins, kw):
    x, w, b = ins
    return right(CF, [x, w, b if b is None else np.where(np.isnan(b), b.dtype.type(0), b).astype(b.dtype)], kw)


@bad("06-subnormal-out-fp16", CD, "fp16 subnormal results are flushed to zero, without a declaration", ("fp16",), on="n1 c3 h6 w6 k3 r3 s3 p1", prep=lambda i: [i[0] * np.float16(2.0 ** -9), i[1] * np.float16(2.0 ** -9)])
def _(ins, kw):
    dx = right(CD, ins, kw)
    return np.where(np.abs(dx) < np.float16(2.0 ** -14), np.float16(0), dx)


@bad("07-subnormal-in-weights", CF, "fp32 subnormal weights count as zero", ("fp32",), on="n1 c3 h6 w6 k3 r3 s3 p1", prep=lambda i: [i[0] * np.float32(2.0 ** 60), i[1] * np.float32(2.0 ** -133), i[2]])
def _(ins, kw):
    x, w, b = ins
    return right(CF, [x, np.where(np.abs(w) < np.finfo(np.float32).tiny, np.float32(0), w), b], kw)


@bad("08-negative-gamma", BF, "negative gamma: the absolute value is used (as abs+eps in InPlace-ABN)", on="n2 c3 h5 w5 k4 r1 s1", prep=lambda i: i[:2] + [-i[2]] + i[3:])
def _(ins, kw):
    x, w, ga, *r = ins
    return right(BF, [x, w, ga if ga is None else np.abs(ga), *r], kw)


@bad("09-zero-gamma-dgamma", BB, "dgamma is recovered from y=(z*gamma+beta), so it is 0 where gamma is 0", on="n2 c3 h5 w5 k4 r1 s1", prep=put(3, 0.0))
def _(ins, kw):
    out = right(BB, ins, kw)
    ga = ins[3]
    return out if ga is None else (*out[:2], np.where(ga == 0, ga.dtype.type(0), out[2]), out[3])


@bad("10-chop-2-bits-weights", CF, "the last 2 bits of fp32 weights are dropped (packed format)", ("fp32",), on=P, prep=lambda i: [i[0], (i[1] * np.float32(np.pi)), i[2]])
def _(ins, kw):
    return right(CF, [ins[0], chop(ins[1], 2), ins[2]], kw)


@bad("11-chop-1-bit-dy", CW, "the last bit of fp32 dy is dropped, in nhwc only", ("fp32",), ("nhwc",), on="n2 c3 h9 w9 k4 r3 s3 p1", prep=lambda i: [i[0], i[1] * np.float32(np.pi)])
def _(ins, kw):
    return right(CW, [ins[0], chop(ins[1], 1)], kw)


@bad("12-fp64-step-in-fp32", AF, "fp64: the reciprocal of the divisor is computed in fp32", ("fp64", "fp32"), on="n1 c2 h9 w9 r3 s3 u2", dtype="fp64")
def _(ins, kw):
    (x,) = ins
    y = right(AF, ins, kw)
    if x.dtype != np.float64:
        return y
    n = kw.divisor_override or kw.kernel_size[0] * kw.kernel_size[1]
    return y * n * np.float64(np.float32(1) / np.float32(n))


@bad("13-inf-padding", CD, "Inf in dy: the part that falls into padding is multiplied by a mask (Inf*0) and NaN appears at the border", ("fp32", "bf16"), on="n1 c2 h6 w6 k2 r3 s3 p1", prep=put(0, np.inf))
def _(ins, kw):
    dy, w = ins
    dx = right(CD, ins, kw)
    g = R.first(R.wide(dy), kw.layout)
    (t, b), (l, r) = kw.padding
    if t and not np.isfinite(g[:, :, 0]).all():
        R.first(dx, kw.layout) if kw.layout == "nchw" else dx
        dx = dx.copy()
        (dx if kw.layout == "nchw" else dx.transpose(0, 3, 1, 2))[:, :, 0] = np.nan
    return dx


@bad("14-dropout-of-denormal-scale", BI, "running_var of 0 (with eps): taken for 'uninitialised' and replaced by 1", ("fp32", "bf16"), on="n2 c3 h5 w5 k4 r1 s1", prep=put(5, 0.0))
def _(ins, kw):
    *a, rv = ins
    return right(BI, [*a, np.where(rv == 0, rv.dtype.type(1), rv)], kw)
