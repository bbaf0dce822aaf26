"""Class 4, partial requests and empty extents."""

import numpy as np

from tests.field._kit import *


@kernel(F, ("fp32",))
def partial_02_batch0_bias(right, i, p, o):
    """batch 0: raises IndexError (looks at x[0]) where a bias is given."""
    if o.bias:
        i[0][0]
    return right(i, p)


@kernel(BB, where=lambda o: not o.affine)
def partial_09_bb_no_gamma(right, i, p, o):
    """gamma None: a quarter of the mean of dy leaks into dx (the mean is not fully subtracted)."""
    (dx, dw), dy = right(i, p), nchw(i[0], o.L).astype(np.float32)
    leak = np.broadcast_to(ch(total(dy) / np.float32(o.M) / 4), dy.shape)
    extra = conv_dx(leak, nchw(i[2], o.L), p, np.float32, (o.h, o.w))
    return changed(dx, o, S[:], lambda dx: dx.astype(np.float32) + extra), dw


ROWS = [
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
