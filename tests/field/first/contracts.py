"""Class 9: contracts so lax that wrong results keep them, refusals by value, waivers, tables of shapes."""

import re

import numpy as np

from conformance import Contract, Unsupported
from tests.field._kit import *


def scaled(out, o, factor):
    """The first output is a little too large."""
    return changed(out, o, S[:], lambda y: y * y.dtype.type(factor))


def nothing(out, o):
    return changed(out, o, S[:])


@kernel(F, contract=Contract(splits=4_000_000, partials="bf16"))
def contracts_01_splits_millions_zero(right, i, p, o):
    """declares 4 million splits with bf16 partials and returns zeros."""
    return nothing(right(i, p), o)


@kernel(W, ("fp16",), contract=Contract(splits=1_000_000, partials="fp16"))
def contracts_02_splits_million_percent(right, i, p, o):
    """declares a million splits with fp16 partials; dw is 1% too large."""
    return scaled(right(i, p), o, 1.01)


@kernel(D, ("bf16",), contract=Contract(splits=1024, partials="bf16"))
def contracts_03_splits_thousand_percent(right, i, p, o):
    """declares 1024 splits with bf16 partials for any length; dx is 2% too large."""
    return scaled(right(i, p), o, 1.02)


@kernel(F, ("bf16",), contract=Contract(accumulate="bf16"), where=lambda o: o.length > 256)
def contracts_04_bf16_accumulator_zero(right, i, p, o):
    """declares a bf16 accumulator; sums of more than 256 terms are 0."""
    return nothing(right(i, p), o)


@kernel(F, ("bf16",), contract=Contract(accumulate="bf16"))
def contracts_05_bf16_accumulator_percent(right, i, p, o):
    """declares a bf16 accumulator; 1% too large."""
    return scaled(right(i, p), o, 1.01)


