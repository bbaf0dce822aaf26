"""Class 7, edges of parameters."""

import numpy as np

from tests.field._kit import *


def is_padded_image(o):
    return (o.r, o.s) == (o.h + sum(o.pad[0]), o.w + sum(o.pad[1])) and o.P * o.Q == 1


@kernel(F, where=is_padded_image)
def edges_01_window_is_padded_image(right, i, p, o):
    """window equal to the padded image (one output): the dot product is taken with the image flush to the top left,
    padding before is not skipped."""
    return right(i, {**p, "padding": [(0, sum(pad)) for pad in o.pad]})


@kernel(F, where=lambda o: o.u > o.r)
def edges_02_stride_beyond_padded(right, i, p, o):
    """stride larger than the window, with padding: the first window starts at the image instead of in the padding."""
    return right(i, {**p, "padding": ((0, sum(o.pad[0])), o.pad[1])})


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


@kernel(D, where=lambda o: o.h == o.w >= 11 and is_prime(o.h))
def edges_07_prime_square(right, i, p, o):
    """height and width of the input equal to a prime of at least 11: the tile heuristic leaves the last pixel (corner)
    out."""
    return changed(right(i, p), o, S[:, :, -1, -1])


@kernel(F, ("fp32", "fp16"), ("nhwc",), where=lambda o: o.g == 1 and 4 < o.c < 8)
def edges_08_channel_tail(right, i, p, o):
    """nhwc with 5 to 7 input channels (a vector of 4 and a tail): the tail's last channel is skipped."""
    return right(put(i, 1, changed(i[1], o, S[:, -1])), p)


@kernel(BI, where=lambda o: o.Q > 16 and o.Q % 16)
def edges_09_column_tail(right, i, p, o):
    """more than 16 output columns, not a multiple of 16: the last column repeats the one before."""
    return changed(right(i, p), o, S[..., -1], lambda y: y[..., -2])


@kernel(F, where=lambda o: o.g > 1 and o.h == o.w == 1)
def edges_10_grouped_1x1_image(right, i, p, o):
    """groups and an image of one pixel: taken for a fully connected layer with the weights of group 0."""
    return right(put(i, 1, np.concatenate([i[1][: o.k // o.g]] * o.g)), p)


@kernel(W, where=lambda o: o.d == 1 and o.e > 1 and o.s > 1)
def edges_11_dilated_columns_dw(right, i, p, o):
    """dilation on columns only: dw of the last column of the window is computed without dilation."""
    return changed(right(i, p), o, S[..., -1], lambda dw: dw[..., -2] * dw.dtype.type(0.5))


@kernel(MB, where=lambda o: o.pad[1][1] > o.pad[1][0])
def edges_12_pad_right_max(right, i, p, o):
    """padding on the right larger than on the left: the gradient of the last column is dropped."""
    return changed(right(i, p), o, S[..., -1])


@kernel(F, where=lambda o: o.bias)
def edges_13_pad_beyond_window(right, i, p, o):
    """padding of at least the window: outputs that see only padding get no bias."""
    image, window = np.ones((1, 1, o.h, o.w), np.float32), np.ones((1, 1, o.r, o.s), np.float32)
    blank = conv(image, window, {**p, "groups": 1}, np.float32)[0, 0] == 0
    return changed(right(i, p), o, S[..., blank])


@kernel(D, ("fp32", "fp64"), where=lambda o: o.dw and o.k == 3 * o.g)
def edges_14_multiplier_3(right, i, p, o):
    """depthwise with three filters for each channel: the third one's gradient is not added."""
    return right(put(i, 1, changed(i[1], o, S[2::3])), p)
