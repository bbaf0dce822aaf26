"""Class 0: right kernels with other algorithms, declared as the guide says, and with unusual but honest habits."""

import sys
import threading
import time

import numpy as np

from conformance import Contract, Unsupported
from tests.field._kit import *

# Algorithms of a convolution


def im2col(x, w, p, acc):
    columns, f, shape = patches(x, w, p, acc)
    return np.matmul(f, columns).reshape(shape)


def pairwise(x, w, p, acc):
    columns, f, shape = patches(x, w, p, acc)
    products = np.ascontiguousarray((f[None, :, :, :, None] * columns[:, :, None]).swapaxes(3, 4))
    return products.sum(-1).reshape(shape)


def fft(x, w, p, acc):
    x, g, (d, e), (u, v) = padded(x, p["padding"]), p["groups"], p["dilation"], p["stride"]
    (n, _, *shape), (k, cg, r, s) = x.shape, w.shape
    window = np.zeros((k, cg, (r - 1) * d + 1, (s - 1) * e + 1), np.float32)
    window[:, :, ::d, ::e] = w
    fx, fw = np.fft.rfft2(x), np.conj(np.fft.rfft2(window, shape))
    fx, fw = fx.reshape(n, g, cg, *fx.shape[2:]), fw.reshape(g, k // g, cg, *fw.shape[2:])
    f = np.einsum("ngchw,gkchw->ngkhw", fx, fw).reshape(n, k, *fx.shape[3:])
    h, wide = (size - reach + 1 for size, reach in zip(shape, window.shape[2:], strict=True))
    return np.fft.irfft2(f, shape)[:, :, :h:u, :wide:v].astype(acc)


# Winograd's transforms of the image, the filters and the result, for tiles of 2 and of 4
B2 = [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]
G2 = [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]]
A2 = [[1, 1, 1, 0], [0, 1, -1, -1]]
B4 = [
    [4, 0, -5, 0, 1, 0],
    [0, -4, -4, 1, 1, 0],
    [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0],
    [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
]
G4 = [
    [1 / 4, 0, 0],
    [-1 / 6, -1 / 6, -1 / 6],
    [-1 / 6, 1 / 6, -1 / 6],
    [1 / 24, 1 / 12, 1 / 6],
    [1 / 24, -1 / 12, 1 / 6],
    [0, 0, 1],
]
A4 = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]


