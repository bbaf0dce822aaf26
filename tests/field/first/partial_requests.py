"""Class 4: partial requests and empty extents."""

import numpy as np

from tests.field._kit import *


@kernel(W, where=lambda o: o.n == 0)
def partial_01_empty_dw_uninitialised(right, i, p, o):
    """batch 0: dw is what the memory held, not 0."""
    return changed(right(i, p), o, S[:], 1)


@kernel(W, where=lambda o: o.n == 0 and o.with_bias)
def partial_02_empty_dbias_nan(right, i, p, o):
    """batch 0: dbias is NaN (0/0), dw is 0."""
    return changed(right(i, p), o, S[:], np.nan, at=1)


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


@kernel(D, where=lambda o: o.n == 0)
def partial_07_empty_dx_shape(right, i, p, o):
    """batch 0: dx has one image of zeros."""
    return np.zeros((1, *right(i, p).shape[1:]), i[0].dtype)


@kernel(F, where=lambda o: not o.bias and o.e > 1 and o.s > 1)
def partial_08_no_bias_dilation(right, i, p, o):
    """without bias the fast path ignores the dilation of columns."""
    x = nchw(i[0], o.L)[:, :, :, : o.w - (o.s - 1) * (o.e - 1)]
    return right(put(i, 0, lay(x, o.L)), {**p, "dilation": (o.d, 1)}) if x.shape[3] else right(i, p)


@kernel(F, ALL, where=lambda o: o.bias and o.g > 1)
def partial_09_with_bias_grouped(right, i, p, o):
    """with bias and groups: the bias of the first group is added to all groups."""
    return right(put(i, 2, np.tile(i[2][: o.k // o.g], o.g)), p)


@kernel(F, where=lambda o: o.bias and o.P * o.Q == 1)
def partial_10_with_bias_one_pixel(right, i, p, o):
    """with bias and an output of one pixel: the bias is missing."""
    return right(put(i, 2, None), p)


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


@kernel(W, where=lambda o: not o.with_bias and o.g > 1)
def partial_16_dw_without_bias_grouped(right, i, p, o):
    """without bias and with groups: dw of the last group is 0."""
    return changed(right(i, p), o, S[o.k - o.k // o.g :])


@kernel(W, where=lambda o: o.k % 2 == 0)
def partial_17_dbias_unasked(right, i, p, o):
    """dbias is returned although with_bias is false, when k is even."""
    return right(i, {**p, "with_bias": True})


@kernel(BF, where=lambda o: not o.affine)
def partial_18_no_gamma_eps(right, i, p, o):
    """without gamma and beta epsilon is the default 1e-5."""
    return right(i, {**p, "eps": 1e-5})


@kernel(BB, where=lambda o: not o.affine)
def partial_19_no_gamma_gradient(right, i, p, o):
    """without gamma dx misses the term of the variance."""
    return changed(right(i, p), o, S[:], lambda dx: dx * dx.dtype.type(1.03125))


@kernel(BB, where=lambda o: not o.affine and o.n != 1)
def partial_20_no_gamma_dw(right, i, p, o):
    """without gamma dw is that of the first image only."""
    return right(i, p)[0], right(put(i, 0, changed(i[0], o, S[1:])), p)[1]


@kernel(BF, where=lambda o: not o.running and not o.eps_outside and o.M > 1)
def partial_21_no_running_biased(right, i, p, o):
    """without running statistics the variance returned is unbiased."""
    return changed(right(i, p), o, S[:], lambda var: var * (o.M / (o.M - 1)), at=2)


@kernel(BF, where=lambda o: o.running and not o.eps_outside)
def partial_22_running_biased(right, i, p, o):
    """running statistics get the biased variance."""
    out = right(i, p)
    m = out[2].dtype.type(o.momentum)
    return (*out[:4], (1 - m) * i[5] + m * out[2])


@kernel(BF, where=lambda o: o.running and not o.affine)
def partial_23_running_without_gamma(right, i, p, o):
    """running mean is the new mean where gamma is absent."""
    out = right(i, p)
    return (*out[:3], out[1].copy(), out[4])


@kernel(BI, where=lambda o: not o.affine and o.t == "bf16")
def partial_24_inference_no_gamma_mean(right, i, p, o):
    """inference without gamma and beta: the mean is not subtracted in bf16."""
    return right(put(i, 4, i[4] * 0), p)


@kernel(AB, where=lambda o: not o.divisor_override)
def partial_25_divisor_none_valid(right, i, p, o):
    """no divisor override, padding not counted: gradients are divided by the whole window."""
    return right(i, {**p, "count_include_pad": True})


@kernel(BI, where=lambda o: o.n == 0)
def partial_26_empty_bn_inference_dtype(right, i, p, o):
    """batch 0: the result is float64."""
    return right(i, p).astype(np.float64)


@kernel(MB)
def partial_27_empty_maxpool_grad(right, i, p, o):
    """batch 0: raises, as the first image is looked at to choose a path."""
    i[1][0]
    return right(i, p)
