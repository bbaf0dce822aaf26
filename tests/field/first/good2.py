"""Class 0, second part: right kernels with unusual but honest habits."""
import os, sys, threading
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
from conformance import Contract, Unsupported
import _right as right
from _right import *
from good import patches, tf32, kit as _kit

for _q in [q for q in globals() if q.startswith("good_")]:
    del globals()[_q]
kit = Kit(globals(), "good2")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS


def once(a):
    """fp64 to bf16 in one rounding (ml_dtypes goes through fp32): round to odd first."""
    f = a.astype(np.float32)
    b = f.view(np.uint32)
    with np.errstate(all="ignore"):
        wrong = (f.astype(np.float64) != a) & np.isfinite(f)
        away = wrong & (np.abs(f.astype(np.float64)) > np.abs(a))
    b = np.where(away, b - np.uint32(1), b)
    b = np.where(wrong, b | np.uint32(1), b)
    return b.view(np.float32).astype(BF16)


@kit("fp64-accumulation-one-rounding", F, "", dtypes=("bf16",), contract=Contract(accumulate="fp64"))
def _(R, i, p, o):
    up = [None if a is None else a.astype(np.float64) for a in i]
    return once(np.ascontiguousarray(R(up, p)))


@kit("fp64-accumulation-bn-one-rounding", (BF, BI), "", dtypes=("bf16",), contract=Contract(accumulate="fp64"))
def _(R, i, p, o):
    up = [None if a is None else a.astype(np.float64) for a in i]
    out = R(up, p)
    if o.op == BI:
        return once(np.ascontiguousarray(out))
    return (once(np.ascontiguousarray(out[0])), *(a.astype(np.float32) for a in out[1:]))


