"""Class 4: partial requests and empty extents."""

import numpy as np

from tests.field._kit import *


@kernel(W)
def partial_03_empty_dw_last(right, i, p, o, last={}):
    """batch 0: dw is that of the last call of the same shape."""
    out = right(i, p)
    dw = first(out)
    if o.n == 0:
        dw[...] = last.get((dw.shape, o.t), dw)
    last[dw.shape, o.t] = dw.copy()
    return out


@kernel(F)
def partial_04_empty_forward_raises(right, i, p, o):
    """batch 0: division by zero in the choice of the tile."""
    1024 // (o.n * o.P * o.Q)
    return right(i, p)


@kernel(F, where=lambda o: o.n == 0)
def partial_05_empty_forward_shape(right, i, p, o):
    """batch 0: the result has the rows and columns of the image, not of the output."""
    return lay(np.zeros((0, o.k, o.h, o.w), i[0].dtype), o.L)


@kernel(AF, where=lambda o: o.n == 0)
def partial_06_empty_pool_none(right, i, p, o):
    """batch 0: returns None."""


@kernel(F, where=lambda o: not o.bias and o.e > 1 and o.s > 1)
def partial_08_no_bias_dilation(right, i, p, o):
    """without bias the fast path ignores the dilation of columns."""
    x = nchw(i[0], o.L)[:, :, :, : o.w - (o.s - 1) * (o.e - 1)]
    return right(put(i, 0, lay(x, o.L)), {**p, "dilation": (o.d, 1)}) if x.shape[3] else right(i, p)


@kernel(F, ("bf16", "fp16"), where=lambda o: o.bias)
def partial_11_with_bias_double_rounding(right, i, p, o):
    """bf16 with bias: the sum is rounded to bf16 before the bias is added."""
    y = nchw(right(put(i, 2, None), p), o.L).astype(np.float32)
    return back(y + ch(i[2].astype(np.float32)), o.L, i[0].dtype)


@kernel(W, where=lambda o: o.with_bias)
def partial_12_dbias_first_image(right, i, p, o):
    """dbias is summed over the first image only."""
    return right(i, p)[0], right([a[:1] for a in i], p)[1]


@kernel(W, ("fp16",), where=lambda o: o.with_bias and o.M > 512)
def partial_13_dbias_fp16_accumulated(right, i, p, o):
    """dbias of fp16 is added up in fp16 when there are more than 512 terms."""
    dbias = np.zeros(o.k, np.float16)
    for pixel in nchw(i[1], o.L).transpose(0, 2, 3, 1).reshape(-1, o.k):
        dbias = dbias + pixel
    return right(i, p)[0], dbias


@kernel(W, ("fp32",), where=lambda o: o.with_bias and o.pad[0][1])
def partial_14_dbias_drops_edge(right, i, p, o):
    """with padding dbias leaves out the last row of dy."""
    return right(i, p)[0], right(put(i, 1, changed(i[1], o, S[:, :, -1])), p)[1]


@kernel(W, where=lambda o: o.with_bias and o.n % 2 and o.n > 1)
def partial_15_dw_with_bias_images(right, i, p, o):
    """with_bias: the fused kernel skips the last image of an odd batch for dw."""
    return right([a[:-1] for a in i], p)[0], right(i, p)[1]


@kernel(BB, where=lambda o: not o.affine and o.n != 1)
def partial_20_no_gamma_dw(right, i, p, o):
    """without gamma dw is that of the first image only."""
    return right(i, p)[0], right(put(i, 0, changed(i[0], o, S[1:])), p)[1]


@kernel(BF, where=lambda o: o.running and not o.eps_outside)
def partial_22_running_biased(right, i, p, o):
    """running statistics get the biased variance."""
    out = right(i, p)
    m = out[2].dtype.type(o.momentum)
    return (*out[:4], (1 - m) * i[5] + m * out[2])


@kernel(MB)
def partial_27_empty_maxpool_grad(right, i, p, o):
    """batch 0: raises, as the first image is looked at to choose a path."""
    i[1][0]
    return right(i, p)


ROWS = [
    # batch 0: dw is what the memory held, not 0.
    spoilt("partial-01-empty-dw-uninitialised", W, where=lambda o: o.n == 0,
           result=lambda y, o: changed(y, o, S[:], 1)),
    # batch 0: dbias is NaN (0/0), dw is 0.
    spoilt("partial-02-empty-dbias-nan", W, where=lambda o: o.n == 0 and o.with_bias,
           result=lambda y, o: changed(y, o, S[:], np.nan, at=1)),
    # batch 0: dx has one image of zeros.
    spoilt("partial-07-empty-dx-shape", D, where=lambda o: o.n == 0,
           result=lambda y, o: np.zeros((1, *y.shape[1:]), o.i[0].dtype)),
    # with bias and groups: the bias of the first group is added to all groups.
    spoilt("partial-09-with-bias-grouped", F, ALL, where=lambda o: o.bias and o.g > 1,
           bias=lambda bias, o: np.tile(bias[: o.k // o.g], o.g)),
    # with bias and an output of one pixel: the bias is missing.
    spoilt("partial-10-with-bias-one-pixel", F, where=lambda o: o.bias and o.P * o.Q == 1, bias=lambda bias, o: None),
    # without bias and with groups: dw of the last group is 0.
    spoilt("partial-16-dw-without-bias-grouped", W, where=lambda o: not o.with_bias and o.g > 1,
           result=lambda y, o: changed(y, o, S[o.k - o.k // o.g :])),
    # dbias is returned although with_bias is false, when k is even.
    spoilt("partial-17-dbias-unasked", W, where=lambda o: o.k % 2 == 0, asked=lambda o: {"with_bias": True}),
    # without gamma and beta epsilon is the default 1e-5.
    spoilt("partial-18-no-gamma-eps", BF, where=lambda o: not o.affine, asked=lambda o: {"eps": 1e-5}),
    # without gamma dx misses the term of the variance.
    spoilt("partial-19-no-gamma-gradient", BB, where=lambda o: not o.affine,
           result=lambda y, o: changed(y, o, S[:], lambda dx: dx * dx.dtype.type(1.03125))),
    # without running statistics the variance returned is unbiased.
    spoilt("partial-21-no-running-biased", BF, where=lambda o: not o.running and not o.eps_outside and o.M > 1,
           result=lambda y, o: changed(y, o, S[:], lambda var: var * (o.M / (o.M - 1)), at=2)),
    # running mean is the new mean where gamma is absent.
    spoilt("partial-23-running-without-gamma", BF, where=lambda o: o.running and not o.affine,
           result=lambda out, o: (*out[:3], out[1].copy(), out[4])),
    # inference without gamma and beta: the mean is not subtracted in bf16.
    spoilt("partial-24-inference-no-gamma-mean", BI, where=lambda o: not o.affine and o.t == "bf16",
           running_mean=lambda running_mean, o: running_mean * 0),
    # no divisor override, padding not counted: gradients are divided by the whole window.
    spoilt("partial-25-divisor-none-valid", AB, where=lambda o: not o.divisor_override,
           asked=lambda o: {"count_include_pad": True}),
    # batch 0: the result is float64.
    spoilt("partial-26-empty-bn-inference-dtype", BI, where=lambda o: o.n == 0,
           result=lambda y, o: y.astype(np.float64)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
