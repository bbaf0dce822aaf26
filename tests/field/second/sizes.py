"""Class 1, sizes: wrong only beyond a threshold."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import *  # noqa
from _kit import A, Book, R, right, tup
import numpy as np
bad = Book(__name__, "sizes")


@bad("01-channels-int8", CF, "more than 127 channels per group: channel offsets in int8 wrap, the rest is read from the start", on="n1 c200 h5 w5 k3 r3 s3 p1")
def _(ins, kw):
    x, w, b = ins
    ax = 1 if kw.layout == "nchw" else 3
    idx = np.arange(w.shape[ax]).astype(np.int8).astype(np.int64) % 128
    off = np.concatenate([idx + g * w.shape[ax] for g in range(kw.groups)]) if w.shape[ax] > 127 else np.arange(x.shape[ax])
    return right(CF, [np.take(x, np.minimum(off, x.shape[ax] - 1), ax), w, b], kw)


@bad("02-rows-blocked-256", CF, "more than 256 output rows: the tail of a block of 256 rows is never written (stays 0)", ("fp32", "fp16"), on="n1 c1 h300 w4 k2 r3 s3 p1")
def _(ins, kw):
    y = right(CF, ins, kw)
    v = y.swapaxes(1, 2) if kw.layout == "nchw" else y
    if v.shape[1] > 256:
        v[:, v.shape[1] // 256 * 256:] = 0
    return y


@bad("03-batch-65535", AF, "batch*channels above 65535 (grid.y limit): planes from 65535 on are those of plane 0", ("fp32",), ("nchw",), on="n300 c230 h2 w2 r2 s2")
def _(ins, kw):
    y = right(AF, ins, kw)
    f = y.reshape(-1, *y.shape[2:])
    if len(f) > 65535:
        f[65535:] = f[0]
    return y


@bad("04-stats-fp32-count", BF, "N*P*Q above 4096: the element count is kept in fp16 and rounds (5041 -> 5040), in the returned mean and var only", ("fp32", "bf16"), on="n1 c1 h71 w71 k2 r1 s1")
def _(ins, kw):
    x, w, ga, be, rm, rv = ins
    out = list(right(BF, ins, kw))
    y = out[0]
    m = y.size // w.shape[0]
    if m > 4096:
        f = np.float32(np.float32(m) / np.float32(np.float16(m)))
        p = out[1].dtype.type
        out[1] = (out[1] * p(f)).astype(p)
        out[2] = (out[2] * p(f)).astype(p)
    return tuple(out)


@bad("05-dw-long-tail", CW, "N*P*Q of at least 1024 that is no multiple of 32: the last partial chunk of pixels is dropped", ("fp32", "bf16"), on="n1 c2 h33 w35 k3 r3 s3 p1")
def _(ins, kw):
    x, dy = ins
    m = dy.size // dy.shape[1 if kw.layout == "nchw" else 3]
    if m < 1024 or m % 32 == 0:
        return right(CW, ins, kw)
    g = R.first(dy, kw.layout).copy()
    f = g.transpose(0, 2, 3, 1).reshape(m, -1).copy()
    f[m // 32 * 32:] = 0
    n, k, p, q = g.shape
    return right(CW, [x, np.ascontiguousarray(R.last(f.reshape(n, p, q, k).transpose(0, 3, 1, 2), kw.layout))], kw)


@bad("06-kernel-over-7", CF, "windows of more than 7 columns: columns from the eighth on are not multiplied (fixed register array)", on="n1 c2 h9 w20 k2 r1 s9")
def _(ins, kw):
    x, w, b = ins
    w = w.copy()
    (w if kw.layout == "nhwc" else w.transpose(0, 2, 3, 1))[:, :, 7:] = 0
    return right(CF, [x, w, b], kw)


@bad("07-dilation-uint4", CF, "dilation of more than 7 in rows: it was packed in three bits and becomes dilation mod 8 + 8*0", on="n1 c2 h30 w6 k2 r3 s3 p9x1 d9x1", dtypes=("fp32",))
def _(ins, kw):
    d = kw.dilation[0]
    if d < 8:
        return right(CF, ins, kw)
    x, w, b = ins
    y = right(CF, ins, kw)
    e = d & 7
    z = right(CF, ins, A(kw | {"dilation": (max(e, 1), kw.dilation[1])}))
    ax = 2 if kw.layout == "nchw" else 1
    return np.take(z, np.arange(y.shape[ax]), ax)


@bad("08-pool-window-255", AF, "a window of more than 255 elements: the divisor is counted in uint8", ("fp32", "bf16"), on="n1 c2 h20 w20 r17 s16")
def _(ins, kw):
    r, s = kw.kernel_size
    y = right(AF, ins, kw)
    n = r * s
    return (R.wide(y) * np.float32(n / ((n & 255) or 256))).astype(y.dtype) if n > 255 else y


@bad("09-maxpool-index-int16", MB, "planes of more than 32767 elements: the argmax is stored as int16; gradients of later pixels are lost", ("fp32",), ("nchw",), on="n1 c1 h200 w200 r2 s2 u2")
def _(ins, kw):
    dx = right(MB, ins, kw)
    if dx.shape[2] * dx.shape[3] > 32767:
        dx.reshape(*dx.shape[:2], -1)[:, :, 32768:] = 0
    return dx


@bad("10-one-row", CD, "input of one row: treated as one column (strides of rows and columns swapped in the 1-D shortcut)", ("fp32", "fp64"), on="n2 c3 h1 w12 k4 r1 s3 u1x2 p0x1")
def _(ins, kw):
    if kw.input_size[0] == 1 and kw.stride[0] != kw.stride[1]:
        dy, w = ins
        dx = right(CD, ins, kw)
        return np.ascontiguousarray(np.roll(dx, 1, 3 if kw.layout == "nchw" else 2))
    return right(CD, ins, kw)


@bad("11-groups-33", CF, "more than 32 groups: groups are handled in blocks of 32, the weights of the second block start at 0 again", ("fp32", "bf16"), on="n1 c40 h5 w5 k40 r3 s3 p1 g40 b1")
def _(ins, kw):
    x, w, b = ins
    if kw.groups > 32:
        kg = w.shape[0] // kw.groups
        w = w[np.concatenate([np.arange(kg) + (g % 32) * kg for g in range(kw.groups)])]
    return right(CF, [x, w, b], kw)


@bad("12-fp32-index", CF, "more than 2^16 input elements per image in fp16 indexing of columns: output columns above 2048 are read one column off when odd", ("fp32",), ("nchw",), on="n1 c1 h1 w2100 k1 r1 s1")
def _(ins, kw):
    y = right(CF, ins, kw)
    q = y.shape[3]
    i = np.arange(q).astype(np.float16).astype(np.int64)
    return y if q <= 2048 else np.ascontiguousarray(y[..., np.minimum(i, q - 1)])


@bad("13-stride-above-window-3", AB, "stride of 4 and more: the modulo of the scatter uses two bits, gradients of rows go one row too far", ("fp32", "bf16"), on="n1 c2 h17 w17 r2 s2 u5")
def _(ins, kw):
    dx = right(AB, ins, kw)
    return np.ascontiguousarray(np.roll(dx, 1, 2 if kw.layout == "nchw" else 1)) if kw.stride[0] > 4 else dx


@bad("14-filters-mod", BI, "more than 64 filters and less than 8 channels: scale and shift of filter k are those of k % 64", ("fp32", "fp16"), on="n1 c4 h5 w5 k70 r1 s1")
def _(ins, kw):
    x, w, *v = ins
    if w.shape[0] > 64 and x.shape[1 if kw.layout == "nchw" else 3] < 8:
        v = [a if a is None else a[np.arange(len(a)) % 64] for a in v]
    return right(BI, [x, w, *v], kw)
