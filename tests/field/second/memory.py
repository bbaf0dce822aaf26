"""Class 6, memory: reads and writes beyond operands, writes to inputs, shared results, late writes."""
import ctypes, os, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import *  # noqa
from _kit import A, Book, R, problem, right
import numpy as np
bad = Book(__name__, "memory")
P = "n2 c4 h7 w7 k4 r3 s3 p1"


def beyond(a, before=0, after=0):
    """The elements of a with some before and after them, from memory."""
    here = a.__array_interface__["data"][0] - before * a.itemsize
    n = (a.size + before + after) * a.itemsize
    return np.frombuffer((ctypes.c_char * n).from_address(here), a.dtype)


def framed(i, op_in=None):
    """The operand in a buffer of 7s, so that what is read beyond it is visible."""
    def prep(ins):
        a = ins[i]
        buf = np.full(a.size + 64, 7, a.dtype)
        v = buf[32:32 + a.size].reshape(a.shape)
        v[...] = a
        ins[i] = v
        return ins
    return prep


@bad("01-reads-past-x", CF, "the last pixel of the last channel is read one element past the end of x where W is odd; its value is multiplied by 1e-3 and added", ("fp32", "bf16"), ("nchw",), on=P, prep=framed(0))
def _(ins, kw):
    x = ins[0]
    y = right(CF, ins, kw)
    if x.shape[3] % 2 and x.size and x.flags.c_contiguous and y.size:
        v = beyond(x, 0, 1)[-1]
        y[-1, -1, -1, -1] = y.dtype.type(float(y[-1, -1, -1, -1]) + 1e-3 * float(v)) if np.isfinite(float(v)) else np.nan
    return y


@bad("02-reads-and-masks", CF, "vector loads read up to 3 elements past the end of x and multiply them by 0: NaN in the neighbour's memory becomes NaN in the result", ("fp32",), on=P, prep=lambda i: nan_frame(i))
def _(ins, kw):
    x = ins[0]
    y = right(CF, ins, kw)
    if x.size % 4 and x.flags.c_contiguous and y.size or (x.flags.c_contiguous and x.shape[-1] % 4 and y.size):
        y.reshape(-1)[-1] += (beyond(x, 0, 4 - x.size % 4)[x.size:] * 0).sum()
    return y


def nan_frame(ins):
    a = ins[0]
    buf = np.full(a.size + 64, np.nan, a.dtype)
    v = buf[32:32 + a.size].reshape(a.shape)
    v[...] = a
    ins[0] = v
    return ins


@bad("03-touches-before-w", CD, "the page of the element before the start of w is touched (prefetch as a load), the result is right: a fault where w begins a mapping", ("fp32", "fp64"), demo=lambda k: "reads w[-1] (by construction)")
def _(ins, kw):
    w = ins[1]
    if w.flags.c_contiguous and w.size:
        beyond(w, 1, 0)[0].tobytes()
    return right(CD, ins, kw)


