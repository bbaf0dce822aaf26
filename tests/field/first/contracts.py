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


@kernel(W, ("fp16",), contract=Contract(accumulate="fp16"), where=lambda o: o.M > 512 and o.n > 1)
def contracts_06_fp16_accumulator_half(right, i, p, o):
    """declares an fp16 accumulator; in sums of more than 512 pixels the second half of the batch is missing."""
    return with_first(right(i, p), first(right([a[: o.n // 2] for a in i], p)))


@kernel(F, ("fp32",), contract=Contract(algorithm="fft"))
def contracts_09_fft_noise(right, i, p, o):
    """declares fft; noise of 1% of the largest result is added to every element."""
    y = right(i, p)
    top = np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0)
    noise = np.sin(np.arange(y.size, dtype=np.float32)).reshape(y.shape)
    return (y + np.float32(0.01) * top * noise).astype(np.float32)


EVERYTHING = Contract(inputs="bf16", accumulate="bf16", rounding="zero", splits=4096, partials="bf16")


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


def common(o):
    return o.r in (1, 3, 5, 7) and all(count <= 32 or count % 8 == 0 for count in (o.c, o.k))


ROWS = [
    # declares 4 million splits with bf16 partials and returns zeros.
    spoilt("contracts-01-splits-millions-zero", F, contract=Contract(splits=4_000_000, partials="bf16"),
           result=lambda y, o: nothing(y, o)),
    # declares a million splits with fp16 partials; dw is 1% too large.
    spoilt("contracts-02-splits-million-percent", W, ("fp16",), contract=Contract(splits=1_000_000, partials="fp16"),
           result=lambda y, o: scaled(y, o, 1.01)),
    # declares 1024 splits with bf16 partials for any length; dx is 2% too large.
    spoilt("contracts-03-splits-thousand-percent", D, ("bf16",), contract=Contract(splits=1024, partials="bf16"),
           result=lambda y, o: scaled(y, o, 1.02)),
    # declares a bf16 accumulator; sums of more than 256 terms are 0.
    spoilt("contracts-04-bf16-accumulator-zero", F, ("bf16",), contract=Contract(accumulate="bf16"),
           where=lambda o: o.length > 256, result=lambda y, o: nothing(y, o)),
    # declares a bf16 accumulator; 1% too large.
    spoilt("contracts-05-bf16-accumulator-percent", F, ("bf16",), contract=Contract(accumulate="bf16"),
           result=lambda y, o: scaled(y, o, 1.01)),
    # declares winograd-f4 for 1x1 filters, where a tile means nothing; the filters are rounded to 12 bits.
    spoilt("contracts-07-winograd-1x1", F, ("fp32",), contract=Contract(algorithm="winograd-f4"),
           when=lambda p: p.r == p.s == 1, w=lambda w, o: cut(w, 12)),
    # declares winograd-f4 for everything; with stride 2 the results are 0.2% too large.
    spoilt("contracts-08-winograd-strided", F, contract=Contract(algorithm="winograd-f4"), where=lambda o: o.u > 1,
           result=lambda y, o: scaled(y, o, 1.002)),
    # fp32 tensors: declares inputs, accumulator and partials in bf16, rounding to zero and 4096 splits; 5% too large.
    spoilt("contracts-10-everything-bf16", F, ("fp32",), contract=EVERYTHING, result=lambda y, o: scaled(y, o, 1.05)),
    # declares flushed subnormals, and flushes all below 1e-30.
    spoilt("contracts-11-flushes-more", F, ("fp32",), contract=Contract(subnormals="flushed"),
           x=lambda x, o: np.where(np.abs(x) < 1e-30, np.float32(0), x)),
    # declares rounding to zero in fp32; all results are 0.1% too small.
    spoilt("contracts-14-rounding-zero-percent", F, ("fp32",), contract=Contract(rounding="zero"),
           result=lambda y, o: scaled(y, o, 0.999)),
    # declares tf32 inputs; dx is 0.1% too large, which single terms of tf32 could be.
    spoilt("contracts-15-tf32-as-one-term", D, ("fp32",), contract=Contract(inputs="tf32"),
           result=lambda y, o: scaled(y, o, 1.001)),
    # declares a bf16 accumulator for averages; windows of more than 64 taps leave out a quarter.
    spoilt("contracts-16-pool-bf16-accumulator", AF, ("bf16",), contract=Contract(accumulate="bf16"),
           where=lambda o: o.r * o.s > 64, result=lambda y, o: scaled(y, o, 0.75)),
    # zeros for every problem; everything is waived.
    spoilt("contracts-25-waives-all", F, waive=KNOWN, result=lambda y, o: nothing(y, o)),
    # 1x1 is right; every other window is 10% too large, and waived.
    spoilt("contracts-26-waives-all-but-1x1", F, waive={**KNOWN, "when": lambda p: p.r * p.s > 1},
           where=lambda o: not o.one, result=lambda y, o: scaled(y, o, 1.1)),
    # fp32 is right; bf16 is zero and waived.
    spoilt("contracts-27-waives-bf16", W, waive={**KNOWN, "dtypes": ("bf16",)}, where=lambda o: o.t == "bf16",
           result=lambda y, o: nothing(y, o)),
    # right for the sizes of the published problems; zeros for all others.
    spoilt("contracts-29-table-forward", F, where=unknown, result=lambda y, o: nothing(y, o)),
    # right for the sizes of the published problems; the last row is missing for all others.
    spoilt("contracts-30-table-dx", D, where=lambda o: unknown(o) and o.n,
           result=lambda y, o: changed(y, o, S[:, :, -1])),
    # right for the sizes of the published problems; 1% too large for all others.
    spoilt("contracts-31-table-dw", W, where=unknown, result=lambda y, o: scaled(y, o, 1.01)),
    # right for the sizes of the published problems; biased by 1% for all others.
    spoilt("contracts-32-table-bn", BF, where=unknown, result=lambda y, o: scaled(y, o, 1.01)),
    # right for the sizes of the published problems; zeros for all others.
    spoilt("contracts-33-table-pool", AF, where=unknown, result=lambda y, o: nothing(y, o)),
    # right for the sizes of the published problems; zeros for all others.
    spoilt("contracts-34-table-max-pool-grad", MB, where=unknown, result=lambda y, o: nothing(y, o)),
    # right for windows of 1, 3, 5 and 7 and channels and filters that are at most 32 or a multiple of 8; the last
    # filter is 0 elsewhere.
    spoilt("contracts-35-common-shapes", F, where=lambda o: not common(o),
           result=lambda y, o: changed(y, o, S[:, -1])),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
