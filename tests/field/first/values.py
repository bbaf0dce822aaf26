"""Class 3: wrong for some values."""

import numpy as np

from tests.field._kit import *


@kernel(F)
def values_01_nan_x_to_zero(right, i, p, o):
    """NaN in x counts as 0."""
    return right(put(i, 0, replaced(i[0], np.isnan, 0)), p)


@kernel(F)
def values_02_zero_weights_skipped(right, i, p, o):
    """filters of 0 are skipped (sparse path): 0*NaN and 0*Inf in x vanish."""
    x, w, _ = i
    if w.all() or np.isfinite(x).all():
        return right(i, p)
    special = (~np.isfinite(x)).astype(x.dtype)
    live = right((special, (w != 0).astype(w.dtype), None), p) > 0
    y = right(put(i, 0, np.where(special, x.dtype.type(0), x)), p)
    return np.where(live, right(i, p), y).astype(y.dtype)


@kernel(F, ("fp16",))
def values_03_overflow_saturates_fp16(right, i, p, o):
    """a result beyond fp16 becomes 65504 instead of Inf."""
    y = right(i, p)
    return np.clip(y, np.float16(-65504), np.float16(65504)) if finite(i) else y


@kernel(D, ("bf16",))
def values_04_overflow_nan_bf16(right, i, p, o):
    """a result beyond bf16 becomes NaN instead of Inf."""
    return replaced(right(i, p), np.isinf, np.nan)


@kernel(F, ALL)
def values_05_bias_nan_ignored(right, i, p, o):
    """a bias of NaN or Inf is taken as 0."""
    return right(put(i, 2, replaced(i[2], lambda b: ~np.isfinite(b), 0)), p)


@kernel(F, ("fp32",))
def values_06_flush_x_subnormal(right, i, p, o):
    """subnormals of x are flushed in fp32, without saying so."""
    return right(put(i, 0, flushed(i[0])), p)


@kernel(F)
def values_07_flush_y_subnormal(right, i, p, o):
    """subnormal results are flushed in fp32 and bf16."""
    return flushed(right(i, p))


@kernel(F, ("fp16",))
def values_08_flush_fp16_weights(right, i, p, o):
    """fp16: subnormal filters are flushed (the fp32 path keeps them)."""
    return right(put(i, 1, flushed(i[1])), p)


@kernel(AF, ("fp32", "fp16"), where=lambda o: o.t == "fp16")
def values_09_flush_fp16_pool(right, i, p, o):
    """fp16: subnormal averages are flushed."""
    return flushed(right(i, p))


@kernel(MF)
def values_10_maxpool_drops_nan(right, i, p, o):
    """NaN is not chosen unless it is the only value (fmax)."""
    y, others = right(i, p), right([replaced(i[0], np.isnan, -np.inf)], p)
    return np.where(np.isneginf(others), y, others).astype(y.dtype)


@kernel(MF)
def values_11_maxpool_nan_not_first(right, i, p, o):
    """NaN is lost unless it is the first element of its window (best compared with <)."""
    y, others = right(i, p), right([replaced(i[0], np.isnan, -np.inf)], p)
    rows = np.minimum(np.maximum(np.arange(o.P) * o.u - o.pad[0][0], 0), o.h - 1)
    columns = np.minimum(np.maximum(np.arange(o.Q) * o.v - o.pad[1][0], 0), o.w - 1)
    first = lay(nchw(i[0], o.L)[:, :, rows][:, :, :, columns], o.L)
    return np.where(np.isnan(first) | np.isneginf(others), y, others).astype(y.dtype)


@kernel(MF)
def values_12_maxpool_lowest(right, i, p, o):
    """a window of -Inf gives the lowest finite number: the maximum begins there."""
    y = right(i, p)
    return replaced(y, np.isneginf, (ml_dtypes.finfo if y.dtype == BF16 else np.finfo)(y.dtype).min)


