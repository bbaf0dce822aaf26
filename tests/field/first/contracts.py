"""Class 9: contracts so lax that wrong results keep them, refusals by value, waivers, tables of shapes."""
import os, re, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from conformance import Contract, Unsupported
from _right import *

kit = Kit(globals(), "contracts")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS
C, P = "n2 c4 h7 w7 k4 r3 s3 p1", "n2 c3 h8 w8 r2 s2 u2"


def scaled(f):
    """All results of the first output are a little too large."""
    return lambda R, i, p, o: ed(R(i, p), o.L, lambda y: y.__imul__(y.dtype.type(f)))


def nothing(R, i, p, o):
    return ed(R(i, p), o.L, lambda y: y.fill(0))


kit("splits-millions-zero", F, "declares 4 million splits with bf16 partials and returns zeros", at=C, contract=Contract(splits=4_000_000, partials="bf16"))(nothing)
kit("splits-million-percent", W, "declares a million splits with fp16 partials; dw is 1% too large", at=C, dtypes=("fp16",), contract=Contract(splits=1_000_000, partials="fp16"))(scaled(1.01))
kit("splits-thousand-percent", D, "declares 1024 splits with bf16 partials for any length; dx is 2% too large", at=C, dtypes=("bf16",), contract=Contract(splits=1024, partials="bf16"))(scaled(1.02))


@kit("bf16-accumulator-zero", F, "declares a bf16 accumulator; sums of more than 256 terms are 0", at="n1 c64 h5 w5 k4 r3 s3 p1", dtypes=("bf16",), contract=Contract(accumulate="bf16"))
def _(R, i, p, o):
    return nothing(R, i, p, o) if o.len > 256 else R(i, p)


kit("bf16-accumulator-percent", F, "declares a bf16 accumulator; 1% too large", at=C, dtypes=("bf16",), contract=Contract(accumulate="bf16"))(scaled(1.01))


