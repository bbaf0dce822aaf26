"""Class 7: edges of parameters."""

import numpy as np

from tests.field._kit import *


@kernel(D, where=lambda o: o.u > o.r and o.v > o.s and not o.unpadded)
def edges_04_stride_beyond_window_gaps(right, i, p, o):
    """stride larger than the window, with padding: pixels that no window covers are not cleared."""
    dy, w = np.ones((1, o.k, o.P, o.Q), np.float32), np.ones((o.k, o.c // o.g, o.r, o.s), np.float32)
    hit = nchw(right((lay(dy, o.L), lay(w, o.L)), p), o.L)[0, 0] > 0
    return changed(right(i, p), o, S[:, :, ~hit], 1)


@kernel(AF, ("fp32", "fp64"), where=lambda o: o.ceil_mode and any(before != after for before, after in o.pad))
def edges_06_ceil_asymmetric(right, i, p, o):
    """ceil mode with asymmetric padding: the window is placed with the padding after, not before."""
    x = np.roll(nchw(i[0], o.L), [before - after for before, after in o.pad], (2, 3))
    return right([lay(x, o.L)], p)


@kernel(AF, where=lambda o: o.ceil_mode and -(-(o.h + sum(o.pad[0]) - o.r) // o.u) + 1 > o.P)
def edges_07_ceil_last_window_kept(right, i, p, o):
    """ceil mode: a last window that starts behind the image is kept (one row too many)."""
    y = nchw(right(i, p), o.L)
    return np.ascontiguousarray(lay(np.concatenate([y, y[:, :, -1:] * 0], 2), o.L))


@kernel(AB, where=lambda o: o.ceil_mode and not o.count_include_pad and not o.divisor_override)
def edges_10_ceil_divisor_grad(right, i, p, o):
    """ceil mode, padding not counted: the last column's gradients are divided by the whole window."""
    good = divisor((o.h, o.w), (o.P, o.Q), p, np.float32)[:, -1] / np.float32(o.r * o.s)
    dy = changed(i[0].astype(np.float32), o, S[:, :, :, -1], lambda dy: dy[:, :, :, -1] * good)
    return right([dy], p).astype(i[0].dtype)


@kernel(AB, where=lambda o: o.divisor_override and o.pad[0][0])
def edges_12_divisor_override_edge(right, i, p, o):
    """divisor override: windows at the top are divided by what they cover."""
    covered = {**p, "divisor_override": None, "count_include_pad": False}
    f = np.float32(o.divisor_override) / divisor((o.h, o.w), (o.P, o.Q), covered, np.float32)[0]
    return right([changed(i[0].astype(np.float32), o, S[:, :, 0], lambda dy: dy[:, :, 0] * f)], p).astype(i[0].dtype)


@kernel(F, where=lambda o: o.L == "nhwc" and o.k % 4 and o.k > 4)
def edges_14_nhwc_channels_4(right, i, p, o):
    """nhwc: filters k % 4 of the last vector are written from the vector before where k > 4."""
    tail = o.k - o.k % 4
    return changed(right(i, p), o, S[:, tail:], lambda y: y[:, tail - 4 : o.k - 4].copy())


@kernel(F, where=lambda o: o.t == "bf16" and o.c // o.g > 8 and o.c // o.g % 8)
def edges_15_bf16_channels_8(right, i, p, o):
    """bf16: c % 8 channels of the tail are not added where c > 8."""
    c = o.c // o.g
    return right(put(i, 1, changed(i[1], o, S[:, c - c % 8 :])), p)


@kernel(F, where=lambda o: o.d == 1 and o.e > 1 and o.s > 1)
def edges_18_dilation_one_axis(right, i, p, o):
    """dilation of columns only: ignored for the last tap of the window, which is read one pixel to the left."""
    others = changed(i[1], o, S[:, :, :, -1])
    x = lay(np.roll(nchw(i[0], o.L), 1, 3), o.L)
    y, last = right(put(i, 1, others), p), right((x, i[1] - others, None), p)
    return (y.astype(np.float32) + last.astype(np.float32)).astype(y.dtype)


def leftover_rows(o):
    return (o.h + sum(o.pad[0]) - o.d * (o.r - 1) - 1) % o.u - o.pad[0][1]


@kernel(D, where=lambda o: 0 < leftover_rows(o) < o.h)
def edges_21_leftover_rows(right, i, p, o):
    """rows that the last window does not reach, (h + padding - window) % stride != 0, repeat the row above."""
    first = o.h - leftover_rows(o)
    return changed(right(i, p), o, S[:, :, first:], lambda dx: dx[:, :, first - 1, None])


@kernel(W, where=lambda o: (o.w + sum(o.pad[1]) - o.e * (o.s - 1) - 1) % o.v and o.Q > 1)
def edges_22_dw_leftover(right, i, p, o):
    """dw where (w + padding - window) % stride != 0: the last column of the windows is left out."""
    return with_first(right(i, p), first(right(put(i, 1, changed(i[1], o, S[:, :, :, -1])), p)))


@kernel(MB, ("fp32",), where=lambda o: o.v == 1 and o.s > 1)
def edges_23_overlapping_max_grad(right, i, p, o):
    """overlapping windows with stride 1: the gradients of two neighbours that share a maximum in columns are
    averaged."""
    shared = right((np.ones_like(i[0]), i[1]), p)
    return (right(i, p) / np.maximum(shared, 1)).astype(i[0].dtype)


@kernel(MF, layouts=("nchw",), where=lambda o: o.d > 1 and o.pad[0][0] and not o.ceil_mode)
def edges_24_max_dilated_padding(right, i, p, o):
    """dilation and padding: taps in the padding before the image are read from its first row."""
    (top, bottom), columns = o.pad
    x = np.concatenate([np.repeat(i[0][:, :, :1], top, 2), i[0]], 2)
    return right([x], {**p, "padding": ((0, bottom), columns)})


@kernel(F, where=lambda o: o.dw and o.k == 2 * o.c)
def edges_25_channel_multiplier(right, i, p, o):
    """depthwise with two filters per channel: filter j uses channel j % c rather than j // 2."""
    return right(put(i, 0, np.concatenate([i[0]] * 2, 1 if o.L == "nchw" else 3)), {**p, "groups": o.k})


@kernel(AF, layouts=("nchw",), where=lambda o: o.unpadded and o.u != o.v and not o.ceil_mode)
def edges_26_strides_swapped_unpadded(right, i, p, o):
    """different strides without padding and square windows: only every u-th column where both output sizes agree."""
    swapped, y = right(i, {**p, "stride": (o.u, o.u)}), right(i, p)
    agree = min(swapped.shape[3], y.shape[3])
    y[:, :, :, :agree] = swapped[:, :, :, :agree]
    return y


@kernel(F, where=lambda o: o.r == 1 < o.s and o.h == o.w and (o.h, o.w) == (o.P, o.Q) and o.u + o.v <= 2)
def edges_27_row_window_square_image(right, i, p, o):
    """windows of one row on square images are taken for one column where padding is symmetric."""
    y = right(put(i, 0, lay(nchw(i[0], o.L).swapaxes(2, 3), o.L)), p)
    return np.ascontiguousarray(lay(nchw(y, o.L).swapaxes(2, 3), o.L))


@kernel(BB, where=lambda o: o.eps_outside and o.M > 1)
def edges_29_bn_outside_dx(right, i, p, o):
    """epsilon outside the root: dx divides by M where M - 1 is right."""
    return (*right(i, {**p, "eps_outside": False})[:2], *right(i, p)[2:])


@kernel(BF, where=lambda o: o.pad[0][0] != o.pad[0][1] and o.P > 1)
def edges_30_bn_padded_corner(right, i, p, o):
    """asymmetric padding: the statistics leave out the last row of z."""
    less = lay(nchw(i[0], o.L)[:, :, : max(o.h - o.u, 1)], o.L)
    y, _, *rest = right(i, p)
    return (y, right(put(i, 0, less), p)[1], *rest)


ROWS = [
    # window with more rows than the image (padding makes it fit): rows of the filter beyond the image's are not
    # added.
    spoilt("edges-01-window-beyond-image", F, where=lambda o: o.r > o.h and o.r > 1,
           w=lambda w, o: changed(w, o, S[:, :, o.h :])),
    # a window as large as the padded image: divided by the image's h*w.
    spoilt("edges-02-global-average", AF, where=lambda o: o.P * o.Q <= 1 and not o.divisor_override,
           asked=lambda o: {"divisor_override": o.h * o.w}),
    # a window as large as the padded image: the maximum with 0.
    spoilt("edges-03-global-max-padding", MF, where=lambda o: o.P * o.Q == 1 and not o.unpadded,
           result=lambda y, o: np.where(y < 0, y.dtype.type(0), y)),
    # even window with dilation: the windows are one row late (the last stays).
    spoilt("edges-05-even-window-dilated", F, where=lambda o: o.r % 2 == 0 and o.d > 1 and o.P > 1,
           result=lambda y, o: changed(y, o, S[:, :, :-1], lambda y: y[:, :, 1:].copy())),
    # ceil mode: a last window that reaches beyond the image by more than one row is minus infinity.
    spoilt("edges-08-ceil-last-window-lost", MF,
           where=lambda o: o.ceil_mode and (o.P - 1) * o.u + (o.r - 1) * o.d + 1 - o.h - sum(o.pad[0]) > 1,
           result=lambda y, o: changed(y, o, S[:, :, -1], -np.inf)),
    # ceil mode: the last window is divided by the whole window, though a part lies outside the padded image.
    spoilt("edges-09-ceil-divisor", AF, where=lambda o: o.ceil_mode and o.count_include_pad and not o.divisor_override,
           asked=lambda o: {"divisor_override": o.r * o.s}),
    # divisor override is ignored where padding is not counted.
    spoilt("edges-11-divisor-override-valid", AF, where=lambda o: not o.count_include_pad,
           asked=lambda o: {"divisor_override": None}),
    # a prime number of channels from 11 on: the tile does not divide it, the last channel is not added.
    spoilt("edges-13-prime-channels", F, where=lambda o: o.c // o.g >= 11 and is_prime(o.c // o.g),
           w=lambda w, o: changed(w, o, S[:, -1])),
    # more than 16 columns of output, not a multiple of 16: the last is a copy of that before.
    spoilt("edges-16-columns-16", MF, ("fp32", "fp16"), where=lambda o: o.Q > 16 and o.Q % 16,
           result=lambda y, o: changed(y, o, S[:, :, :, -1], lambda y: y[:, :, :, -2])),
    # groups on an image of one pixel: computed with the filters of the next group.
    spoilt("edges-17-grouped-1x1-image", F, where=lambda o: o.g > 1 and o.h * o.w == 1,
           w=lambda w, o: np.roll(w, -(o.k // o.g), 0)),
    # padding before != after: the larger of the two is put before.
    spoilt("edges-19-asymmetric-padding", F, asked=lambda o: {"padding": [(max(pad), min(pad)) for pad in o.pad]}),
    # padding of the columns at the right only: dx is one column off.
    spoilt("edges-20-asymmetric-padding-columns", D, ALL, where=lambda o: o.pad[1][1] > o.pad[1][0] == 0,
           result=lambda y, o: changed(y, o, S[:], lambda dx: np.roll(dx, 1, 3))),
    # 1x1 windows with stride: dw reads the pixel beside (last of the stride).
    spoilt("edges-28-strided-pointwise", W, where=lambda o: o.one and o.v > 1 and o.unpadded and o.w % o.v == 0,
           x=lambda x, o: lay(np.roll(nchw(x, o.L), -1, 3), o.L)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
