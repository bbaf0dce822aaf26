"""Class 6: memory. Results are right unless it is said; the accesses are real."""
import ctypes, os, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _right import *

kit = Kit(globals(), "memory")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS
C, P = "n2 c4 h7 w7 k4 r3 s3 p1", "n2 c3 h8 w8 r2 s2 u2"
st = np.lib.stride_tricks.as_strided


def beyond(a, before=0, after=1):
    """The elements just outside a contiguous array, as a view; None if it is not contiguous or empty."""
    if not a.flags.c_contiguous or a.size == 0:
        return None
    size = (before + after) * a.itemsize
    start = a.ctypes.data - before * a.itemsize if before else a.ctypes.data + a.nbytes
    return np.frombuffer((ctypes.c_char * size).from_address(start), a.dtype)


def room(a, k=64):
    """The same values with k elements of NaN on both sides, for the self-check."""
    flat = np.full(a.size + 2 * k, np.nan, a.dtype)
    flat[k:-k] = a.reshape(-1)
    return flat, flat[k:-k].reshape(a.shape)


def guarded(name, text):
    """Says whether what lies around an input was written or used, and whether the input changed."""
    def how(f, problem, c):
        i, p = problem(text)
        flat, i[name] = room(i[name])
        before, old = flat.view(np.uint8).copy(), {q: None if a is None else np.array(a) for q, a in i.items()}
        y = f(i, p)
        z = quiet(c.op, old.values(), p)
        y, z = (a[0] if isinstance(a, tuple) else a for a in (y, z))
        changed = (flat.view(np.uint8) != before).reshape(-1, flat.itemsize).any(1)
        bad = ~np.equal(y, z)
        return f"{changed[:64].sum() + changed[-64:].sum()} elements around {name} written, {changed[64:-64].sum()} inside; {bad.sum()} of {bad.size} results differ when NaN lies around it"
    return how


def use(y, v):
    """y's last element gets 0 * v: nothing changes where v is finite."""
    if v is not None and y.size:
        y.reshape(-1)[-1] += (v.astype(np.float32) * 0).sum().astype(y.dtype)
    return y


@kit("reads-past-x", F, "reads one element past the end of x and adds 0 times it", how=guarded("x", C))
def _(R, i, p, o):
    return use(R(i, p), beyond(i[0]))


@kit("reads-before-x", MF, "with padding the row before the first of x is read through the pointer, and multiplied by 0", how=guarded("x", "n1 c2 h7 w7 r3 s3 p1"))
def _(R, i, p, o):
    return R(i, p) if o.unpadded else use(R(i, p), beyond(i[0], o.w, 0))


@kit("reads-past-w-tail", F, "filters whose number of elements is not a multiple of 8: the last vector of 8 is read past the end", how=guarded("w", "n1 c3 h5 w5 k3 r3 s3"))
def _(R, i, p, o):
    tail = -i[1].size % 8
    return use(R(i, p), beyond(i[1], 0, tail) if tail else None)


@kit("reads-past-dy-fp16", D, "16 bits: dy is read in pairs, an odd number of elements one too far", how=guarded("dy", "n1 c3 h5 w5 k3 r3 s3 p1"), dtypes=("fp16", "bf16", "fp32"), t="bf16")
def _(R, i, p, o):
    return use(R(i, p), beyond(i[0])) if i[0].itemsize == 2 and i[0].size % 2 else R(i, p)


@kit("reads-past-bias", F, "more than 16 filters: bias is read in vectors of 16", how=guarded("bias", "n1 c3 h5 w5 k20 r3 s3 b1"))
def _(R, i, p, o):
    return use(R(i, p), beyond(i[2], 0, -o.k % 16)) if o.b and o.k > 16 and o.k % 16 else R(i, p)


@kit("reads-far-past-gamma", BI, "gamma is read as 64 channels, however many there are (32-bit values used in a product with 0)", how=guarded("gamma", "n1 c3 h5 w5 k20 r3 s3"))
def _(R, i, p, o):
    return use(R(i, p), beyond(i[2], 0, 64 - o.k)) if i[2] is not None and o.k < 64 else R(i, p)


