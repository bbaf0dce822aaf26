"""Class 8, behaviour by path."""

import numpy as np

from tests.field._kit import *


@kernel(F, where=lambda o: o.one and o.unpadded and o.k == o.c and o.u == o.v == 1)
def paths_01_1x1_writes_input(right, i, p, o):
    """1x1 and unpadded: the product is done in place, the first pixel of x is overwritten when as many filters as
    channels."""
    y, x = right(i, p), i[0]
    if x.flags.writeable and x.size:
        nchw(x, o.L)[0, :, 0, 0] = nchw(y, o.L)[0, :, 0, 0]
    return y


@kernel(F, where=lambda o: o.dw)
def paths_02_depthwise_shared_result(right, i, p, o, buffers={}):
    """depthwise only: results live in a buffer kept for each shape."""
    return kept_in(buffers, right(i, p))


@kernel(F, where=lambda o: o.unpadded)
def paths_03_unpadded_cache(right, i, p, o, packed={}):
    """unpadded only: packed weights are cached by address, in-place updates are not seen."""
    w = i[1]
    return right(put(i, 1, packed.setdefault((w.ctypes.data, w.shape, w.strides, o.t), w.copy())), p)


@kernel(F, ("fp32",), ("nchw",), where=lambda o: o.M * o.k > 1 << 16)
def paths_04_large_late(right, i, p, o):
    """results of more than 2^16 elements: the last image's second half is written by a thread after the return."""
    y = right(i, p)
    last = y[-1].reshape(-1)
    late_place(last[last.size // 2 :], 0.003)
    return y


@kernel(AF, ("fp32",), where=lambda o: o.L == "nhwc")
def paths_05_nhwc_lazy(right, i, p, o):
    """nhwc only: a lazy object that computes from x when it is converted."""
    return Lazy(lambda: right(i, p), right(i, p))


@kernel(W, ("fp32", "fp16"), where=lambda o: o.t == "fp16")
def paths_06_fp16_accumulates_dw(right, i, p, o, kept={}):
    """fp16 only: dw is added to that of the previous call with the same shapes (as .grad)."""
    out = right(i, p)
    dw, key = first(out), (first(out).shape, i[0].shape, o.L, o.pad, o.stride, o.dilation)
    old, kept[key] = kept.get(key), dw.copy()
    return out if old is None else with_first(out, dw + old)


@kernel(F, where=lambda o: not o.bias)
def paths_07_no_bias_cache(right, i, p, o, results={}):
    """no bias: results are cached by shapes and the sum of x in fp32; two inputs with the same sum are confused."""
    sums = (float(np.sum(a.astype(acc_of(a)), dtype=np.float64)) for a in i[:2])
    key = (i[0].shape, i[1].shape, o.t, *sums, o.stride, o.pad, o.dilation, o.g, o.L)
    if key not in results:
        results[key] = right(i, p)
    return results[key].copy()


@kernel(BF, where=lambda o: o.one)
def paths_08_1x1_shared_stats(right, i, p, o, buffers={}):
    """1x1 only: mean and var are views of a static buffer for each number of filters."""
    y, mean, var, *running = right(i, p)
    return (y, *kept_in(buffers, np.stack([mean, var])), *running)


@kernel(D, ("bf16", "fp32"), where=lambda o: o.L == "nhwc" and o.t == "bf16" and o.k % 2)
def paths_09_bf16_nhwc_writes_dy(right, i, p, o):
    """bf16 in nhwc: dy's last channel is zeroed as padding of the vector, after it has been used, where channels are
    odd."""
    dx = right(i, p)
    if i[0].flags.writeable:
        i[0][..., -1] = 0
    return dx


@kernel(MB, where=lambda o: o.stride == o.kernel_size)
def paths_10_disjoint_windows_indices(right, i, p, o, kept={}):
    """stride equal to the window: argmax indices of the previous call with the same shapes are used if x has the same
    maximum."""
    dy, x = i
    key = (x.shape, o.t, o.L, o.kernel_size, float(np.max(x.astype(acc_of(x))))) if x.size else None
    return right([dy, kept.setdefault(key, x.copy()) if key else x], p)


@kernel(AF, where=lambda o: (o.h, o.w) == (o.r, o.s) and o.unpadded)
def paths_11_global_pool_shared(right, i, p, o, buffers={}):
    """a window of the whole image: results share one static buffer, growing when needed."""
    y = right(i, p)
    if o.t not in buffers or buffers[o.t].size < y.size:
        buffers[o.t] = np.empty(max(y.size, 64), y.dtype)
    out = buffers[o.t][: y.size].reshape(y.shape)
    out[...] = y
    return out


@kernel(F, ("fp32", "fp16"), where=lambda o: o.g > 1 and not o.dw and o.t == "fp32")
def paths_12_groups_fp64_result(right, i, p, o):
    """grouped, not depthwise: fp32 results come back as fp64."""
    return right(i, p).astype(np.float64)


@kernel(W, ("fp32",), ("nchw",), where=lambda o: o.with_bias and o.M * o.k > 1 << 16)
def paths_13_large_dbias_accumulates(right, i, p, o, kept={}):
    """dy of more than 2^16 elements: dbias goes on from the previous large call."""
    dw, dbias = right(i, p)
    dbias = dbias + kept.get(o.k, 0)
    kept[o.k] = dbias.copy()
    return dw, dbias


@kernel(D, where=lambda o: o.c == o.k == 1 and o.one and o.u == o.v == 1 and o.unpadded)
def paths_14_strided_1x1_view(right, i, p, o):
    """1x1 with a single filter whose weight is 1: dy itself is returned."""
    dy, w = i
    return dy if w.item() == 1 else right(i, p)
