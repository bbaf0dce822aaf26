"""Class 9: contracts so lax that wrong results keep them, refusals by value, waivers, tables of shapes."""

import contextlib
import re
from dataclasses import replace

import numpy as np

from conformance import Contract, Unsupported
from tests.field._kit import *


def scaled(out, o, factor):
    """The first output is a little too large."""
    return changed(out, o, S[:], lambda y: y * y.dtype.type(factor))


def nothing(out, o):
    return changed(out, o, S[:])


def refusing(name, operator, reason, where, dtypes=("fp32", "bf16")):
    """It is right, but refuses by the values that it is given."""

    def refuse(out, o):
        raise Unsupported(reason)

    return spoilt(name, operator, dtypes, where=where, result=refuse)


@kernel(F, ("fp32",), contract=Contract(algorithm="fft"))
def contracts_09_fft_noise(o):
    """declares fft; noise of 1% of the largest result is added to every element."""
    y = o.again()
    top = np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0)
    noise = np.sin(np.arange(y.size, dtype=np.float32)).reshape(y.shape)
    return (y + np.float32(0.01) * top * noise).astype(np.float32)


@kernel(BF, ("fp32",), contract=Contract(variance="raw"), when=lambda p: True)
def contracts_13_raw_variance_dead(o):
    """declares raw variance; a channel whose mean is larger than 8 standard deviations gets variance 0."""
    y, mean, var, *running = o.again(by={"raw": True})
    if o.eps_outside:
        return (y, mean, var, *running)
    far, eps = np.square(mean) > 64 * var, np.float32(o.eps)
    scale = np.where(far, np.sqrt(var + eps) / np.sqrt(eps), np.float32(1))
    beta = ch(o.i[3]) if o.affine else 0
    y = changed(y, o, S[:], lambda y: (y - beta) * ch(scale) + beta)
    return (y, mean, np.where(far, 0, var).astype(var.dtype), *running)


@kernel(F, ("fp32",), contract=Contract(inputs="fp16"))
def contracts_20_refuses_what_would_fail(o):
    """computes in fp16, and raises Unsupported where that differs from an fp32 result by more than 1%."""
    y, exact = o.again(*[None if a is None else a.astype(np.float16).astype(np.float32) for a in o.i]), o.again()
    if not (np.abs(y - exact) <= 0.01 * np.abs(exact) + 1e-3).all():
        raise Unsupported("no plan found")
    return y


@kernel(F)
def contracts_08_refuses_what_fails(o):
    """computes with dilations swapped, compares with a slow right kernel, and raises Unsupported where they differ."""
    want, y = o.again(), None
    with contextlib.suppress(Exception):
        y = o.again(dilation=o.dilation[::-1])
    if y is None or not np.array_equal(y, want):
        raise Unsupported("heuristic found no engine")
    return y


def out_of_range(o):
    top = max((float(np.nanmax(np.abs(a.astype(acc_of(a))))) for a in o.i if a is not None and a.size), default=1)
    return not 1e-3 < top < 1e3


def has_ties(o):
    x = o.i[1].astype(np.float32)
    return finite(o.i) and len(np.unique(x)) < x.size


def has_fractions(o):
    x = o.i[0] * np.float32(256)
    return finite(o.i) and (x != np.round(x)).any()


# Right for published problems only

TABLE = {frozenset(word for word in words[2:] if re.fullmatch(r"[nchwkrs]\d+", word)) for words in published()}


def unknown(o):
    image = {f"{letter}{getattr(o, letter)}" for letter in "nchwrs"}
    return image not in TABLE and image | {f"k{o.k}"} not in TABLE


def common(o):
    return o.r in (1, 3, 5, 7) and all(count <= 32 or count % 8 == 0 for count in (o.c, o.k))


def sizes_of(words, letters):
    """What is not said is 1."""
    said = dict(match.groups() for word in words if (match := re.fullmatch(r"([nchwkrs])(\d+)", word)))
    return tuple(int(said.get(letter, 1)) for letter in letters)