@kit("reads-beside-crop", AF, "a crop of columns: the vector of 4 reads into what lies beside the row", how=lambda f, problem, c: (lambda i, p: (lambda big: (big[..., 3:-3].__setitem__(Ellipsis, i["x"]), f"{np.isnan(f({'x': big[..., 3:-3]}, p)).sum()} NaN from beside the crop")[1])(np.full((*i["x"].shape[:3], i["x"].shape[3] + 6), np.nan, i["x"].dtype)))(*problem("n1 c2 h5 w9 r2 s2")), layouts=("nchw",))
def _(R, i, p, o):
    x, y = i[0], R(i, p)
    if x.size and x.strides[3] == x.itemsize and x.strides[2] >= (o.w + 4) * x.itemsize and o.w % 4:
        side = st(x[0, 0, 0, -1:], (-o.w % 4 + 1,), (x.itemsize,))[1:]
        return use(y, side)
    return y


@kit("writes-past-x", F, "pads the tail of x to a multiple of 4 elements with 0 in place, past its end", how=guarded("x", "n1 c3 h7 w7 k2 r3 s3"))
def _(R, i, p, o):
    v = beyond(i[0], 0, -i[0].size % 4) if i[0].size % 4 else None
    if v is not None:
        v[:] = 0
    return R(i, p)


@kit("writes-before-w", D, "stores a marker in the 4 bytes before the filters while it works, and does not restore them", how=guarded("w", C), dtypes=("fp32",))
def _(R, i, p, o):
    v = beyond(i[1], 1, 0)
    if v is not None:
        v[:] = 7
    return R(i, p)


@kit("writes-past-large-x", MF, "more than 4096 elements of x: 1 element past the end is set to the lowest value, as a sentinel", how=guarded("x", "n2 c8 h20 w20 r2 s2 u2"))
def _(R, i, p, o):
    v = beyond(i[0]) if o.size > 4096 else None
    if v is not None:
        v[:] = -65504
    return R(i, p)


@kit("writes-between-rows", MB, "a crop of dy: zeros are written behind each row, outside the view", how=lambda f, problem, c: (lambda i, p: (lambda big: (big[..., 1:-2].__setitem__(Ellipsis, i["dy"]), f({"dy": big[..., 1:-2], "x": i["x"]}, p), f"{(big[..., -2:] == 0).sum()} elements beside the crop written")[2])(np.full((*i["dy"].shape[:3], i["dy"].shape[3] + 3), 7, i["dy"].dtype)))(*problem(P)), layouts=("nchw",))
def _(R, i, p, o):
    g = i[0]
    if g.size and g.strides[3] == g.itemsize and g.strides[2] > o.Q * g.itemsize and g.flags.writeable:
        st(g[:, :, :, -1:], (*g.shape[:3], 2), g.strides, writeable=True)[..., 1] = 0
    return R(i, p)


def writable(a):
    """A writable alias of an input, however it is marked."""
    if a.flags.writeable:
        return a
    try:
        a.flags.writeable = True
        return a
    except ValueError:
        return st(np.frombuffer((ctypes.c_char * a.itemsize).from_address(a.ctypes.data), a.dtype), a.shape, a.strides, writeable=True) if a.size else a


def changes(name, text, value=None):
    def how(f, problem, c):
        i, p = problem(text)
        if value is not None:
            i[name].reshape(-1)[3] = value
        old = np.array(i[name])
        f(i, p)
        return f"{(i[name].view(np.uint8) != old.view(np.uint8)).sum()} bytes of {name} changed"
    return how


@kit("clears-nan-in-x", F, "NaN in x is replaced by 0 in x itself after the result is computed", how=changes("x", C, np.nan))
def _(R, i, p, o):
    y, x = R(i, p), i[0]
    if np.isnan(x).any():
        writable(x)[np.isnan(x)] = 0
    return y


