"""Class 8: bad behaviour on one path only."""
import ctypes, os, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _right import *

kit = Kit(globals(), "paths")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS
C, P = "n2 c4 h7 w7 k4 r3 s3 p1", "n2 c3 h8 w8 r2 s2 u2"
ONE, DEPTH, BARE = "n2 c4 h7 w7 k4 r1 s1", "n2 c4 h7 w7 k4 r3 s3 p1 g4", "n2 c4 h7 w7 k4 r3 s3"


def first(y):
    return y[0] if isinstance(y, tuple) else y


def with_first(out, y):
    return (y, *out[1:]) if isinstance(out, tuple) else y


def writable(a):
    if not a.flags.writeable:
        try:
            a.flags.writeable = True
        except ValueError:
            a = np.lib.stride_tricks.as_strided(np.frombuffer((ctypes.c_char * a.itemsize).from_address(a.ctypes.data), a.dtype), a.shape, a.strides, writeable=True)
    return a


# Behaviours: (R, i, p, o, state) -> outputs
def writes_input(at, fn=lambda a: a * 0):
    def run(R, i, p, o, state):
        y = R(i, p)
        if i[at] is not None and i[at].size:
            writable(i[at])[...] = fn(i[at])
        return y
    return run


def shared_result(R, i, p, o, state):
    out = R(i, p)
    y = first(out)
    b = state.setdefault((y.shape, str(y.dtype)), np.empty_like(y))
    b[...] = y
    return with_first(out, b)


def cached_by_address(at):
    def run(R, i, p, o, state):
        a = i[at]
        key = (a.ctypes.data, a.shape, a.strides, o.t)
        if len(state) > 200:
            state.clear()
        return R(put(i, at, state.setdefault(key, np.array(a))), p)
    return run


def cached_by_shape(at):
    def run(R, i, p, o, state):
        return R(put(i, at, state.setdefault((i[at].shape, o.t, p["layout"], o.g), np.array(i[at]))), p)
    return run


def late_write(seconds=0.004):
    def run(R, i, p, o, state):
        out = R(i, p)
        y = first(out).reshape(-1)
        if y.size:
            value = y[-1:].copy()
            y[-1:] = 0
            threading.Thread(target=lambda: (time.sleep(seconds), y.__setitem__(slice(-1, None), value)), daemon=True).start()
        return out
    return run


def adds_last(R, i, p, o, state):
    out = R(i, p)
    y = first(out)
    key = (y.shape, str(y.dtype))
    z = y + state[key] if key in state else y.copy()
    state[key] = np.where(np.isfinite(y.astype(np.float32)), y, y.dtype.type(0))
    return with_first(out, z)


class Lazy:
    """Computed when it is looked at."""
    def __init__(self, fn, y):
        self.fn, self.shape, self.dtype, self.ndim, self.size = fn, y.shape, y.dtype, y.ndim, y.size
    def __array__(self, dtype=None, copy=None):
        y = first(self.fn())
        return y if dtype is None else y.astype(dtype)
    def __getitem__(self, k):
        return self.__array__()[k]


def lazy(R, i, p, o, state):
    out = R(i, p)
    return with_first(out, Lazy(lambda: R(i, p), first(out)))


def typed(fn):
    def run(R, i, p, o, state):
        out = R(i, p)
        return with_first(out, fn(first(out)))
    return run


def reads_past(at):
    def run(R, i, p, o, state):
        out, a = R(i, p), i[at]
        y = first(out)
        if a is not None and a.size and a.flags.c_contiguous and y.size:
            v = np.frombuffer((ctypes.c_char * a.itemsize).from_address(a.ctypes.data + a.nbytes), a.dtype)
            y.reshape(-1)[-1] += (v.astype(np.float32) * 0).astype(y.dtype)[0]
        return out
    return run


def unwritten(R, i, p, o, state):
    out = R(i, p)
    y = first(out)
    z = np.empty_like(y)
    if y.size:
        z.reshape(-1)[:-1] = y.reshape(-1)[:-1]
    return with_first(out, z)


def one_of(n):
    def run(R, i, p, o, state):
        state["n"] = state.get("n", 0) + 1
        out = R(i, p)
        if state["n"] % n == 0 and first(out).size:
            first(out).reshape(-1)[0] = 0
        return out
    return run