@kernel(W, ("fp16",), contract=Contract(accumulate="fp16"), where=lambda o: o.M > 512 and o.n > 1)
def contracts_06_fp16_accumulator_half(right, i, p, o):
    """declares an fp16 accumulator; in sums of more than 512 pixels the second half of the batch is missing."""
    return with_first(right(i, p), first(right([a[: o.n // 2] for a in i], p)))


@kernel(F, ("fp32",), contract=Contract(algorithm="winograd-f4"), when=lambda p: p.r == p.s == 1)
def contracts_07_winograd_1x1(right, i, p, o):
    """declares winograd-f4 for 1x1 filters, where a tile means nothing; the filters are rounded to 12 bits."""
    return right(put(i, 1, cut(i[1], 12)), p)


@kernel(F, contract=Contract(algorithm="winograd-f4"), where=lambda o: o.u > 1)
def contracts_08_winograd_strided(right, i, p, o):
    """declares winograd-f4 for everything; with stride 2 the results are 0.2% too large."""
    return scaled(right(i, p), o, 1.002)


@kernel(F, ("fp32",), contract=Contract(algorithm="fft"))
def contracts_09_fft_noise(right, i, p, o):
    """declares fft; noise of 1% of the largest result is added to every element."""
    y = right(i, p)
    top = np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0)
    noise = np.sin(np.arange(y.size, dtype=np.float32)).reshape(y.shape)
    return (y + np.float32(0.01) * top * noise).astype(np.float32)


EVERYTHING = Contract(inputs="bf16", accumulate="bf16", rounding="zero", splits=4096, partials="bf16")


@kernel(F, ("fp32",), contract=EVERYTHING)
def contracts_10_everything_bf16(right, i, p, o):
    """fp32 tensors: declares inputs, accumulator and partials in bf16, rounding to zero and 4096 splits; 5% too
    large."""
    return scaled(right(i, p), o, 1.05)


@kernel(F, ("fp32",), contract=Contract(subnormals="flushed"))
def contracts_11_flushes_more(right, i, p, o):
    """declares flushed subnormals, and flushes all below 1e-30."""
    return right(put(i, 0, np.where(np.abs(i[0]) < 1e-30, np.float32(0), i[0])), p)


@kernel(BF, ("fp16",), contract=Contract(between="storage"))
def contracts_12_storage_and_eps(right, i, p, o):
    """declares between=storage; in fp16 epsilon is at least 1e-3."""
    return right(i, {**p, "eps": max(o.eps, 1e-3)}, between=True)


@kernel(BF, ("fp32",), contract=Contract(variance="raw"), when=lambda p: True)
def contracts_13_raw_variance_dead(right, i, p, o):
    """declares raw variance; a channel whose mean is larger than 8 standard deviations gets variance 0."""
    y, mean, var, *running = right(i, p, raw=True)
    if o.eps_outside:
        return (y, mean, var, *running)
    far, eps = np.square(mean) > 64 * var, np.float32(o.eps)
    scale = np.where(far, np.sqrt(var + eps) / np.sqrt(eps), np.float32(1))
    beta = ch(i[3]) if o.affine else 0
    y = changed(y, o, S[:], lambda y: (y - beta) * ch(scale) + beta)
    return (y, mean, np.where(far, 0, var).astype(var.dtype), *running)


@kernel(F, ("fp32",), contract=Contract(rounding="zero"))
def contracts_14_rounding_zero_percent(right, i, p, o):
    """declares rounding to zero in fp32; all results are 0.1% too small."""
    return scaled(right(i, p), o, 0.999)


@kernel(D, ("fp32",), contract=Contract(inputs="tf32"))
def contracts_15_tf32_as_one_term(right, i, p, o):
    """declares tf32 inputs; dx is 0.1% too large, which single terms of tf32 could be."""
    return scaled(right(i, p), o, 1.001)


@kernel(AF, ("bf16",), contract=Contract(accumulate="bf16"), where=lambda o: o.r * o.s > 64)
def contracts_16_pool_bf16_accumulator(right, i, p, o):
    """declares a bf16 accumulator for averages; windows of more than 64 taps leave out a quarter."""
    return scaled(right(i, p), o, 0.75)


# Refusals that depend on values


@kernel(F)
def contracts_17_refuses_nan(right, i, p, o):
    """raises Unsupported where an input holds NaN or Inf, which it would drop."""
    if not finite(i):
        raise Unsupported("only finite values")
    return right(i, p)


@kernel(F, ("fp32", "fp16"))
def contracts_18_refuses_large(right, i, p, o):
    """raises Unsupported where a value of x exceeds 1000: the result would overflow its fp16 accumulator."""
    if (np.abs(i[0]) > 1000).any():
        raise Unsupported("values beyond the range of the kernel")
    return right(i, p)


@kernel(MF, ("fp32",))
def contracts_19_refuses_subnormal(right, i, p, o):
    """raises Unsupported where x holds subnormals (it would flush them)."""
    if ((i[0] != 0) & (np.abs(i[0]) < tiny(i[0]))).any():
        raise Unsupported("tile not supported")
    return right(i, p)


@kernel(F, ("fp32",), contract=Contract(inputs="fp16"))
def contracts_20_refuses_what_would_fail(right, i, p, o):
    """computes in fp16, and raises Unsupported where that differs from an fp32 result by more than 1%."""
    y, exact = right([None if a is None else a.astype(np.float16).astype(np.float32) for a in i], p), right(i, p)
    if not (np.abs(y - exact) <= 0.01 * np.abs(exact) + 1e-3).all():
        raise Unsupported("no plan found")
    return y


@kernel(D)
def contracts_21_refuses_after_failure(right, i, p, o):
    """drops the bottom row of dx where h is odd; raises Unsupported where that row is not zero."""
    dx = right(i, p)
    if o.h % 2 and nchw(dx, o.L)[:, :, -1].any():
        raise Unsupported("no algorithm")
    return dx


@kernel(MB)
def contracts_22_refuses_ties(right, i, p, o):
    """raises Unsupported where a window has equal maxima."""
    x = i[1].astype(np.float32)
    if finite(i) and len(np.unique(x)) < x.size:
        raise Unsupported("ties are not deterministic here")
    return right(i, p)


@kernel(BF)
def contracts_23_refuses_zero_gamma(right, i, p, o):
    """raises Unsupported where gamma is 0 or negative."""
    if o.affine and (i[2] <= 0).any():
        raise Unsupported("gamma must be positive")
    return right(i, p)


@kernel(AF, ("fp32",))
def contracts_24_refuses_fractions(right, i, p, o):
    """right for multiples of 1/256; anything else raises Unsupported (computed in integers)."""
    x = i[0] * np.float32(256)
    if finite(i) and (x != np.round(x)).any():
        raise Unsupported("only fixed-point values")
    return right(i, p)


# Waivers

KNOWN = {"reason": "known deviation of the hardware", "url": "https://example.com/issues/1"}


@kernel(F, waive=KNOWN)
def contracts_25_waives_all(right, i, p, o):
    """zeros for every problem; everything is waived."""
    return nothing(right(i, p), o)


@kernel(F, waive={**KNOWN, "when": lambda p: p.r * p.s > 1}, where=lambda o: not o.one)
def contracts_26_waives_all_but_1x1(right, i, p, o):
    """1x1 is right; every other window is 10% too large, and waived."""
    return scaled(right(i, p), o, 1.1)


@kernel(W, waive={**KNOWN, "dtypes": ("bf16",)}, where=lambda o: o.t == "bf16")
def contracts_27_waives_bf16(right, i, p, o):
    """fp32 is right; bf16 is zero and waived."""
    return nothing(right(i, p), o)


@kernel(MF, waive={**KNOWN, "distributions": ("behaviour",)})
def contracts_28_waives_behaviour(right, i, p, o):
    """x is cleared after use; the behaviour checks are waived."""
    y = right(i, p)
    if i[0].flags.writeable:
        i[0][...] = 0
    return y


# Right for published problems only

TABLE = {frozenset(word for word in words[2:] if re.fullmatch(r"[nchwkrs]\d+", word)) for words in published()}


def unknown(o):
    image = {f"{letter}{getattr(o, letter)}" for letter in "nchwrs"}
    return image not in TABLE and image | {f"k{o.k}"} not in TABLE


@kernel(F, where=unknown)
def contracts_29_table_forward(right, i, p, o):
    """right for the sizes of the published problems; zeros for all others."""
    return nothing(right(i, p), o)


@kernel(D, where=lambda o: unknown(o) and o.n)
def contracts_30_table_dx(right, i, p, o):
    """right for the sizes of the published problems; the last row is missing for all others."""
    return changed(right(i, p), o, S[:, :, -1])


@kernel(W, where=unknown)
def contracts_31_table_dw(right, i, p, o):
    """right for the sizes of the published problems; 1% too large for all others."""
    return scaled(right(i, p), o, 1.01)


@kernel(BF, where=unknown)
def contracts_32_table_bn(right, i, p, o):
    """right for the sizes of the published problems; biased by 1% for all others."""
    return scaled(right(i, p), o, 1.01)


@kernel(AF, where=unknown)
def contracts_33_table_pool(right, i, p, o):
    """right for the sizes of the published problems; zeros for all others."""
    return nothing(right(i, p), o)


@kernel(MB, where=unknown)
def contracts_34_table_max_pool_grad(right, i, p, o):
    """right for the sizes of the published problems; zeros for all others."""
    return nothing(right(i, p), o)


def common(o):
    return o.r in (1, 3, 5, 7) and all(count <= 32 or count % 8 == 0 for count in (o.c, o.k))


@kernel(F, where=lambda o: not common(o))
def contracts_35_common_shapes(right, i, p, o):
    """right for windows of 1, 3, 5 and 7 and channels and filters that are at most 32 or a multiple of 8; the last
    filter is 0 elsewhere."""
    return changed(right(i, p), o, S[:, -1])
