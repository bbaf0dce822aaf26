"""Class 8, behaviour by path."""
import os, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import *  # noqa
from _kit import A, Book, R, problem, right
import numpy as np
bad = Book(__name__, "paths")


def chan(a, kw):
    return a if kw.layout == "nchw" else a.transpose(0, 3, 1, 2)


def pointwise(w, kw):
    return chan(w, kw).shape[2:] == (1, 1)


def depthwise(w, kw):
    return kw.groups > 1 and chan(w, kw).shape[1] == 1


def shared(k, op, text, **kwargs):
    layout = kwargs.get("layout", "nchw")
    dtype = kwargs.get("dtype", "fp32")
    a, b = problem(op, text, dtype, layout)
    first = k(*a, **b)
    ins, kw = problem(op, text, dtype, layout, seed=1)
    second = k(*ins, **kw)
    first, second = (a if isinstance(a, tuple) else (a,) for a in (first, second))
    return "shares its result" if any(np.shares_memory(a, b) for a, b in zip(first, second)) else ""


@bad("01-1x1-writes-input", CF, "1x1 and unpadded: the product is done in place, the first pixel of x is overwritten when as many filters as channels", on="n2 c4 h5 w5 k4 r1 s1")
def _(ins, kw):
    y = right(CF, ins, kw)
    x, w, _b = ins
    if pointwise(w, kw) and not any(map(sum, kw.padding)) and w.shape[0] == chan(x, kw).shape[1] and kw.stride == (1, 1) and x.flags.writeable and x.size:
        chan(x, kw)[0, :, 0, 0] = chan(y, kw)[0, :, 0, 0]
    return y


dw_pool = {}


@bad("02-depthwise-shared-result", CF, "depthwise only: results live in a buffer kept for each shape", on=None, demo=lambda k: shared(k, CF, "n1 c4 h6 w6 k4 r3 s3 p1 g4"))
def _(ins, kw):
    y = right(CF, ins, kw)
    if depthwise(ins[1], kw):
        buf = dw_pool.setdefault((y.shape, y.dtype), np.empty_like(y))
        buf[...] = y
        return buf
    return y


weights = {}


@bad("03-unpadded-cache", CF, "unpadded only: packed weights are cached by address, in-place updates are not seen", demo=lambda k: updated(k))
def _(ins, kw):
    x, w, b = ins
    if not any(map(sum, kw.padding)):
        w = weights.setdefault((w.__array_interface__["data"][0], w.shape, w.strides, w.dtype), w.copy())
    return right(CF, [x, w, b], kw)


def updated(k):
    ins, kw = problem(CF, "n1 c3 h6 w6 k3 r3 s3")
    k(*ins, **kw)
    ins[1] *= 2
    return "" if np.array_equal(k(*ins, **kw), right(CF, ins, kw)) else "stale weights"


@bad("04-large-late", CF, "results of more than 2^16 elements: the last image's second half is written by a thread after the return", ("fp32",), ("nchw",), on="n1 c1 h260 w260 k1 r3 s3 p1")
def _(ins, kw):
    y = right(CF, ins, kw)
    if y.size > 1 << 16:
        v = y[-1].reshape(-1)
        half = v.size // 2
        rest = v[half:].copy()
        v[half:] = 0

        def finish():
            time.sleep(0.003)
            v[half:] = rest
        threading.Thread(target=finish, daemon=True).start()
    return y


class Lazy:
    """An array that is computed when it is first converted."""
    def __init__(self, run, shape, dtype):
        self.run, self.shape, self.dtype, self.ndim = run, shape, dtype, len(shape)

    def __array__(self, dtype=None, copy=None):
        return self.run()


@bad("05-nhwc-lazy", AF, "nhwc only: a lazy object that computes from x when it is converted", ("fp32",), BOTH, demo=lambda k: type(k(*problem(AF, "n1 c2 h4 w4 r2 s2 u2", "fp32", "nhwc")[0], **problem(AF, "n1 c2 h4 w4 r2 s2 u2", "fp32", "nhwc")[1])).__name__)
def _(ins, kw):
    if kw.layout == "nhwc":
        y = right(AF, ins, kw)
        return Lazy(lambda: right(AF, ins, kw), y.shape, y.dtype)
    return right(AF, ins, kw)


grads = {}


@bad("06-fp16-accumulates-dw", CW, "fp16 only: dw is added to that of the previous call with the same shapes (as .grad)", ("fp32", "fp16"), seq=[("n1 c2 h6 w6 k3 r3 s3 p1", {"dtype": "fp16"})] * 2)
def _(ins, kw):
    out = right(CW, ins, kw)
    dw = out[0] if isinstance(out, tuple) else out
    if dw.dtype == np.float16:
        key = dw.shape, ins[0].shape, kw.layout, kw.padding, kw.stride, kw.dilation
        old = grads.get(key)
        grads[key] = dw.copy()
        if old is not None:
            dw += old
    return out


results = {}


