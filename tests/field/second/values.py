"""Class 3, values: NaN, infinity, overflow, subnormals, zeros, dropped bits."""

import numpy as np

from tests.field._kit import *


@kernel(MF, ("fp32", "fp16"))
def values_02_max_lowest(right, i, p, o):
    """initialised with the lowest finite number instead of minus infinity: a window of -inf alone becomes -3.4e38."""
    y = right(i, p)
    return np.where(np.isneginf(y), np.finfo(y.dtype).min, y)


@kernel(F)
def values_04_zero_skip(right, i, p, o):
    """sparsity shortcut: where a weight is 0 its product is skipped, so that Inf*0 and NaN*0 give no NaN."""
    x, w, _ = i
    y, finite = right(i, p), np.isfinite(x)
    if finite.all():
        return y
    skipped = right(put(i, 0, np.where(finite, x, x.dtype.type(0))), p)
    hit = right([(~finite).astype(np.float32), np.abs(np.sign(w.astype(np.float32))), None], p)
    return np.where((hit > 0) & ~(np.isnan(y) & (hit < 2)), y, skipped)


@kernel(F)
def values_05_bias_nan(right, i, p, o):
    """a NaN in the bias is treated as 'no bias' for its channel."""
    return right(put(i, 2, replaced(i[2], np.isnan, 0)), p)


@kernel(D, ("fp16",))
def values_06_subnormal_out_fp16(right, i, p, o):
    """fp16 subnormal results are flushed to zero, without a declaration."""
    return replaced(right(i, p), lambda dx: np.abs(dx) < tiny(dx), 0)


@kernel(F, ("fp32",))
def values_07_subnormal_in_weights(right, i, p, o):
    """fp32 subnormal weights count as zero."""
    return right(put(i, 1, replaced(i[1], lambda w: np.abs(w) < tiny(w), 0)), p)


@kernel(BF, where=lambda o: o.affine)
def values_08_negative_gamma(right, i, p, o):
    """negative gamma: the absolute value is used (as abs+eps in InPlace-ABN)."""
    return right(put(i, 2, np.abs(i[2])), p)


@kernel(BB, where=lambda o: o.affine)
def values_09_zero_gamma_dgamma(right, i, p, o):
    """dgamma is recovered from y=(z*gamma+beta), so it is 0 where gamma is 0."""
    return changed(right(i, p), o, S[i[3] == 0], at=2)


@kernel(F, ("fp32",))
def values_10_chop_2_bits_weights(right, i, p, o):
    """the last 2 bits of fp32 weights are dropped (packed format)."""
    return right(put(i, 1, cut(i[1], 2)), p)


@kernel(W, ("fp32",), ("nhwc",))
def values_11_chop_1_bit_dy(right, i, p, o):
    """the last bit of fp32 dy is dropped, in nhwc only."""
    return right(put(i, 1, cut(i[1], 1)), p)


@kernel(AF, ("fp64", "fp32"), where=lambda o: o.t == "fp64")
def values_12_fp64_step_in_fp32(right, i, p, o):
    """fp64: the reciprocal of the divisor is computed in fp32."""
    count = o.divisor_override or o.r * o.s
    return right(i, p) * count * np.float64(np.float32(1) / np.float32(count))


@kernel(D, where=lambda o: o.pad[0][0])
def values_13_inf_padding(right, i, p, o):
    """Inf in dy: the part that falls into padding is multiplied by a mask (Inf*0) and NaN appears at the border."""
    dx = right(i, p)
    return dx if np.isfinite(nchw(i[0], o.L)[:, :, 0]).all() else changed(dx, o, S[:, :, 0], np.nan)


@kernel(BI)
def values_14_dropout_of_denormal_scale(right, i, p, o):
    """running_var of 0 (with eps): taken for 'uninitialised' and replaced by 1."""
    return right(put(i, 5, replaced(i[5], lambda var: var == 0, 1)), p)
