"""Class 4: partial requests and empty extents."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _right import *

kit = Kit(globals(), "partial")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS
C, P = "n2 c4 h6 w7 k4 r3 s3 p1", "n2 c3 h8 w8 r2 s2 u2"


@kit("empty-dw-uninitialised", W, "batch 0: dw is what the memory held, not 0", at="n0 c4 h6 w7 k4 r3 s3 p1")
def _(R, i, p, o):
    return ed(R(i, p), o.L, lambda y: y.fill(1)) if o.n == 0 else R(i, p)


@kit("empty-dbias-nan", W, "batch 0: dbias is NaN (0/0), dw is 0", at="n0 c4 h6 w7 k4 r3 s3 p1 b1")
def _(R, i, p, o):
    return ed(R(i, p), o.L, lambda y: y.fill(np.nan), 1) if o.n == 0 and p["with_bias"] else R(i, p)


@kit("empty-dw-last", W, "batch 0: dw is that of the last call of the same shape", at="n0 c4 h6 w7 k4 r3 s3 p1", before=(C,))
def _(R, i, p, o, last={}):
    out = R(i, p)
    y = out[0] if p["with_bias"] else out
    key = (y.shape, o.t)
    if o.n == 0 and key in last:
        y[...] = last[key]
    last[key] = y.copy()
    return out


@kit("empty-forward-raises", F, "batch 0: division by zero in the choice of the tile", at="n0 c4 h6 w7 k4 r3 s3 p1")
def _(R, i, p, o):
    1024 // (o.n * o.P * o.Q)
    return R(i, p)


@kit("empty-forward-shape", F, "batch 0: the result has the rows and columns of the image, not of the output", at="n0 c4 h6 w7 k4 r3 s3")
def _(R, i, p, o):
    y = R(i, p)
    return np.zeros((0, o.k, o.h, o.w) if o.L == "nchw" else (0, o.h, o.w, o.k), y.dtype) if o.n == 0 else y


@kit("empty-pool-none", AF, "batch 0: returns None", at="n0 c3 h8 w8 r2 s2 u2")
def _(R, i, p, o):
    return R(i, p) if o.n else None


@kit("empty-dx-shape", D, "batch 0: dx has one image of zeros", at="n0 c4 h6 w7 k4 r3 s3 p1")
def _(R, i, p, o):
    y = R(i, p)
    return y if o.n else np.zeros((1, *y.shape[1:]), y.dtype)


@kit("no-bias-dilation", F, "without bias the fast path ignores the dilation of columns", at="n1 c2 h9 w9 k2 r3 s3 d2 p2")
def _(R, i, p, o):
    if o.b or o.e == 1 or o.s == 1:
        return R(i, p)
    x = nchw(i[0], o.L)[:, :, :, : o.w - (o.s - 1) * (o.e - 1)]
    if x.shape[3] < 1:
        return R(i, p)
    return R(put(i, 0, x if o.L == "nchw" else x.transpose(0, 2, 3, 1)), {**p, "dilation": (o.d, 1)})


@kit("with-bias-grouped", F, "with bias and groups: the bias of the first group is added to all groups", at="n2 c4 h5 w5 k6 r3 s3 g2 b1", dtypes=ALL)
def _(R, i, p, o):
    return R(put(i, 2, np.tile(i[2][: o.k // o.g], o.g)), p) if o.b and o.g > 1 else R(i, p)


@kit("with-bias-one-pixel", F, "with bias and an output of one pixel: the bias is missing", at="n2 c4 h3 w3 k3 r3 s3 b1")
def _(R, i, p, o):
    return R(put(i, 2, None), p) if o.b and o.P * o.Q == 1 else R(i, p)


@kit("with-bias-double-rounding", F, "bf16 with bias: the sum is rounded to bf16 before the bias is added", at=C + " b1", dtypes=("bf16", "fp16"))
def _(R, i, p, o):
    if not o.b:
        return R(i, p)
    y = nchw(R(put(i, 2, None), p), o.L).astype(np.float32) + ch(i[2].astype(np.float32))
    return back(y, o.L, i[0].dtype)


@kit("dbias-first-image", W, "dbias is summed over the first image only", at=C + " b1")
def _(R, i, p, o):
    if not p["with_bias"]:
        return R(i, p)
    return R(i, p)[0], R([a[:1] for a in i], p)[1]


@kit("dbias-fp16-accumulated", W, "dbias of fp16 is added up in fp16 when there are more than 512 terms", at="n2 c1 h20 w30 k2 r1 s1 b1", dtypes=("fp16",), data=lambda i: {**i, "dy": i["dy"] + np.float16(0.371)})
def _(R, i, p, o):
    out = R(i, p)
    if not p["with_bias"] or o.M <= 512:
        return out
    s = np.zeros(o.k, np.float16)
    for row in np.asarray(nchw(i[1], o.L)).transpose(0, 2, 3, 1).reshape(-1, o.k):
        s = s + row
    return out[0], s


@kit("dbias-drops-edge", W, "with padding dbias leaves out the last row of dy", at=C + " b1", dtypes=("fp32",))
def _(R, i, p, o):
    out = R(i, p)
    if not p["with_bias"] or o.pad[0][1] == 0:
        return out
    dy = vi(i[1], o.L, zero(slice(None), slice(None), -1))
    return out[0], R(put(i, 1, dy), p)[1]


@kit("dw-with-bias-images", W, "with_bias: the fused kernel skips the last image of an odd batch for dw", at="n3 c2 h5 w5 k2 r3 s3 b1")
def _(R, i, p, o):
    out = R(i, p)
    return (R([a[:-1] for a in i], p)[0], out[1]) if p["with_bias"] and o.n % 2 and o.n > 1 else out


@kit("dw-without-bias-grouped", W, "without bias and with groups: dw of the last group is 0", at="n2 c4 h5 w5 k4 r3 s3 g2")
def _(R, i, p, o):
    return R(i, p) if p["with_bias"] or o.g == 1 else ed(R(i, p), o.L, zero(slice(o.k - o.k // o.g, None)))


@kit("dbias-unasked", W, "dbias is returned although with_bias is false, when k is even", at=C)
def _(R, i, p, o):
    return R(i, {**p, "with_bias": p["with_bias"] or o.k % 2 == 0})


@kit("no-gamma-eps", BF, "without gamma and beta epsilon is the default 1e-5", at=C + " affine0 eps2")
def _(R, i, p, o):
    return R(i, {**p, "eps": 1e-5} if i[2] is None else p)


@kit("no-gamma-gradient", BB, "without gamma dx misses the term of the variance", at=C + " affine0")
def _(R, i, p, o):
    if i[3] is not None:
        return R(i, p)
    out = R(i, p)
    return ed(out, o.L, lambda y: y.__imul__(1.03125))


@kit("no-gamma-dw", BB, "without gamma dw is that of the first image only", at=C + " affine0")
def _(R, i, p, o):
    out = R(i, p)
    if i[3] is not None or o.n == 1:
        return out
    one = vi(i[0], o.L, zero(slice(1, None)))
    return out[0], quiet(BB, put(i, 0, one), p)[1]


@kit("no-running-biased", BF, "without running statistics the variance returned is unbiased", at=C + " run0")
def _(R, i, p, o):
    out = R(i, p)
    if i[4] is not None or p["eps_outside"] or o.M < 2:
        return out
    return (out[0], out[1], (out[2] * (o.M / (o.M - 1))).astype(out[2].dtype))


@kit("running-biased", BF, "running statistics get the biased variance", at=C)
def _(R, i, p, o):
    out = R(i, p)
    if i[4] is None or p["eps_outside"]:
        return out
    m = out[2].dtype.type(p["momentum"])
    return (*out[:4], (1 - m) * i[5] + m * out[2])


@kit("running-without-gamma", BF, "running mean is the new mean where gamma is absent", at=C + " affine0")
def _(R, i, p, o):
    out = R(i, p)
    return out if i[4] is None or i[2] is not None else (*out[:3], out[1].copy(), out[4])


@kit("inference-no-gamma-mean", BI, "inference without gamma and beta: the mean is not subtracted in bf16", at=C + " affine0", dtypes=("fp32", "bf16"), t="bf16")
def _(R, i, p, o):
    return R(put(i, 4, i[4] * 0) if i[2] is None and o.t == "bf16" else i, p)


@kit("divisor-none-valid", AB, "no divisor override, padding not counted: gradients are divided by the whole window", at="n1 c2 h5 w5 r3 s3 u2 p1 valid1")
def _(R, i, p, o):
    return R(i, {**p, "count_include_pad": True} if not p["divisor_override"] else p)


@kit("empty-bn-inference-dtype", BI, "batch 0: the result is float64", at="n0 c4 h6 w7 k4 r3 s3 p1")
def _(R, i, p, o):
    y = R(i, p)
    return y if o.n else y.astype(np.float64)


@kit("empty-maxpool-grad", MB, "batch 0: raises, as the first image is looked at to choose a path", at="n0 c3 h8 w8 r2 s2 u2")
def _(R, i, p, o):
    i[1][0]
    return R(i, p)
