"""Class 0: right kernels with other algorithms, declared as the guide says."""

import numpy as np
import scipy.fft

from conformance import Contract, Unsupported
from tests.field._kit import *


def im2col(x, w, p, acc):
    columns, f, shape = patches(x, w, p, acc)
    return np.matmul(f, columns).reshape(shape)


def pairwise(x, w, p, acc):
    columns, f, shape = patches(x, w, p, acc)
    products = np.ascontiguousarray((f[None, :, :, :, None] * columns[:, :, None]).swapaxes(3, 4))
    return products.sum(-1).reshape(shape)


def fft(x, w, p, acc):
    x = padded(x.astype(acc), p["padding"])
    (u, v), (d, e) = p["stride"], p["dilation"]
    (h, wide), (k, c, r, s) = x.shape[2:], w.shape
    f = np.zeros((k, c, d * (r - 1) + 1, e * (s - 1) + 1), acc)
    f[:, :, ::d, ::e] = w
    fast = (scipy.fft.next_fast_len(h, True), scipy.fft.next_fast_len(wide, True))
    z = np.einsum("ncab,kcab->nkab", scipy.fft.rfft2(x, fast), scipy.fft.rfft2(f, fast).conj())
    return scipy.fft.irfft2(z, fast)[:, :, : h - d * (r - 1) : u, : wide - e * (s - 1) : v].astype(acc)


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


@kernel(CONVS, ("fp32",), contract=Contract(inputs="tf32"))
def good_09_tf32_inputs(right, i, p, o):
    return right([tf32(i[0]), tf32(i[1]), *i[2:]], p)


@kernel((F, D), ("fp32",), contract=Contract(inputs="bf16"))
def good_10_bf16_inputs(right, i, p, o):
    return right([*(a.astype(BF16).astype(np.float32) for a in i[:2]), *i[2:]], p)


@kernel(W, ("fp32",), contract=Contract(inputs="tf32"))
def good_11_tf32_bias_exact_dw(right, i, p, o):
    return with_first(right(i, p), first(right([tf32(a) for a in i], p)))


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


@kernel(F, ("fp16",), contract=Contract(accumulate="fp16"))
def good_15_fp16_accumulator(right, i, p, o):
    y = right(put(i, 2, None), p, conv=narrow(np.float16))
    return (y.astype(np.float32) + over_channels(i[2], o).astype(np.float32)).astype(np.float16) if o.bias else y


@kernel(CONVS + POOLS, contract=Contract(subnormals="flushed"))
def good_20_flush_to_zero(right, i, p, o):
    out = right([flushed(a) for a in i], p)
    return tuple(map(flushed, out)) if isinstance(out, tuple) else flushed(out)


@kernel(OPERATORS)
def good_21_refuses_strided(right, i, p, o):
    if any(a is not None and not a.flags.c_contiguous for a in i):
        raise Unsupported("only contiguous tensors")
    return right(i, p)


@kernel((AF, AB))
def good_24_reciprocal(right, i, p, o):
    """times 1/divisor rather than divided by it, in fp32."""
    inverse, sums = np.float32(1) / divisor((o.h, o.w), (o.P, o.Q), p, np.float32), {**p, "divisor_override": 1}
    a = nchw(i[0], o.L).astype(np.float32)
    if o.op == AB:
        return right([lay(a * inverse, o.L)], sums).astype(i[0].dtype)
    return back(nchw(right([lay(a, o.L)], sums), o.L) * inverse, o.L, i[0].dtype)


@kernel(BI, ("fp32",))
def good_25_folded_batch_norm(right, i, p, o):
    """scale and shift per channel, after the convolution."""
    x, w, gamma, beta, mean, var = i
    scale = 1 / denominator(var, p, np.float32) * (1 if gamma is None else gamma)
    shift = -mean * scale + (0 if beta is None else beta)
    return back(conv(nchw(x, o.L), nchw(w, o.L), p, np.float32) * ch(scale) + ch(shift), o.L, x.dtype)


@kernel(F, ALL, when=lambda p: p.groups == 1)
def good_26_reversed_channels(right, i, p, o):
    """channels summed in reverse order: another order of the same products."""
    axis = 1 if o.L == "nchw" else 3
    return right([np.flip(i[0], axis), np.flip(i[1], axis), i[2]], p)


ROWS = [
    spoilt("good-01-plain", OPERATORS, ALL),
    spoilt("good-02-fp64-accumulation", OPERATORS, ("fp32", "bf16", "fp16"), contract=Contract(accumulate="fp64"),
           by={"acc": np.float64}),
    spoilt("good-03-fp64-undeclared", OPERATORS, ("fp32", "bf16", "fp16"), by={"acc": np.float64}),
    spoilt("good-04-im2col-gemm", F, ALL, by={"conv": im2col}),
    spoilt("good-05-pairwise-fp32", F, by={"conv": pairwise}),
    spoilt("good-06-fft", F, ("fp32",), when=lambda p: p.groups == 1, contract=Contract(algorithm="fft"),
           by={"conv": fft}),
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
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