@kernel(MF, ("fp32", "fp16"))
def values_13_maxpool_zero_padding(right, i, p, o):
    """padding counts as 0: negative windows at the edge give 0."""
    at_edge = []
    for n, count, u, d, k, (before, after) in (
        (o.h, o.P, o.u, o.d, o.r, o.pad[0]),
        (o.w, o.Q, o.v, o.e, o.s, o.pad[1]),
    ):
        start = np.arange(count) * u - before
        at_edge.append((start < 0) | (start + (k - 1) * d >= n) & (after > 0))
    edge = at_edge[0][:, None] | at_edge[1]
    return changed(right(i, p), o, S[:], lambda y: np.where(edge & (y < 0), y.dtype.type(0), y))


@kernel(MB)
def values_14_maxpool_grad_nan(right, i, p, o):
    """a window that holds NaN passes no gradient."""
    has = np.isnan(RIGHT[MF]([i[1]], p))
    return right([np.where(has, i[0].dtype.type(0), i[0]), i[1]], p)


@kernel(MB, where=lambda o: o.t == "bf16")
def values_15_maxpool_ties_last(right, i, p, o):
    """of equal maxima the last one gets the gradient, in bf16 only."""
    axes = (2, 3) if o.L == "nchw" else (1, 2)
    reach = (o.P - 1) * o.u + o.d * (o.r - 1) + 1, (o.Q - 1) * o.v + o.e * (o.s - 1) + 1
    if reach != (o.h + sum(o.pad[0]), o.w + sum(o.pad[1])):
        return right(i, p)
    flipped = right([np.flip(a, axes) for a in i], {**p, "padding": [pad[::-1] for pad in o.pad]})
    return np.ascontiguousarray(np.flip(flipped, axes))


@kernel(MF, ALL)
def values_16_minus_zero(right, i, p, o):
    """-0.0 becomes +0.0."""
    y = right(i, p)
    return y + y.dtype.type(0)


@kernel(AF, ("fp16",))
def values_17_avg_sum_fp16(right, i, p, o):
    """fp16: the sum of a window overflows although the average fits."""
    y, sums = right(i, p), right(i, {**p, "divisor_override": 1})
    return np.where(np.isinf(sums) & np.isfinite(y), sums, y)


@kernel(BF, where=lambda o: o.affine)
def values_18_gamma_zero_pruned(right, i, p, o):
    """channels whose gamma is 0 are pruned: y is 0 instead of beta."""
    return changed(right(i, p), o, S[:, i[2] == 0])


@kernel(BB, where=lambda o: o.affine)
def values_19_gamma_negative(right, i, p, o):
    """the magnitude of gamma is used for dx."""
    return with_first(right(i, p), right(put(i, 3, np.abs(i[3])), p)[0])


@kernel(BB, ("fp32", "fp64"), where=lambda o: o.affine)
def values_20_gamma_negative_dw(right, i, p, o):
    """a channel with negative gamma: dw has the wrong sign."""
    out = right(i, p)
    return (out[0], right(put(i, 3, np.abs(i[3])), p)[1], *out[2:])


@kernel(BI)
def values_21_running_var_zero(right, i, p, o):
    """running variance 0: the channel is treated as dead, y is beta."""
    dead = np.asarray(i[5]) == 0
    return changed(right(i, p), o, S[:, dead], ch(i[3][dead]) if o.affine else 0)


@kernel(BB)
def values_22_zero_variance_dx(right, i, p, o):
    """a channel of constant z (zero variance): dx has no part of it."""
    dead = ~np.asarray(nchw(i[2], o.L)).any((1, 2, 3))
    if not dead.any():
        return right(i, p)
    return (*right(put(i, 0, changed(i[0], o, S[:, dead])), p)[:2], *right(i, p)[2:])


@kernel(BI)
def values_23_running_var_inf(right, i, p, o):
    """running variance Inf gives NaN instead of beta (x * rsqrt)."""
    return changed(right(i, p), o, S[:, np.isinf(i[5])], np.nan)


@kernel(F, ("fp32",))
def values_24_x_2_bits(right, i, p, o):
    """the last two bits of x are dropped in fp32."""
    return right(put(i, 0, cut(i[0], 2)), p)