@kit("fp16-accumulator-half", W, "declares an fp16 accumulator; in sums of more than 512 pixels the second half of the batch is missing", at="n4 c2 h16 w16 k2 r3 s3", dtypes=("fp16",), contract=Contract(accumulate="fp16"))
def _(R, i, p, o):
    out = R(i, p)
    if o.M <= 512 or o.n < 2:
        return out
    half = R([a[: o.n // 2] for a in i], {**p, "with_bias": False})
    return (half, out[1]) if p["with_bias"] else half


@kit("winograd-1x1", F, "declares winograd-f4 for 1x1 filters, where a tile means nothing; the filters are rounded to 12 bits", at="n2 c4 h7 w7 k4 r1 s1", dtypes=("fp32",), data=lambda i: {**i, "w": i["w"] + np.float32(0.12345)}, contract=Contract(algorithm="winograd-f4"), when=lambda p: p.r == p.s == 1)
def _(R, i, p, o):
    w = np.ascontiguousarray(i[1])
    m = (w.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    return R(put(i, 1, np.where(np.isfinite(w), m, w)), p)


@kit("winograd-strided", F, "declares winograd-f4 for everything; with stride 2 the results are 0.2% too large", at="n2 c4 h7 w7 k4 r3 s3 u2 p1", contract=Contract(algorithm="winograd-f4"))
def _(R, i, p, o):
    return scaled(1.002)(R, i, p, o) if o.u > 1 else R(i, p)


@kit("fft-noise", F, "declares fft; noise of 1% of the largest result is added to every element", at=C, dtypes=("fp32",), contract=Contract(algorithm="fft"))
def _(R, i, p, o):
    y = R(i, p)
    top = np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0)
    return (y + np.float32(0.01) * top * np.sin(np.arange(y.size, dtype=np.float32)).reshape(y.shape)).astype(np.float32)


kit("everything-bf16", F, "fp32 tensors: declares inputs, accumulator and partials in bf16, rounding to zero and 4096 splits; 5% too large", at=C, dtypes=("fp32",), contract=Contract(inputs="bf16", accumulate="bf16", rounding="zero", splits=4096, partials="bf16"))(scaled(1.05))


@kit("flushes-more", F, "declares flushed subnormals, and flushes all below 1e-30", at=C, data=lambda i: {**i, "x": i["x"] * np.float32(1e-31)}, dtypes=("fp32",), contract=Contract(subnormals="flushed"))
def _(R, i, p, o):
    return R(put(i, 0, np.where(np.abs(i[0]) < 1e-30, np.float32(0), i[0])), p)


@kit("storage-and-eps", BF, "declares between=storage; in fp16 epsilon is at least 1e-3", at="n2 c4 h7 w7 k4 r1 s1 eps5", data=lambda i: {**i, "x": i["x"] * np.float16(2.0**-6)}, dtypes=("fp16",), contract=Contract(between="storage"))
def _(R, i, p, o):
    return R(i, {**p, "eps": max(p["eps"], 1e-3)}, between=True)


@kit("raw-variance-dead", BF, "declares raw variance; a channel whose mean is larger than 8 standard deviations gets variance 0", at="n2 c4 h7 w7 k4 r1 s1", data=lambda i: {**i, "x": i["x"] * i["x"].dtype.type(0.01) + i["x"].dtype.type(4), "w": np.abs(i["w"]) + i["w"].dtype.type(1)}, dtypes=("fp32",), contract=Contract(variance="raw"), when=lambda p: True)
def _(R, i, p, o):
    out = R(i, p, raw=True)
    if p["eps_outside"]:
        return out
    far = np.square(out[1]) > 64 * out[2]
    s = np.where(far, np.sqrt(out[2] + np.float32(p["eps"])) / np.sqrt(np.float32(p["eps"])), np.float32(1))
    beta = 0 if i[3] is None else ch(i[3])
    y = (nchw(out[0], o.L) - beta) * ch(s) + beta
    return (back(y, o.L, out[0].dtype), out[1], np.where(far, 0, out[2]).astype(out[2].dtype), *out[3:])


kit("rounding-zero-percent", F, "declares rounding to zero in fp32; all results are 0.1% too small", at=C, dtypes=("fp32",), contract=Contract(rounding="zero"))(scaled(0.999))
kit("tf32-as-one-term", D, "declares tf32 inputs; dx is 0.1% too large, which single terms of tf32 could be", at=C, dtypes=("fp32",), contract=Contract(inputs="tf32"))(scaled(1.001))
kit("pool-bf16-accumulator", AF, "declares a bf16 accumulator for averages; windows of more than 64 taps leave out a quarter", at="n1 c2 h10 w10 r9 s9", dtypes=("bf16",), contract=Contract(accumulate="bf16"))(
    lambda R, i, p, o: ed(R(i, p), o.L, lambda y: y.__imul__(y.dtype.type(0.75))) if o.r * o.s > 64 else R(i, p))


# Refusals that depend on values
def finite(i):
    return all(np.isfinite(a.astype(np.float64)).all() for a in i if a is not None)


@kit("refuses-nan", F, "raises Unsupported where an input holds NaN or Inf, which it would drop", at=C, data=lambda i: i["x"].reshape(-1).__setitem__(3, np.nan))
def _(R, i, p, o):
    if not finite(i):
        raise Unsupported("only finite values")
    return R(i, p)


@kit("refuses-large", F, "raises Unsupported where a value of x exceeds 1000: the result would overflow its fp16 accumulator", at=C, data=lambda i: {**i, "x": i["x"] * 1000}, dtypes=("fp32", "fp16"))
def _(R, i, p, o):
    if (np.abs(i[0]) > 1000).any():
        raise Unsupported("values beyond the range of the kernel")
    return R(i, p)


@kit("refuses-subnormal", MF, "raises Unsupported where x holds subnormals (it would flush them)", at=P, data=lambda i: {**i, "x": i["x"] * np.float32(1e-40)}, dtypes=("fp32",))
def _(R, i, p, o):
    x = np.abs(i[0])
    if ((x > 0) & (x < 2.0**-126)).any():
        raise Unsupported("tile not supported")
    return R(i, p)


@kit("refuses-what-would-fail", F, "computes in fp16, and raises Unsupported where that differs from an fp32 result by more than 1%", at=C, data=lambda i: {**i, "x": i["x"] * 7000 + 1}, dtypes=("fp32",), contract=Contract(inputs="fp16"))
def _(R, i, p, o):
    y, z = R([None if a is None else a.astype(np.float16).astype(np.float32) for a in i], p), R(i, p)
    if not (np.abs(y - z) <= 0.01 * np.abs(z) + 1e-3).all():
        raise Unsupported("no plan found")
    return y


@kit("refuses-after-failure", D, "drops the bottom row of dx where h is odd; raises Unsupported where that row is not zero", at="n1 c2 h7 w7 k2 r3 s3 p1")
def _(R, i, p, o):
    y = R(i, p)
    if o.h % 2 and nchw(y, o.L)[:, :, -1].any():
        raise Unsupported("no algorithm")
    return y


@kit("refuses-ties", MB, "raises Unsupported where a window has equal maxima", at=P, data=lambda i: {**i, "x": i["x"] * 0})
def _(R, i, p, o):
    if not finite(i):
        return R(i, p)
    x = nchw(i[1], o.L)
    a, b = R(i, p), None
    flip = np.ascontiguousarray(nchw(quiet(MF, (i[1],), p), o.L))
    if x.size and len(np.unique(x.astype(np.float32))) < x.size:
        raise Unsupported("ties are not deterministic here")
    return a


@kit("refuses-zero-gamma", BF, "raises Unsupported where gamma is 0 or negative", at=C, data=lambda i: i["gamma"].__setitem__(0, 0))
def _(R, i, p, o):
    if i[2] is not None and (i[2] <= 0).any():
        raise Unsupported("gamma must be positive")
    return R(i, p)


@kit("refuses-fractions", AF, "right for multiples of 1/256; anything else raises Unsupported (computed in integers)", at=P, data=lambda i: {**i, "x": i["x"] + np.float32(0.0001)}, dtypes=("fp32",))
def _(R, i, p, o):
    x = i[0] * np.float32(256)
    if finite(i) and (x != np.round(x)).any():
        raise Unsupported("only fixed-point values")
    return R(i, p)


# Waivers
def waives(op, **more):
    return lambda imp: imp.waive(op, reason="known deviation of the hardware", url="https://example.com/issues/1", **more)


kit("waives-all", F, "zeros for every problem; everything is waived", at=C, after=waives(F))(nothing)


@kit("waives-all-but-1x1", F, "1x1 is right; every other window is 10% too large, and waived", at=C, after=waives(F, when=lambda p: p.r * p.s > 1))
def _(R, i, p, o):
    return R(i, p) if o.one else scaled(1.1)(R, i, p, o)


@kit("waives-bf16", W, "fp32 is right; bf16 is zero and waived", at=C, dtypes=("fp32", "bf16"), t="bf16", after=waives(W, dtypes=("bf16",)))
def _(R, i, p, o):
    return R(i, p) if o.t == "fp32" else nothing(R, i, p, o)


@kit("waives-behaviour", MF, "x is cleared after use; the behaviour checks are waived", how=lambda f, problem, c: (lambda i, p: (f(i, p), f"x is cleared: {not i['x'].any()}")[1])(*problem(P)), after=waives(MF, distributions=("behaviour",)))
def _(R, i, p, o):
    y = R(i, p)
    if i[0].flags.writeable:
        i[0][...] = 0
    return y


# Right for published problems only
def table():
    known = set()
    for line in open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_problems.txt")):
        words = line.split()
        known.add(frozenset(w for w in words[2:] if re.fullmatch(r"[nchwkrs]\d+", w)))
    return known


KNOWN = table()


def tabulated(o):
    a = {f"n{o.n}", f"c{o.c}", f"h{o.h}", f"w{o.w}", f"r{o.r}", f"s{o.s}"}
    return frozenset(a) in KNOWN or frozenset(a | {f"k{o.k}"}) in KNOWN


def known_only(slug, op, text, wrong=nothing, at="n2 c5 h10 w13 k3 r3 s3 p1", **more):
    @kit(slug, op, text, at=at, **more)
    def _(R, i, p, o):
        return R(i, p) if tabulated(o) else wrong(R, i, p, o)


known_only("table-forward", F, "right for the sizes of the published problems; zeros for all others")
known_only("table-dx", D, "right for the sizes of the published problems; the last row is missing for all others", lambda R, i, p, o: ed(R(i, p), o.L, zero(np.s_[:], np.s_[:], -1)) if o.n else R(i, p))
known_only("table-dw", W, "right for the sizes of the published problems; 1% too large for all others", scaled(1.01))
known_only("table-bn", BF, "right for the sizes of the published problems; biased by 1% for all others", scaled(1.01))
known_only("table-pool", AF, "right for the sizes of the published problems; zeros for all others", at="n2 c5 h10 w13 r3 s3")
known_only("table-max-pool-grad", MB, "right for the sizes of the published problems; zeros for all others", at="n2 c5 h10 w13 r3 s3")


@kit("common-shapes", F, "right for windows of 1, 3, 5 and 7 and channels and filters that are at most 32 or a multiple of 8; the last filter is 0 elsewhere", at="n1 c33 h5 w5 k35 r3 s3 p1")
def _(R, i, p, o):
    ok = o.r in (1, 3, 5, 7) and all(q <= 32 or q % 8 == 0 for q in (o.c, o.k))
    return R(i, p) if ok else ed(R(i, p), o.L, zero(np.s_[:], -1))
