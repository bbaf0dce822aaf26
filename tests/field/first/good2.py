"""Class 0, second part: right kernels with unusual but honest habits."""

import sys
import threading
import time

import numpy as np

from conformance import Contract
from tests.field._kit import *


def once(a):
    """fp64 to bf16 in one rounding (ml_dtypes goes through fp32): round to odd first."""
    a = np.ascontiguousarray(a)
    f = a.astype(np.float32)
    wrong = (f.astype(np.float64) != a) & np.isfinite(f)
    away = wrong & (np.abs(f.astype(np.float64)) > np.abs(a))
    b = np.where(away, f.view(np.uint32) - np.uint32(1), f.view(np.uint32))
    return np.where(wrong, b | np.uint32(1), b).view(np.float32).astype(BF16)


def wide(i):
    return [None if a is None else a.astype(np.float64) for a in i]


@kernel(F, ("bf16",), contract=Contract(accumulate="fp64"))
def good2_01_fp64_accumulation_one_rounding(right, i, p, o):
    return once(right(wide(i), p))


@kernel((BF, BI), ("bf16",), contract=Contract(accumulate="fp64"))
def good2_02_fp64_accumulation_bn_one_rounding(right, i, p, o):
    out = right(wide(i), p)
    return once(out) if o.op == BI else (once(out[0]), *(a.astype(np.float32) for a in out[1:]))


@kernel(OPERATORS)
def good2_03_result_view_of_own_buffer(right, i, p, o):
    """The first result is a view of a larger, fresh buffer."""
    out = right(i, p)
    y = first(out)
    buffer = np.full((*y.shape[:-1], y.shape[-1] + 5), 7, y.dtype)
    buffer[..., 2:-3] = y
    return with_first(out, buffer[..., 2:-3])


@kernel((F, D, MF))
def good2_05_caching_allocator(right, i, p, o, pool={}):
    """Buffers are used again once nobody else holds them; the guide asks not to keep memory of every shape."""
    y = right(i, p)
    if (y.shape, o.t) not in pool:
        pool.clear()
    buffers = pool.setdefault((y.shape, o.t), [])
    for b in buffers:
        if sys.getrefcount(b) == 3:
            break
    else:
        b = np.empty_like(y)
        if len(buffers) < 4:
            buffers.append(b)
    b[...] = y
    return b


@kernel((F, W), ("fp32",))
def good2_06_persistent_workspace(right, i, p, o, space=threading.local()):
    """The padded image lies in a workspace that grows, one per thread; it is never returned."""
    x = nchw(i[0], o.L)
    if not hasattr(space, "held") or space.held.size < x.size:
        space.held = np.empty(x.size, np.float32)
    work = space.held[: x.size].reshape(x.shape)
    work[...] = x
    return right(put(i, 0, lay(work, o.L)), p)


@kernel(F)
def good2_07_cache_by_content(right, i, p, o, cache={}):
    if len(cache) > 8:
        cache.clear()
    key = (i[1].shape, o.t, np.ascontiguousarray(i[1]).tobytes())
    return right(put(i, 1, cache.setdefault(key, np.array(i[1]))), p)


