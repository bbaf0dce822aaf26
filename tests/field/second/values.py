"""Class 3, values: NaN, infinity, overflow, subnormals, zeros, dropped bits."""

import numpy as np

from tests.field._kit import *


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


ROWS = [
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
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