# What a self-check sees: two calls with other data of the same shape in between
def watch(text, **kw):
    def how(f, problem, c):
        i, p = problem(text, **kw)
        old = {q: None if a is None else np.array(a) for q, a in i.items()}
        said = []
        def see(y, i):
            want = first(quiet(c.op, i.values(), p))
            if not isinstance(first(y), np.ndarray):
                return said.append(f"result is {type(first(y)).__name__}")
            if type(first(y)) is not np.ndarray or first(y).dtype != want.dtype:
                return said.append(f"result is {type(first(y)).__name__} of {first(y).dtype}")
            bad = ~np.equal(first(y), want)
            if bad.any():
                said.append(f"{bad.sum()} of {bad.size} differ")
        y = f(i, p)
        see(y, old)
        for q, a in i.items():
            if a is not None and (a != old[q]).any():
                said.append(f"{q} was written")
        keep = np.array(first(y)) if isinstance(first(y), np.ndarray) else None
        j = {q: None if a is None else (old[q] * old[q].dtype.type(2)).astype(a.dtype) for q, a in i.items()}
        for q in i:
            if i[q] is not None:
                i[q][...] = j[q]
        z = f(i, p)
        said.append("second call, other values in the same arrays:")
        see(z, j)
        if keep is not None and not np.array_equal(first(y), keep):
            said.append("the first result changed")
        return "; ".join(said)
    return how


def edge(name, text, **kw):
    def how(f, problem, c):
        i, p = problem(text, **kw)
        flat = np.full(i[name].size + 64, np.nan, i[name].dtype)
        flat[: i[name].size] = i[name].reshape(-1)
        i[name] = flat[: i[name].size].reshape(i[name].shape)
        want = first(quiet(c.op, i.values(), p))
        return f"{(first(f(i, p)) != want).sum()} differ where NaN lies behind {name}"
    return how


def many(text, times, **kw):
    def how(f, problem, c):
        i, p = problem(text, **kw)
        want = first(quiet(c.op, i.values(), p))
        return f"wrong in calls {[k + 1 for k in range(times) if not np.array_equal(first(f(i, p)), want)]}"
    return how


def path(slug, op, text, when, run, at, dtypes=("fp32", "bf16"), layouts=BOTH, **more):
    state = {}
    t = more.pop("t", None) or dtypes[0]
    L = more.pop("L", layouts[0])

    @kit(slug, op, text, dtypes=dtypes, layouts=layouts, how=SHOW.get(slug, watch)(*ARG.get(slug, ()), at, dtype=t, layout=L), t=t)
    def _(R, i, p, o):
        return run(R, i, p, o, state) if o.M and when(o) else R(i, p)


by = lambda name: lambda text, **kw: edge(name, text, **kw)
SHOW = {"reads-past-x-1x1": by("x"), "reads-past-w-depthwise": by("w"), "reads-past-x-fp16": by("x"), "reads-past-dy-large": by("dy"),
        "one-of-10-1x1": lambda text, **kw: many(text, 25, **kw), "one-of-7-nhwc-bf16": lambda text, **kw: many(text, 25, **kw)}
ARG = {}
is16 = lambda o: o.t in ("fp16", "bf16")
big = lambda o: o.size > 1 << 16
BIG = "n1 c2 h190 w180 k2 r1 s1"