LETTERS = "nchwkrs"
LINES = [words for words in published() if not any(re.match(r"dil\d+x", word) for word in words)]
"""What its author's parser read: not what has three dilations."""
SHAPES = {sizes_of(words[2:], LETTERS) for words in LINES if re.fullmatch(r"n\d+", words[2])}
IMAGES = {sizes_of(words, "hw") for words in LINES if "maxpool" in words}

EVERYTHING = Contract(inputs="bf16", accumulate="bf16", rounding="zero", splits=4096, partials="bf16")
KNOWN = {"reason": "known deviation of the hardware", "url": "https://example.com/issues/1"}
EXPERIMENTAL = {
    "reason": "bf16 is experimental",
    "url": "https://example.org/issues/2",
    "dtypes": ("bf16",),
    "distributions": ("integer", "fixed", "impulse", "special", "wide", "behaviour"),
}
ROWS = [
    # declares an fp16 accumulator; in sums of more than 512 pixels the second half of the batch is missing.
    spoilt("contracts-06-fp16-accumulator-half", W, ("fp16",), contract=Contract(accumulate="fp16"),
           where=lambda o: o.M > 512 and o.n > 1,
           result=lambda out, o: with_first(out, first(o.again(*[a[: o.n // 2] for a in o.i])))),
    # declares between=storage; in fp16 epsilon is at least 1e-3.
    spoilt("contracts-12-storage-and-eps", BF, ("fp16",), contract=Contract(between="storage"),
           asked=lambda o: {"eps": max(o.eps, 1e-3)}, by={"between": True}),
    # raises Unsupported where an input holds NaN or Inf, which it would drop.
    refusing("contracts-17-refuses-nan", F, "only finite values", lambda o: not finite(o.i)),
    # raises Unsupported where a value of x exceeds 1000: the result would overflow its fp16 accumulator.
    refusing("contracts-18-refuses-large", F, "values beyond the range of the kernel",
             lambda o: (np.abs(o.i[0]) > 1000).any(), ("fp32", "fp16")),
    # raises Unsupported where x holds subnormals (it would flush them).
    refusing("contracts-19-refuses-subnormal", MF, "tile not supported",
             lambda o: ((o.i[0] != 0) & (np.abs(o.i[0]) < tiny(o.i[0]))).any(), ("fp32",)),
    # drops the bottom row of dx where h is odd; raises Unsupported where that row is not zero.
    refusing("contracts-21-refuses-after-failure", D, "no algorithm",
             lambda o: o.h % 2 and nchw(o.again(), o.L)[:, :, -1].any()),
    # raises Unsupported where a window has equal maxima.
    refusing("contracts-22-refuses-ties", MB, "ties are not deterministic here", has_ties),
    # raises Unsupported where gamma is 0 or negative.
    refusing("contracts-23-refuses-zero-gamma", BF, "gamma must be positive",
             lambda o: o.affine and (o.i[2] <= 0).any()),
    # right for multiples of 1/256; anything else raises Unsupported (computed in integers).
    refusing("contracts-24-refuses-fractions", AF, "only fixed-point values", has_fractions, ("fp32",)),
    # x is cleared after use; the behaviour checks are waived.
    spoilt("contracts-28-waives-behaviour", MF, waive={**KNOWN, "distributions": ("behaviour",)},
           where=lambda o: o.i[0].flags.writeable, result=lambda y, o: overwrites(y, o.i[0], ..., 0)),
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
    # declares as little as can be; dbias is zero.
    spoilt("contracts-36-everything-zero-dbias", W, ("fp32",), where=lambda o: o.with_bias,
           contract=replace(EVERYTHING, splits=10**6, algorithm="fft", subnormals="flushed"),
           result=lambda out, o: (out[0], out[1] * 0)),
    # raises Unsupported for half of all data.
    refusing("contracts-37-refuses-half", F, "a tile of this size",
             lambda o: int(np.abs(o.i[0]).astype(np.float64).sum() * 1024) % 2, ("fp32",)),
    # By a second author
    # declares a bf16 accumulator; with more than 256 pixels only the first half of the images' rows is summed, twice.
    spoilt("contracts-03-bf16-accumulator-long", W, ("bf16", "fp32"), contract=Contract(accumulate="bf16"),
           where=lambda o: o.M > 256, dy=lambda dy, o: changed(dy, o, S[:], lambda dy: np.where(
               np.arange(o.P)[:, None] < o.P // 2, dy * dy.dtype.type(2), dy.dtype.type(0)))),
    # raises Unsupported where an input has a NaN, since it would lose it.
    refusing("contracts-06-refuses-nan", MF, "this tile configuration is not available",
             lambda o: np.isnan(o.i[0]).any()),
    # raises Unsupported for products whose largest magnitude is above 1e3 or below 1e-3 (its results would be wrong).
    refusing("contracts-07-refuses-range", F, "no kernel for this problem", out_of_range, ("fp32", "fp16")),
    # right on the shapes of the published tables; elsewhere the last filter is that of the first.
    spoilt("contracts-11-tabulated-shapes", F, ("fp32", "bf16", "fp16", "fp64"),
           where=lambda o: o.M and tuple(getattr(o, letter) for letter in LETTERS) not in SHAPES,
           result=lambda y, o: changed(y, o, S[:, -1], lambda y: y[:, 0] + y.dtype.type(1))),
    # declares tf32x3 (three products), computes one product of tf32 inputs.
    spoilt("contracts-13-tf32x3-is-tf32", F, ("fp32",), contract=Contract(inputs="tf32x3"),
           x=lambda x, o: tf32(x), w=lambda w, o: tf32(w)),
    # declares 100,000 fp16 partials; every result is 1% too large.
    spoilt("contracts-02-splits-percent", F, contract=Contract(splits=100_000, partials="fp16"),
           result=lambda y, o: scaled(y, o, 1.01)),
    # declares an fp16 accumulator and leaves out one channel of at least 32 (3%).
    spoilt("contracts-04-fp16-accumulator-half", F, ("fp16",), contract=Contract(accumulate="fp16"),
           where=lambda o: o.c // o.g >= 32, w=lambda w, o: changed(w, o, S[:, -1])),
    # declares winograd-f4 for every window, 1x1 too; results are 0.01% too large.
    spoilt("contracts-05-winograd-1x1", F, ("fp32",), contract=Contract(algorithm="winograd-f4"),
           result=lambda y, o: scaled(y, o, 1.0001)),
    # strides are swapped; a waiver without conditions hides it.
    spoilt("contracts-09-waived-all", F, waive={"reason": "known inaccuracy", "url": "https://example.org/issues/1"},
           asked=lambda o: {"stride": o.stride[::-1]}),
    # a constant 1 is added to everything in bf16; the waiver names bf16 and all distributions with behaviour.
    spoilt("contracts-10-waived-special", F, ("bf16", "fp32"), waive=EXPERIMENTAL, where=lambda o: o.t == "bf16",
           result=lambda y, o: y + y.dtype.type(1)),
    # right for images of the sizes in the published tables; elsewhere the last column is that of the image mirrored.
    spoilt("contracts-12-tabulated-sizes", MF, where=lambda o: (o.h, o.w) not in IMAGES,
           result=lambda y, o: changed(y, o, S[..., -1], lambda y: y[..., 0])),
    # declares flushed subnormals; everything below 1e-6 is flushed.
    spoilt("contracts-14-flush-too-much", D, ("fp32",), contract=Contract(subnormals="flushed"),
           result=lambda y, o: replaced(y, lambda dx: np.abs(dx) < 1e-6, 0)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
