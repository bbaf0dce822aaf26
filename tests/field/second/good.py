"""Known-good: other right algorithms, declared as the guide's Contract section says."""

import numpy as np

from conformance import Contract, Unsupported
from tests.field._kit import *


def split(dtype):
    """Channels in four parts."""

    def convolution(x, w, p, acc):
        parts = [part for part in np.array_split(np.arange(x.shape[1]), 4) if part.size]
        return sum(conv(x[:, part], w[:, part], p, acc).astype(dtype).astype(acc) for part in parts)

    return convolution


def ungrouped(p):
    return p.groups == 1


def fft(x, w, p, acc):
    x, g, (d, e), (u, v) = padded(x, p["padding"]), p["groups"], p["dilation"], p["stride"]
    (n, _, *shape), (k, cg, r, s) = x.shape, w.shape
    window = np.zeros((k, cg, (r - 1) * d + 1, (s - 1) * e + 1), np.float32)
    window[:, :, ::d, ::e] = w
    fx, fw = np.fft.rfft2(x), np.conj(np.fft.rfft2(window, shape))
    fx, fw = fx.reshape(n, g, cg, *fx.shape[2:]), fw.reshape(g, k // g, cg, *fw.shape[2:])
    f = np.einsum("ngchw,gkchw->ngkhw", fx, fw).reshape(n, k, *fx.shape[3:])
    h, wide = (size - reach + 1 for size, reach in zip(shape, window.shape[2:], strict=True))
    return np.fft.irfft2(f, shape)[:, :, :h:u, :wide:v]


@kernel((F, AF, MF), layouts=("nhwc",))
def good_11_dense_nhwc(right, i, p, o):
    if any(a is not None and not a.flags.c_contiguous for a in i):
        raise Unsupported("strided inputs: call ascontiguousarray first")
    return right(i, p)


ROWS = [
    spoilt("good-04-splitk-bf16", F, ("fp32",), ("nchw",), when=ungrouped,
           contract=Contract(splits=4, partials="bf16"), by={"conv": split(BF16)}),
    spoilt("good-05-splitk-fp32", F, layouts=("nchw",), when=ungrouped, contract=Contract(splits=4, partials="fp32"),
           by={"conv": split(np.float32)}),
    spoilt("good-06-fft", F, ("fp32",), ("nchw",), contract=Contract(algorithm="fft"), by={"conv": fft}),
    spoilt("good-09-storage", (BF, BI), ("bf16", "fp32"), contract=Contract(between="storage"), by={"between": True}),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
