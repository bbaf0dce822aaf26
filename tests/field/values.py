"""Class 3: wrong for some values."""

import numpy as np

from tests.field._kit import *


@kernel(F)
def values_02_zero_weights_skipped(o):
    """filters of 0 are skipped (sparse path): 0*NaN and 0*Inf in x vanish."""
    x, w, _ = o.i
    if w.all() or np.isfinite(x).all():
        return o.again()
    special = (~np.isfinite(x)).astype(x.dtype)
    live = o.again(special, (w != 0).astype(w.dtype), None) > 0
    y = o.again(x=np.where(special, x.dtype.type(0), x))
    return np.where(live, o.again(), y).astype(y.dtype)


@kernel(MF)
def values_10_maxpool_drops_nan(o):
    """NaN is not chosen unless it is the only value (fmax)."""
    y, others = o.again(), o.again(replaced(o.i[0], np.isnan, -np.inf))
    return np.where(np.isneginf(others), y, others).astype(y.dtype)


@kernel(MF)
def values_11_maxpool_nan_not_first(o):
    """NaN is lost unless it is the first element of its window (best compared with <)."""
    y, others = o.again(), o.again(replaced(o.i[0], np.isnan, -np.inf))
    rows = np.minimum(np.maximum(np.arange(o.P) * o.u - o.pad[0][0], 0), o.h - 1)
    columns = np.minimum(np.maximum(np.arange(o.Q) * o.v - o.pad[1][0], 0), o.w - 1)
    start = lay(nchw(o.i[0], o.L)[:, :, rows][:, :, :, columns], o.L)
    return np.where(np.isnan(start) | np.isneginf(others), y, others).astype(y.dtype)


@kernel(MF, ("fp32", "fp16"))
def values_13_maxpool_zero_padding(o):
    """padding counts as 0: negative windows at the edge give 0."""
    at_edge = []
    for n, count, u, d, k, (before, after) in (
        (o.h, o.P, o.u, o.d, o.r, o.pad[0]),
        (o.w, o.Q, o.v, o.e, o.s, o.pad[1]),
    ):
        start = np.arange(count) * u - before
        at_edge.append((start < 0) | (start + (k - 1) * d >= n) & (after > 0))
    edge = at_edge[0][:, None] | at_edge[1]
    return changed(o.again(), o, S[:], lambda y: np.where(edge & (y < 0), y.dtype.type(0), y))


@kernel(MB, where=lambda o: o.t == "bf16")
def values_15_maxpool_ties_last(o):
    """of equal maxima the last one gets the gradient, in bf16 only."""
    axes = (2, 3) if o.L == "nchw" else (1, 2)
    reach = (o.P - 1) * o.u + o.d * (o.r - 1) + 1, (o.Q - 1) * o.v + o.e * (o.s - 1) + 1
    if reach != (o.h + sum(o.pad[0]), o.w + sum(o.pad[1])):
        return o.again()
    flipped = o.again(*[np.flip(a, axes) for a in o.i], padding=[pad[::-1] for pad in o.pad])
    return np.ascontiguousarray(np.flip(flipped, axes))


@kernel(AF, ("fp16",))
def values_17_avg_sum_fp16(o):
    """fp16: the sum of a window overflows although the average fits."""
    y, sums = o.again(), o.again(divisor_override=1)
    return np.where(np.isinf(sums) & np.isfinite(y), sums, y)


@kernel(BI)
def values_21_running_var_zero(o):
    """running variance 0: the channel is treated as dead, y is beta."""
    dead = np.asarray(o.i[5]) == 0
    return changed(o.again(), o, S[:, dead], ch(o.i[3][dead]) if o.affine else 0)


@kernel(BB)
def values_22_zero_variance_dx(o):
    """a channel of constant z (zero variance): dx has no part of it."""
    dead = ~np.asarray(nchw(o.i[2], o.L)).any((1, 2, 3))
    return (*o.again(dy=changed(o.i[0], o, S[:, dead]))[:2], *o.again()[2:]) if dead.any() else o.again()


@kernel(BI, ("fp64",))
def values_34_fp64_eps_fp32(o):
    """fp64: the square root of the variance in fp32."""
    eps = 0 if o.eps_outside else o.eps
    return o.again(running_var=np.square(np.sqrt((o.i[5] + eps).astype(np.float32)).astype(np.float64)) - eps)


@kernel(F, ("fp32",))
def values_38_integer_path_overflow(o):
    """where all values are integers the sum is an int32, which wraps at 2^31."""
    y = o.again()
    whole = finite(o.i[:2]) and all((a == np.round(a)).all() for a in o.i[:2]) and (np.abs(y) < 2.0**60).all()
    return y.astype(np.int64).astype(np.int32).astype(np.float32) if whole else y