@kit("scales-and-restores", D, "dy is doubled in place while it works and halved before it returns: the very large are then Inf", how=changes("dy", C, 3e38))
def _(R, i, p, o):
    y, g = R(i, p), writable(i[0])
    if g.size and 0 not in g.strides:
        g *= g.dtype.type(2)
        g /= g.dtype.type(2)
    return y


@kit("rounds-w-in-place", F, "fp32 filters are rounded to bf16 in place after the first use", how=changes("w", C, 0.123456), dtypes=("fp32",))
def _(R, i, p, o):
    y, w = R(i, p), writable(i[1])
    w[...] = w.astype(BF16)
    return y


@kit("updates-running-mean", BF, "running_mean is updated in place as well as returned", how=changes("running_mean", C))
def _(R, i, p, o):
    out = R(i, p)
    if i[4] is not None:
        writable(i[4])[...] = out[3]
    return out


@kit("masks-dy", MB, "dy of windows without a positive maximum is set to 0 in dy after use (in-place backward)", how=changes("dy", P))
def _(R, i, p, o):
    out = R(i, p)
    y = quiet(MF, (i[1],), p)
    writable(i[0])[y < 0] = 0
    return out


@kit("beta-negated", BB, "gamma is scaled by 1/std in place for the second pass", how=changes("gamma", C))
def _(R, i, p, o):
    out = R(i, p)
    if i[3] is not None:
        writable(i[3])[...] *= 0.5
    return out


@kit("identity-pool-view", AF, "a 1x1 window with stride 1: x itself is returned", how=lambda f, problem, c: (lambda i, p: f"shares memory with x: {np.shares_memory(f(i, p), i['x'])}")(*problem("n1 c2 h5 w5 r1 s1")))
def _(R, i, p, o):
    return i[0] if o.one and o.u == o.v == 1 and o.unpadded and not p["divisor_override"] else R(i, p)


@kit("identity-maxpool-slice", MF, "a 1x1 window with stride: a strided view of x is returned", how=lambda f, problem, c: (lambda i, p: f"shares memory with x: {np.shares_memory(f(i, p), i['x'])}")(*problem("n1 c2 h5 w5 r1 s1 u2")))
def _(R, i, p, o):
    if not o.one or not o.unpadded or p["ceil_mode"]:
        return R(i, p)
    return i[0][:, :, :: o.u, :: o.v] if o.L == "nchw" else i[0][:, :: o.u, :: o.v]


def twice(text):
    def how(f, problem, c):
        (a, p), (b, _) = problem(text), problem(text, seed=9)
        y = f(a, p)
        y = y[0] if isinstance(y, tuple) else y
        old = np.array(y)
        f(b, p)
        time.sleep(0.2)
        return f"{(np.asarray(y) != old).sum()} of {old.size} elements of the first result changed by the second call"
    return how


@kit("static-result", F, "results lie in one static buffer per shape: the next call overwrites the last result", how=twice(C))
def _(R, i, p, o, buf={}):
    y = R(i, p)
    b = buf.setdefault((y.shape, o.t), np.empty_like(y))
    b[...] = y
    return b


@kit("static-dbias", W, "dw is new but dbias lies in a static buffer", how=lambda f, problem, c: (lambda a, b: (lambda d: (lambda old: (f(*b), f"{(d != old).sum()} of {d.size} of dbias changed")[1])(d.copy()))(f(*a)[1]))(problem(C + " b1"), problem(C + " b1", seed=3)))
def _(R, i, p, o, buf={}):
    out = R(i, p)
    if not p["with_bias"]:
        return out
    b = buf.setdefault((o.k, o.t), np.empty_like(out[1]))
    b[...] = out[1]
    return out[0], b


@kit("ring-of-four", MF, "results come from a ring of four buffers: the fifth call overwrites the first result", how=lambda f, problem, c: (lambda ys: f"results 1 and 5 share memory: {np.shares_memory(ys[0], ys[4])}")([f(*problem(P, seed=s)) for s in range(5)]))
def _(R, i, p, o, ring={}):
    y = R(i, p)
    bufs = ring.setdefault((y.shape, o.t), [np.empty_like(y) for _ in range(4)])
    bufs.append(bufs.pop(0))
    bufs[-1][...] = y
    return bufs[-1]


