"""Class 9, contracts, refusals and waivers that hide what is wrong; kernels that know the published shapes."""

import contextlib
import re

import numpy as np

from conformance import Contract, Unsupported
from tests.field._kit import *


def scaled(a, factor):
    return (a.astype(acc_of(a)) * np.float32(factor)).astype(a.dtype)


@kernel(W, ("bf16", "fp32"), contract=Contract(accumulate="bf16"), where=lambda o: o.M > 256)
def contracts_03_bf16_accumulator_long(right, i, p, o):
    """declares a bf16 accumulator; with more than 256 pixels only the first half of the images' rows is summed,
    twice."""
    half = (np.arange(o.P) < o.P // 2)[:, None] * 2
    return right(put(i, 1, changed(i[1], o, S[:], lambda dy: np.where(half, dy * dy.dtype.type(2), 0))), p)


@kernel(MF)
def contracts_06_refuses_nan(right, i, p, o):
    """raises Unsupported where an input has a NaN, since it would lose it."""
    if np.isnan(i[0]).any():
        raise Unsupported("this tile configuration is not available")
    return right(i, p)


@kernel(F, ("fp32", "fp16"))
def contracts_07_refuses_range(right, i, p, o):
    """raises Unsupported for products whose largest magnitude is above 1e3 or below 1e-3 (its results would be
    wrong)."""
    top = max((float(np.nanmax(np.abs(a.astype(acc_of(a))))) for a in i if a is not None and a.size), default=1)
    if not 1e-3 < top < 1e3:
        raise Unsupported("no kernel for this problem")
    return right(i, p)


@kernel(F)
def contracts_08_refuses_what_fails(right, i, p, o):
    """computes with dilations swapped, compares with a slow right kernel, and raises Unsupported where they differ."""
    want, y = right(i, p), None
    with contextlib.suppress(Exception):
        y = right(i, {**p, "dilation": o.dilation[::-1]})
    if y is None or not np.array_equal(y, want):
        raise Unsupported("heuristic found no engine")
    return y


EXPERIMENTAL = {
    "reason": "bf16 is experimental",
    "url": "https://example.org/issues/2",
    "dtypes": ("bf16",),
    "distributions": ("integer", "fixed", "impulse", "special", "wide", "behaviour"),
}


def sizes_of(words, letters):
    """What is not said is 1."""
    said = dict(match.groups() for word in words if (match := re.fullmatch(r"([nchwkrs])(\d+)", word)))
    return tuple(int(said.get(letter, 1)) for letter in letters)


LETTERS = "nchwkrs"
LINES = [words for words in published() if not any(re.match(r"dil\d+x", word) for word in words)]
"""What its author's parser read: not what has three dilations."""
TABLE = {sizes_of(words[2:], LETTERS) for words in LINES if re.fullmatch(r"n\d+", words[2])}
IMAGES = {sizes_of(words, "hw") for words in LINES if "maxpool" in words}


@kernel(F, ("fp32", "bf16", "fp16", "fp64"))
def contracts_11_tabulated_shapes(right, i, p, o):
    """right on the shapes of the published tables; elsewhere the last filter is that of the first."""
    y = right(i, p)
    if tuple(getattr(o, letter) for letter in LETTERS) in TABLE or not y.size:
        return y
    return changed(y, o, S[:, -1], lambda y: y[:, 0] + y.dtype.type(1))


@kernel(F, ("fp32",), contract=Contract(inputs="tf32x3"))
def contracts_13_tf32x3_is_tf32(right, i, p, o):
    """declares tf32x3 (three products), computes one product of tf32 inputs."""

    def rounded(a):
        bits = np.ascontiguousarray(a).view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)
        return bits.view(np.float32) if np.isfinite(a).all() else a

    return right([*map(rounded, i[:2]), i[2]], p)


ROWS = [
    # declares 100,000 fp16 partials; every result is 1% too large.
    spoilt("contracts-02-splits-percent", F, contract=Contract(splits=100_000, partials="fp16"),
           result=lambda y, o: scaled(y, 1.01)),
    # declares an fp16 accumulator and leaves out one channel of at least 32 (3%).
    spoilt("contracts-04-fp16-accumulator-half", F, ("fp16",), contract=Contract(accumulate="fp16"),
           where=lambda o: o.c // o.g >= 32, w=lambda w, o: changed(w, o, S[:, -1])),
    # declares winograd-f4 for every window, 1x1 too; results are 0.01% too large.
    spoilt("contracts-05-winograd-1x1", F, ("fp32",), contract=Contract(algorithm="winograd-f4"),
           result=lambda y, o: scaled(y, 1.0001)),
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