@kernel(F)
def values_39_nan_spreads_by_4(o):
    """NaN in a result spreads over the vector of 4 columns that it is in."""

    def spread(y):
        for q in range(0, o.Q, 4):
            y[:, :, :, q : q + 4][np.isnan(y[:, :, :, q : q + 4]).any(3)] = np.nan
        return y

    return changed(o.again(), o, S[:], spread)


@kernel(AF)
def values_42_avg_inf_minus_inf(o):
    """+Inf and -Inf in one window give +Inf instead of NaN."""
    y, x = o.again(), o.i[0].astype(np.float32)
    up, nan = (o.again(has(x).astype(np.float32)) > 0 for has in (np.isposinf, np.isnan))
    return np.where(up & ~nan, y.dtype.type(np.inf), y)


@kernel(MB, where=lambda o: o.u >= o.r and o.v >= o.s and o.unpadded)
def values_46_maxpool_inf_grad(o):
    """a window whose maximum is +Inf passes its gradient to its first element."""
    dy, x = o.i
    if not np.isposinf(x.astype(np.float32)).any():
        return o.again()
    top, zero = np.isposinf(RIGHT[MF]([x], o.p).astype(np.float32)), dy.dtype.type(0)
    return o.again(np.where(top, dy, zero), np.zeros_like(x)) + o.again(dy=np.where(top, zero, dy))


@kernel(BF, ("fp32",), where=lambda o: not o.eps_outside)
def values_47_small_variance_clamped(o):
    """variances below 1e-6 are clamped to 1e-6 in y."""
    out = o.again()
    f = np.sqrt((out[2] + o.eps) / (np.maximum(out[2], 1e-6) + o.eps)).astype(np.float32)
    beta = ch(o.i[3]) if o.affine else 0
    return changed(out, o, S[:], lambda y: (y - beta) * ch(f) + beta)


@kernel(D, ("fp16",), where=lambda o: o.g == 1 and o.k > 8)
def values_49_opposite_overflow(o):
    """partial sums that overflow in the middle although the sum fits: fp16 partials of 8 filters."""
    y = o.again()
    partial = o.again(np.take(o.i[0], np.arange(8), 1 if o.L == "nchw" else 3), o.i[1][:8])
    return np.where(np.isinf(partial) & np.isfinite(y) & finite(o.i), partial, y)


@kernel(F)
def values_04_zero_skip(o):
    """sparsity shortcut: where a weight is 0 its product is skipped, so that Inf*0 and NaN*0 give no NaN."""
    x, w, _ = o.i
    y, is_finite = o.again(), np.isfinite(x)
    if is_finite.all():
        return y
    skipped = o.again(x=np.where(is_finite, x, x.dtype.type(0)))
    hit = o.again((~is_finite).astype(np.float32), np.abs(np.sign(w.astype(np.float32))), None)
    return np.where((hit > 0) & ~(np.isnan(y) & (hit < 2)), y, skipped)


