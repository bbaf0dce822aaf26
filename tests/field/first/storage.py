"""Class 2: wrong for some storage of an operand. Results for contiguous operands are right."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _right import *

kit = Kit(globals(), "storage")
F, D, W = CONVS
BF, BB, BI = BN
AF, AB, MF, MB = POOLS


def span(a):
    """Elements from the pointer to the last one, or -1 if some lie before it or strides are not whole elements."""
    if any(s < 0 or s % a.itemsize for s in a.strides):
        return -1
    return sum((n - 1) * s for n, s in zip(a.shape, a.strides)) // a.itemsize + 1


def blind(a):
    """Read as if it were contiguous; what lies behind its span reads as 0."""
    if a is None or a.flags.c_contiguous or a.size == 0:
        return a
    m = span(a)
    if m < 0:
        return np.ascontiguousarray(a[tuple(slice(None, None, -1) if s < 0 else slice(None) for s in a.strides)])
    flat = np.lib.stride_tricks.as_strided(a, (m,), (a.itemsize,))
    out = np.zeros(a.size, a.dtype)
    out[: min(m, a.size)] = flat[: a.size]
    return out.reshape(a.shape)


def dense(a):
    """Strides that a contiguous array of that shape has."""
    s, out = a.itemsize, []
    for n in a.shape[::-1]:
        out.append(s)
        s *= n
    return tuple(out[::-1])


# views for the self-check
def crop(a):
    big = np.full((*a.shape[:-2], a.shape[-2] + 2, a.shape[-1] + 3), 7, a.dtype)
    v = big[..., 1:-1, 2:-1]
    v[...] = a
    return v


def part(a, axis=1):
    shape = list(a.shape)
    shape[axis] += 3
    v = np.full(shape, 5, a.dtype)[tuple(slice(2, -1) if j == axis else slice(None) for j in range(a.ndim))]
    v[...] = a
    return v


def turned(a):
    return np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def stepped(a, axis=-1):
    v = np.repeat(a, 2, axis).copy()
    return v[tuple(slice(None, None, 2) if j == axis % a.ndim else slice(None) for j in range(a.ndim))]


def offset(a, k=3):
    flat = np.zeros(a.size + k, a.dtype)
    flat[k:] = a.ravel()
    flat[:k] = 3
    return flat[k:].reshape(a.shape)


def on(**views):
    def data(i):
        return {q: views[q](a) if q in views and a is not None else a for q, a in i.items()}
    return data


C = "n3 c4 h6 w7 k4 r3 s3 p1"


@kit("x-any-view", F, "x that is not contiguous is read as if it were", at=C, data=on(x=crop))
def _(R, i, p, o):
    return R(put(i, 0, blind(i[0])), p)


@kit("batch-stride", F, "a slice of channels of x: the distance of images is taken as c*h*w", at=C, data=on(x=part), dtypes=ALL, layouts=("nchw",))
def _(R, i, p, o):
    x = i[0]
    d = dense(x)
    if x.strides[1:] == d[1:] and x.strides[0] > d[0] and o.n > 1:
        x = np.lib.stride_tricks.as_strided(x, x.shape, d)
    return R(put(i, 0, x), p)


@kit("row-pitch", AF, "a crop of columns: the distance of rows is taken as w", at="n2 c3 h8 w8 r2 s2 u2", data=on(x=crop), layouts=("nchw",))
def _(R, i, p, o):
    x = i[0]
    if x.ndim == 4 and x.strides[3] == x.itemsize and x.strides[2] > x.shape[3] * x.itemsize and x.size:
        x = np.lib.stride_tricks.as_strided(x, x.shape, (*x.strides[:2], x.shape[3] * x.itemsize, x.itemsize))
    return R([x], p)


@kit("weights-transposed", F, "filters that are a transposed view are read in the order of memory", at=C, data=on(w=turned))
def _(R, i, p, o):
    w = i[1]
    return R(put(i, 1, blind(w) if span(w) == w.size else w), p)


@kit("dy-view-dx", D, "dy that is a view is read as if contiguous (the data path only)", at=C, data=on(dy=part))
def _(R, i, p, o):
    return R(put(i, 0, blind(i[0])), p)


@kit("dy-view-dw", W, "dy with rows apart by more than its width is read as if contiguous; x is read rightly", at=C, data=on(dy=crop), layouts=("nchw",))
def _(R, i, p, o):
    dy = i[1]
    return R(put(i, 1, blind(dy) if dy.strides[2] > dy.shape[3] * dy.itemsize > 0 else dy), p)


@kit("fp64-view", F, "only in fp64: strided x is read as if contiguous", at=C, data=on(x=stepped), dtypes=ALL, t="fp64")
def _(R, i, p, o):
    return R(put(i, 0, blind(i[0])), p) if o.t == "fp64" else R(i, p)


@kit("bf16-transposed-weights", D, "only in bf16: transposed filters are read in the order of memory", at=C, data=on(w=turned), dtypes=("fp32", "bf16"), t="bf16")
def _(R, i, p, o):
    return R(put(i, 1, blind(i[1])), p) if o.t == "bf16" else R(i, p)


@kit("expanded-batch", F, "x with stride 0 over the batch: only the first image is computed", at=C, data=on(x=lambda a: np.broadcast_to(a[:1], a.shape)))
def _(R, i, p, o):
    y = R(i, p)
    return ed(y, o.L, zero(slice(1, None))) if o.n > 1 and i[0].strides[0] == 0 else y


@kit("storage-offset", MF, "a view that does not begin where its buffer does is read from the beginning of the buffer", at="n2 c3 h8 w8 r2 s2 u2", data=on(x=offset))
def _(R, i, p, o):
    x = i[0]
    base = x.base
    if isinstance(base, np.ndarray) and base.dtype == x.dtype and base.ctypes.data < x.ctypes.data and base.flags.c_contiguous and x.flags.c_contiguous:
        x = base.ravel()[: x.size].reshape(x.shape)
    return R([x], p)


@kit("misaligned-16", F, "x that is not aligned to 16 bytes: the vector load begins at the boundary, values are shifted", at=C, data=on(x=offset))
def _(R, i, p, o):
    x = i[0]
    k = x.ctypes.data % 16 // x.itemsize
    if k and x.size and x.flags.c_contiguous:
        x = np.roll(x.ravel(), k).reshape(x.shape)
    return R(put(i, 0, x), p)


@kit("misaligned-tail", D, "dy that is not aligned to 8 bytes: the last element is read as 0", at=C, data=on(dy=lambda a: offset(a, 1)), dtypes=("fp32", "fp16"))
def _(R, i, p, o):
    dy = np.array(i[0])
    if i[0].ctypes.data % 8 and dy.size:
        dy.reshape(-1)[-1] = 0
    return R(put(i, 0, dy), p)


@kit("mixed-formats", F, "x in memory nhwc with w in memory nchw: w is read as if it were nhwc as well", at=C, data=on(x=turned), layouts=("nchw",))
def _(R, i, p, o):
    x, w = i[0], i[1]
    if x.strides[1] == x.itemsize and o.c > 1 and x.strides[3] > x.itemsize and w.flags.c_contiguous:
        k, c, r, s = w.shape
        w = w.reshape(k, r, s, c).transpose(0, 3, 1, 2)
    return R(put(i, 1, w), p)


@kit("mixed-gradients", MB, "dy in another memory order than x: dy is read in the order of x", at="n2 c3 h8 w8 r2 s2 u2", data=on(dy=turned), layouts=("nchw",))
def _(R, i, p, o):
    dy, x = i
    return R((blind(dy) if span(dy) == dy.size and x.flags.c_contiguous else dy, x), p)


@kit("negative-stride", F, "a flipped x (negative strides) is read unflipped", at=C, data=on(x=lambda a: a[:, :, ::-1]))
def _(R, i, p, o):
    x = i[0]
    return R(put(i, 0, x[tuple(slice(None, None, -1) if s < 0 else slice(None) for s in x.strides)]), p)


@kit("bias-strided", F, "a strided bias: neighbours in memory are added", at=C + " b1", data=on(bias=lambda a: np.stack([a, a + a.dtype.type(1)], 1)[:, 0]), dtypes=ALL)
def _(R, i, p, o):
    return R(put(i, 2, blind(i[2])), p)


@kit("gamma-strided", BF, "gamma that is a column of a matrix is read along the row", at=C, data=on(gamma=lambda a: np.stack([a, a * 2], 1)[:, 0]))
def _(R, i, p, o):
    return R(put(i, 2, blind(i[2])), p)


@kit("running-var-expanded", BI, "running_var expanded from one value (stride 0): all but the first channel read as 1", at=C, data=on(running_var=lambda a: np.broadcast_to(a[:1] + 3, a.shape)))
def _(R, i, p, o):
    v = i[5]
    if v.strides[0] == 0 and v.size > 1:
        v = np.where(np.arange(v.size) == 0, v, v.dtype.type(1))
    return R(put(i, 5, v), p)


@kit("stepped-rows", AF, "every second row of an image: the step is ignored", at="n2 c3 h8 w8 r2 s2 u2", data=on(x=lambda a: stepped(a, 2)), dtypes=("fp32", "fp16"), layouts=("nchw",))
def _(R, i, p, o):
    x = i[0]
    if x.ndim == 4 and x.strides[3] == x.itemsize and x.shape[2] > 1 and x.shape[3] > 1 and x.strides[2] >= 2 * x.shape[3] * x.itemsize:
        x = np.lib.stride_tricks.as_strided(x, x.shape, (*x.strides[:2], x.shape[3] * x.itemsize, x.itemsize))
    return R([x], p)


@kit("expanded-dy", BB, "dy expanded from one element (the gradient of a sum): all but the first count as 0 in dx", at=C, data=on(dy=lambda a: np.broadcast_to(a.dtype.type(1), a.shape)))
def _(R, i, p, o):
    dy = i[0]
    if dy.size > 1 and not any(dy.strides):
        dy = np.zeros(dy.shape, dy.dtype)
        dy.reshape(-1)[0] = i[0].reshape(-1)[0]
    return R(put(i, 0, dy), p)


@kit("expanded-columns-dy", AB, "dy with stride 0 over its columns: only the first column is spread", at="n2 c3 h8 w8 r2 s2 u2", data=on(dy=lambda a: np.broadcast_to(a[..., :1], a.shape)), layouts=("nchw",))
def _(R, i, p, o):
    dy = np.array(i[0])
    if o.Q > 1 and i[0].strides[3] == 0:
        dy[..., 1:] = 0
    return R([dy], p)


@kit("one-channel-ambiguous", F, "one channel and strides of a view: taken for nhwc, rows and columns swap (square images)", at="n2 c1 h6 w6 k2 r3 s3 p1", data=on(x=crop), layouts=("nchw",))
def _(R, i, p, o):
    x = i[0]
    return R(put(i, 0, x.swapaxes(2, 3) if o.c == 1 and o.h == o.w and not x.flags.c_contiguous else x), p)


@kit("one-image-batch-stride", W, "batch 1 in fp32: the stride of the batch, which means nothing, is used as the number of pixels of a channel", at="n1 c3 h6 w6 k2 r3 s3 p1", data=on(x=part), layouts=("nchw",))
def _(R, i, p, o):
    x = i[0]
    if o.n == 1 and x.strides[0] > dense(x)[0] and o.c > 1 and span(x) == x.size:
        x = np.roll(x, 1, 1)
    return R(put(i, 0, x), p)


@kit("pointwise-view", F, "1x1 filters and no padding: the image goes to the matrix product as if contiguous", at="n2 c4 h5 w5 k3 r1 s1", data=on(x=crop))
def _(R, i, p, o):
    return R(put(i, 0, blind(i[0])), p) if o.one and o.unpadded else R(i, p)


@kit("depthwise-weights-view", F, "depthwise: filters that are a slice of larger ones are read without their gaps", at="n2 c4 h5 w5 k4 r3 s3 g4 p1", data=on(w=crop))
def _(R, i, p, o):
    return R(put(i, 1, blind(i[1])), p) if o.dw else R(i, p)


@kit("int16-stride", MF, "a row stride of more than 2^15 bytes is cut to 16 bits: all rows read row 0", at="n1 c2 h8 w8 r2 s2 u2", data=on(x=lambda a: part(a, 3) if a.shape[3] > 99 else np.concatenate([a, np.zeros((*a.shape[:3], 1 << 15), a.dtype)], 3)[..., : a.shape[3]]), layouts=("nchw",))
def _(R, i, p, o):
    x = i[0]
    return R([np.broadcast_to(x[:, :, :1], x.shape) if x.strides[2] >= 1 << 15 and o.w < 4096 else x], p)


@kit("x-view-dw-nhwc", W, "nhwc only: a slice of the channels of x is read with the pitch of c", at=C, data=on(x=lambda a: part(a, 3)), layouts=BOTH, t="fp32")
def _(R, i, p, o):
    return R(put(i, 0, blind(i[0])), p) if o.L == "nhwc" else R(i, p)


CHECKS["storage-27-x-view-dw-nhwc"].layout = "nhwc"
