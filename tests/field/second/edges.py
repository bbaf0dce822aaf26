"""Class 7, edges of parameters."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import *  # noqa
from _kit import A, Book, R, right
import numpy as np
bad = Book(__name__, "edges")


def hw(a, kw):
    return a.shape[2:] if kw.layout == "nchw" else a.shape[1:3]


def chan(a, kw):
    """The tensor with channels first, a view."""
    return a if kw.layout == "nchw" else a.transpose(0, 3, 1, 2)


@bad("01-window-is-padded-image", CF, "window equal to the padded image (one output): the dot product is taken with the image flush to the top left, padding before is not skipped", on="n2 c3 h4 w4 k3 r6 s6 p1 b1")
def _(ins, kw):
    y = right(CF, ins, kw)
    if hw(y, kw) == (1, 1) and hw(ins[1], kw) == tuple(n + sum(p) for n, p in zip(hw(ins[0], kw), kw.padding)) and any(p[0] for p in kw.padding):
        return right(CF, ins, A(kw | {"padding": tuple((0, sum(p)) for p in kw.padding)}))
    return y


@bad("02-stride-beyond-padded", CF, "stride larger than the window, with padding: the first window starts at the image instead of in the padding", on="n1 c3 h11 w11 k3 r2 s2 u3 p1")
def _(ins, kw):
    if kw.stride[0] > hw(ins[1], kw)[0] and kw.padding[0][0]:
        (t, b), c = kw.padding
        return right(CF, ins, A(kw | {"padding": ((0, t + b), c)}))
    return right(CF, ins, kw)


@bad("03-even-window-dilated", CF, "even window with dilation: the taps are centred, so they lie one pixel too early in rows", on="n1 c3 h12 w12 k3 r2 s3 p2 d2")
def _(ins, kw):
    if hw(ins[1], kw)[0] % 2 == 0 and kw.dilation[0] > 1:
        (t, b), c = kw.padding
        if b:
            return right(CF, ins, A(kw | {"padding": ((t + 1, b - 1), c)}))
    return right(CF, ins, kw)


@bad("04-ceil-asymmetric", AF, "ceil mode with asymmetric padding, counted padding: the windows at the end are clipped with the padding of the start", on="n1 c2 h8 w8 r3 s3 u2 p0:1 ceil1")
def _(ins, kw):
    y = right(AF, ins, kw)
    if not (kw.ceil_mode and kw.count_include_pad and not kw.divisor_override and kw.padding[0][0] != kw.padding[0][1]):
        return y
    h = hw(ins[0], kw)[0]
    p = hw(y, kw)[0]
    a = R.counts(h, p, kw.kernel_size[0], kw.stride[0], kw.padding[0], True)
    t = kw.padding[0][0]
    s = np.arange(p) * kw.stride[0] - t
    f = np.maximum(np.minimum(s + kw.kernel_size[0], h + t) - s, 1)
    v = chan(y, kw)
    v[...] = (R.wide(v) * (a / f).astype(np.float32)[:, None]).astype(y.dtype)
    return y


@bad("05-ceil-extra-window", MF, "ceil mode: a last window that starts in the padding at the end is not left out (as in old frameworks), the result has one row more", on="n1 c2 h6 w6 r2 s2 u3 p1 ceil1", seq=["n1 c2 h5 w5 r2 s2 u3 p0:1 ceil1", "n1 c2 h5 w5 r2 s2 u3 p1 ceil1", "n1 c2 h6 w6 r2 s2 u4 p1 ceil1", "n1 c2 h5 w5 r3 s3 u3 p1 ceil1"])
def _(ins, kw):
    y = right(MF, ins, kw)
    h = hw(ins[0], kw)[0]
    if kw.ceil_mode:
        span = h + sum(kw.padding[0]) - kw.dilation[0] * (kw.kernel_size[0] - 1) - 1
        if -(-span // kw.stride[0]) + 1 > hw(y, kw)[0]:
            ax = 2 if kw.layout == "nchw" else 1
            return np.concatenate([y, np.take(y, [-1], ax)], ax)
    return y


@bad("06-divisor-partial", AF, "divisor override: windows that reach beyond the image in ceil mode are divided by their own count", on="n1 c2 h8 w8 r3 s3 u2 ceil1 div5")
def _(ins, kw):
    y = right(AF, ins, kw)
    if kw.divisor_override and kw.ceil_mode:
        other = right(AF, ins, A(kw | {"divisor_override": None}))
        (h, w), (p, q) = hw(ins[0], kw), hw(y, kw)
        d = R.divisors(h, w, p, q, kw.kernel_size, kw.stride, kw.padding, True, None, np.float32)
        m = d < kw.kernel_size[0] * kw.kernel_size[1]
        v = chan(y, kw)
        v[..., m] = chan(other, kw)[..., m]
    return y


@bad("07-prime-square", CD, "height and width of the input equal to a prime of at least 11: the tile heuristic leaves the last pixel (corner) out", on="n1 c3 h11 w11 k3 r3 s3 p1")
def _(ins, kw):
    dx = right(CD, ins, kw)
    h, w = kw.input_size
    if h == w and h >= 11 and all(h % i for i in range(2, h)):
        chan(dx, kw)[:, :, -1, -1] = 0
    return dx


@bad("08-channel-tail", CF, "nhwc with 5 to 7 input channels (a vector of 4 and a tail): the tail's last channel is skipped", ("fp32", "fp16"), ("nhwc",), on="n2 c7 h6 w6 k3 r3 s3 p1")
def _(ins, kw):
    x, w, b = ins
    if kw.groups == 1 and 4 < x.shape[3] < 8:
        w = w.copy()
        w[..., -1] = 0
    return right(CF, [x, w, b], kw)


@bad("09-column-tail", BI, "more than 16 output columns, not a multiple of 16: the last column repeats the one before", ("fp32", "bf16"), on="n1 c2 h4 w19 k3 r1 s1")
def _(ins, kw):
    y = right(BI, ins, kw)
    v = chan(y, kw)
    if v.shape[3] > 16 and v.shape[3] % 16:
        v[..., -1] = v[..., -2]
    return y


@bad("10-grouped-1x1-image", CF, "groups and an image of one pixel: taken for a fully connected layer with the weights of group 0", on="n3 c8 h1 w1 k8 r1 s1 g4 b1")
def _(ins, kw):
    x, w, b = ins
    if kw.groups > 1 and hw(x, kw) == (1, 1):
        kg = w.shape[0] // kw.groups
        w = np.concatenate([w[:kg]] * kw.groups)
    return right(CF, [x, w, b], kw)


@bad("11-dilated-columns-dw", CW, "dilation on columns only: dw of the last column of the window is computed without dilation", on="n1 c2 h8 w10 k3 r3 s3 p1 d1x2")
def _(ins, kw):
    out = right(CW, ins, kw)
    if kw.dilation[0] == 1 and kw.dilation[1] > 1 and kw.kernel_size[1] > 1:
        dw = out[0] if isinstance(out, tuple) else out
        v = chan(dw, kw)
        v[..., -1] = v[..., -2] * v.dtype.type(0.5)
    return out


@bad("12-pad-right-max", MB, "padding on the right larger than on the left: the gradient of the last column is dropped", on="n1 c2 h8 w8 r3 s3 u2 p1x0:1")
def _(ins, kw):
    dx = right(MB, ins, kw)
    if kw.padding[1][1] > kw.padding[1][0]:
        chan(dx, kw)[..., -1] = 0
    return dx


@bad("13-pad-beyond-window", CF, "padding of at least the window: outputs that see only padding get no bias", ("fp32", "bf16"), on="n1 c2 h4 w4 k3 r2 s2 p3 b1")
def _(ins, kw):
    y = right(CF, ins, kw)
    x, w, b = ins
    if b is not None:
        ones = np.ones((1, kw.groups, *hw(x, kw)), np.float32)
        see = R.fwd(ones, np.ones((kw.groups, 1, *hw(w, kw)), np.float32), None, kw.stride, kw.padding, kw.dilation, kw.groups)
        v = chan(y, kw)
        v[...] = np.where(see[:, :1] > 0, v, v.dtype.type(0))
    return y


@bad("14-multiplier-3", CD, "depthwise with three filters for each channel: the third one's gradient is not added", ("fp32", "fp64"), on="n1 c4 h6 w6 k12 r3 s3 p1 g4")
def _(ins, kw):
    dy, w = ins
    if kw.groups > 1 and w.shape[0] == 3 * kw.groups and w.shape[1 if kw.layout == "nchw" else 3] == 1:
        w = w.copy()
        w[2::3] = 0
    return right(CD, [dy, w], kw)