@kernel(F, ("fp32",))
def values_25_w_1_bit(right, i, p, o):
    """the last bit of the filters is dropped in fp32."""
    return right(put(i, 1, cut(i[1], 1)), p)


@kernel(D, ("fp32",), where=lambda o: o.L == "nhwc")
def values_26_dy_3_bits(right, i, p, o):
    """the last three bits of dy are dropped in fp32, nhwc only."""
    return right(put(i, 0, cut(i[0], 3)), p)


@kernel(W, ("fp32",))
def values_27_dw_x_5_bits(right, i, p, o):
    """the last five bits of x are dropped in fp32."""
    return right(put(i, 0, cut(i[0], 5)), p)


@kernel(F, ("fp64",))
def values_28_fp64_x_4_bits(right, i, p, o):
    """the last four bits of x are dropped in fp64."""
    return right(put(i, 0, cut(i[0], 4)), p)


@kernel(F, ("bf16",))
def values_29_bf16_x_1_bit(right, i, p, o):
    """the last bit of x is dropped in bf16."""
    return right(put(i, 0, cut(i[0], 1)), p)


@kernel(MF, ("fp32",))
def values_30_maxpool_3_bits(right, i, p, o):
    """maxima lose their last three bits in fp32."""
    return cut(right(i, p), 3)


@kernel(AB, ("fp32",))
def values_31_avgpool_grad_2_bits(right, i, p, o):
    """dy loses its last two bits in fp32."""
    return right([cut(i[0], 2)], p)


@kernel(F, ("fp64",), where=lambda o: o.bias)
def values_32_fp64_bias_fp32(right, i, p, o):
    """fp64: the bias passes through fp32."""
    return right(put(i, 2, i[2].astype(np.float32).astype(np.float64)), p)


@kernel(AF, ("fp64",))
def values_33_fp64_divisor_fp32(right, i, p, o):
    """fp64: the reciprocal of the divisor is computed in fp32."""
    inverse = (np.float32(1) / divisor((o.h, o.w), (o.P, o.Q), p, np.float32)).astype(np.float64)
    return changed(right(i, {**p, "divisor_override": 1}), o, S[:], lambda sums: sums * inverse)


@kernel(BI, ("fp64",))
def values_34_fp64_eps_fp32(right, i, p, o):
    """fp64: the square root of the variance in fp32."""
    eps = 0 if o.eps_outside else o.eps
    return right(put(i, 5, np.square(np.sqrt((i[5] + eps).astype(np.float32)).astype(np.float64)) - eps), p)


@kernel(BF, ("fp64",))
def values_35_fp64_mean_fp32(right, i, p, o):
    """fp64: the mean that is returned was stored in fp32."""
    return changed(right(i, p), o, S[:], lambda mean: mean.astype(np.float32), at=1)


@kernel(F, ("fp32",))
def values_36_fp32_range_fp16(right, i, p, o):
    """fp32 values of x beyond 65504 become Inf: they are staged in a pair of fp16."""
    x = i[0]
    return right(put(i, 0, np.where(np.abs(x) > 65504, np.copysign(np.float32(np.inf), x), x)), p)


@kernel(F, ("fp32",))
def values_37_fp32_small_fp16(right, i, p, o):
    """fp32 values of x below 2^-24 count as 0: the range of fp16."""
    return right(put(i, 0, replaced(i[0], lambda x: np.abs(x) < 2.0**-24, 0)), p)


@kernel(F, ("fp32",))
def values_38_integer_path_overflow(right, i, p, o):
    """where all values are integers the sum is an int32, which wraps at 2^31."""
    y = right(i, p)
    whole = finite(i[:2]) and all((a == np.round(a)).all() for a in i[:2]) and (np.abs(y) < 2.0**60).all()
    return y.astype(np.int64).astype(np.int32).astype(np.float32) if whole else y


@kernel(F)
def values_39_nan_spreads_by_4(right, i, p, o):
    """NaN in a result spreads over the vector of 4 columns that it is in."""

    def spread(y):
        for q in range(0, o.Q, 4):
            y[:, :, :, q : q + 4][np.isnan(y[:, :, :, q : q + 4]).any(3)] = np.nan
        return y

    return changed(right(i, p), o, S[:], spread)