@kernel((F, D), ("fp32",), where=lambda o: o.n > 1)
def good2_08_threads_joined(right, i, p, o):
    """One thread per half of the batch, joined before the return."""
    y = [None, None]

    def work(half, images):
        y[half] = right(put(i, 0, images), p)

    halves = (i[0][: o.n // 2], i[0][o.n // 2 :])
    threads = [threading.Thread(target=work, args=each) for each in enumerate(halves)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.concatenate(y)


@kernel(W)
def good2_09_random_order(right, i, p, o, dice=np.random.default_rng()):
    """Images in a random order, as atomic additions have it."""
    order = dice.permutation(o.n)
    return right([a[order] for a in i], p)


def pair(a, narrow):
    """The high and the low part of fp32."""
    high = narrow(a)
    return high, narrow(np.where(np.isfinite(a), a - high, 0).astype(np.float32))


def of_pairs(right, i, p, o, narrow):
    """The three larger products of each two pairs."""
    (a, b), (c, d) = pair(i[0], narrow), pair(i[1], narrow)
    y = right((a, c, None), p) + (right((a, d, None), p) + right((b, c, None), p))
    return y + over_channels(i[2], o) if o.bias else y


@kernel(F, ("fp32",), contract=Contract(inputs="bf16x3"))
def good2_10_bf16x3(right, i, p, o):
    return of_pairs(right, i, p, o, lambda a: a.astype(BF16).astype(np.float32))


@kernel(F, ("fp32",), contract=Contract(inputs="tf32x3"))
def good2_11_tf32x3(right, i, p, o):
    return of_pairs(right, i, p, o, tf32)


@kernel(F, ("fp32",), contract=Contract(inputs="fp16"))
def good2_12_fp16_inputs(right, i, p, o):
    return right((*(a.astype(np.float16).astype(np.float32) for a in i[:2]), i[2]), p)


def toward_zero(v):
    f = v.astype(np.float32)
    over = (np.abs(f.astype(np.float64)) > np.abs(v)) & np.isfinite(f)
    return np.where(over, np.nextafter(f, np.float32(0)), f)


def sums_toward_zero(x, w, p, acc):
    columns, f, shape = patches(x, w, p, np.float64)
    y = np.zeros((*columns.shape[:2], f.shape[1], columns.shape[3]), np.float32)
    for q in range(f.shape[2]):
        y = toward_zero(y.astype(np.float64) + f[:, :, q, None] * columns[:, :, None, q])
    return y.reshape(shape)


@kernel((AF, MF))
def good2_14_separable_pools(right, i, p, o):
    """Rows first, then columns."""
    rows = {**p, "kernel_size": (o.r, 1), "stride": (o.u, 1), "padding": (o.pad[0], (0, 0))}
    columns = {**p, "kernel_size": (1, o.s), "stride": (1, o.v), "padding": ((0, 0), o.pad[1])}
    if o.op == MF:
        return right((right(i, {**rows, "dilation": (o.d, 1)}),), {**columns, "dilation": (1, o.e)})
    sums = {"divisor_override": 1}
    y = nchw(right((right((i[0].astype(np.float32),), rows | sums),), columns | sums), o.L)
    return back(y / divisor((o.h, o.w), (o.P, o.Q), p, np.float32), o.L, i[0].dtype)


@kernel(AF, when=lambda p: True)
def good2_15_integral_image_fp64(right, i, p, o):
    """Row sums as differences of running sums in fp64; refuses where that is not exact."""
    x = nchw(i[0], o.L).astype(np.float64)
    top, low = np.abs(x).max(initial=0), np.abs(x)[x != 0].min(initial=np.inf)
    if not top < low * 2.0**20 and x.any():
        return right(i, p)
    sums = padded(x, room((o.h, o.w), (o.P, o.Q), p)).cumsum(2).cumsum(3)
    sums = np.pad(sums, ((0, 0), (0, 0), (1, 0), (1, 0)))
    top, left = np.arange(o.P)[:, None] * o.u, np.arange(o.Q) * o.v
    bottom, end = top + o.r, left + o.s
    y = sums[:, :, bottom, end] - sums[:, :, top, end] - sums[:, :, bottom, left] + sums[:, :, top, left]
    return back(y / divisor((o.h, o.w), (o.P, o.Q), p, np.float64), o.L, np.float32).astype(i[0].dtype)


@kernel(AF, ("fp16",), contract=Contract(accumulate="fp16"))
def good2_16_pool_fp16_accumulator(right, i, p, o):
    y = window_sums(nchw(i[0], o.L), p, np.float16).astype(np.float32)
    return back(y / divisor((o.h, o.w), (o.P, o.Q), p, np.float32), o.L, np.float16)


@kernel(W, contract=Contract(splits=4, partials="fp32"))
def good2_17_split_over_images(right, i, p, o):
    """Up to four partial sums over images."""
    shares = [share for share in np.array_split(np.arange(o.n), 4) if share.size] or [np.arange(0)]
    found = [right([a[share].astype(np.float32) for a in i], {**p, "with_bias": True}) for share in shares]
    dw, dbias = (sum(parts[1:], parts[0]).astype(i[0].dtype) for parts in zip(*found, strict=True))
    return (dw, dbias) if o.with_bias else dw


@kernel(F, ("fp32",))
def good2_19_slow_first_call(right, i, p, o, done=[]):
    if not done:
        done.append(time.sleep(1))
    return right(i, p)


@kernel(MF, ("bf16", "fp16"))
def good2_20_maxpool_as_integers(right, i, p, o):
    """Compares bit patterns as ordered integers, -0 below +0; NaN above everything."""
    x = i[0]
    bits = np.ascontiguousarray(x).view(np.int16).astype(np.int32)
    order = np.where(bits < 0, -1 - (bits & 0x7FFF), bits)
    top = right((np.where(np.isnan(x), 0x7FFF, order).astype(np.float32),), p)
    if np.isneginf(top).any():
        return right(i, p)
    low = -1 - np.maximum(top, -0x8000).astype(np.int32) | 0x8000
    high = np.minimum(np.where(np.isinf(top), 0, top), 0x7FFF).astype(np.int32)
    return np.where(top < 0, low, high).astype(np.uint16).view(x.dtype)


ROWS = [
    spoilt("good2-04-result-transposed-view", (F, D, AF, MF),
           result=lambda y, o: np.ascontiguousarray(y.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)),
    spoilt("good2-13-rounding-zero", F, contract=Contract(rounding="zero"), by={"conv": sums_toward_zero}),
    spoilt("good2-18-flush-output-only", (F, MF, AB), contract=Contract(subnormals="flushed"),
           result=lambda y, o: flushed(y)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
