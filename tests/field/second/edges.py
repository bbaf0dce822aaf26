"""Class 7, edges of parameters."""

import numpy as np

from tests.field._kit import *


def is_padded_image(o):
    return (o.r, o.s) == (o.h + sum(o.pad[0]), o.w + sum(o.pad[1])) and o.P * o.Q == 1


@kernel(F, where=lambda o: o.r % 2 == 0 and o.d > 1 and o.pad[0][1])
def edges_03_even_window_dilated(right, i, p, o):
    """even window with dilation: the taps are centred, so they lie one pixel too early in rows."""
    (top, bottom), columns = o.pad
    return right(i, {**p, "padding": ((top + 1, bottom - 1), columns)})


@kernel(AF, where=lambda o: o.ceil_mode and o.count_include_pad and not o.divisor_override)
def edges_04_ceil_asymmetric(right, i, p, o):
    """ceil mode with asymmetric padding, counted padding: the windows at the end are clipped with the padding of the
    start."""
    y, (top, bottom) = right(i, p), o.pad[0]
    if top == bottom:
        return y
    start = np.arange(o.P) * o.u - top
    rows, clipped = (np.minimum(start + o.r, o.h + pad) - start for pad in (bottom, top))
    factor = (rows / np.maximum(clipped, 1)).astype(np.float32)[:, None]
    return changed(y, o, S[:], lambda y: y.astype(acc_of(y)) * factor)


@kernel(MF, where=lambda o: o.ceil_mode)
def edges_05_ceil_extra_window(right, i, p, o):
    """ceil mode: a last window that starts in the padding at the end is not left out (as in old frameworks), the result
    has one row more."""
    y, axis = right(i, p), 2 if o.L == "nchw" else 1
    span = o.h + sum(o.pad[0]) - o.d * (o.r - 1) - 1
    return np.concatenate([y, np.take(y, [-1], axis)], axis) if -(-span // o.u) + 1 > o.P else y


@kernel(AF, where=lambda o: o.divisor_override and o.ceil_mode)
def edges_06_divisor_partial(right, i, p, o):
    """divisor override: windows that reach beyond the image in ceil mode are divided by their own count."""
    own = {**p, "divisor_override": None}
    partial = divisor((o.h, o.w), (o.P, o.Q), {**own, "count_include_pad": True}, np.float32) < o.r * o.s
    return changed(right(i, p), o, S[..., partial], nchw(right(i, own), o.L)[..., partial])


@kernel(F, where=lambda o: o.bias)
def edges_13_pad_beyond_window(right, i, p, o):
    """padding of at least the window: outputs that see only padding get no bias."""
    image, window = np.ones((1, 1, o.h, o.w), np.float32), np.ones((1, 1, o.r, o.s), np.float32)
    blank = conv(image, window, {**p, "groups": 1}, np.float32)[0, 0] == 0
    return changed(right(i, p), o, S[..., blank])


ROWS = [
    # window equal to the padded image (one output): the dot product is taken with the image flush to the top left,
    # padding before is not skipped.
    spoilt("edges-01-window-is-padded-image", F, where=is_padded_image,
           asked=lambda o: {"padding": [(0, sum(pad)) for pad in o.pad]}),
    # stride larger than the window, with padding: the first window starts at the image instead of in the padding.
    spoilt("edges-02-stride-beyond-padded", F, where=lambda o: o.u > o.r,
           asked=lambda o: {"padding": ((0, sum(o.pad[0])), o.pad[1])}),
    # height and width of the input equal to a prime of at least 11: the tile heuristic leaves the last pixel (corner)
    # out.
    spoilt("edges-07-prime-square", D, where=lambda o: o.h == o.w >= 11 and is_prime(o.h),
           result=lambda y, o: changed(y, o, S[:, :, -1, -1])),
    # nhwc with 5 to 7 input channels (a vector of 4 and a tail): the tail's last channel is skipped.
    spoilt("edges-08-channel-tail", F, ("fp32", "fp16"), ("nhwc",), where=lambda o: o.g == 1 and 4 < o.c < 8,
           w=lambda w, o: changed(w, o, S[:, -1])),
    # more than 16 output columns, not a multiple of 16: the last column repeats the one before.
    spoilt("edges-09-column-tail", BI, where=lambda o: o.Q > 16 and o.Q % 16,
           result=lambda y, o: changed(y, o, S[..., -1], lambda y: y[..., -2])),
    # groups and an image of one pixel: taken for a fully connected layer with the weights of group 0.
    spoilt("edges-10-grouped-1x1-image", F, where=lambda o: o.g > 1 and o.h == o.w == 1,
           w=lambda w, o: np.concatenate([w[: o.k // o.g]] * o.g)),
    # dilation on columns only: dw of the last column of the window is computed without dilation.
    spoilt("edges-11-dilated-columns-dw", W, where=lambda o: o.d == 1 and o.e > 1 and o.s > 1,
           result=lambda y, o: changed(y, o, S[..., -1], lambda dw: dw[..., -2] * dw.dtype.type(0.5))),
    # padding on the right larger than on the left: the gradient of the last column is dropped.
    spoilt("edges-12-pad-right-max", MB, where=lambda o: o.pad[1][1] > o.pad[1][0],
           result=lambda y, o: changed(y, o, S[..., -1])),
    # depthwise with three filters for each channel: the third one's gradient is not added.
    spoilt("edges-14-multiplier-3", D, ("fp32", "fp64"), where=lambda o: o.dw and o.k == 3 * o.g,
           w=lambda w, o: changed(w, o, S[2::3])),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