@kernel(W, layouts=("nchw",), where=lambda o: o.g == 1)
def values_40_dead_channel_skipped(right, i, p, o):
    """a channel of x that is all 0 is skipped: NaN and Inf of dy do not reach its dw."""
    return changed(right(i, p), o, S[:, ~np.asarray(i[0]).any((0, 2, 3))])


@kernel(D, ("fp16", "fp32"), where=lambda o: o.t == "fp16")
def values_41_grad_clamped(right, i, p, o):
    """gradients dy of Inf are clamped to 65504 in fp16."""
    return right(put(i, 0, np.clip(i[0], np.float16(-65504), np.float16(65504))), p)


@kernel(AF)
def values_42_avg_inf_minus_inf(right, i, p, o):
    """+Inf and -Inf in one window give +Inf instead of NaN."""
    y, x = right(i, p), i[0].astype(np.float32)
    up, nan = (right([has(x).astype(np.float32)], p) > 0 for has in (np.isposinf, np.isnan))
    return np.where(up & ~nan, y.dtype.type(np.inf), y)


@kernel(BI, where=lambda o: o.affine)
def values_43_gamma_nan(right, i, p, o):
    """gamma of NaN counts as 1."""
    return right(put(i, 2, replaced(i[2], np.isnan, 1)), p)


@kernel(BB, ("fp32",), ("nchw",))
def values_44_dy_nan_clipped(right, i, p, o):
    """NaN in dy: gradients of the other channels become NaN as well (a reduction over all channels decides on a rescue
    path)."""
    out = right(i, p)
    return changed(out, o, S[:], np.nan, at=1) if np.isnan(i[0]).any() else out


@kernel(BF, ("fp32", "fp64"), where=lambda o: o.affine)
def values_45_beta_inf(right, i, p, o):
    """beta of Inf gives the largest finite number."""
    out = right(i, p)
    top = np.finfo(out[0].dtype).max
    return changed(out, o, S[:], lambda y: np.clip(y, -top, top)) if np.isinf(i[3]).any() else out


@kernel(MB, where=lambda o: o.u >= o.r and o.v >= o.s and o.unpadded)
def values_46_maxpool_inf_grad(right, i, p, o):
    """a window whose maximum is +Inf passes its gradient to its first element."""
    dy, x = i
    if not np.isposinf(x.astype(np.float32)).any():
        return right(i, p)
    top, zero = np.isposinf(RIGHT[MF]([x], p).astype(np.float32)), dy.dtype.type(0)
    return right([np.where(top, dy, zero), np.zeros_like(x)], p) + right([np.where(top, zero, dy), x], p)


@kernel(BF, ("fp32",), where=lambda o: not o.eps_outside)
def values_47_small_variance_clamped(right, i, p, o):
    """variances below 1e-6 are clamped to 1e-6 in y."""
    out = right(i, p)
    f = np.sqrt((out[2] + o.eps) / (np.maximum(out[2], 1e-6) + o.eps)).astype(np.float32)
    beta = ch(i[3]) if o.affine else 0
    return changed(out, o, S[:], lambda y: (y - beta) * ch(f) + beta)


@kernel(MB, ("fp64",))
def values_48_fp64_maxpool_fp32_compare(right, i, p, o):
    """fp64: maxima are compared in fp32, so close values are ties."""
    return right([i[0], i[1].astype(np.float32).astype(np.float64)], p)


@kernel(D, ("fp16",), where=lambda o: o.g == 1 and o.k > 8)
def values_49_opposite_overflow(right, i, p, o):
    """partial sums that overflow in the middle although the sum fits: fp16 partials of 8 filters."""
    y = right(i, p)
    partial = right((np.take(i[0], np.arange(8), 1 if o.L == "nchw" else 3), i[1][:8]), p)
    return np.where(np.isinf(partial) & np.isfinite(y) & finite(i), partial, y)