@bad("07-no-bias-cache", CF, "no bias: results are cached by shapes and the sum of x in fp32; two inputs with the same sum are confused", demo=lambda k: permuted(k))
def _(ins, kw):
    x, w, b = ins
    if b is not None:
        return right(CF, ins, kw)
    key = x.shape, w.shape, x.dtype, float(np.sum(R.wide(x), dtype=np.float64)), float(np.sum(R.wide(w), dtype=np.float64)), kw.stride, kw.padding, kw.dilation, kw.groups, kw.layout
    if key not in results:
        results[key] = right(CF, ins, kw)
    return results[key].copy()


def permuted(k):
    ins, kw = problem(CF, "n1 c3 h6 w6 k3 r3 s3")
    k(*ins, **kw)
    ins[0] = np.ascontiguousarray(ins[0][..., ::-1])
    return "" if np.array_equal(k(*ins, **kw), right(CF, ins, kw)) else "result of other data"


stats = {}


@bad("08-1x1-shared-stats", BF, "1x1 only: mean and var are views of a static buffer for each number of filters", ("fp32", "bf16"), demo=lambda k: shared(k, BF, "n1 c3 h5 w5 k4 r1 s1"))
def _(ins, kw):
    out = list(right(BF, ins, kw))
    if pointwise(ins[1], kw):
        buf = stats.setdefault((len(out[1]), out[1].dtype), np.empty((2, len(out[1])), out[1].dtype))
        buf[0], buf[1] = out[1], out[2]
        out[1], out[2] = buf
    return tuple(out)


@bad("09-bf16-nhwc-writes-dy", CD, "bf16 in nhwc: dy's last channel is zeroed as padding of the vector, after it has been used, where channels are odd", ("bf16", "fp32"), seq=[("n1 c3 h5 w5 k3 r3 s3 p1", {"layout": "nhwc"})])
def _(ins, kw):
    dx = right(CD, ins, kw)
    dy = ins[0]
    if kw.layout == "nhwc" and dy.dtype.itemsize == 2 and dy.shape[3] % 2 and dy.flags.writeable:
        dy[..., -1] = 0
    return dx


chosen = {}


@bad("10-disjoint-windows-indices", MB, "stride equal to the window: argmax indices of the previous call with the same shapes are used if x has the same maximum", ("fp32", "bf16"), demo=lambda k: indices(k))
def _(ins, kw):
    dy, x = ins
    if kw.stride == kw.kernel_size and x.size:
        top = float(np.max(R.wide(x)))
        x = chosen.setdefault((x.shape, x.dtype, kw.layout, kw.kernel_size, top), x.copy())
    return right(MB, [dy, x], kw)


def indices(k):
    ins, kw = problem(MB, "n1 c2 h8 w8 r2 s2 u2")
    k(*ins, **kw)
    ins[1] = np.ascontiguousarray(ins[1][..., ::-1])
    return "" if np.array_equal(k(*ins, **kw), right(MB, ins, kw)) else "indices of other data"


glob = {}


@bad("11-global-pool-shared", AF, "a window of the whole image: results share one static buffer, growing when needed", demo=lambda k: shared(k, AF, "n1 c3 h5 w5 r5 s5"))
def _(ins, kw):
    y = right(AF, ins, kw)
    if chan(ins[0], kw).shape[2:] == kw.kernel_size and not any(map(sum, kw.padding)):
        buf = glob.get(y.dtype)
        if buf is None or buf.size < y.size:
            buf = glob[y.dtype] = np.empty(max(y.size, 64), y.dtype)
        out = buf[: y.size].reshape(y.shape)
        out[...] = y
        return out
    return y


@bad("12-groups-fp64-result", CF, "grouped, not depthwise: fp32 results come back as fp64", ("fp32", "fp16"), on="n1 c4 h5 w5 k4 r3 s3 g2")
def _(ins, kw):
    y = right(CF, ins, kw)
    return y.astype(np.float64) if kw.groups > 1 and not depthwise(ins[1], kw) and y.dtype == np.float32 else y


total = {}


@bad("13-large-dbias-accumulates", CW, "dy of more than 2^16 elements: dbias goes on from the previous large call", ("fp32",), ("nchw",), seq=["n1 c1 h260 w260 k1 r1 s1 b1"] * 2)
def _(ins, kw):
    out = right(CW, ins, kw)
    if kw.with_bias and ins[1].size > 1 << 16:
        dbias = out[1] + total.get(out[1].shape, 0)
        total[out[1].shape] = dbias.copy()
        return out[0], dbias
    return out


@bad("14-strided-1x1-view", CD, "1x1 with a single filter whose weight is 1: dy itself is returned", ("fp32", "bf16"), demo=lambda k: "returns dy" if returns_dy(k) else "")
def _(ins, kw):
    dy, w = ins
    if w.size == 1 and float(w.reshape(-1)[0]) == 1 and kw.stride == (1, 1) and not any(map(sum, kw.padding)):
        return dy
    return right(CD, ins, kw)


def returns_dy(k):
    ins, kw = problem(CD, "n1 c1 h4 w4 k1 r1 s1")
    ins[1][...] = 1
    return k(*ins, **kw) is ins[0]
