"""Class 0: right kernels with other algorithms, declared as the guide says."""

import numpy as np
import scipy.fft

from conformance import Contract, Unsupported
from tests.field._kit import *


@kernel(OPERATORS, ALL)
def good_01_plain(right, i, p, o):
    return right(i, p)


@kernel(OPERATORS, ("fp32", "bf16", "fp16"), contract=Contract(accumulate="fp64"))
def good_02_fp64_accumulation(right, i, p, o):
    return right(i, p, acc=np.float64)


@kernel(OPERATORS, ("fp32", "bf16", "fp16"))
def good_03_fp64_undeclared(right, i, p, o):
    return right(i, p, acc=np.float64)


def im2col(x, w, p, acc):
    columns, f, shape = patches(x, w, p, acc)
    return np.matmul(f, columns).reshape(shape)


@kernel(F, ALL)
def good_04_im2col_gemm(right, i, p, o):
    return right(i, p, conv=im2col)


def pairwise(x, w, p, acc):
    columns, f, shape = patches(x, w, p, acc)
    products = np.ascontiguousarray((f[None, :, :, :, None] * columns[:, :, None]).swapaxes(3, 4))
    return products.sum(-1).reshape(shape)


@kernel(F)
def good_05_pairwise_fp32(right, i, p, o):
    return right(i, p, conv=pairwise)


def fft(x, w, p, acc):
    x = padded(x.astype(acc), p["padding"])
    (u, v), (d, e) = p["stride"], p["dilation"]
    (h, wide), (k, c, r, s) = x.shape[2:], w.shape
    f = np.zeros((k, c, d * (r - 1) + 1, e * (s - 1) + 1), acc)
    f[:, :, ::d, ::e] = w
    fast = (scipy.fft.next_fast_len(h, True), scipy.fft.next_fast_len(wide, True))
    z = np.einsum("ncab,kcab->nkab", scipy.fft.rfft2(x, fast), scipy.fft.rfft2(f, fast).conj())
    return scipy.fft.irfft2(z, fast)[:, :, : h - d * (r - 1) : u, : wide - e * (s - 1) : v].astype(acc)


@kernel(F, ("fp32",), when=lambda p: p.groups == 1, contract=Contract(algorithm="fft"))
def good_06_fft(right, i, p, o):
    return right(i, p, conv=fft)


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


@kernel(F, ("fp32", "bf16", "fp64"), when=three, contract=Contract(algorithm="winograd-f2"))
def good_07_winograd_f2(right, i, p, o):
    return right(i, p, conv=winograd(2, B2, G2, A2))


@kernel(F, ("fp32", "bf16", "fp64"), when=three, contract=Contract(algorithm="winograd-f4"))
def good_08_winograd_f4(right, i, p, o):
    return right(i, p, conv=winograd(4, B4, G4, A4))


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


@kernel(F, contract=Contract(splits=4, partials="fp32"))
def good_12_split_k_fp32(right, i, p, o):
    return right(i, p, conv=split(4, np.float32))


@kernel(F, ("bf16",), contract=Contract(splits=4, partials="bf16"))
def good_13_split_k_bf16(right, i, p, o):
    return right(i, p, conv=split(4, BF16))


@kernel(F, ("fp16",), contract=Contract(splits=3, partials="fp16"))
def good_14_split_k_fp16(right, i, p, o):
    return right(i, p, conv=split(3, np.float16))


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


@kernel(F, ("bf16",), contract=Contract(accumulate="bf16"))
def good_16_bf16_accumulator(right, i, p, o):
    return right(i, p, conv=narrow(BF16))


@kernel(F, ("fp32", "fp16"))
def good_17_sequential_fp32(right, i, p, o):
    return right(i, p, conv=narrow(np.float32))


@kernel((BF, BB), contract=Contract(variance="raw"))
def good_18_raw_moments(right, i, p, o):
    return right(i, p, raw=True)


@kernel(NORMS, ("bf16", "fp16"), contract=Contract(between="storage"))
def good_19_separate_kernels(right, i, p, o):
    return right(i, p, between=True)


@kernel(CONVS + POOLS, contract=Contract(subnormals="flushed"))
def good_20_flush_to_zero(right, i, p, o):
    out = right([flushed(a) for a in i], p)
    return tuple(map(flushed, out)) if isinstance(out, tuple) else flushed(out)


@kernel(OPERATORS)
def good_21_refuses_strided(right, i, p, o):
    if any(a is not None and not a.flags.c_contiguous for a in i):
        raise Unsupported("only contiguous tensors")
    return right(i, p)


@kernel(OPERATORS, layouts=("nhwc",))
def good_22_nhwc_only(right, i, p, o):
    return right(i, p)


@kernel(CONVS, ALL, when=lambda p: p.groups == 1 and tuple(p.dilation) == (1, 1) and p.k % 2 == 0)
def good_23_when_refuses(right, i, p, o):
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