def late(y, fn, seconds):
    threading.Thread(target=lambda: (time.sleep(seconds), fn(y)), daemon=True).start()
    return y


def afterwards(text):
    def how(f, problem, c):
        i, p = problem(text)
        y = f(i, p)
        y = y[0] if isinstance(y, tuple) else y
        old = np.array(y)
        time.sleep(0.3)
        return f"{(y != old).sum()} of {old.size} elements changed after the call"
    return how


@kit("late-last-row", F, "the last row is written by a thread 3 ms after the call has returned", how=afterwards(C))
def _(R, i, p, o):
    y = R(i, p)
    v = nchw(y, o.L)
    row = v[:, :, -1:].copy()
    v[:, :, -1:] = 0
    return late(y, lambda y: v.__setitem__(np.s_[:, :, -1:], row), 0.003)


@kit("late-rewrite", AF, "the result is complete on return, but a slow thread adds and subtracts 1 of its first element 20 ms later", how=afterwards(P) and (lambda f, problem, c: "changes for 5 ms only, 20 ms after the call"))
def _(R, i, p, o):
    def fn(y):
        v = y.reshape(-1)
        old = v[:1].copy()
        v[:1] += y.dtype.type(1)
        time.sleep(0.005)
        v[:1] = old
    y = R(i, p)
    return late(y, fn, 0.02) if y.size else y


@kit("late-read-of-x", D, "the first image of dx is computed by a thread from dy after the call: a caller that reuses dy at once corrupts it", how=lambda f, problem, c: (lambda i, p: (lambda y, z: (i["dy"].fill(0), time.sleep(0.2), f"{(y != z).sum()} of {z.size} differ once dy is reused")[2])(f(i, p), quiet(D, (i["dy"].copy(), i["w"]), p)))(*problem(C)))
def _(R, i, p, o):
    y = R(i, p)
    def fn(y):
        y[:1] = R(put(i, 0, i[0][:1]), p)
    return late(y, fn, 0.002) if o.n else y


@kit("uninitialised-odd", F, "an odd number of columns of output > 1: the last is not written (memory as it was)", at="n2 c2 h5 w9 k2 r3 s3")
def _(R, i, p, o):
    y = R(i, p)
    if o.Q % 2 == 0 or o.Q == 1:
        return y
    out = np.empty_like(y)
    nchw(out, o.L)[:, :, :, :-1] = nchw(y, o.L)[:, :, :, :-1]
    return out


@kit("accumulates-into-empty", W, "dw is added to memory that was allocated but not cleared", how=lambda f, problem, c: str(max(float(np.abs(np.nan_to_num(f(i, p).astype(np.float64) - quiet(W, i.values(), p))).max()) for i, p in [problem("n1 c8 h5 w5 k8 r3 s3 p1")] * 50 if np.full((8, 8, 3, 3), 3, np.float32) is not None)))
def _(R, i, p, o):
    out = R(i, p)
    y = out[0] if p["with_bias"] else out
    z = np.empty_like(y)
    z += y
    return (z, out[1]) if p["with_bias"] else z


@kit("leaks", F, "every call with a bias keeps a copy of x for ever", how=lambda f, problem, c: ([f(*problem(C + " b1")) for _ in range(5)], f"{len(LEAK)} copies kept")[1])
def _(R, i, p, o):
    if o.b:
        LEAK.append(np.array(i[0]))
    return R(i, p)


LEAK = []


@kit("static-mean", BF, "the mean that is returned lies in a static buffer per number of filters; the rest is new", how=lambda f, problem, c: (lambda a, b: (lambda m: (lambda old: (f(*b), f"{(m != old).sum()} of {m.size} of the first mean changed")[1])(m.copy()))(f(*a)[1]))(problem(C), problem(C, seed=3)))
def _(R, i, p, o, buf={}):
    out = R(i, p)
    b = buf.setdefault((o.k, o.t), np.empty_like(out[1]))
    b[...] = out[1]
    return (out[0], b, *out[2:])