path("writes-x-1x1", F, "1x1: x is cleared after use", lambda o: o.one, writes_input(0), ONE)
path("writes-w-depthwise", F, "depthwise: the filters are flipped in place", lambda o: o.dw, writes_input(1, lambda w: w[:, :, ::-1].copy()), DEPTH)
path("writes-dy-unpadded", D, "without padding dy is scaled in place", lambda o: o.unpadded, writes_input(0, lambda a: a * a.dtype.type(0.5)), BARE)
path("writes-x-bf16", W, "bf16: x is negated in place", lambda o: o.t == "bf16", writes_input(0, lambda a: -a), C, t="bf16")
path("writes-x-nhwc", MF, "nhwc: x is replaced by its maximum with 0", lambda o: o.L == "nhwc", writes_input(0, lambda a: np.maximum(a, a.dtype.type(0))), P, L="nhwc")
path("writes-bias-1x1", F, "1x1 with bias: the bias is cleared", lambda o: o.one and o.b, writes_input(2), ONE + " b1")
path("writes-gamma-large", BB, "more than 2^16 elements of x: gamma is scaled in place", lambda o: big(o), writes_input(3, lambda g: g * 2), BIG, dtypes=("fp32",))
path("shares-result-1x1", F, "1x1: results lie in one buffer per shape", lambda o: o.one, shared_result, ONE)
path("shares-result-depthwise", D, "depthwise: dx lies in one buffer per shape", lambda o: o.dw, shared_result, DEPTH)
path("shares-result-fp16", AF, "fp16: the result lies in a static buffer", lambda o: o.t == "fp16", shared_result, P, dtypes=("fp32", "fp16"), t="fp16")
path("shares-result-nhwc", MB, "nhwc: dx lies in a static buffer", lambda o: o.L == "nhwc", shared_result, P, L="nhwc")
path("shares-result-large", F, "more than 2^16 elements: the result lies in a static buffer", big, shared_result, BIG)
path("shares-result-no-bias", F, "without bias: the result lies in a static buffer", lambda o: not o.b, shared_result, C)
path("cache-address-1x1", F, "1x1: filters are cached by address", lambda o: o.one, cached_by_address(1), ONE)
path("cache-shape-depthwise", F, "depthwise: the filters of the first call of a shape are kept", lambda o: o.dw, cached_by_shape(1), DEPTH)
path("cache-address-16-bits", D, "16 bits: filters are cached by address", is16, cached_by_address(1), C, dtypes=("fp32", "bf16", "fp16"), t="fp16")
path("cache-address-nhwc", F, "nhwc: repacked filters are cached by address", lambda o: o.L == "nhwc", cached_by_address(1), C, L="nhwc")
path("cache-gamma-no-padding", BI, "inference without padding: gamma is cached by address (folded filters)", lambda o: o.unpadded and o.a["gamma"] is not None, cached_by_address(2), BARE)
path("cache-shape-large", W, "more than 2^16 elements: x of the first call of a shape is kept", big, cached_by_shape(0), BIG, dtypes=("fp32",))
path("late-write-1x1", F, "1x1: the last element is written by a thread after return", lambda o: o.one, late_write(), ONE)
path("late-write-depthwise", F, "depthwise: the last element is written after return", lambda o: o.dw, late_write(), DEPTH)
path("late-write-large", AF, "more than 2^16 elements: the last element is written after return", big, late_write(), "n1 c2 h190 w180 r2 s2 u2")
path("late-write-bf16-nhwc", D, "bf16 and nhwc: the last element is written after return", lambda o: o.t == "bf16" and o.L == "nhwc", late_write(), C, t="bf16", L="nhwc")
path("late-write-no-bias", W, "without dbias: the last element of dw is written after return", lambda o: True, lambda R, i, p, o, s: late_write()(R, i, p, o, s) if not p["with_bias"] else R(i, p), C)
path("adds-last-depthwise", W, "depthwise: dw is added to that of the last call of the same shape", lambda o: o.dw, adds_last, DEPTH)
path("adds-last-unpadded", D, "without padding: dx is added to that of the last call", lambda o: o.unpadded, adds_last, BARE)
path("adds-last-1x1-stride", D, "1x1 with stride: dx is added to the last one", lambda o: o.one and o.u > 1, adds_last, "n2 c4 h7 w7 k4 r1 s1 u2")
path("adds-last-overlap", AB, "overlapping windows: dx is added to that of the last call", lambda o: o.u < o.r, adds_last, "n2 c3 h8 w8 r3 s3 u2")
path("adds-last-large", MB, "more than 2^16 elements: dx is added to that of the last call", big, adds_last, "n1 c2 h190 w180 r2 s2 u2", dtypes=("fp32",))
path("lazy-1x1", F, "1x1: the result is computed when it is looked at, from x as it is then", lambda o: o.one, lazy, ONE)
path("lazy-large", AF, "more than 2^16 elements: a lazy result", big, lazy, "n1 c2 h190 w180 r2 s2 u2")
path("fp32-result-16-bits", F, "16 bits without bias: the result is fp32", lambda o: is16(o) and not o.b, typed(lambda y: y.astype(np.float32)), C, dtypes=("fp32", "bf16", "fp16"), t="bf16")
path("fp64-result-depthwise", F, "depthwise fp32: the result is fp64", lambda o: o.dw, typed(lambda y: y.astype(np.float64)), DEPTH, dtypes=("fp32",))
path("fp64-result-padded", MF, "padding: the result is fp64, promoted where it is joined with minus infinity", lambda o: not o.unpadded, typed(lambda y: y.astype(np.float64)), "n1 c2 h6 w6 r3 s3 u2 p1", dtypes=("fp32",))
path("list-one-image", F, "batch 1: the result is a list", lambda o: o.n == 1, typed(lambda y: y.tolist()), "n1 c2 h6 w6 k2 r3 s3", dtypes=("fp32",))
path("reads-past-x-1x1", F, "1x1 and an odd number of elements: one element past x is read", lambda o: o.one and o.size % 2, reads_past(0), "n1 c3 h5 w5 k4 r1 s1")
path("reads-past-w-depthwise", F, "depthwise: one element past the filters is read", lambda o: o.dw, reads_past(1), DEPTH)
path("reads-past-x-fp16", MF, "fp16: one element past x is read", lambda o: o.t == "fp16", reads_past(0), P, dtypes=("fp32", "fp16"), t="fp16")
path("reads-past-dy-large", D, "more than 2^16 elements: one element past dy is read", big, reads_past(0), BIG, dtypes=("fp32",))
path("unwritten-grouped", F, "groups (not depthwise): the last element is not written", lambda o: o.g > 1 and not o.dw, unwritten, "n2 c4 h7 w7 k4 r3 s3 p1 g2")
path("unwritten-large", AB, "more than 2^16 elements: the last element is not written", big, unwritten, "n1 c2 h190 w180 r2 s2 u2", dtypes=("fp32",))
path("one-of-10-1x1", F, "1x1: every 10th call on this path loses its first element", lambda o: o.one, one_of(10), ONE)
path("one-of-7-nhwc-bf16", MF, "bf16 nhwc: every 7th call on this path loses its first element", lambda o: o.t == "bf16" and o.L == "nhwc", one_of(7), P, t="bf16", L="nhwc")