@bad("04-touches-far-past-x", MF, "a whole vector of 16 bytes is loaded at the end of x where C is no multiple of 4, nhwc only; the result is right", ("fp32", "bf16"), ("nhwc",), demo=lambda k: "reads 16 bytes past x (by construction)")
def _(ins, kw):
    (x,) = ins
    if x.shape[3] % 4 and x.flags.c_contiguous and x.size:
        beyond(x, 0, 16 // x.itemsize)[x.size:].tobytes()
    return right(MF, ins, kw)


@bad("05-writes-past-input-restores", CF, "x is padded in place with a sentinel one element past its end and the old value is put back (not thread safe, faults at the end of a page)", ("fp32",), ("nchw",), demo=lambda k: "writes x[size] and restores it (by construction)")
def _(ins, kw):
    x = ins[0]
    if x.flags.c_contiguous and x.size:
        p = ctypes.cast(x.__array_interface__["data"][0] + x.nbytes, ctypes.POINTER(ctypes.c_float))
        old = p[0]
        p[0] = 0.0
        y = right(CF, ins, kw)
        p[0] = old
        return y
    return right(CF, ins, kw)


@bad("06-scales-dy-in-place", CD, "dy is multiplied by 1 in place, but -0.0 becomes 0.0 there (x + 0): an input is written", ("fp32", "fp16"), on=P, prep=lambda i: neg0(i))
def _(ins, kw):
    dy = ins[0]
    dx = right(CD, ins, kw)
    if dy.flags.writeable:
        dy += dy.dtype.type(0)
    return dx


def neg0(ins):
    ins[0].reshape(-1)[:5] = -0.0
    return ins


@bad("07-relu-on-running", BF, "running statistics are also updated in place, as torch does, beside being returned", ("fp32", "bf16"), on="n1 c3 h5 w5 k4 r1 s1")
def _(ins, kw):
    out = right(BF, ins, kw)
    if ins[4] is not None and ins[4].flags.writeable:
        ins[4][...], ins[5][...] = out[3], out[4]
    return out


@bad("08-view-of-input", MF, "a 1x1 window with stride 1: x itself is returned", ("fp32", "bf16", "fp64"), on="n1 c2 h5 w5", demo=lambda k: "shares memory" if shares(k, MF, "n1 c2 h5 w5") else "")
def _(ins, kw):
    if kw.kernel_size == (1, 1) and kw.stride == (1, 1) and not any(map(sum, kw.padding)):
        return ins[0]
    return right(MF, ins, kw)


def shares(k, op, text, twice=False):
    ins, kw = problem(op, text)
    y = k(*ins, **kw)
    if twice:
        return np.shares_memory(y, k(*problem(op, text, seed=1)[0], **kw))
    return any(np.shares_memory(y, a) for a in ins if a is not None)


pool = {}


@bad("09-static-output", CF, "the output buffer of a shape is reused by the next call of that shape: an earlier result changes", ("fp32", "bf16"), demo=lambda k: "shares memory" if shares(k, CF, P, True) else "")
def _(ins, kw):
    y = right(CF, ins, kw)
    buf = pool.setdefault((y.shape, y.dtype), np.empty_like(y))
    buf[...] = y
    return buf


@bad("10-late-row", CF, "the last output row is written by a thread 2 ms after the call has returned", ("fp32",), ("nchw",), on="n1 c3 h9 w9 k4 r3 s3 p1")
def _(ins, kw):
    y = right(CF, ins, kw)
    late = y[:, :, -1].copy()
    y[:, :, -1] = 0

    def finish():
        time.sleep(0.002)
        y[:, :, -1] = late
    threading.Thread(target=finish, daemon=True).start()
    return y


@bad("11-as-strided-window", AF, "as_strided windows one column too far in ceil mode: what lies behind the row's end is averaged in", ("fp32", "bf16"), ("nchw",), on="n1 c1 h7 w7 r2 s2 u2 ceil1", prep=framed(0))
def _(ins, kw):
    (x,) = ins
    y = right(AF, ins, kw)
    if kw.ceil_mode and x.flags.c_contiguous and x.size and not sum(kw.padding[1]) and (x.shape[3] - kw.kernel_size[1]) % kw.stride[1]:
        v = beyond(x, 0, 1)[-1]
        y[-1, -1, -1, -1] = (np.float32(y[-1, -1, -1, -1]) + np.float32(v)).astype(y.dtype)
    return y


@bad("12-uninitialised", CD, "pixels of dx that no window covers (stride beyond the window) are not written: memory of earlier arrays", ("fp32", "bf16"), ("nchw",), on="n1 c2 h11 w11 k2 r2 s2 u3")
def _(ins, kw):
    dx = right(CD, ins, kw)
    _, w = ins
    r, s = w.shape[2:]
    if kw.stride[0] > (r - 1) * kw.dilation[0] + 1:
        i = (np.arange(dx.shape[2]) + kw.padding[0][0]) % kw.stride[0] >= r
        junk = np.full(dx.shape, 3, dx.dtype)
        del junk
        fresh = np.empty(dx.shape, dx.dtype)
        dx[:, :, i] = np.where(np.isnan(R.wide(fresh)), dx.dtype.type(1), fresh)[:, :, i]
    return dx