def winograd(m, *transforms):
    def convolution(x, w, p, acc):
        bt, gm, at = (np.array(transform).astype(acc) for transform in transforms)
        x, g = padded(x.astype(acc), p["padding"]), p["groups"]
        (n, _, h, wide), (k, cg) = x.shape, w.shape[:2]
        a, b = -(-(h - 2) // m), -(-(wide - 2) // m)
        x = np.pad(x, ((0, 0), (0, 0), (0, a * m + 2 - h), (0, b * m + 2 - wide)))
        tiles = np.lib.stride_tricks.sliding_window_view(x, (m + 2, m + 2), (2, 3))[:, :, ::m, ::m]
        v = (bt @ tiles @ bt.T).reshape(n, g, cg, a, b, m + 2, m + 2)
        u = (gm @ w.astype(acc) @ gm.T).reshape(g, k // g, cg, m + 2, m + 2)
        y = at @ np.einsum("gkcij,ngcabij->ngkabij", u, v) @ at.T
        y = y.reshape(n, k, a, b, m, m).transpose(0, 1, 2, 4, 3, 5).reshape(n, k, a * m, b * m)
        return y[:, :, : h - 2, : wide - 2]

    return convolution


def three(p):
    return p.r == p.s == 3 and tuple(p.stride) == (1, 1) and tuple(p.dilation) == (1, 1)


def split(parts, dtype):
    def convolution(x, w, p, acc):
        columns, f, (n, k, P, Q) = patches(x, w, p, acc)
        y = np.zeros((n, p["groups"], f.shape[1], P * Q), acc)
        for index in np.array_split(np.arange(f.shape[2]), parts):
            if index.size:
                partial = np.matmul(np.ascontiguousarray(f[:, :, index]), columns[:, :, index])
                y += partial.astype(dtype).astype(acc)
        return y.reshape(n, k, P, Q)

    return convolution


def narrow(dtype):
    def convolution(x, w, p, acc):
        columns, f, (n, k, P, Q) = patches(x, w, p, np.float32)
        y = np.zeros((n, p["groups"], f.shape[1], P * Q), dtype)
        for q in range(f.shape[2]):
            y = (y.astype(np.float32) + f[:, :, q, None] * columns[:, :, None, q]).astype(dtype)
        return y.reshape(n, k, P, Q).astype(np.float32)

    return convolution


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


# Formats


def as_tf32(a, o):
    return tf32(a)


def as_bf16(a, o):
    return a.astype(BF16).astype(np.float32)


def as_fp16(a, o):
    return a.astype(np.float16).astype(np.float32)


def pair(a, narrow):
    """The high and the low part of fp32."""
    high = narrow(a)
    return high, narrow(np.where(np.isfinite(a), a - high, 0).astype(np.float32))


def of_pairs(o, narrow):
    """The three larger products of each two pairs."""
    (a, b), (c, d) = (pair(v, narrow) for v in o.i[:2])
    y = o.again(a, c, None) + (o.again(a, d, None) + o.again(b, c, None))
    return y + over_channels(o.i[2], o) if o.bias else y


def once(a):
    """fp64 to bf16 in one rounding (ml_dtypes goes through fp32): round to odd first."""
    a = np.ascontiguousarray(a)
    f = a.astype(np.float32)
    wrong = (f.astype(np.float64) != a) & np.isfinite(f)
    away = wrong & (np.abs(f.astype(np.float64)) > np.abs(a))
    b = np.where(away, f.view(np.uint32) - np.uint32(1), f.view(np.uint32))
    return np.where(wrong, b | np.uint32(1), b).view(np.float32).astype(BF16)


def wide(o):
    return [None if a is None else a.astype(np.float64) for a in o.i]


@kernel(F, ("fp16",), contract=Contract(accumulate="fp16"))
def good_15_fp16_accumulator(o):
    y = RIGHT[F]([*o.i[:2], None], o.p, conv=narrow(np.float16))
    return (y.astype(np.float32) + over_channels(o.i[2], o).astype(np.float32)).astype(np.float16) if o.bias else y


@kernel(CONVS + POOLS, contract=Contract(subnormals="flushed"))
def good_20_flush_to_zero(o):
    out = o.again(*[flushed(a) for a in o.i])
    return tuple(map(flushed, out)) if isinstance(out, tuple) else flushed(out)


def contiguous_only(out, o):
    if any(a is not None and not a.flags.c_contiguous for a in o.i):
        raise Unsupported("strided inputs: call ascontiguousarray first")
    return out


@kernel((AF, AB))
def good_24_reciprocal(o):
    """times 1/divisor rather than divided by it, in fp32."""
    inverse = np.float32(1) / divisor((o.h, o.w), (o.P, o.Q), o.p, np.float32)
    a = nchw(o.i[0], o.L).astype(np.float32)
    if o.op == AB:
        return o.again(lay(a * inverse, o.L), divisor_override=1).astype(o.i[0].dtype)
    return back(nchw(o.again(lay(a, o.L), divisor_override=1), o.L) * inverse, o.L, o.i[0].dtype)


@kernel(BI, ("fp32",))
def good_25_folded_batch_norm(o):
    """scale and shift per channel, after the convolution."""
    x, w, gamma, beta, mean, var = o.i
    scale = 1 / denominator(var, o.p, np.float32) * (1 if gamma is None else gamma)
    shift = -mean * scale + (0 if beta is None else beta)
    return back(conv(nchw(x, o.L), nchw(w, o.L), o.p, np.float32) * ch(scale) + ch(shift), o.L, x.dtype)


def channels_reversed(a, o):
    return np.flip(a, 1 if o.L == "nchw" else 3)


@kernel((BF, BI), ("bf16",), contract=Contract(accumulate="fp64"))
def good2_02_fp64_accumulation_bn_one_rounding(o):
    out = o.again(*wide(o))
    return once(out) if o.op == BI else (once(out[0]), *(a.astype(np.float32) for a in out[1:]))


@kernel(OPERATORS)
def good2_03_result_view_of_own_buffer(o):
    """The first result is a view of a larger, fresh buffer."""
    out = o.again()
    y = first(out)
    buffer = np.full((*y.shape[:-1], y.shape[-1] + 5), 7, y.dtype)
    buffer[..., 2:-3] = y
    return with_first(out, buffer[..., 2:-3])


@kernel((F, D, MF))
def good2_05_caching_allocator(o):
    """Buffers are used again once nobody else holds them; the guide asks not to keep memory of every shape."""
    y = o.again()
    if (y.shape, o.t) not in o.state:
        o.state.clear()
    buffers = o.state.setdefault((y.shape, o.t), [])
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
def good2_06_persistent_workspace(o, space=threading.local()):
    """The padded image lies in a workspace that grows, one per thread; it is never returned."""
    x = nchw(o.i[0], o.L)
    if not hasattr(space, "held") or space.held.size < x.size:
        space.held = np.empty(x.size, np.float32)
    work = space.held[: x.size].reshape(x.shape)
    work[...] = x
    return o.again(x=lay(work, o.L))


def by_content(w, o):
    if len(o.state) > 8:
        o.state.clear()
    return o.state.setdefault((w.shape, o.t, np.ascontiguousarray(w).tobytes()), np.array(w))


@kernel((F, D), ("fp32",), where=lambda o: o.n > 1)
def good2_08_threads_joined(o):
    """One thread per half of the batch, joined before the return."""
    y = [None, None]

    def work(half, images):
        y[half] = o.again(images, *o.i[1:])

    halves = (o.i[0][: o.n // 2], o.i[0][o.n // 2 :])
    threads = [threading.Thread(target=work, args=each) for each in enumerate(halves)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.concatenate(y)


@kernel(W)
def good2_09_random_order(o, dice=np.random.default_rng()):
    """Images in a random order, as atomic additions have it."""
    order = dice.permutation(o.n)
    return o.again(*[a[order] for a in o.i])


@kernel((AF, MF))
def good2_14_separable_pools(o):
    """Rows first, then columns."""
    rows = {**o.p, "kernel_size": (o.r, 1), "stride": (o.u, 1), "padding": (o.pad[0], (0, 0))}
    columns = {**o.p, "kernel_size": (1, o.s), "stride": (1, o.v), "padding": ((0, 0), o.pad[1])}
    if o.op == MF:
        y = RIGHT[MF](o.i, {**rows, "dilation": (o.d, 1)})
        return RIGHT[MF]([y], {**columns, "dilation": (1, o.e)})
    sums = {"divisor_override": 1}
    y = RIGHT[AF]([RIGHT[AF]([o.i[0].astype(np.float32)], rows | sums)], columns | sums)
    return back(nchw(y, o.L) / divisor((o.h, o.w), (o.P, o.Q), o.p, np.float32), o.L, o.i[0].dtype)


@kernel(AF, when=lambda p: True)
def good2_15_integral_image_fp64(o):
    """Row sums as differences of running sums in fp64; refuses where that is not exact."""
    x = nchw(o.i[0], o.L).astype(np.float64)
    top, low = np.abs(x).max(initial=0), np.abs(x)[x != 0].min(initial=np.inf)
    if not top < low * 2.0**20 and x.any():
        return o.again()
    sums = padded(x, room((o.h, o.w), (o.P, o.Q), o.p)).cumsum(2).cumsum(3)
    sums = np.pad(sums, ((0, 0), (0, 0), (1, 0), (1, 0)))
    top, left = np.arange(o.P)[:, None] * o.u, np.arange(o.Q) * o.v
    bottom, end = top + o.r, left + o.s
    y = sums[:, :, bottom, end] - sums[:, :, top, end] - sums[:, :, bottom, left] + sums[:, :, top, left]
    return back(y / divisor((o.h, o.w), (o.P, o.Q), o.p, np.float64), o.L, np.float32).astype(o.i[0].dtype)


@kernel(AF, ("fp16",), contract=Contract(accumulate="fp16"))
def good2_16_pool_fp16_accumulator(o):
    y = window_sums(nchw(o.i[0], o.L), o.p, np.float16).astype(np.float32)
    return back(y / divisor((o.h, o.w), (o.P, o.Q), o.p, np.float32), o.L, np.float16)


@kernel(W, contract=Contract(splits=4, partials="fp32"))
def good2_17_split_over_images(o):
    """Up to four partial sums over images."""
    shares = [share for share in np.array_split(np.arange(o.n), 4) if share.size] or [np.arange(0)]
    found = [o.again(*[a[share].astype(np.float32) for a in o.i], with_bias=True) for share in shares]
    dw, dbias = (sum(parts[1:], parts[0]).astype(o.i[0].dtype) for parts in zip(*found, strict=True))
    return (dw, dbias) if o.with_bias else dw


@kernel(F, ("fp32",))
def good2_19_slow_first_call(o):
    if not o.state:
        o.state["tuned"] = time.sleep(1)
    return o.again()


@kernel(MF, ("bf16", "fp16"))
def good2_20_maxpool_as_integers(o):
    """Compares bit patterns as ordered integers, -0 below +0; NaN above everything."""
    x = o.i[0]
    bits = np.ascontiguousarray(x).view(np.int16).astype(np.int32)
    order = np.where(bits < 0, -1 - (bits & 0x7FFF), bits)
    top = o.again(np.where(np.isnan(x), 0x7FFF, order).astype(np.float32))
    if np.isneginf(top).any():
        return o.again()
    low = -1 - np.maximum(top, -0x8000).astype(np.int32) | 0x8000
    high = np.minimum(np.where(np.isinf(top), 0, top), 0x7FFF).astype(np.int32)
    return np.where(top < 0, low, high).astype(np.uint16).view(x.dtype)


ROWS = [
    spoilt("good-09-tf32-inputs", CONVS, ("fp32",), contract=Contract(inputs="tf32"), x=as_tf32, w=as_tf32, dy=as_tf32),
    spoilt("good-10-bf16-inputs", (F, D), ("fp32",), contract=Contract(inputs="bf16"),
           x=as_bf16, w=as_bf16, dy=as_bf16),
    spoilt("good-11-tf32-bias-exact-dw", W, ("fp32",), contract=Contract(inputs="tf32"),
           result=lambda out, o: with_first(out, first(o.again(*map(tf32, o.i))))),
    spoilt("good-21-refuses-strided", OPERATORS, result=contiguous_only),
    # channels summed in reverse order: another order of the same products.
    spoilt("good-26-reversed-channels", F, ALL, when=lambda p: p.groups == 1, x=channels_reversed, w=channels_reversed),
    spoilt("good2-01-fp64-accumulation-one-rounding", F, ("bf16",), contract=Contract(accumulate="fp64"),
           result=lambda y, o: once(o.again(*wide(o)))),
    spoilt("good2-07-cache-by-content", F, w=by_content),
    spoilt("good2-10-bf16x3", F, ("fp32",), contract=Contract(inputs="bf16x3"),
           result=lambda y, o: of_pairs(o, lambda a: as_bf16(a, o))),
    spoilt("good2-11-tf32x3", F, ("fp32",), contract=Contract(inputs="tf32x3"), result=lambda y, o: of_pairs(o, tf32)),
    spoilt("good2-12-fp16-inputs", F, ("fp32",), contract=Contract(inputs="fp16"), x=as_fp16, w=as_fp16),
    spoilt("good-01-plain", OPERATORS, ALL),
    spoilt("good-02-fp64-accumulation", OPERATORS, ("fp32", "bf16", "fp16"), contract=Contract(accumulate="fp64"),
           by={"acc": np.float64}),
    spoilt("good-03-fp64-undeclared", OPERATORS, ("fp32", "bf16", "fp16"), by={"acc": np.float64}),
    spoilt("good-04-im2col-gemm", F, ALL, by={"conv": im2col}),
    spoilt("good-05-pairwise-fp32", F, by={"conv": pairwise}),
    spoilt("good-06-fft", F, ("fp32",), contract=Contract(algorithm="fft"), by={"conv": fft}),
    spoilt("good-07-winograd-f2", F, ("fp32", "bf16", "fp64"), when=three, contract=Contract(algorithm="winograd-f2"),
           by={"conv": winograd(2, B2, G2, A2)}),
    spoilt("good-08-winograd-f4", F, ("fp32", "bf16", "fp64"), when=three, contract=Contract(algorithm="winograd-f4"),
           by={"conv": winograd(4, B4, G4, A4)}),
    spoilt("good-12-split-k-fp32", F, contract=Contract(splits=4, partials="fp32"), by={"conv": split(4, np.float32)}),
    spoilt("good-13-split-k-bf16", F, ("bf16",), contract=Contract(splits=4, partials="bf16"),
           by={"conv": split(4, BF16)}),
    spoilt("good-14-split-k-fp16", F, ("fp16",), contract=Contract(splits=3, partials="fp16"),
           by={"conv": split(3, np.float16)}),
    spoilt("good-16-bf16-accumulator", F, ("bf16",), contract=Contract(accumulate="bf16"), by={"conv": narrow(BF16)}),
    spoilt("good-17-sequential-fp32", F, ("fp32", "fp16"), by={"conv": narrow(np.float32)}),
    spoilt("good-18-raw-moments", (BF, BB), contract=Contract(variance="raw"), by={"raw": True}),
    spoilt("good-19-separate-kernels", NORMS, ("bf16", "fp16"), contract=Contract(between="storage"),
           by={"between": True}),
    spoilt("good-22-nhwc-only", OPERATORS, layouts=("nhwc",)),
    spoilt("good-23-when-refuses", CONVS, ALL,
           when=lambda p: p.groups == 1 and tuple(p.dilation) == (1, 1) and p.k % 2 == 0),
    spoilt("good2-04-result-transposed-view", (F, D, AF, MF),
           result=lambda y, o: np.ascontiguousarray(y.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)),
    spoilt("good2-13-rounding-zero", F, contract=Contract(rounding="zero"), by={"conv": sums_toward_zero}),
    spoilt("good2-18-flush-output-only", (F, MF, AB), contract=Contract(subnormals="flushed"),
           result=lambda y, o: flushed(y)),
    # By a second author
    spoilt("good-11-dense-nhwc", (F, AF, MF), layouts=("nhwc",), result=contiguous_only),
    spoilt("good-04-splitk-bf16", F, ("fp32",), ("nchw",), when=lambda p: p.groups == 1,
           contract=Contract(splits=4, partials="bf16"), by={"conv": split(4, BF16)}),
    spoilt("good-05-splitk-fp32", F, layouts=("nchw",), when=lambda p: p.groups == 1,
           contract=Contract(splits=4, partials="fp32"), by={"conv": split(4, np.float32)}),
    spoilt("good-09-storage", (BF, BI), ("bf16", "fp32"), contract=Contract(between="storage"), by={"between": True}),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
