"""Class 5, state: caches, workspaces, threads, counters."""
import os, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import *  # noqa
from _kit import A, Book, R, problem, right
import numpy as np
bad = Book(__name__, "state")
B = "n2 c4 h9 w9 k4 r3 s3"


def digest(a):
    return None if a is None else a.tobytes()


plans = {}


@bad("01-plan-without-dilation", CF, "the plan (here the taps) is cached by shapes, stride and padding of the output, without dilation: the same shapes with another dilation use the first", seq=[B + " p1", B + " p2 d2"])
def _(ins, kw):
    x, w, b = ins
    p = [R.out_size(n, pad, k, s, d) for n, pad, k, s, d in zip(R.first(x, kw.layout).shape[2:], kw.padding, R.first(w, kw.layout).shape[2:], kw.stride, kw.dilation)]
    key = (x.shape, w.shape, tuple(p), kw.stride, x.dtype, kw.layout, kw.groups)
    plan = plans.setdefault(key, (kw.dilation, kw.padding))
    return right(CF, ins, A(kw | {"dilation": plan[0], "padding": plan[1]}))


packed = {}


@bad("02-weights-by-id", CF, "packed weights are cached by id(w): after the array has died another one can have its id", seq=None,
     demo=lambda k: demo_id(k))
def _(ins, kw):
    x, w, b = ins
    key = (id(w), w.shape, w.dtype)
    if key not in packed:
        packed[key] = w.copy()
    return right(CF, [x, packed[key], b], kw)


def demo_id(k):
    ins, kw = problem(CF, B)
    wrong = 0
    for i in range(30):
        w = np.full(ins[1].shape, i, np.float32)
        wrong += not np.array_equal(k(ins[0], w, None, **kw), right(CF, [ins[0], w, None], kw))
        del w
    return f"{wrong} of 30 calls wrong" if wrong else ""


addresses = {}


@bad("03-weights-by-address", CF, "transformed weights are cached by address: weights updated in place (an optimiser step) are stale", demo=lambda k: demo_update(k))
def _(ins, kw):
    x, w, b = ins
    key = (w.__array_interface__["data"][0], w.shape, w.strides, w.dtype)
    return right(CF, [x, addresses.setdefault(key, w.copy()), b], kw)


def demo_update(k):
    ins, kw = problem(CF, B)
    k(*ins, **kw)
    ins[1] += 1
    return "stale" if not np.array_equal(k(*ins, **kw), right(CF, ins, kw)) else ""


divs = {}


@bad("04-divisors-without-include", AF, "the table of divisors is cached without count_include_pad and divisor_override", ("fp32", "bf16"), seq=["n1 c2 h7 w7 r3 s3 u2 p1", "n1 c2 h7 w7 r3 s3 u2 p1 valid1"])
def _(ins, kw):
    key = (R.first(ins[0], kw.layout).shape[2:], kw.kernel_size, kw.stride, kw.padding, kw.ceil_mode)
    inc, over = divs.setdefault(key, (kw.count_include_pad, kw.divisor_override))
    return right(AF, ins, A(kw | {"count_include_pad": inc, "divisor_override": over}))


epses = {}


@bad("05-eps-cached", BI, "the compiled kernel bakes in eps of its first call with these shapes", seq=["n1 c3 h5 w5 k4 r1 s1 eps5", "n1 c3 h5 w5 k4 r1 s1 eps2"])
def _(ins, kw):
    eps = epses.setdefault((ins[0].shape, ins[1].shape, ins[0].dtype), kw.eps)
    return right(BI, ins, A(kw | {"eps": eps}))


ws = {}


@bad("06-workspace-of-first-call", CW, "a static workspace sized by the first call: a larger problem keeps only what fits, the rest of dw is zero", seq=["n1 c2 h6 w6 k2 r3 s3", "n2 c4 h9 w9 k4 r3 s3 p1"])
def _(ins, kw):
    out = right(CW, ins, kw)
    dw = out[0] if isinstance(out, tuple) else out
    size = ws.setdefault("size", dw.size)
    dw.reshape(-1)[max(size, 18):] = 0
    return out


shared = np.zeros(1 << 16, np.float32)


@bad("07-not-reentrant", CF, "a global scratch buffer: two threads at once mix their results", ("fp32",), ("nchw",), demo=lambda k: demo_threads(k))
def _(ins, kw):
    y = right(CF, ins, kw)
    if y.size > shared.size:
        return y
    s = shared[: y.size]
    s[:] = y.reshape(-1)
    time.sleep(0)
    t = time.perf_counter()
    while time.perf_counter() - t < 2e-4:
        pass
    return s.copy().reshape(y.shape)


def demo_threads(k):
    cases = [problem(CF, B, seed=i) for i in range(2)]
    wrong = [0]
    want = [right(CF, *c) for c in cases]

    def work(i):
        for _ in range(200):
            wrong[0] += not np.array_equal(k(*cases[i][0], **cases[i][1]), want[i])
    ts = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    [t.start() for t in ts]
    [t.join() for t in ts]
    sys.setswitchinterval(old)
    return f"{wrong[0]} of 400 calls wrong" if wrong[0] else ""


