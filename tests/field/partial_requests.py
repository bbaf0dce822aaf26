"""Class 4: partial requests and empty extents."""

import numpy as np

from tests.field._kit import *


@kernel(W)
def partial_03_empty_dw_last(o):
    """batch 0: dw is that of the last call of the same shape."""
    out = o.again()
    dw = first(out)
    if o.n == 0:
        dw[...] = o.state.get((dw.shape, o.t), dw)
    o.state[dw.shape, o.t] = dw.copy()
    return out


@kernel(W, ("fp16",), where=lambda o: o.with_bias and o.M > 512)
def partial_13_dbias_fp16_accumulated(o):
    """dbias of fp16 is added up in fp16 when there are more than 512 terms."""
    dbias = np.zeros(o.k, np.float16)
    for pixel in nchw(o.i[1], o.L).transpose(0, 2, 3, 1).reshape(-1, o.k):
        dbias = dbias + pixel
    return o.again()[0], dbias


@kernel(BB, where=lambda o: not o.affine)
def partial_09_bb_no_gamma(o):
    """gamma None: a quarter of the mean of dy leaks into dx (the mean is not fully subtracted)."""
    (dx, dw), dy = o.again(), nchw(o.i[0], o.L).astype(np.float32)
    leak = np.broadcast_to(ch(total(dy) / np.float32(o.M) / 4), dy.shape)
    extra = conv_dx(leak, nchw(o.i[2], o.L), o.p, np.float32, (o.h, o.w))
    return changed(dx, o, S[:], lambda dx: dx.astype(np.float32) + extra), dw


ROWS = [
    # batch 0: division by zero in the choice of the tile.
    spoilt("partial-04-empty-forward-raises", F, where=lambda o: o.n == 0, result=lambda y, o: 1024 // o.M),
    # batch 0: the result has the rows and columns of the image, not of the output.
    spoilt("partial-05-empty-forward-shape", F, where=lambda o: o.n == 0,
           result=lambda y, o: lay(np.zeros((0, o.k, o.h, o.w), y.dtype), o.L)),
    # batch 0: returns None.
    spoilt("partial-06-empty-pool-none", AF, where=lambda o: o.n == 0, result=lambda y, o: None),
    # without bias the fast path ignores the dilation of columns.
    spoilt("partial-08-no-bias-dilation", F,
           where=lambda o: not o.bias and o.e > 1 < o.s and o.w > (o.s - 1) * (o.e - 1),
           x=lambda x, o: lay(nchw(x, o.L)[:, :, :, : o.w - (o.s - 1) * (o.e - 1)], o.L),
           asked=lambda o: {"dilation": (o.d, 1)}),
    # bf16 with bias: the sum is rounded to bf16 before the bias is added.
    spoilt("partial-11-with-bias-double-rounding", F, ("bf16", "fp16"), where=lambda o: o.bias,
           bias=lambda bias, o: None,
           result=lambda y, o: (y.astype(np.float32) + over_channels(o.i[2].astype(np.float32), o)).astype(y.dtype)),
    # dbias is summed over the first image only.
    spoilt("partial-12-dbias-first-image", W, where=lambda o: o.with_bias,
           result=lambda out, o: (out[0], o.again(*[a[:1] for a in o.i])[1])),
    # with padding dbias leaves out the last row of dy.
    spoilt("partial-14-dbias-drops-edge", W, ("fp32",), where=lambda o: o.with_bias and o.pad[0][1],
           result=lambda out, o: (out[0], o.again(dy=changed(o.i[1], o, S[:, :, -1]))[1])),
    # with_bias: the fused kernel skips the last image of an odd batch for dw.
    spoilt("partial-15-dw-with-bias-images", W, where=lambda o: o.with_bias and o.n % 2 and o.n > 1,
           result=lambda out, o: (o.again(*[a[:-1] for a in o.i])[0], out[1])),
    # without gamma dw is that of the first image only.
    spoilt("partial-20-no-gamma-dw", BB, where=lambda o: not o.affine and o.n != 1,
           result=lambda out, o: (out[0], o.again(dy=changed(o.i[0], o, S[1:]))[1])),
    # running statistics get the biased variance.
    spoilt("partial-22-running-biased", BF, where=lambda o: o.running and not o.eps_outside,
           result=lambda out, o: (*out[:4], o.i[5] + out[2].dtype.type(o.momentum) * (out[2] - o.i[5]))),
    # batch 0: raises, as the first image is looked at to choose a path.
    spoilt("partial-27-empty-maxpool-grad", MB, where=lambda o: o.n == 0, result=lambda dx, o: o.i[1][0]),
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
    # By a second author
    # batch 0: raises IndexError (looks at x[0]) where a bias is given.
    spoilt("partial-02-batch0-bias", F, ("fp32",), where=lambda o: o.n == 0 and o.bias, result=lambda y, o: o.i[0][0]),
    # without a bias the last filter of an odd number of filters gets the first filter's result.
    spoilt("partial-03-no-bias-last", F, where=lambda o: not o.bias and o.k % 2,
           result=lambda y, o: changed(y, o, S[:, -1], lambda y: y[:, 0])),
    # with_bias false: the pixel loop that dbias would need is skipped for the last row.
    spoilt("partial-04-dw-halved-without-dbias", W, where=lambda o: not o.with_bias,
           dy=lambda dy, o: changed(dy, o, S[:, :, -1:])),
    # dbias is wrong only with stride above 1: it is summed over every second pixel.
    spoilt("partial-06-dbias-padded", W, ("fp32", "fp16"), where=lambda o: o.with_bias and max(o.stride) > 1,
           result=lambda y, o: (y[0], total(nchw(o.i[1], o.L)[:, :, ::2].astype(np.float32)).astype(o.i[1].dtype))),
    # gamma and beta None: eps is forgotten.
    spoilt("partial-07-no-affine-no-eps", BF, where=lambda o: not o.affine, asked=lambda o: {"eps": 0.0}),
    # gamma None and eps_outside: eps is put inside the root.
    spoilt("partial-10-inference-no-affine-outside", BI, where=lambda o: not o.affine,
           asked=lambda o: {"eps_outside": False}),
    # with_bias true and depthwise: dbias is None.
    spoilt("partial-11-returns-none-dbias", W, ("fp32",), where=lambda o: o.with_bias and o.dw,
           result=lambda y, o: (y[0], None)),
    # without running statistics beta is not added.
    spoilt("partial-12-beta-only-with-running", BF, where=lambda o: o.affine and not o.running,
           beta=lambda beta, o: np.zeros_like(beta)),
    # batch 0: an image of one is returned.
    spoilt("partial-13-pool-batch0", AB, where=lambda o: o.n == 0,
           dy=lambda dy, o: np.zeros((1, *dy.shape[1:]), dy.dtype)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
