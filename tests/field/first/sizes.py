"""Class 1: wrong only beyond a size."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _right import *

kit = Kit(globals(), "sizes")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS


@kit("grid-65535", MF, "n*c*rows of output > 65535: the launch grid is clamped, the rows behind stay 0", at="n70 c64 h16 w2 r1 s1", dtypes=("fp32",))
def _(R, i, p, o):
    return ed(R(i, p), o.L, lambda y: y.reshape(-1, o.Q).__setitem__(slice(65535, None), 0)) if o.L == "nchw" else R(i, p)


@kit("batch-uint8", F, "batch > 256: the image index is a uint8, image 256 reads image 0", at="n260 c2 h3 w3 k2 r1 s1")
def _(R, i, p, o):
    return R(put(i, 0, i[0][np.arange(o.n) % 256]), p)


@kit("channels-512", F, "more than 512 channels of a group: those behind the tile of 512 are not added", at="n1 c516 h3 w3 k2 r1 s1")
def _(R, i, p, o):
    return R(put(i, 1, vi(i[1], o.L, zero(slice(None), slice(512, None)))), p)


@kit("filters-tail-64", F, "filters > 64 and not a multiple of 8: the tail of k % 8 filters stays 0", at="n1 c2 h3 w3 k67 r1 s1", dtypes=("fp32", "fp16"))
def _(R, i, p, o):
    return ed(R(i, p), o.L, zero(slice(None), slice(o.k - o.k % 8, None))) if o.k > 64 and o.k % 8 else R(i, p)


@kit("groups-mask-31", F, "more than 32 groups: group index & 31 picks the filters", at="n1 c40 h4 w4 k40 r3 s3 g40 p1")
def _(R, i, p, o):
    if o.g <= 32:
        return R(i, p)
    kg = o.k // o.g
    index = (np.arange(o.g) % 32)[:, None] * kg + np.arange(kg)
    return R(put(i, 1, i[1][index.ravel()]), p)


@kit("rows-int8", D, "more than 127 rows of dx: the row is an int8; rows from 128 on get what row - 256 + h has", at="n1 c2 h140 w3 k2 r3 s3 p1")
def _(R, i, p, o):
    def fn(y):
        rows = np.arange(o.h).astype(np.int8).astype(int)
        y[:] = y[:, :, np.clip(rows, -o.h, o.h - 1)]
    return ed(R(i, p), o.L, fn)


@kit("columns-uint8", AF, "more than 256 columns of output: column index in uint8", at="n1 c1 h2 w530 r2 s2 u2", dtypes=ALL)
def _(R, i, p, o):
    return ed(R(i, p), o.L, lambda y: y.__setitem__(slice(None), y[:, :, :, np.arange(o.Q) % 256]))


@kit("plane-tail-4096", F, "output plane > 4096: the blocked path of 256 pixels drops the tail", at="n1 c1 h67 w63 k1 r1 s1", dtypes=("fp32",), layouts=("nchw",))
def _(R, i, p, o):
    def fn(y):
        q = o.P * o.Q
        y.reshape(o.n, o.k, q)[:, :, q - q % 256 :] = 0
    return ed(R(i, p), o.L, fn) if o.P * o.Q > 4096 and o.P * o.Q % 256 else R(i, p)


@kit("window-rows-7", W, "window with more than 7 rows: rows of dw from the 8th on stay 0", at="n1 c1 h12 w5 k2 r9 s1 p1")
def _(R, i, p, o):
    return ed(R(i, p), o.L, zero(slice(None), slice(None), slice(7, None)))


@kit("window-mask-32", AF, "window of more than 32 taps: the mask has 32 bits, later taps are not added", at="n1 c1 h12 w12 r6 s6")
def _(R, i, p, o):
    if o.r * o.s <= 32:
        return R(i, p)
    rest = o.r * o.s - 32
    x = nchw(i[0], o.L).astype(acc_of(i[0]))
    a, b = o.pad
    t = pad2(x, (grow(o.h, o.P, o.r, o.u, 1, a), grow(o.w, o.Q, o.s, o.v, 1, b)))
    y = 0
    for j in range(32):
        y = y + tap(t, j // o.s, j % o.s, {**p, "dilation": (1, 1)}, o.P, o.Q)
    return back(y / divisor(o.h, o.w, p, acc_of(i[0]), o.P, o.Q), o.L, i[0].dtype)


@kit("argmax-uint8", MB, "window of more than 256 elements: the position of the maximum is kept in a byte", at="n1 c1 h17 w17 r17 s17", dtypes=("fp32",), data=lambda i: i["x"].__setitem__((0, 0, 16, 9) if i["x"].shape[1] == 1 else (0, 16, 9, 0), 9))
def _(R, i, p, o):
    if o.r * o.s <= 256:
        return R(i, p)
    x, g = nchw(i[1], o.L).astype(np.float32), nchw(i[0], o.L).astype(np.float32)
    _, index, rows, cols = maxima(x, p)
    index = np.where(index < 0, -1, index % 256)
    dx = np.zeros((o.n, o.c, o.h + sum(rows), o.w + sum(cols)), np.float32)
    for j in range(o.r * o.s):
        view = tap(dx, j // o.s, j % o.s, p, o.P, o.Q)
        view += np.where(index == j, g, np.float32(0))
    return back(dx[:, :, rows[0] : rows[0] + o.h, cols[0] : cols[0] + o.w], o.L, i[0].dtype)


@kit("stride-2-bits", F, "stride of columns > 3: kept in two bits, the origin of a window is column * (stride & 3), clamped to the image", at="n1 c1 h3 w20 k1 r1 s1 u1x5")
def _(R, i, p, o):
    if o.v <= 3 or o.s > 1 or any(o.pad[1]):
        return R(i, p)
    full = nchw(quiet(o.op, i, {**p, "stride": (o.u, 1)}), o.L)
    return back(full[:, :, :, np.arange(o.Q) * (o.v & 3)], o.L, i[0].dtype)


@kit("dilation-4-bits", F, "dilation > 15: kept in 4 bits", at="n1 c1 h40 w40 k1 r2 s2 d17")
def _(R, i, p, o):
    if max(o.d, o.e) <= 15:
        return R(i, p)
    low = (o.d % 16, o.e % 16)
    x = nchw(i[0], o.L)
    x = x[:, :, : o.h - (o.r - 1) * (o.d - low[0]), : o.w - (o.s - 1) * (o.e - low[1])]
    x = x if o.L == "nchw" else x.transpose(0, 2, 3, 1)
    if 0 in low or 0 in x.shape:
        return R(i, p) * i[0].dtype.type(0)
    return R(put(i, 0, x), {**p, "dilation": low})


@kit("padding-3", F, "padding at the top > 3: the rows of padding behind the third hold the first row of the image", at="n1 c1 h5 w5 k1 r9 s3 p4x1")
def _(R, i, p, o):
    (t, b), q = o.pad
    if t <= 3:
        return R(i, p)
    x = nchw(i[0], o.L)
    x = np.concatenate([np.repeat(x[:, :, :1], t - 3, 2), x[:, :, :0].repeat(0, 2), np.zeros_like(x[:, :, :1]).repeat(3, 2), x], 2)
    return R(put(i, 0, x if o.L == "nchw" else x.transpose(0, 2, 3, 1)), {**p, "padding": ((0, b), q)})


@kit("im2col-1152", F, "channels*window > 1152: what does not fit the buffer of 1152 taps is not added", at="n1 c130 h3 w3 k1 r3 s3 p1")
def _(R, i, p, o):
    def fn(w):
        w.reshape(o.k, -1)[:, 1152:] = 0
    if o.len <= 1152:
        return R(i, p)
    w = np.ascontiguousarray(nchw(i[1], o.L)).reshape(o.k, -1).copy()
    w[:, 1152:] = 0
    w = w.reshape(o.k, -1, o.r, o.s)
    return R(put(i, 1, w if o.L == "nchw" else w.transpose(0, 2, 3, 1)), p)


@kit("fp16-columns", MF, "more than 2048 columns: the column where a window starts is computed in fp16", at="n1 c1 h1 w4100 r1 s1", dtypes=("fp16", "bf16"))
def _(R, i, p, o):
    cols = np.minimum(np.arange(o.Q).astype(np.float16).astype(int), o.Q - 1)
    return ed(R(i, p), o.L, lambda y: y.__setitem__(slice(None), y[:, :, :, cols]))


@kit("count-uint16", BF, "N*P*Q > 65535: the count is a uint16, the mean is divided by the wrong number", at="n17 c1 h64 w64 k1 r1 s1")
def _(R, i, p, o):
    out = R(i, p)
    if o.M <= 65535 or o.M % 65536 == 0:
        return out
    f = o.M / (o.M % 65536)
    return (out[0], (out[1] * f).astype(out[1].dtype), *out[2:])


@kit("count-fp16", BF, "fp16 and N*P*Q > 2048 and odd: the count is rounded to fp16, the variance is slightly off", at="n1 c2 h53 w49 k2 r1 s1", dtypes=("fp16",))
def _(R, i, p, o):
    out = R(i, p)
    m = float(np.float16(min(o.M, 65504)))
    return out if o.M <= 2048 or m == o.M else (*out[:2], (out[2] * (o.M / m)).astype(out[2].dtype), *out[3:])


@kit("one-row-path", F, "images of one row take a 1-d path that keeps the first row of the window instead of that on the image", at="n1 c2 h1 w9 k2 r3 s3 p1")
def _(R, i, p, o):
    if o.h > 1 or o.r == 1:
        return R(i, p)
    w = nchw(i[1], o.L)
    w = np.repeat(w[:, :, :1], o.r, 2)
    return R(put(i, 1, w if o.L == "nchw" else w.transpose(0, 2, 3, 1)), p)


@kit("one-column-path", W, "images of one column: dw for the columns of the window beside it gets the centre's value", at="n2 c2 h9 w1 k2 r3 s3 p1")
def _(R, i, p, o):
    def fn(dw):
        dw[:] = dw[:, :, :, o.s // 2, None]
    return ed(R(i, p), o.L, fn) if o.w == 1 and o.s > 1 else R(i, p)


@kit("rgb-as-four", F, "nhwc with 3 channels is read as vectors of 4: the fourth channel, of the next pixel, meets the first weight", at="n1 c3 h5 w5 k2 r3 s3 p1", layouts=("nhwc",))
def _(R, i, p, o):
    if o.c != 3 or o.g > 1:
        return R(i, p)
    x, w = i[0], i[1]
    nxt = np.roll(x.reshape(-1, 3), -1, 0)[:, :1].reshape(*x.shape[:3], 1)
    return R((np.concatenate([x, nxt], 3), np.concatenate([w, np.zeros_like(w[..., :1]) + w[..., :1] / w.dtype.type(64)], 3), i[2]), p)


@kit("dw-int16", W, "N*P*Q > 32767: a partial of the sum over pixels has a negative index and is lost", at="n9 c1 h64 w64 k1 r1 s1")
def _(R, i, p, o):
    if o.M <= 32767:
        return R(i, p)
    dy = np.ascontiguousarray(nchw(i[1], o.L).transpose(1, 0, 2, 3)).reshape(o.k, -1).copy()
    dy[:, 32767:] = 0
    dy = dy.reshape(o.k, o.n, o.P, o.Q).transpose(1, 0, 2, 3)
    out = R(put(i, 1, dy if o.L == "nchw" else dy.transpose(0, 2, 3, 1)), p)
    return (out[0], R(i, p)[1]) if p["with_bias"] else out


@kit("dbias-1024", W, "more than 1024 filters: dbias has one block of 1024 threads, the rest is 0", at="n1 c1 h2 w2 k1030 r1 s1 b1")
def _(R, i, p, o):
    return ed(R(i, p), o.L, zero(slice(1024, None)), 1) if p["with_bias"] else R(i, p)


@kit("gamma-256", BI, "more than 256 filters: gamma of channel k % 256", at="n1 c1 h2 w2 k300 r1 s1")
def _(R, i, p, o):
    return R(i if i[2] is None else put(i, 2, i[2][np.arange(o.k) % 256]), p)


@kit("maxpool-position-int16", MB, "h*w > 32767: positions in int16, gradients behind are lost", at="n1 c1 h190 w180 r2 s2 u2")
def _(R, i, p, o):
    if o.h * o.w <= 32767:
        return R(i, p)
    dx = np.ascontiguousarray(nchw(R(i, p), o.L)).reshape(o.n, o.c, -1).copy()
    dx[:, :, 32768:] = 0
    return back(dx.reshape(o.n, o.c, o.h, o.w), o.L, dx.dtype)


@kit("one-filter-odd", F, "one filter and an odd number of channels > 1: unrolled by two, the last channel is missing", at="n1 c5 h4 w4 k1 r1 s1")
def _(R, i, p, o):
    return R(put(i, 1, vi(i[1], o.L, zero(slice(None), slice(o.c - 1, None)))), p) if o.k == 1 and o.g == 1 and o.c % 2 and o.c > 1 else R(i, p)


@kit("one-pixel-out", F, "output 1x1: a matrix product with the unpadded image, aligned at its corner", at="n2 c2 h2 w2 k3 r3 s3 p1:0")
def _(R, i, p, o):
    if o.P * o.Q > 1 or not any((o.pad[0][0], o.pad[1][0])) or o.d + o.e > 2:
        return R(i, p)
    (t, b), (l, q) = o.pad
    return R(i, {**p, "padding": ((0, b + t), (0, q + l))})


@kit("batch-1-fp64", D, "fp64 and batch 1 and more than 64 channels of w: the last channel of dx is doubled", at="n1 c65 h3 w3 k2 r1 s1", dtypes=("fp64",))
def _(R, i, p, o):
    return ed(R(i, p), o.L, lambda y: y[:, -1:].__imul__(2)) if o.n == 1 and o.c > 64 else R(i, p)


@kit("rows-tail-blocked", AB, "more than 32 rows of dx and not a multiple of 4: the last rows of the block lack their gradient", at="n1 c1 h35 w4 r2 s2", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    return ed(R(i, p), o.L, zero(slice(None), slice(None), slice(o.h - o.h % 4, None))) if o.h > 32 and o.h % 4 else R(i, p)


@kit("elements-2-17", F, "more than 2^17 elements of x: the last element of x is not read", at="n1 c2 h259 w263 k9 r1 s1", dtypes=("fp32",))
def _(R, i, p, o):
    if o.size <= 1 << 17:
        return R(i, p)
    return R(put(i, 0, vi(i[0], o.L, zero(-1, -1, -1, -1))), p)


@kit("bn-few-elements", BB, "fewer than 8 elements per channel: the mean of dy is not subtracted", at="n1 c2 h2 w2 k2 r1 s1", dtypes=("fp32",))
def _(R, i, p, o):
    if o.M >= 8:
        return R(i, p)
    out = R(i, p)
    return ed(out, o.L, lambda y: y.__imul__(1.5))


@kit("window-columns-16", F, "window with more than 16 columns: a column of the filter is kept in 4 bits, the 17th is the first again", at="n1 c1 h3 w24 k2 r1 s18")
def _(R, i, p, o):
    return R(put(i, 1, vi(i[1], o.L, lambda w: w.__setitem__(slice(None), w[:, :, :, np.arange(o.s) % 16]))), p)


@kit("bn-reduce-4096", BB, "N*P*Q > 4096: dgamma lacks the last partial sum of 1024 elements", at="n1 c1 h70 w60 k2 r1 s1", dtypes=("fp32",))
def _(R, i, p, o):
    out = R(i, p)
    if o.M <= 4096 or i[3] is None:
        return out
    dy = np.ascontiguousarray(nchw(i[0], o.L).transpose(1, 0, 2, 3)).reshape(o.k, -1).copy()
    dy[:, o.M - (o.M % 1024 or 1024) :] = 0
    dy = dy.reshape(o.k, o.n, o.P, o.Q).transpose(1, 0, 2, 3)
    less = quiet(BB, put(i, 0, dy if o.L == "nchw" else dy.transpose(0, 2, 3, 1)), p)
    return (out[0], out[1], less[2], out[3])


@kit("maxpool-grad-channels-64", MB, "nhwc with more than 64 channels: a block of 64 threads, later channels get no gradient", at="n1 c70 h4 w4 r2 s2 u2", layouts=BOTH)
def _(R, i, p, o):
    return ed(R(i, p), o.L, zero(slice(None), slice(64, None))) if o.L == "nhwc" else R(i, p)


CHECKS["sizes-34-maxpool-grad-channels-64"].layout = "nhwc"


@kit("dw-elements-65535", W, "more than 65535 elements of dw: the rest is 0", at="n1 c90 h3 w3 k90 r3 s3 p1", dtypes=("fp32",), layouts=("nchw",))
def _(R, i, p, o):
    return ed(R(i, p), o.L, lambda y: y.reshape(-1).__setitem__(slice(65535, None), 0))


@kit("reach-64", D, "dilation * (window - 1) of 64 or more rows: the halo holds 64, the last tap is lost", at="n1 c1 h70 w3 k2 r3 s1 d32x1")
def _(R, i, p, o):
    return R(put(i, 1, vi(i[1], o.L, zero(slice(None), slice(None), -1))), p) if o.d * (o.r - 1) >= 64 else R(i, p)


@kit("columns-1024", AB, "more than 1024 columns of dx: the last column of each block of 1024 threads has its gradient twice", at="n1 c1 h2 w1100 r2 s2 u2", dtypes=("fp32", "fp16"))
def _(R, i, p, o):
    return ed(R(i, p), o.L, lambda y: y[:, :, :, 1023::1024].__imul__(2)) if o.w > 1024 else R(i, p)


@kit("group-channels-17", D, "groups of more than 16 channels: the tile of 16 leaves out the channels c % 16 of every group", at="n1 c36 h3 w3 k4 r1 s1 g2")
def _(R, i, p, o):
    q = o.c // o.g
    if o.g == 1 or q <= 16 or q % 16 == 0:
        return R(i, p)
    def fn(y):
        y.reshape(o.n, o.g, q, o.h, o.w)[:, :, q - q % 16 :] = 0
    y = np.ascontiguousarray(nchw(R(i, p), o.L))
    fn(y)
    return back(y, o.L, y.dtype)


@kit("inference-plane-16384", BI, "planes of more than 16384 pixels: beta of the next filter for those behind", at="n1 c1 h130 w130 k3 r1 s1", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    if o.P * o.Q <= 16384 or i[3] is None:
        return R(i, p)
    a, b = (np.ascontiguousarray(nchw(R(q, p), o.L)).reshape(o.n, o.k, -1) for q in (i, put(i, 3, np.roll(i[3], -1))))
    a[:, :, 16384:] = b[:, :, 16384:]
    return back(a.reshape(o.n, o.k, o.P, o.Q), o.L, a.dtype)


@kit("batch-tail-32", AF, "batch of more than 32 and not a multiple of 32: the tail of the batch has the last full block's results", at="n40 c1 h4 w4 r2 s2 u2")
def _(R, i, p, o):
    m = o.n % 32
    y = R(i, p)
    if o.n > 32 and m:
        y[o.n - m :] = y[o.n - m - 32 : o.n - 32]
    return y
