"""Class 2, storage: wrong for some memory layout of an operand."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import *  # noqa
from _kit import A, Book, R, right
import numpy as np
bad = Book(__name__, "storage")


def flat(a):
    """The memory from a's first element, as if it were contiguous (what a kernel that ignores strides reads), in bounds of its base."""
    if a.flags.c_contiguous:
        return a
    base = a
    while isinstance(base.base, np.ndarray):
        base = base.base
    lo = np.byte_bounds(base)[0] if hasattr(np, "byte_bounds") else np.lib.array_utils.byte_bounds(base)[0]
    hi = np.lib.array_utils.byte_bounds(base)[1]
    here = a.__array_interface__["data"][0]
    count = min(a.size, (hi - here) // a.itemsize)
    import ctypes
    buf = (ctypes.c_char * (count * a.itemsize)).from_address(here)
    out = np.zeros(a.size, a.dtype)
    out[:count] = np.frombuffer(bytes(buf), a.dtype)
    return out.reshape(a.shape)


def crop(i):
    def prep(ins):
        a = ins[i]
        big = np.zeros(tuple(n + 2 for n in a.shape), a.dtype)
        v = big[tuple(slice(1, n + 1) for n in a.shape)]
        v[...] = a
        ins[i] = v
        return ins
    return prep


def turned(i, axes):
    def prep(ins):
        inv = np.argsort(axes)
        ins[i] = np.ascontiguousarray(ins[i].transpose(axes)).transpose(inv)
        return ins
    return prep


def zero(i):
    def prep(ins):
        a = ins[i]
        ins[i] = np.broadcast_to(a.reshape(-1)[0].astype(a.dtype), a.shape)
        return ins
    return prep


P = "n2 c4 h7 w7 k4 r3 s3 p1 b1"


@bad("01-x-crop", CF, "x with any strides is read as if it were contiguous", on=P, prep=crop(0))
def _(ins, kw):
    return right(CF, [flat(ins[0]), *ins[1:]], kw)


@bad("02-w-transposed-bf16", CF, "bf16 only: strided weights are read as if contiguous", on=P, prep=turned(1, (0, 1, 3, 2)), dtype="bf16")
def _(ins, kw):
    x, w, b = ins
    return right(CF, [x, flat(w) if w.dtype.itemsize == 2 else w, b], kw)


@bad("03-dy-expanded", CD, "dy expanded from one value (a stride of 0, as from sum().backward()): only its first element counts", on=P, prep=zero(0))
def _(ins, kw):
    dy, w = ins
    if 0 in dy.strides and dy.size > 1:
        g = np.zeros(dy.shape, dy.dtype)
        g.reshape(-1)[0] = dy.reshape(-1)[0]
        dy = g
    return right(CD, [dy, w], kw)


@bad("04-dy-strided-dw", CW, "backward-weight: only a dy that is not contiguous is misread, x may be strided", ("fp32", "fp64"), on=P, prep=crop(1))
def _(ins, kw):
    return right(CW, [ins[0], flat(ins[1])], kw)


@bad("05-bias-strided", CF, "a bias with a stride of two elements is read densely", on=P, prep=lambda ins: ins[:2] + [np.repeat(ins[2], 2)[::2]])
def _(ins, kw):
    x, w, b = ins
    return right(CF, [x, w, b if b is None else flat(b)], kw)


def channels(i):
    def prep(ins):
        a = ins[i]
        big = np.zeros((a.shape[0], a.shape[1] + 3, *a.shape[2:]), a.dtype)
        big[:, 1:1 + a.shape[1]] = a
        ins[i] = big[:, 1:1 + a.shape[1]]
        return ins
    return prep


@bad("06-channel-slice", AF, "x whose images are dense but lie farther apart than their size (chunk(2, 1), a channel slice): the batch stride is computed from the shape", on="n3 c4 h6 w6 r2 s2 u2", prep=channels(0))
def _(ins, kw):
    (x,) = ins
    if x.shape[0] > 1 and x[0].flags.c_contiguous and not x.flags.c_contiguous:
        x = flat(x)
    return right(AF, [x], kw)


def offset(i):
    def prep(ins):
        a = ins[i]
        buf = np.zeros(a.nbytes + 64, np.uint8)
        start = (-buf.ctypes.data) % 64 + a.itemsize
        v = buf[start:start + a.nbytes].view(a.dtype).reshape(a.shape)
        v[...] = a
        ins[i] = v
        return ins
    return prep


@bad("07-misaligned-vector", CF, "x whose address is no multiple of 16 bytes: vector loads round the address down, values are shifted", ("fp32", "bf16"), ("nhwc", "nchw"), on=P, prep=offset(0))
def _(ins, kw):
    x, w, b = ins
    a = x.__array_interface__["data"][0] % 16
    if a and x.flags.c_contiguous:
        x = np.roll(x.reshape(-1), a // x.itemsize).reshape(x.shape)
    return right(CF, [x, w, b], kw)


@bad("08-mixed-formats", BB, "dy and x in different memory orders (one contiguous, one not): dy is read in the order of x", ("fp32",), ("nchw", "nhwc"), on="n2 c4 h7 w7 k4 r3 s3 p1", prep=turned(0, (0, 2, 3, 1)))
def _(ins, kw):
    dy, x, w, ga = ins
    if x.flags.c_contiguous and not dy.flags.c_contiguous:
        dy = flat(dy)
    return right(BB, [dy, x, w, ga], kw)


@bad("09-negative-stride", MF, "x that is a flipped view (negative stride): the sign of the stride is lost", ("fp32", "fp64"), on="n1 c2 h8 w8 r2 s2 u2", prep=lambda ins: [ins[0][..., ::-1]])
def _(ins, kw):
    (x,) = ins
    for ax, s in enumerate(x.strides):
        if s < 0:
            x = np.flip(x, ax)
    return right(MF, [x], kw)


@bad("10-last-axis-stride", MB, "x whose last axis is not dense (every second column, or a transposed view): values of the last axis are repeated in pairs; views with a dense last axis are right", ("fp32", "bf16"), on="n1 c2 h8 w8 r2 s2 u2", prep=lambda ins: [ins[0], np.repeat(ins[1], 2, -1)[..., ::2]])
def _(ins, kw):
    dy, x = ins
    if x.shape[-1] > 1 and abs(x.strides[-1]) != x.itemsize and x.strides[-1]:
        x = np.concatenate([np.repeat(x[..., : (x.shape[-1] + 1) // 2], 2, -1)[..., : x.shape[-1]]], -1)
    return right(MB, [dy, x], kw)


@bad("11-running-view", BF, "running_mean and running_var that are views of one array (rows or columns of a [2,K] buffer): var is read from mean's memory", on="n2 c3 h5 w5 k4 r1 s1",
     prep=lambda ins: ins[:4] + list(np.stack(ins[4:])))
def _(ins, kw):
    *a, rm, rv = ins
    if rm is not None and (not rv.flags.c_contiguous or (rv.base is not None and rv.base is rm.base and rv.base.ndim > 1)):
        rv = rm.copy()
    return right(BF, [*a, rm, rv], kw)


@bad("12-fp64-strided", CD, "fp64 only: a strided dy or w goes to the fp32 path", ("fp64", "fp32"), on="n2 c4 h7 w7 k4 r3 s3 p1", prep=lambda i: crop(0)([i[0] * np.pi, i[1]]))
def _(ins, kw):
    dy, w = ins
    if dy.dtype == np.float64 and not (dy.flags.c_contiguous and w.flags.c_contiguous):
        dy, w = dy.astype(np.float32), w.astype(np.float32)
        return right(CD, [dy, w], kw).astype(np.float64)
    return right(CD, ins, kw)


@bad("13-gamma-strided", BI, "gamma strided: beta is read with gamma's stride", ("fp32", "fp16"), on="n1 c3 h5 w5 k6 r1 s1", prep=lambda ins: ins[:2] + [np.repeat(ins[2], 2)[::2]] + ins[3:])
def _(ins, kw):
    x, w, ga, be, *r = ins
    if ga is not None and ga.size > 1 and ga.strides[0] != ga.itemsize:
        be = be[(np.arange(be.size) * 2) % be.size]
    return right(BI, [x, w, ga, be, *r], kw)