kept = []


@bad("08-leaks-plans", CF, "every new shape keeps its padded input in a cache that is never emptied", ("fp32", "bf16"), demo=lambda k: demo_leak(k))
def _(ins, kw):
    kept.append((ins[0].shape, np.ones(ins[0].shape[:-2] + tuple(n + 8 for n in ins[0].shape[-2:]), np.float32)) if ins[0].shape not in [s for s, _ in kept] else (None, None))
    return right(CF, ins, kw)


def demo_leak(k):
    ins, kw = problem(CF, B)
    k(*ins, **kw)
    return f"kept {sum(a.nbytes for _, a in kept if a is not None):,} bytes"


count = {"n": 0}


@bad("09-one-of-50", CF, "every 50th call loses the last image row (a race that a counter stands for)", demo=lambda k: demo_count(k, CF, B + " p1", 120))
def _(ins, kw):
    y = right(CF, ins, kw)
    count["n"] += 1
    if count["n"] % 50 == 0 and y.size:
        (y if kw.layout == "nchw" else y.transpose(0, 3, 1, 2))[:, :, -1] = 0
    return y


def demo_count(k, op, text, n):
    ins, kw = problem(op, text)
    want = R.tup(right(op, ins, kw)) if hasattr(R, "tup") else right(op, ins, kw)
    wrong = sum(not np.array_equal(k(*ins, **kw), want) for _ in range(n))
    return f"{wrong} of {n} calls wrong" if wrong else ""


calls = {"n": 0}


@bad("10-after-100", MF, "from the 101st call of the process on the first column is that of the previous call (an event pool runs out)", ("fp32", "bf16"), demo=lambda k: demo_count(k, MF, "n1 c2 h8 w8 r2 s2 u2", 130))
def _(ins, kw):
    y = right(MF, ins, kw)
    calls["n"] += 1
    if calls["n"] > 100:
        (y if kw.layout == "nchw" else y.transpose(0, 3, 1, 2))[..., 0] = 0
    return y


seen = {"dtype": None}


@bad("11-after-another-dtype", CD, "the call right after one of another dtype uses the old dtype's rounding (a mode register is set late)", ("fp32", "bf16"),
     seq=[(B, {"dtype": "bf16"}), (B, {"dtype": "fp32"})], prep=lambda i: [i[0] * i[0].dtype.type(1.3), i[1]])
def _(ins, kw):
    import ml_dtypes
    old, seen["dtype"] = seen["dtype"], ins[0].dtype
    dx = right(CD, ins, kw)
    return dx.astype(old).astype(dx.dtype) if old is not None and old != dx.dtype else dx


pid = os.getpid()


@bad("12-after-fork", CF, "after fork (a data loader's worker) the thread pool is dead: only the first image is computed", ("fp32",), demo=lambda k: demo_fork(k))
def _(ins, kw):
    y = right(CF, ins, kw)
    if os.getpid() != pid:
        y[1:] = 0
    return y


def demo_fork(k):
    ins, kw = problem(CF, B)
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(w, b"1" if np.array_equal(k(*ins, **kw), right(CF, ins, kw)) else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    return "wrong in the child" if os.read(r, 1) == b"0" else ""


order = np.random.default_rng()


@bad("13-nondeterministic", CW, "atomic adds: the images are added in a random order, so that results differ from run to run in the last bits; declared as deterministic by default", ("fp32",), ("nchw",),
     demo=lambda k: demo_random(k))
def _(ins, kw):
    x, dy = ins
    i = order.permutation(len(x))
    ns = [right(CW, [x[j:j + 1], dy[j:j + 1]], kw) for j in i]
    if not ns:
        return right(CW, ins, kw)
    out = tuple(sum(p[1:], p[0]) for p in zip(*ns)) if kw.with_bias else sum(ns[1:], ns[0])
    return out


globals()["state_13_nondeterministic"].deterministic = True  # added later: its author took it for the default


def demo_random(k):
    ins, kw = problem(CW, "n5 c4 h9 w9 k4 r3 s3 p1")
    ins[0] = ins[0] * np.float32(np.pi)
    ins[1] = ins[1] * np.float32(np.pi)
    n = len({k(*ins, **kw).tobytes() for _ in range(20)})
    return f"{n} results of 20 calls" if n > 1 else ""


momentums = {}


@bad("14-momentum-first-elements", BF, "results are cached by the shapes and the first 16 elements of x and w: other data with the same start get the old result", seq=["n1 c3 h5 w5 k4 r1 s1"] * 2,
     prep=lambda i: [head(i[0])] + [head(i[1])] + i[2:])
def _(ins, kw):
    x, w = ins[:2]
    key = (x.shape, w.shape, x.dtype, x.reshape(-1)[:16].tobytes(), w.reshape(-1)[:16].tobytes(), kw.eps, kw.momentum, kw.eps_outside, kw.stride, kw.padding, kw.dilation, kw.layout, *(a is None for a in ins))
    if key not in momentums:
        momentums[key] = right(BF, ins, kw)
    return tuple(a.copy() for a in momentums[key])


def head(a):
    a.reshape(-1)[:16] = 1
    return a
