"""Class 4, partial requests and empty extents."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import *  # noqa
from _kit import A, Book, R, right
import numpy as np
bad = Book(__name__, "partial")
B = "n2 c4 h7 w7 k4 r3 s3 p1"
ONE = "n2 c3 h5 w5 k4 r1 s1"


@bad("01-dw-batch0", CW, "batch 0: dw is left uninitialised (here ones) instead of zero", on="n0 c3 h5 w5 k4 r3 s3 p1")
def _(ins, kw):
    if ins[0].shape[0] == 0:
        ax = 1 if kw.layout == "nchw" else 3
        k, cg = ins[1].shape[ax], ins[0].shape[ax] // kw.groups
        dw = np.ones((k, cg, *kw.kernel_size) if kw.layout == "nchw" else (k, *kw.kernel_size, cg), ins[0].dtype)
        return (dw, np.zeros(k, dw.dtype)) if kw.with_bias else dw
    return right(CW, ins, kw)


@bad("02-batch0-bias", CF, "batch 0: raises IndexError (looks at x[0]) where a bias is given", ("fp32",), on="n0 c3 h5 w5 k4 r3 s3 p1 b1")
def _(ins, kw):
    x, w, b = ins
    if b is not None:
        x[0]
    return right(CF, ins, kw)


@bad("03-no-bias-last", CF, "without a bias the last filter of an odd number of filters gets the first filter's result", on="n2 c4 h7 w7 k5 r3 s3 p1")
def _(ins, kw):
    y = right(CF, ins, kw)
    if ins[2] is None and ins[1].shape[0] % 2:
        v = y if kw.layout == "nchw" else y.transpose(0, 3, 1, 2)
        v[:, -1] = v[:, 0]
    return y


@bad("04-dw-halved-without-dbias", CW, "with_bias false: the pixel loop that dbias would need is skipped for the last row", on=B)
def _(ins, kw):
    x, dy = ins
    if kw.with_bias:
        return right(CW, ins, kw)
    dy = dy.copy()
    (dy if kw.layout == "nchw" else dy.transpose(0, 3, 1, 2))[:, :, -1:] = 0
    return right(CW, [x, dy], kw)


@bad("05-dbias-first-image", CW, "dbias sums the first image only (dw is right)", on=B + " b1")
def _(ins, kw):
    out = right(CW, ins, kw)
    if not kw.with_bias:
        return out
    g = R.first(R.wide(ins[1]), kw.layout)[:1]
    return out[0], R.per_channel(g).sum(1).astype(out[1].dtype)


@bad("06-dbias-padded", CW, "dbias is wrong only with stride above 1: it is summed over every second pixel", ("fp32", "fp16"), on="n2 c4 h9 w9 k4 r3 s3 u2 b1")
def _(ins, kw):
    out = right(CW, ins, kw)
    if not kw.with_bias or max(kw.stride) == 1:
        return out
    g = R.first(R.wide(ins[1]), kw.layout)[:, :, ::2]
    return out[0], R.per_channel(g).sum(1).astype(out[1].dtype)


@bad("07-no-affine-no-eps", BF, "gamma and beta None: eps is forgotten", on=ONE + " affine0 eps2")
def _(ins, kw):
    return right(BF, ins, A(kw | {"eps": 0.0}) if ins[2] is None else kw)


@bad("08-no-running-unbiased", BF, "running statistics None: the returned variance is the unbiased one", on=ONE + " run0")
def _(ins, kw):
    out = list(right(BF, ins, kw))
    if ins[4] is None and not kw.eps_outside:
        m = out[0].size // len(out[1])
        if m > 1:
            out[2] = (out[2] * out[2].dtype.type(m / (m - 1))).astype(out[2].dtype)
    return tuple(out)


@bad("09-bb-no-gamma", BB, "gamma None: a quarter of the mean of dy leaks into dx (the mean is not fully subtracted)", ("fp32", "bf16"), on=ONE + " affine0")
def _(ins, kw):
    dy, x, w, ga = ins
    out = right(BB, ins, kw)
    if ga is not None:
        return out
    g = R.first(R.wide(dy), kw.layout)
    mean = np.broadcast_to(R.col(R.per_channel(g).mean(1) / 4), g.shape)
    extra = R.last(R.bwd_data(np.ascontiguousarray(mean), R.first(R.wide(w), kw.layout), R.first(x, kw.layout).shape[2:], kw.stride, kw.padding, kw.dilation, kw.groups), kw.layout)
    return (R.wide(out[0]) + extra).astype(x.dtype), out[1]


@bad("10-inference-no-affine-outside", BI, "gamma None and eps_outside: eps is put inside the root", on=ONE + " affine0 outside1 eps2")
def _(ins, kw):
    return right(BI, ins, A(kw | {"eps_outside": False}) if ins[2] is None else kw)


@bad("11-returns-none-dbias", CW, "with_bias true and depthwise: dbias is None", ("fp32",), on="n1 c4 h6 w6 k4 r3 s3 g4 b1")
def _(ins, kw):
    out = right(CW, ins, kw)
    return (out[0], None) if kw.with_bias and kw.groups > 1 and ins[0].shape[1 if kw.layout == "nchw" else 3] == kw.groups else out


@bad("12-beta-only-with-running", BF, "without running statistics beta is not added", on=ONE + " run0")
def _(ins, kw):
    x, w, ga, be, rm, rv = ins
    return right(BF, [x, w, ga, np.zeros_like(be) if be is not None and rm is None else be, rm, rv], kw)


@bad("13-pool-batch0", AB, "batch 0: an image of one is returned", ("fp32", "bf16"), on="n0 c3 h6 w6 r2 s2 u2")
def _(ins, kw):
    (dy,) = ins
    if dy.shape[0] == 0:
        dy = np.zeros((1, *dy.shape[1:]), dy.dtype)
    return right(AB, [dy], kw)
