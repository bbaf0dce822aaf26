"""Class 7: edges of parameters."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _right import *

kit = Kit(globals(), "edges")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS


def lay(a, L):
    return a if L == "nchw" else a.transpose(0, 2, 3, 1)


@kit("window-beyond-image", F, "window with more rows than the image (padding makes it fit): rows of the filter beyond the image's are not added", at="n1 c2 h2 w5 k2 r3 s3 p1")
def _(R, i, p, o):
    return R(put(i, 1, vi(i[1], o.L, zero(slice(None), slice(None), slice(o.h, None)))), p) if o.r > o.h and o.r > 1 else R(i, p)


@kit("global-average", AF, "a window as large as the padded image: divided by the image's h*w", at="n1 c2 h4 w4 r6 s6 p1")
def _(R, i, p, o):
    if o.P * o.Q > 1 or p["divisor_override"]:
        return R(i, p)
    return R(i, {**p, "divisor_override": o.h * o.w})


@kit("global-max-padding", MF, "a window as large as the padded image: the maximum with 0", at="n1 c2 h4 w4 r6 s6 p1", data=lambda i: {"x": -np.abs(i["x"])- i["x"].dtype.type(1)})
def _(R, i, p, o):
    y = R(i, p)
    return np.where(y < 0, y.dtype.type(0), y) if o.P * o.Q == 1 and not o.unpadded else y


@kit("stride-beyond-window-gaps", D, "stride larger than the window, with padding: pixels that no window covers are not cleared", at="n1 c2 h8 w8 k2 r2 s2 u3 p1")
def _(R, i, p, o):
    if not (o.u > o.r and o.v > o.s and not o.unpadded):
        return R(i, p)
    a = np.ones((1, o.k, o.P, o.Q), np.float32)
    b = np.ones((o.k, o.c // o.g, o.r, o.s), np.float32)
    hit = nchw(quiet(D, (lay(a, o.L), lay(b, o.L)), p), o.L)[0, 0] > 0
    return ed(R(i, p), o.L, lambda y: y.__setitem__((slice(None), slice(None), ~hit), 1))


@kit("even-window-dilated", F, "even window with dilation: the windows are one row late (the last stays)", at="n1 c2 h9 w9 k2 r2 s2 d2 p1")
def _(R, i, p, o):
    y = R(i, p)
    return ed(y, o.L, lambda v: v.__setitem__((slice(None), slice(None), slice(0, -1)), v[:, :, 1:].copy())) if o.r % 2 == 0 and o.d > 1 and o.P > 1 else y


@kit("ceil-asymmetric", AF, "ceil mode with asymmetric padding: the window is placed with the padding after, not before", at="n1 c2 h7 w7 r3 s3 u2 p1:0 ceil1", dtypes=("fp32", "fp64"))
def _(R, i, p, o):
    (t, b), (l, q) = o.pad
    if not p["ceil_mode"] or (t == b and l == q):
        return R(i, p)
    x = nchw(i[0], o.L)
    x = np.roll(x, (t - b, l - q), (2, 3))
    return R([lay(x, o.L)], p)


@kit("ceil-last-window-kept", AF, "ceil mode: a last window that starts behind the image is kept (one row too many)", at="n1 c2 h3 w3 r2 s2 u3 p0:1 ceil1")
def _(R, i, p, o):
    y = R(i, p)
    full = -(-(o.h + sum(o.pad[0]) - o.r) // o.u) + 1
    if p["ceil_mode"] and full > o.P:
        z = nchw(y, o.L)
        return np.ascontiguousarray(lay(np.concatenate([z, z[:, :, -1:] * 0], 2), o.L))
    return y


@kit("ceil-last-window-lost", MF, "ceil mode: a last window that reaches beyond the image by more than one row is minus infinity", at="n1 c2 h6 w9 r4 s3 u4 ceil1")
def _(R, i, p, o):
    over = (o.P - 1) * o.u + (o.r - 1) * o.d + 1 - o.h - sum(o.pad[0])
    y = R(i, p)
    return ed(y, o.L, lambda v: v.__setitem__((slice(None), slice(None), -1), -np.inf)) if p["ceil_mode"] and over > 1 else y


@kit("ceil-divisor", AF, "ceil mode: the last window is divided by the whole window, though a part lies outside the padded image", at="n1 c2 h6 w6 r3 s3 u2 ceil1")
def _(R, i, p, o):
    return R(i, {**p, "divisor_override": o.r * o.s}) if p["ceil_mode"] and p["count_include_pad"] and not p["divisor_override"] else R(i, p)


@kit("ceil-divisor-grad", AB, "ceil mode, padding not counted: the last column's gradients are divided by the whole window", at="n1 c2 h6 w6 r3 s3 u2 ceil1 valid1")
def _(R, i, p, o):
    if not p["ceil_mode"] or p["count_include_pad"] or p["divisor_override"]:
        return R(i, p)
    good = divisor(o.h, o.w, p, np.float32, o.P, o.Q)[:, -1]
    dy = vi(i[0].astype(np.float32), o.L, lambda g: g.__setitem__(np.s_[:, :, :, -1], g[:, :, :, -1] * good / np.float32(o.r * o.s)))
    return R([dy], p).astype(i[0].dtype)


@kit("divisor-override-valid", AF, "divisor override is ignored where padding is not counted", at="n1 c2 h6 w6 r3 s3 p1 valid1 div4")
def _(R, i, p, o):
    return R(i, {**p, "divisor_override": None} if not p["count_include_pad"] else p)


@kit("divisor-override-edge", AB, "divisor override: windows at the top are divided by what they cover", at="n1 c2 h6 w6 r3 s3 p1 div4")
def _(R, i, p, o):
    if not p["divisor_override"] or not o.pad[0][0]:
        return R(i, p)
    f = np.float32(p["divisor_override"]) / divisor(o.h, o.w, {**p, "divisor_override": None, "count_include_pad": False}, np.float32, o.P, o.Q)[0]
    dy = vi(i[0].astype(np.float32), o.L, lambda g: g.__setitem__(np.s_[:, :, 0], g[:, :, 0] * f))
    return R([dy], p).astype(i[0].dtype)


@kit("prime-channels", F, "a prime number of channels from 11 on: the tile does not divide it, the last channel is not added", at="n1 c11 h4 w4 k2 r3 s3 p1")
def _(R, i, p, o):
    c = o.c // o.g
    prime = c >= 11 and all(c % q for q in range(2, int(c**0.5) + 1))
    return R(put(i, 1, vi(i[1], o.L, zero(slice(None), -1))), p) if prime else R(i, p)


@kit("nhwc-channels-4", F, "nhwc: filters k % 4 of the last vector are written from the vector before where k > 4", at="n1 c3 h4 w4 k6 r3 s3", layouts=BOTH)
def _(R, i, p, o):
    y = R(i, p)
    m = o.k % 4
    return ed(y, o.L, lambda v: v.__setitem__((slice(None), slice(o.k - m, None)), v[:, o.k - m - 4 : o.k - 4].copy())) if o.L == "nhwc" and m and o.k > 4 else y


CHECKS["edges-14-nhwc-channels-4"].layout = "nhwc"


@kit("bf16-channels-8", F, "bf16: c % 8 channels of the tail are not added where c > 8", at="n1 c13 h4 w4 k2 r1 s1", dtypes=("fp32", "bf16"), t="bf16")
def _(R, i, p, o):
    c = o.c // o.g
    return R(put(i, 1, vi(i[1], o.L, zero(slice(None), slice(c - c % 8, None)))), p) if o.t == "bf16" and c > 8 and c % 8 else R(i, p)


@kit("columns-16", MF, "more than 16 columns of output, not a multiple of 16: the last is a copy of that before", at="n1 c2 h4 w19 r1 s1", dtypes=("fp32", "fp16"))
def _(R, i, p, o):
    y = R(i, p)
    return ed(y, o.L, lambda v: v.__setitem__(np.s_[:, :, :, -1], v[:, :, :, -2].copy())) if o.Q > 16 and o.Q % 16 else y


@kit("grouped-1x1-image", F, "groups on an image of one pixel: computed with the filters of the next group", at="n2 c4 h1 w1 k4 r1 s1 g2")
def _(R, i, p, o):
    return R(put(i, 1, np.roll(i[1], -(o.k // o.g), 0)), p) if o.g > 1 and o.h * o.w == 1 else R(i, p)


@kit("dilation-one-axis", F, "dilation of columns only: ignored for the last tap of the window, which is read one pixel to the left", at="n1 c2 h9 w9 k2 r3 s3 d1x2")
def _(R, i, p, o):
    if o.d != 1 or o.e == 1 or o.s < 2:
        return R(i, p)
    w0 = vi(i[1], o.L, zero(slice(None), slice(None), slice(None), -1))
    w1 = np.array(i[1]) - w0
    x = np.roll(nchw(i[0], o.L), 1, 3)
    a, b = R(put(i, 1, w0), p), R((lay(x, o.L), w1, None), p)
    return (a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype)


@kit("asymmetric-padding", F, "padding before != after: the larger of the two is put before", at="n1 c2 h6 w6 k2 r3 s3 p0:1")
def _(R, i, p, o):
    return R(i, {**p, "padding": tuple((max(a), min(a)) for a in o.pad)})


@kit("asymmetric-padding-columns", D, "padding of the columns at the right only: dx is one column off", at="n1 c2 h6 w6 k2 r3 s3 p1x0:1", dtypes=ALL)
def _(R, i, p, o):
    l, q = o.pad[1]
    return ed(R(i, p), o.L, lambda y: y.__setitem__(slice(None), np.roll(y, 1, 3))) if q > l == 0 else R(i, p)


@kit("leftover-rows", D, "rows that the last window does not reach, (h + padding - window) % stride != 0, repeat the row above", at="n1 c2 h8 w8 k2 r3 s3 u2")
def _(R, i, p, o):
    left = (o.h + sum(o.pad[0]) - o.d * (o.r - 1) - 1) % o.u - o.pad[0][1]
    return ed(R(i, p), o.L, lambda y: y.__setitem__(np.s_[:, :, o.h - left :], y[:, :, o.h - left - 1, None])) if 0 < left < o.h else R(i, p)


@kit("dw-leftover", W, "dw where (w + padding - window) % stride != 0: the last column of the windows is left out", at="n1 c2 h8 w8 k2 r3 s3 u2")
def _(R, i, p, o):
    left = (o.w + sum(o.pad[1]) - o.e * (o.s - 1) - 1) % o.v
    out = R(i, p)
    if not left or o.Q < 2:
        return out
    dw = R(put(i, 1, vi(i[1], o.L, zero(slice(None), slice(None), slice(None), -1))), {**p, "with_bias": False})
    return (dw, out[1]) if p["with_bias"] else dw


@kit("overlapping-max-grad", MB, "overlapping windows with stride 1: the gradients of two neighbours that share a maximum in columns are averaged", at="n1 c2 h6 w6 r2 s2", dtypes=("fp32",))
def _(R, i, p, o):
    if o.v != 1 or o.s < 2:
        return R(i, p)
    n = quiet(MB, (np.ones_like(i[0]), i[1]), p)
    return (R(i, p) / np.maximum(n, 1)).astype(i[0].dtype)


@kit("max-dilated-padding", MF, "dilation and padding: taps in the padding before the image are read from its first row", at="n1 c2 h7 w7 r3 s3 d2 p2", layouts=("nchw",))
def _(R, i, p, o):
    t = o.pad[0][0]
    if o.d == 1 or t == 0 or p["ceil_mode"]:
        return R(i, p)
    x = np.concatenate([np.repeat(i[0][:, :, :1], t, 2), i[0]], 2)
    return R([x], {**p, "padding": ((0, o.pad[0][1]), o.pad[1])})


@kit("channel-multiplier", F, "depthwise with two filters per channel: filter j uses channel j % c rather than j // 2", at="n1 c3 h5 w5 k6 r3 s3 g3")
def _(R, i, p, o):
    if not (o.dw and o.k == 2 * o.c):
        return R(i, p)
    return R(put(i, 0, np.concatenate([i[0]] * 2, 1 if o.L == "nchw" else 3)), {**p, "groups": o.k})


@kit("strides-swapped-unpadded", AF, "different strides without padding and square windows: only every u-th column where both output sizes agree", at="n1 c2 h9 w6 r3 s3 u3x1 p0:0", layouts=("nchw",))
def _(R, i, p, o):
    if not o.unpadded or o.u == o.v or p["ceil_mode"]:
        return R(i, p)
    y = R(i, {**p, "stride": (o.u, o.u)})
    z = R(i, p)
    m = min(y.shape[3], z.shape[3])
    z[:, :, :, :m] = y[:, :, :, :m]
    return z


@kit("row-window-square-image", F, "windows of one row on square images are taken for one column where padding is symmetric", at="n1 c2 h6 w6 k2 r1 s3 p0x1")
def _(R, i, p, o):
    y = R(i, p)
    if o.r != 1 or o.s == 1 or o.h != o.w or (o.P, o.Q) != (o.h, o.w) or o.u + o.v > 2:
        return y
    z = R(put(i, 0, lay(nchw(i[0], o.L).swapaxes(2, 3), o.L)), p)
    return np.ascontiguousarray(lay(nchw(z, o.L).swapaxes(2, 3), o.L))


@kit("strided-pointwise", W, "1x1 windows with stride: dw reads the pixel beside (last of the stride)", at="n1 c2 h8 w8 k2 r1 s1 u2", dtypes=("fp32", "bf16"))
def _(R, i, p, o):
    if not (o.one and o.v > 1 and o.unpadded and o.w % o.v == 0):
        return R(i, p)
    return R(put(i, 0, lay(np.roll(nchw(i[0], o.L), -1, 3), o.L)), p)


@kit("bn-outside-dx", BB, "epsilon outside the root: dx divides by M where M - 1 is right", at="n1 c2 h4 w4 k2 r3 s3 outside1")
def _(R, i, p, o):
    if not p["eps_outside"] or o.M < 2:
        return R(i, p)
    a, b = R(i, p), R(i, {**p, "eps_outside": False})
    return (b[0], b[1], *a[2:])


@kit("bn-padded-corner", BF, "asymmetric padding: the statistics leave out the last row of z", at="n2 c2 h6 w6 k2 r3 s3 p0:1")
def _(R, i, p, o):
    if o.pad[0][0] == o.pad[0][1] or o.P < 2:
        return R(i, p)
    out = R(i, p)
    x = nchw(i[0], o.L)[:, :, : max(o.h - o.u, 1)]
    less = quiet(BF, put(i, 0, lay(x, o.L)), {**p, "padding": ((o.pad[0][0], o.pad[0][1]), o.pad[1])})
    return (out[0], less[1], *out[2:])