ROWS = [
    # a window that holds NaN passes no gradient.
    spoilt("values-14-maxpool-grad-nan", MB,
           dy=lambda dy, o: np.where(np.isnan(RIGHT[MF]([o.i[1]], o.p)), dy.dtype.type(0), dy)),
    # the magnitude of gamma is used for dx.
    spoilt("values-19-gamma-negative", BB, where=lambda o: o.affine,
           result=lambda out, o: with_first(out, o.again(gamma=np.abs(o.i[3]))[0])),
    # a channel with negative gamma: dw has the wrong sign.
    spoilt("values-20-gamma-negative-dw", BB, ("fp32", "fp64"), where=lambda o: o.affine,
           result=lambda out, o: (out[0], o.again(gamma=np.abs(o.i[3]))[1], *out[2:])),
    # fp64: the reciprocal of the divisor is computed in fp32.
    spoilt("values-33-fp64-divisor-fp32", AF, ("fp64",), asked=lambda o: {"divisor_override": 1},
           result=lambda sums, o: changed(sums, o, S[:], lambda y: y * (
               np.float32(1) / divisor((o.h, o.w), (o.P, o.Q), o.p, np.float32)).astype(np.float64))),
    # beta of Inf gives the largest finite number.
    spoilt("values-45-beta-inf", BF, ("fp32", "fp64"), where=lambda o: o.affine and np.isinf(o.i[3]).any(),
           result=lambda out, o: changed(out, o, S[:], lambda y: np.clip(
               y, -np.finfo(y.dtype).max, np.finfo(y.dtype).max))),
    # NaN in x counts as 0.
    spoilt("values-01-nan-x-to-zero", F, x=lambda x, o: replaced(x, np.isnan, 0)),
    # a result beyond fp16 becomes 65504 instead of Inf.
    spoilt("values-03-overflow-saturates-fp16", F, ("fp16",),
           result=lambda y, o: np.clip(y, np.float16(-65504), np.float16(65504)) if finite(o.i) else y),
    # a result beyond bf16 becomes NaN instead of Inf.
    spoilt("values-04-overflow-nan-bf16", D, ("bf16",), result=lambda y, o: replaced(y, np.isinf, np.nan)),
    # a bias of NaN or Inf is taken as 0.
    spoilt("values-05-bias-nan-ignored", F, ALL, bias=lambda bias, o: replaced(bias, lambda b: ~np.isfinite(b), 0)),
    # subnormals of x are flushed in fp32, without saying so.
    spoilt("values-06-flush-x-subnormal", F, ("fp32",), x=lambda x, o: flushed(x)),
    # subnormal results are flushed in fp32 and bf16.
    spoilt("values-07-flush-y-subnormal", F, result=lambda y, o: flushed(y)),
    # fp16: subnormal filters are flushed (the fp32 path keeps them).
    spoilt("values-08-flush-fp16-weights", F, ("fp16",), w=lambda w, o: flushed(w)),
    # fp16: subnormal averages are flushed.
    spoilt("values-09-flush-fp16-pool", AF, ("fp32", "fp16"), where=lambda o: o.t == "fp16",
           result=lambda y, o: flushed(y)),
    # a window of -Inf gives the lowest finite number: the maximum begins there.
    spoilt("values-12-maxpool-lowest", MF,
           result=lambda y, o: replaced(y, np.isneginf, ml_dtypes.finfo(y.dtype).min)),
    # -0.0 becomes +0.0.
    spoilt("values-16-minus-zero", MF, ALL, result=lambda y, o: y + y.dtype.type(0)),
    # channels whose gamma is 0 are pruned: y is 0 instead of beta.
    spoilt("values-18-gamma-zero-pruned", BF, where=lambda o: o.affine,
           result=lambda y, o: changed(y, o, S[:, o.i[2] == 0])),
    # running variance Inf gives NaN instead of beta (x * rsqrt).
    spoilt("values-23-running-var-inf", BI, result=lambda y, o: changed(y, o, S[:, np.isinf(o.i[5])], np.nan)),
    # the last two bits of x are dropped in fp32.
    spoilt("values-24-x-2-bits", F, ("fp32",), x=lambda x, o: cut(x, 2)),
    # the last bit of the filters is dropped in fp32.
    spoilt("values-25-w-1-bit", F, ("fp32",), w=lambda w, o: cut(w, 1)),
    # the last three bits of dy are dropped in fp32, nhwc only.
    spoilt("values-26-dy-3-bits", D, ("fp32",), where=lambda o: o.L == "nhwc", dy=lambda dy, o: cut(dy, 3)),
    # the last five bits of x are dropped in fp32.
    spoilt("values-27-dw-x-5-bits", W, ("fp32",), x=lambda x, o: cut(x, 5)),
    # the last four bits of x are dropped in fp64.
    spoilt("values-28-fp64-x-4-bits", F, ("fp64",), x=lambda x, o: cut(x, 4)),
    # the last bit of x is dropped in bf16.
    spoilt("values-29-bf16-x-1-bit", F, ("bf16",), x=lambda x, o: cut(x, 1)),
    # maxima lose their last three bits in fp32.
    spoilt("values-30-maxpool-3-bits", MF, ("fp32",), result=lambda y, o: cut(y, 3)),
    # dy loses its last two bits in fp32.
    spoilt("values-31-avgpool-grad-2-bits", AB, ("fp32",), dy=lambda dy, o: cut(dy, 2)),
    # fp64: the bias passes through fp32.
    spoilt("values-32-fp64-bias-fp32", F, ("fp64",), where=lambda o: o.bias,
           bias=lambda bias, o: bias.astype(np.float32).astype(np.float64)),
    # fp64: the mean that is returned was stored in fp32.
    spoilt("values-35-fp64-mean-fp32", BF, ("fp64",),
           result=lambda y, o: changed(y, o, S[:], lambda mean: mean.astype(np.float32), at=1)),
    # fp32 values of x beyond 65504 become Inf: they are staged in a pair of fp16.
    spoilt("values-36-fp32-range-fp16", F, ("fp32",),
           x=lambda x, o: np.where(np.abs(x) > 65504, np.copysign(np.float32(np.inf), x), x)),
    # fp32 values of x below 2^-24 count as 0: the range of fp16.
    spoilt("values-37-fp32-small-fp16", F, ("fp32",), x=lambda x, o: replaced(x, lambda x: np.abs(x) < 2.0**-24, 0)),
    # a channel of x that is all 0 is skipped: NaN and Inf of dy do not reach its dw.
    spoilt("values-40-dead-channel-skipped", W, layouts=("nchw",), where=lambda o: o.g == 1,
           result=lambda y, o: changed(y, o, S[:, ~np.asarray(o.i[0]).any((0, 2, 3))])),
    # gradients dy of Inf are clamped to 65504 in fp16.
    spoilt("values-41-grad-clamped", D, ("fp16", "fp32"), where=lambda o: o.t == "fp16",
           dy=lambda dy, o: np.clip(dy, np.float16(-65504), np.float16(65504))),
    # gamma of NaN counts as 1.
    spoilt("values-43-gamma-nan", BI, where=lambda o: o.affine, gamma=lambda gamma, o: replaced(gamma, np.isnan, 1)),
    # NaN in dy: gradients of the other channels become NaN as well (a reduction over all channels decides on a rescue
    # path).
    spoilt("values-44-dy-nan-clipped", BB, ("fp32",), ("nchw",),
           result=lambda out, o: changed(out, o, S[:], np.nan, at=1) if np.isnan(o.i[0]).any() else out),
    # fp64: maxima are compared in fp32, so close values are ties.
    spoilt("values-48-fp64-maxpool-fp32-compare", MB, ("fp64",),
           x=lambda x, o: x.astype(np.float32).astype(np.float64)),
    # By a second author
    # fp64: the reciprocal of the divisor is computed in fp32.
    spoilt("values-12-fp64-step-in-fp32", AF, ("fp64", "fp32"), where=lambda o: o.t == "fp64",
           result=lambda y, o: y * (count := o.divisor_override or o.r * o.s) * np.float64(
               np.float32(1) / np.float32(count))),
    # Inf in dy: the part that falls into padding is multiplied by a mask (Inf*0) and NaN appears at the border.
    spoilt("values-13-inf-padding", D,
           where=lambda o: o.pad[0][0] and not np.isfinite(nchw(o.i[0], o.L)[:, :, 0]).all(),
           result=lambda dx, o: changed(dx, o, S[:, :, 0], np.nan)),
    # initialised with the lowest finite number instead of minus infinity: a window of -inf alone becomes -3.4e38.
    spoilt("values-02-max-lowest", MF, ("fp32", "fp16"),
           result=lambda y, o: np.where(np.isneginf(y), np.finfo(y.dtype).min, y)),
    # a NaN in the bias is treated as 'no bias' for its channel.
    spoilt("values-05-bias-nan", F, bias=lambda bias, o: replaced(bias, np.isnan, 0)),
    # fp16 subnormal results are flushed to zero, without a declaration.
    spoilt("values-06-subnormal-out-fp16", D, ("fp16",),
           result=lambda y, o: replaced(y, lambda dx: np.abs(dx) < tiny(dx), 0)),
    # fp32 subnormal weights count as zero.
    spoilt("values-07-subnormal-in-weights", F, ("fp32",),
           w=lambda w, o: replaced(w, lambda w: np.abs(w) < tiny(w), 0)),
    # negative gamma: the absolute value is used (as abs+eps in InPlace-ABN).
    spoilt("values-08-negative-gamma", BF, where=lambda o: o.affine, gamma=lambda gamma, o: np.abs(gamma)),
    # dgamma is recovered from y=(z*gamma+beta), so it is 0 where gamma is 0.
    spoilt("values-09-zero-gamma-dgamma", BB, where=lambda o: o.affine,
           result=lambda y, o: changed(y, o, S[o.i[3] == 0], at=2)),
    # the last 2 bits of fp32 weights are dropped (packed format).
    spoilt("values-10-chop-2-bits-weights", F, ("fp32",), w=lambda w, o: cut(w, 2)),
    # the last bit of fp32 dy is dropped, in nhwc only.
    spoilt("values-11-chop-1-bit-dy", W, ("fp32",), ("nhwc",), dy=lambda dy, o: cut(dy, 1)),
    # running_var of 0 (with eps): taken for 'uninitialised' and replaced by 1.
    spoilt("values-14-dropout-of-denormal-scale", BI,
           running_var=lambda running_var, o: replaced(running_var, lambda var: var == 0, 1)),
    # LiteRT 2.3.0: one pixel, channel and filter: an infinity times one is NaN.
    spoilt("values-49-infinity-times-one", F, ("fp32", "fp16"),
           where=lambda o: o.one and o.c == o.k == o.P * o.Q == 1, result=lambda y, o: replaced(y, np.isinf, np.nan)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