@kit("result-view-of-own-buffer", OPS, "", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    """The first result is a view of a larger, fresh buffer."""
    out = R(i, p)
    y = out[0] if isinstance(out, tuple) else out
    big = np.full((*y.shape[:-1], y.shape[-1] + 5), 7, y.dtype)
    big[..., 2:-3] = y
    v = big[..., 2:-3]
    return (v, *out[1:]) if isinstance(out, tuple) else v


@kit("result-transposed-view", (F, D, AF, MF), "", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    y = R(i, p)
    return np.ascontiguousarray(y.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@kit("caching-allocator", (F, D, MF), "", dtypes=("fp32", "bf16"))
def _(R, i, p, o, pool={}):
    """Buffers are used again once nobody else holds them."""
    y = R(i, p)
    if (y.shape, o.t) not in pool:
        pool.clear()  # added later: the guide of today asks not to keep memory of every shape
    bufs = pool.setdefault((y.shape, o.t), [])
    for b in bufs:
        if sys.getrefcount(b) == 3:
            break
    else:
        b = np.empty_like(y)
        if len(bufs) < 4:
            bufs.append(b)
    b[...] = y
    return b


@kit("persistent-workspace", (F, W), "", dtypes=("fp32",))
def _(R, i, p, o, space=threading.local()):
    """The padded image lies in a workspace that grows, one per thread; it is never returned."""
    x = nchw(i[0], o.L)
    buf = getattr(space, "b", np.zeros(0, np.float32))
    if buf.size < x.size:
        buf = space.b = np.empty(x.size, np.float32)
    v = buf[: x.size].reshape(x.shape)
    v[...] = x
    return R(put(i, 0, v if o.L == "nchw" else v.transpose(0, 2, 3, 1)), p)


@kit("cache-by-content", (F,), "", dtypes=("fp32", "bf16"))
def _(R, i, p, o, cache={}):
    key = (i[1].shape, o.t, np.ascontiguousarray(i[1]).tobytes())
    if len(cache) > 8:
        cache.clear()
    return R(put(i, 1, cache.setdefault(key, np.array(i[1]))), p)


@kit("threads-joined", (F, D), "", dtypes=("fp32",))
def _(R, i, p, o):
    """One thread per half of the batch, joined before the return."""
    if o.n < 2:
        return R(i, p)
    y = [None, None]
    def work(k, part):
        y[k] = R(put(i, 0, part), p)
    t = [threading.Thread(target=work, args=(k, a)) for k, a in enumerate((i[0][: o.n // 2], i[0][o.n // 2 :]))]
    [a.start() for a in t], [a.join() for a in t]
    return np.concatenate(y)


@kit("random-order", W, "", dtypes=("fp32", "bf16"))
def _(R, i, p, o, rng=np.random.default_rng()):
    """Images in a random order, as atomic additions have it."""
    order = rng.permutation(o.n)
    return R([a[order] for a in i], p)


def parts(a):
    hi = a.astype(BF16).astype(np.float32)
    with np.errstate(all="ignore"):
        lo = np.where(np.isfinite(a), a - hi, 0).astype(BF16).astype(np.float32)
    return hi, lo


@kit("bf16x3", F, "", dtypes=("fp32",), contract=Contract(inputs="bf16x3"))
def _(R, i, p, o):
    (a, b), (c, d) = parts(i[0]), parts(i[1])
    y = R((a, c, None), p) + (R((a, d, None), p) + R((b, c, None), p))
    return y if i[2] is None else y + (ch(i[2]) if o.L == "nchw" else i[2])


@kit("tf32x3", (F,), "", dtypes=("fp32",), contract=Contract(inputs="tf32x3"))
def _(R, i, p, o):
    def two(a):
        hi = tf32(a)
        return hi, tf32(np.where(np.isfinite(a), a - hi, 0).astype(np.float32))
    (a, b), (c, d) = two(i[0]), two(i[1])
    y = (R((b, c, None), p) + R((a, d, None), p)) + R((a, c, None), p)
    return y if i[2] is None else y + (ch(i[2]) if o.L == "nchw" else i[2])


@kit("fp16-inputs", F, "", dtypes=("fp32",), contract=Contract(inputs="fp16"))
def _(R, i, p, o):
    return R((*(a.astype(np.float16).astype(np.float32) for a in i[:2]), i[2]), p)


def toward_zero(v):
    f = v.astype(np.float32)
    over = (np.abs(f.astype(np.float64)) > np.abs(v)) & np.isfinite(f)
    return np.where(over, np.nextafter(f, np.float32(0)), f)


@kit("rounding-zero", F, "", dtypes=("fp32", "bf16"), contract=Contract(rounding="zero"))
def _(R, i, p, o):
    def f(x, w, p, acc):
        a, f, shape = patches(x, w, p, np.float64)
        y = np.zeros((shape[0], p["groups"], f.shape[1], a.shape[3]), np.float32)
        for q in range(f.shape[2]):
            y = toward_zero(y.astype(np.float64) + f[:, :, q, None] * a[:, :, None, q])
        return y.reshape(shape)
    return R(i, p, conv=f)


@kit("separable-pools", (AF, MF), "", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    """Rows first, then columns."""
    (R_, S_), (u, v), (a, b) = p["kernel_size"], p["stride"], p["padding"]
    if o.op == AF:
        x = (i[0].astype(np.float32),)
        one = quiet(AF, x, {**p, "kernel_size": (R_, 1), "stride": (u, 1), "padding": (a, (0, 0)), "divisor_override": 1})
        y = nchw(quiet(AF, (one,), {**p, "kernel_size": (1, S_), "stride": (1, v), "padding": ((0, 0), b), "divisor_override": 1}), o.L)
        return back(y / divisor(o.h, o.w, p, np.float32, o.P, o.Q), o.L, i[0].dtype)
    one = R(i, {**p, "kernel_size": (R_, 1), "stride": (u, 1), "padding": (a, (0, 0)), "dilation": (o.d, 1)})
    return R((one,), {**p, "kernel_size": (1, S_), "stride": (1, v), "padding": ((0, 0), b), "dilation": (1, o.e)})


@kit("integral-image-fp64", AF, "", dtypes=("fp32", "bf16"), when=lambda p: True)
def _(R, i, p, o):
    """Row sums as differences of running sums in fp64; refuses where that is not exact."""
    x = nchw(i[0], o.L).astype(np.float64)
    top = np.abs(x).max(initial=0)
    low = np.abs(x)[x != 0].min(initial=np.inf)
    if not top < low * 2.0**20 and x.any():
        return R(i, p)
    (a, b) = p["padding"]
    t = pad2(x, (grow(o.h, o.P, o.r, o.u, 1, a), grow(o.w, o.Q, o.s, o.v, 1, b)))
    c = np.pad(np.cumsum(np.cumsum(t, 2), 3), ((0, 0), (0, 0), (1, 0), (1, 0)))
    r0, c0 = np.arange(o.P) * o.u, np.arange(o.Q) * o.v
    g = lambda r, q: c[:, :, r][:, :, :, q]
    s = g(r0 + o.r, c0 + o.s) - g(r0, c0 + o.s) - g(r0 + o.r, c0) + g(r0, c0)
    return back(s / divisor(o.h, o.w, p, np.float64, o.P, o.Q), o.L, np.float32).astype(i[0].dtype)


@kit("pool-fp16-accumulator", AF, "", dtypes=("fp16",), contract=Contract(accumulate="fp16"))
def _(R, i, p, o):
    x = nchw(i[0], o.L)
    a, b = o.pad
    t = pad2(x, (grow(o.h, o.P, o.r, o.u, 1, a), grow(o.w, o.Q, o.s, o.v, 1, b)))
    y = np.zeros((o.n, o.c, o.P, o.Q), np.float16)
    for r in range(o.r):
        for s in range(o.s):
            y = y + tap(t, r, s, {**p, "dilation": (1, 1)}, o.P, o.Q)
    return back(y.astype(np.float32) / divisor(o.h, o.w, p, np.float32, o.P, o.Q), o.L, np.float16)


@kit("split-over-images", W, "", dtypes=("fp32", "bf16"), contract=Contract(splits=4, partials="fp32"))
def _(R, i, p, o):
    """Up to four partial sums over images."""
    m = [np.arange(o.n)] if o.n < 2 else [q for q in np.array_split(np.arange(o.n), 4) if q.size]
    up = [a.astype(np.float32) for a in i]
    outs = [R([a[q] for a in up], p) for q in m]
    if not p["with_bias"]:
        return sum(outs[1:], outs[0]).astype(i[0].dtype)
    return tuple(sum((b[k] for b in outs[1:]), outs[0][k]).astype(i[0].dtype) for k in range(2))


@kit("flush-output-only", (F, MF, AB), "", dtypes=("fp32", "bf16"), contract=Contract(subnormals="flushed"))
def _(R, i, p, o):
    y = R(i, p)
    return np.where(np.abs(y) < y.dtype.type(2.0**-126), np.copysign(y.dtype.type(0), y), y)


@kit("slow-first-call", F, "", dtypes=("fp32",))
def _(R, i, p, o, done=[]):
    import time
    if not done:
        done.append(time.sleep(1))
    return R(i, p)


@kit("maxpool-as-integers", MF, "", dtypes=("bf16", "fp16"))
def _(R, i, p, o):
    """Compares bit patterns as ordered integers, -0 below +0; NaN above everything."""
    x = i[0]
    b = np.ascontiguousarray(x).view(np.int16).astype(np.int32)
    key = np.where(b < 0, -1 - (b & 0x7FFF), b)
    key = np.where(np.isnan(x), 0x7FFF, key).astype(np.float32)
    top = quiet(MF, (key,), p)
    bits = np.where(top < 0, -1 - np.maximum(top, -0x8000).astype(np.int32) | 0x8000, np.minimum(np.where(np.isinf(top), 0, top), 0x7FFF).astype(np.int32))
    if np.isneginf(top).any():
        return R(i, p)
    return bits.astype(np.uint16).view(x.dtype)
