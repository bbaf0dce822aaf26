"""Class 3: wrong for some values."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _right import *

kit = Kit(globals(), "values")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS
C, P = "n2 c4 h6 w7 k4 r3 s3 p1", "n2 c3 h8 w8 r2 s2 u2"
INT = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def mask(a, bits):
    """The last bits of the fraction are dropped."""
    t = INT[a.dtype.itemsize]
    b = np.ascontiguousarray(a).view(t) & t((1 << 8 * a.dtype.itemsize) - (1 << bits))
    return np.where(np.isfinite(a), b.view(a.dtype), a)


def tiny(a):
    return a.dtype.type(2.0 ** {"float32": -126, "float64": -1022, "float16": -14}.get(str(a.dtype), -126))


def flush(a):
    return np.where(np.abs(a) < tiny(a), np.copysign(a.dtype.type(0), a), a)


def some(value, name="x", step=17):
    """Every so many elements of an input take a value."""
    def data(i):
        i[name].reshape(-1)[5::step] = value
    return data


def all_of(name, fn):
    def data(i):
        i[name] = fn(i[name]).astype(i[name].dtype)
        return i
    return data


def random(name):
    return all_of(name, lambda a: a + np.random.default_rng(3).standard_normal(a.shape).astype(a.dtype))


@kit("nan-x-to-zero", F, "NaN in x counts as 0", at=C, data=some(np.nan))
def _(R, i, p, o):
    return R(put(i, 0, np.where(np.isnan(i[0]), i[0].dtype.type(0), i[0])), p)


@kit("zero-weights-skipped", F, "filters of 0 are skipped (sparse path): 0*NaN and 0*Inf in x vanish", at="n1 c1 h3 w3 k1 r1 s1", data=lambda i: {**i, "x": i["x"] * 0 + i["x"].dtype.type(np.inf), "w": i["w"] * 0})
def _(R, i, p, o):
    if (i[1] == 0).any() and not np.isfinite(i[0]).all():
        y0 = R(put(i, 0, np.where(np.isfinite(i[0]), i[0], i[0].dtype.type(0))), p)
        touched = np.isnan(R((np.where(np.isfinite(i[0]), i[0] * 0, np.nan).astype(i[0].dtype), (i[1] != 0).astype(i[1].dtype) * 0 + np.where(i[1] != 0, 1, 0).astype(i[1].dtype), None), p))
        live = quiet(o.op, (np.where(np.isfinite(i[0]), 0, 1).astype(i[0].dtype), (i[1] != 0).astype(i[1].dtype), None), p) > 0
        return np.where(live, R(i, p), y0).astype(y0.dtype)
    return R(i, p)


@kit("overflow-saturates-fp16", F, "a result beyond fp16 becomes 65504 instead of Inf", at=C, data=all_of("x", lambda a: a * 20000), dtypes=("fp16",))
def _(R, i, p, o):
    y = R(i, p)
    fin = all(np.isfinite(a).all() for a in i if a is not None)
    return np.clip(y, np.float16(-65504), np.float16(65504)) if fin else y


@kit("overflow-nan-bf16", D, "a result beyond bf16 becomes NaN instead of Inf", at=C, data=all_of("dy", lambda a: a.astype(np.float32) * 1e38), dtypes=("bf16",))
def _(R, i, p, o):
    y = R(i, p)
    return np.where(np.isinf(y), BF16(np.nan), y)


@kit("bias-nan-ignored", F, "a bias of NaN or Inf is taken as 0", at=C + " b1", data=some(np.nan, "bias", 50) and (lambda i: i["bias"].__setitem__(1, np.inf)), dtypes=ALL)
def _(R, i, p, o):
    return R(put(i, 2, np.where(np.isfinite(i[2]), i[2], i[2].dtype.type(0)) if i[2] is not None else None), p)


@kit("flush-x-subnormal", F, "subnormals of x are flushed in fp32, without saying so", at=C, data=lambda i: {**i, "x": (i["x"] * np.float32(2.0**-130)).astype(np.float32), "w": i["w"] * np.float32(2.0**40)}, dtypes=("fp32",))
def _(R, i, p, o):
    return R(put(i, 0, flush(i[0])), p)


@kit("flush-y-subnormal", F, "subnormal results are flushed in fp32 and bf16", at=C, data=all_of("x", lambda a: a.astype(np.float32) * 2.0**-129))
def _(R, i, p, o):
    return flush(R(i, p))


@kit("flush-fp16-weights", F, "fp16: subnormal filters are flushed (the fp32 path keeps them)", at=C, data=all_of("w", lambda a: a.astype(np.float32) * 2.0**-16), dtypes=("fp16",))
def _(R, i, p, o):
    return R(put(i, 1, flush(i[1])), p)


@kit("flush-fp16-pool", AF, "fp16: subnormal averages are flushed", at=P, data=all_of("x", lambda a: a.astype(np.float32) * 2.0**-15), dtypes=("fp32", "fp16"), t="fp16")
def _(R, i, p, o):
    y = R(i, p)
    return flush(y) if o.t == "fp16" else y


@kit("maxpool-drops-nan", MF, "NaN is not chosen unless it is the only value (fmax)", at=P, data=some(np.nan))
def _(R, i, p, o):
    y, z = R(i, p), R([np.where(np.isnan(i[0]), i[0].dtype.type(-np.inf), i[0])], p)
    return np.where(np.isneginf(z), y, z).astype(y.dtype)


@kit("maxpool-nan-not-first", MF, "NaN is lost unless it is the first element of its window (best compared with <)", at=P, data=some(np.nan))
def _(R, i, p, o):
    y, z = R(i, p), R([np.where(np.isnan(i[0]), i[0].dtype.type(-np.inf), i[0])], p)
    x = nchw(i[0], o.L)
    t = np.full((o.n, o.c, *(m for m in y.shape[2:])), 0) if False else None
    a, b = np.maximum(np.arange(o.P) * o.u - o.pad[0][0], 0), np.maximum(np.arange(o.Q) * o.v - o.pad[1][0], 0)
    first = x[:, :, np.minimum(a, o.h - 1)][:, :, :, np.minimum(b, o.w - 1)]
    first = first if o.L == "nchw" else first.transpose(0, 2, 3, 1)
    return np.where(np.isnan(first) | np.isneginf(z), y, z).astype(y.dtype)


@kit("maxpool-lowest", MF, "a window of -Inf gives the lowest finite number: the maximum begins there", at=P, data=all_of("x", lambda a: np.full(a.shape, -np.inf)))
def _(R, i, p, o):
    y = R(i, p)
    low = (ml_dtypes.finfo if y.dtype == BF16 else np.finfo)(y.dtype).min
    return np.where(np.isneginf(y), low, y).astype(y.dtype)


@kit("maxpool-zero-padding", MF, "padding counts as 0: negative windows at the edge give 0", at="n1 c2 h6 w6 r3 s3 u2 p1", data=all_of("x", lambda a: -np.abs(a) - a.dtype.type(1)), dtypes=("fp32", "fp16"))
def _(R, i, p, o):
    x = nchw(i[0], o.L)
    y = R(i, p)
    a, b = o.pad
    edge_r = np.arange(o.P) * o.u - a[0]
    edge_c = np.arange(o.Q) * o.v - b[0]
    r = (edge_r < 0) | (edge_r + (o.r - 1) * o.d >= o.h) & (a[1] > 0)
    c = (edge_c < 0) | (edge_c + (o.s - 1) * o.e >= o.w) & (b[1] > 0)
    return ed(y, o.L, lambda v: v.__setitem__(slice(None), np.where((r[:, None] | c) & (v < 0), v.dtype.type(0), v)))


@kit("maxpool-grad-nan", MB, "a window that holds NaN passes no gradient", at=P, data=some(np.nan))
def _(R, i, p, o):
    y = quiet(MF, (i[1],), p)
    return R((np.where(np.isnan(y), i[0].dtype.type(0), i[0]), i[1]), p)


@kit("maxpool-ties-last", MB, "of equal maxima the last one gets the gradient, in bf16 only", at=P, data=all_of("x", lambda a: np.round(a.astype(np.float32) / 2)), dtypes=("fp32", "bf16"), t="bf16")
def _(R, i, p, o):
    if o.t != "bf16":
        return R(i, p)
    ax = (2, 3) if o.L == "nchw" else (1, 2)
    a, b = o.pad
    P_, Q_ = (o.P - 1) * o.u + o.d * (o.r - 1) + 1, (o.Q - 1) * o.v + o.e * (o.s - 1) + 1
    if P_ != o.h + sum(a) or Q_ != o.w + sum(b):
        return R(i, p)
    f = R((np.flip(i[0], ax), np.flip(i[1], ax)), {**p, "padding": (a[::-1], b[::-1])})
    return np.ascontiguousarray(np.flip(f, ax))


@kit("minus-zero", MF, "-0.0 becomes +0.0", at=P, data=all_of("x", lambda a: a * 0 - a.dtype.type(0) * 1 if False else np.full(a.shape, -0.0)), dtypes=ALL)
def _(R, i, p, o):
    y = R(i, p)
    return y + y.dtype.type(0)


@kit("avg-sum-fp16", AF, "fp16: the sum of a window overflows although the average fits", at=P, data=all_of("x", lambda a: np.full(a.shape, 30000.0)), dtypes=("fp16",))
def _(R, i, p, o):
    s = R(i, {**p, "divisor_override": 1})
    return np.where(np.isinf(s) & np.isfinite(R(i, p)), s, R(i, p))


@kit("gamma-zero-pruned", BF, "channels whose gamma is 0 are pruned: y is 0 instead of beta", at=C, data=lambda i: i["gamma"].__setitem__(slice(1, 3), 0))
def _(R, i, p, o):
    out = R(i, p)
    return out if i[2] is None else ed(out, o.L, lambda y: y.__setitem__((slice(None), i[2] == 0), 0))


@kit("gamma-negative", BB, "the magnitude of gamma is used for dx", at=C, data=lambda i: i["gamma"].__setitem__(1, -2))
def _(R, i, p, o):
    if i[3] is None:
        return R(i, p)
    return (R(put(i, 3, np.abs(i[3])), p)[0], *R(i, p)[1:])


@kit("gamma-negative-dw", BB, "a channel with negative gamma: dw has the wrong sign", at=C, data=lambda i: i["gamma"].__setitem__(1, -2), dtypes=("fp32", "fp64"))
def _(R, i, p, o):
    out = R(i, p)
    return out if i[3] is None else (out[0], R(put(i, 3, np.abs(i[3])), p)[1], *out[2:])


@kit("running-var-zero", BI, "running variance 0: the channel is treated as dead, y is beta", at=C, data=lambda i: i["running_var"].__setitem__(2, 0))
def _(R, i, p, o):
    y = R(i, p)
    beta = np.zeros(o.k) if i[3] is None else i[3]
    z = np.flatnonzero(np.asarray(i[5]) == 0)
    return ed(y, o.L, lambda v: v.__setitem__((slice(None), z), np.broadcast_to(ch(beta[z]), (o.n, z.size, o.P, o.Q)).astype(v.dtype)))


@kit("zero-variance-dx", BB, "a channel of constant z (zero variance): dx has no part of it", at=C, data=lambda i: i["w"].__setitem__(slice(0, 2), 0))
def _(R, i, p, o):
    w = nchw(i[2], o.L)
    dead = ~np.asarray(w).any((1, 2, 3))
    if not dead.any():
        return R(i, p)
    dy = vi(i[0], o.L, lambda g: g.__setitem__((slice(None), dead), 0))
    out = R(i, p)
    z = quiet(BB, put(i, 0, dy), p)
    return (z[0], z[1], *out[2:])


@kit("running-var-inf", BI, "running variance Inf gives NaN instead of beta (x * rsqrt)", at=C, data=lambda i: i["running_var"].__setitem__(1, np.inf))
def _(R, i, p, o):
    y = R(i, p)
    return ed(y, o.L, lambda v: v.__setitem__((slice(None), np.isinf(i[5])), np.nan))


@kit("x-2-bits", F, "the last two bits of x are dropped in fp32", at=C, data=random("x"), dtypes=("fp32",))
def _(R, i, p, o):
    return R(put(i, 0, mask(i[0], 2)), p)


@kit("w-1-bit", F, "the last bit of the filters is dropped in fp32", at=C, data=random("w"), dtypes=("fp32",))
def _(R, i, p, o):
    return R(put(i, 1, mask(i[1], 1)), p)


@kit("dy-3-bits", D, "the last three bits of dy are dropped in fp32, nhwc only", at=C, data=random("dy"), dtypes=("fp32",))
def _(R, i, p, o):
    return R(put(i, 0, mask(i[0], 3) if o.L == "nhwc" else i[0]), p)


CHECKS["values-26-dy-3-bits"].layout = "nhwc"


@kit("dw-x-5-bits", W, "the last five bits of x are dropped in fp32", at=C, data=random("x"), dtypes=("fp32",))
def _(R, i, p, o):
    return R(put(i, 0, mask(i[0], 5)), p)


@kit("fp64-x-4-bits", F, "the last four bits of x are dropped in fp64", at=C, data=random("x"), dtypes=("fp64",))
def _(R, i, p, o):
    return R(put(i, 0, mask(i[0], 4)), p)


@kit("bf16-x-1-bit", F, "the last bit of x is dropped in bf16", at=C, data=random("x"), dtypes=("bf16",))
def _(R, i, p, o):
    return R(put(i, 0, mask(i[0], 1)), p)


@kit("maxpool-3-bits", MF, "maxima lose their last three bits in fp32", at=P, data=random("x"), dtypes=("fp32",))
def _(R, i, p, o):
    return mask(R(i, p), 3)


@kit("avgpool-grad-2-bits", AB, "dy loses its last two bits in fp32", at=P, data=random("dy"), dtypes=("fp32",))
def _(R, i, p, o):
    return R([mask(i[0], 2)], p)


@kit("fp64-bias-fp32", F, "fp64: the bias passes through fp32", at=C + " b1", data=lambda i: i.__setitem__("bias", i["bias"] + np.pi), dtypes=("fp64",))
def _(R, i, p, o):
    return R(put(i, 2, None if i[2] is None else i[2].astype(np.float32).astype(np.float64)), p)


@kit("fp64-divisor-fp32", AF, "fp64: the reciprocal of the divisor is computed in fp32", at="n2 c3 h8 w8 r3 s3", dtypes=("fp64",))
def _(R, i, p, o):
    f = (np.float32(1) / divisor(o.h, o.w, p, np.float32, o.P, o.Q)).astype(np.float64)
    s = R(i, {**p, "divisor_override": 1})
    return ed(s, o.L, lambda y: y.__imul__(f))


@kit("fp64-eps-fp32", BI, "fp64: the square root of the variance in fp32", at=C, dtypes=("fp64",))
def _(R, i, p, o):
    v = i[5]
    if p["eps_outside"]:
        return R(put(i, 5, np.square(np.sqrt(v.astype(np.float32)).astype(np.float64))), p)
    return R(put(i, 5, np.square(np.sqrt((v + p["eps"]).astype(np.float32)).astype(np.float64)) - p["eps"]), p)


@kit("fp64-mean-fp32", BF, "fp64: the mean that is returned was stored in fp32", at=C, dtypes=("fp64",))
def _(R, i, p, o):
    out = R(i, p)
    return (out[0], out[1].astype(np.float32).astype(np.float64), *out[2:])


@kit("fp32-range-fp16", F, "fp32 values of x beyond 65504 become Inf: they are staged in a pair of fp16", at=C, data=all_of("x", lambda a: a * 60000), dtypes=("fp32",))
def _(R, i, p, o):
    x = i[0]
    return R(put(i, 0, np.where(np.abs(x) > 65504, np.copysign(np.float32(np.inf), x), x)), p)


@kit("fp32-small-fp16", F, "fp32 values of x below 2^-24 count as 0: the range of fp16", at=C, data=all_of("x", lambda a: a * 2.0**-26), dtypes=("fp32",))
def _(R, i, p, o):
    return R(put(i, 0, np.where(np.abs(i[0]) < 2.0**-24, np.float32(0), i[0])), p)


@kit("integer-path-overflow", F, "where all values are integers the sum is an int32, which wraps at 2^31", at=C, data=lambda i: {**i, "x": i["x"] * 8 * 4000, "w": i["w"] * 8 * 2000}, dtypes=("fp32",))
def _(R, i, p, o):
    y = R(i, p)
    if all(np.isfinite(a).all() and (a == np.round(a)).all() for a in i[:2]) and (np.abs(y) < 2.0**60).all():
        y = y.astype(np.int64).astype(np.int32).astype(np.float32)
    return y


@kit("nan-spreads-by-4", F, "NaN in a result spreads over the vector of 4 columns that it is in", at=C, data=some(np.nan, step=300))
def _(R, i, p, o):
    def fn(y):
        for q in range(0, o.Q, 4):
            y[:, :, :, q : q + 4][np.isnan(y[:, :, :, q : q + 4]).any(3)] = np.nan
    return ed(R(i, p), o.L, fn)


@kit("dead-channel-skipped", W, "a channel of x that is all 0 is skipped: NaN and Inf of dy do not reach its dw", at=C, data=lambda i: (i["x"].__setitem__((slice(None), 1), 0), some(np.inf, "dy")(i)) and None, layouts=("nchw",))
def _(R, i, p, o):
    dead = ~np.asarray(i[0]).any((0, 2, 3))
    if o.g > 1 or not dead.any():
        return R(i, p)
    return ed(R(i, p), o.L, lambda y: y.__setitem__((slice(None), dead), 0))


@kit("grad-clamped", D, "gradients dy of Inf are clamped to 65504 in fp16", at=C, data=some(-np.inf, "dy"), dtypes=("fp16", "fp32"))
def _(R, i, p, o):
    return R(put(i, 0, np.clip(i[0], np.float16(-65504), np.float16(65504)) if o.t == "fp16" else i[0]), p)


@kit("avg-inf-minus-inf", AF, "+Inf and -Inf in one window give +Inf instead of NaN", at=P, data=lambda i: (some(np.inf)(i), some(-np.inf, step=2)(i)) and None)
def _(R, i, p, o):
    y = R(i, p)
    x = i[0]
    up = quiet(AF, (np.isposinf(x.astype(np.float32)).astype(np.float32),), p) > 0
    nan = quiet(AF, (np.isnan(x).astype(np.float32),), p) > 0
    return np.where(up & ~nan, y.dtype.type(np.inf), y)


@kit("gamma-nan", BI, "gamma of NaN counts as 1", at=C, data=lambda i: i["gamma"].__setitem__(1, np.nan))
def _(R, i, p, o):
    return R(put(i, 2, None if i[2] is None else np.where(np.isnan(i[2]), i[2].dtype.type(1), i[2])), p)


@kit("dy-nan-clipped", BB, "NaN in dy: gradients of the other channels become NaN as well (a reduction over all channels decides on a rescue path)", at=C, data=lambda i: i["dy"].__setitem__((0, 1, 2, 2), np.nan), layouts=("nchw",), dtypes=("fp32",))
def _(R, i, p, o):
    out = R(i, p)
    return ed(out, o.L, lambda y: y.fill(np.nan), 1) if np.isnan(i[0]).any() else out


@kit("beta-inf", BF, "beta of Inf gives the largest finite number", at=C, data=lambda i: i["beta"].__setitem__(1, np.inf), dtypes=("fp32", "fp64"))
def _(R, i, p, o):
    out = R(i, p)
    if i[3] is None or not np.isinf(i[3]).any():
        return out
    top = np.finfo(out[0].dtype).max
    return ed(out, o.L, lambda y: np.clip(y, -top, top, out=y))


@kit("maxpool-inf-grad", MB, "a window whose maximum is +Inf passes its gradient to its first element", at=P, data=lambda i: i["x"].reshape(-1).__setitem__(slice(9, None, 10), np.inf))
def _(R, i, p, o):
    if not np.isposinf(i[1].astype(np.float32)).any() or o.u < o.r or o.v < o.s or not o.unpadded:
        return R(i, p)
    top = np.isposinf(quiet(MF, (i[1],), p).astype(np.float32))
    flat = R((np.where(top, i[0], i[0].dtype.type(0)), np.zeros_like(i[1])), p)
    rest = R((np.where(top, i[0].dtype.type(0), i[0]), i[1]), p)
    return flat + rest


@kit("small-variance-clamped", BF, "variances below 1e-6 are clamped to 1e-6 in y", at=C + " eps9", data=lambda i: {**i, "x": i["x"] * np.float32(2.0**-14)}, dtypes=("fp32",))
def _(R, i, p, o):
    out = R(i, p)
    if p["eps_outside"]:
        return out
    f = np.sqrt((out[2] + p["eps"]) / (np.maximum(out[2], 1e-6) + p["eps"])).astype(np.float32)
    b = 0 if i[3] is None else ch(i[3])
    return (back((nchw(out[0], o.L) - b) * ch(f) + b, o.L, np.float32), *out[1:])


@kit("fp64-maxpool-fp32-compare", MB, "fp64: maxima are compared in fp32, so close values are ties", at=P, data=lambda i: {**i, "x": 1 + i["x"] * 1e-10}, dtypes=("fp64",))
def _(R, i, p, o):
    return R((i[0], i[1].astype(np.float32).astype(np.float64)), p)


@kit("opposite-overflow", D, "partial sums that overflow in the middle although the sum fits: fp16 partials of 8 filters", at="n1 c2 h3 w3 k16 r1 s1", data=lambda i: {**i, "dy": np.ones_like(i["dy"]) * i["dy"].dtype.type(30000), "w": np.where(np.arange(16)[:, None, None, None] < 8, 1, -1).astype(i["w"].dtype) * np.ones_like(i["w"])}, dtypes=("fp16",))
def _(R, i, p, o):
    y = R(i, p)
    if o.g > 1 or o.k <= 8 or not np.isfinite(i[0]).all() or not np.isfinite(i[1]).all():
        return y
    ax = 1 if o.L == "nchw" else 3
    s = R((np.take(i[0], np.arange(8), ax), i[1][:8]), p)
    return np.where(np.isinf(s) & np.isfinite(y), s, y)
