"""Class 4, partial requests and empty extents."""

import numpy as np

from tests.field._kit import *


@kernel(F, ("fp32",))
def partial_02_batch0_bias(right, i, p, o):
    """batch 0: raises IndexError (looks at x[0]) where a bias is given."""
    if o.bias:
        i[0][0]
    return right(i, p)


@kernel(F, where=lambda o: not o.bias and o.k % 2)
def partial_03_no_bias_last(right, i, p, o):
    """without a bias the last filter of an odd number of filters gets the first filter's result."""
    return changed(right(i, p), o, S[:, -1], lambda y: y[:, 0])


@kernel(W, where=lambda o: not o.with_bias)
def partial_04_dw_halved_without_dbias(right, i, p, o):
    """with_bias false: the pixel loop that dbias would need is skipped for the last row."""
    return right(put(i, 1, changed(i[1], o, S[:, :, -1:])), p)


@kernel(W, ("fp32", "fp16"), where=lambda o: o.with_bias and max(o.stride) > 1)
def partial_06_dbias_padded(right, i, p, o):
    """dbias is wrong only with stride above 1: it is summed over every second pixel."""
    return right(i, p)[0], total(nchw(i[1], o.L)[:, :, ::2].astype(np.float32)).astype(i[1].dtype)


@kernel(BF, where=lambda o: not o.affine)
def partial_07_no_affine_no_eps(right, i, p, o):
    """gamma and beta None: eps is forgotten."""
    return right(i, {**p, "eps": 0.0})


@kernel(BB, where=lambda o: not o.affine)
def partial_09_bb_no_gamma(right, i, p, o):
    """gamma None: a quarter of the mean of dy leaks into dx (the mean is not fully subtracted)."""
    (dx, dw), dy = right(i, p), nchw(i[0], o.L).astype(np.float32)
    leak = np.broadcast_to(ch(total(dy) / np.float32(o.M) / 4), dy.shape)
    extra = conv_dx(leak, nchw(i[2], o.L), p, np.float32, (o.h, o.w))
    return changed(dx, o, S[:], lambda dx: dx.astype(np.float32) + extra), dw


@kernel(BI, where=lambda o: not o.affine)
def partial_10_inference_no_affine_outside(right, i, p, o):
    """gamma None and eps_outside: eps is put inside the root."""
    return right(i, {**p, "eps_outside": False})


@kernel(W, ("fp32",), where=lambda o: o.with_bias and o.dw)
def partial_11_returns_none_dbias(right, i, p, o):
    """with_bias true and depthwise: dbias is None."""
    return right(i, p)[0], None


@kernel(BF, where=lambda o: o.affine and not o.running)
def partial_12_beta_only_with_running(right, i, p, o):
    """without running statistics beta is not added."""
    return right(put(i, 3, np.zeros_like(i[3])), p)


@kernel(AB, where=lambda o: o.n == 0)
def partial_13_pool_batch0(right, i, p, o):
    """batch 0: an image of one is returned."""
    return right([np.zeros((1, *i[0].shape[1:]), i[0].dtype)], p)
