"""Class 7: edges of parameters."""

import numpy as np

from tests.field._kit import *


@kernel(D, where=lambda o: o.u > o.r and o.v > o.s and not o.unpadded)
def edges_04_stride_beyond_window_gaps(o):
    """stride larger than the window, with padding: pixels that no window covers are not cleared."""
    dy, w = np.ones((1, o.k, o.P, o.Q), np.float32), np.ones((o.k, o.c // o.g, o.r, o.s), np.float32)
    hit = nchw(o.again(lay(dy, o.L), lay(w, o.L)), o.L)[0, 0] > 0
    return changed(o.again(), o, S[:, :, ~hit], 1)


@kernel(AB, where=lambda o: o.ceil_mode and not o.count_include_pad and not o.divisor_override)
def edges_10_ceil_divisor_grad(o):
    """ceil mode, padding not counted: the last column's gradients are divided by the whole window."""
    good = divisor((o.h, o.w), (o.P, o.Q), o.p, np.float32)[:, -1] / np.float32(o.r * o.s)
    dy = changed(o.i[0].astype(np.float32), o, S[:, :, :, -1], lambda dy: dy[:, :, :, -1] * good)
    return o.again(dy).astype(o.i[0].dtype)


@kernel(AB, where=lambda o: o.divisor_override and o.pad[0][0])
def edges_12_divisor_override_edge(o):
    """divisor override: windows at the top are divided by what they cover."""
    covered = {**o.p, "divisor_override": None, "count_include_pad": False}
    f = np.float32(o.divisor_override) / divisor((o.h, o.w), (o.P, o.Q), covered, np.float32)[0]
    return o.again(changed(o.i[0].astype(np.float32), o, S[:, :, 0], lambda dy: dy[:, :, 0] * f)).astype(o.i[0].dtype)


@kernel(F, where=lambda o: o.d == 1 and o.e > 1 and o.s > 1)
def edges_18_dilation_one_axis(o):
    """dilation of columns only: ignored for the last tap of the window, which is read one pixel to the left."""
    others = changed(o.i[1], o, S[:, :, :, -1])
    x = lay(np.roll(nchw(o.i[0], o.L), 1, 3), o.L)
    y, last = o.again(w=others), o.again(x, o.i[1] - others, None)
    return (y.astype(np.float32) + last.astype(np.float32)).astype(y.dtype)


@kernel(AF, layouts=("nchw",), where=lambda o: o.unpadded and o.u != o.v and not o.ceil_mode)
def edges_26_strides_swapped_unpadded(o):
    """different strides without padding and square windows: only every u-th column where both output sizes agree."""
    swapped, y = o.again(stride=(o.u, o.u)), o.again()
    agree = min(swapped.shape[3], y.shape[3])
    y[:, :, :, :agree] = swapped[:, :, :, :agree]
    return y


@kernel(AF, where=lambda o: o.ceil_mode and o.count_include_pad and not o.divisor_override)
def edges_04_ceil_asymmetric(o):
    """ceil mode with asymmetric padding, counted padding: the windows at the end are clipped with the padding of the
    start."""
    y, (top, bottom) = o.again(), o.pad[0]
    if top == bottom:
        return y
    start = np.arange(o.P) * o.u - top
    rows, clipped = (np.minimum(start + o.r, o.h + pad) - start for pad in (bottom, top))
    factor = (rows / np.maximum(clipped, 1)).astype(np.float32)[:, None]
    return changed(y, o, S[:], lambda y: y.astype(acc_of(y)) * factor)


@kernel(AF, where=lambda o: o.divisor_override and o.ceil_mode)
def edges_06_divisor_partial(o):
    """divisor override: windows that reach beyond the image in ceil mode are divided by their own count."""
    own = {**o.p, "divisor_override": None, "count_include_pad": True}
    partial = divisor((o.h, o.w), (o.P, o.Q), own, np.float32) < o.r * o.s
    return changed(o.again(), o, S[..., partial], nchw(o.again(divisor_override=None), o.L)[..., partial])


@kernel(F, where=lambda o: o.bias)
def edges_13_pad_beyond_window(o):
    """padding of at least the window: outputs that see only padding get no bias."""
    image, window = np.ones((1, 1, o.h, o.w), np.float32), np.ones((1, 1, o.r, o.s), np.float32)
    blank = conv(image, window, {**o.p, "groups": 1}, np.float32)[0, 0] == 0
    return changed(o.again(), o, S[..., blank])


def leftover(o):
    """Rows that the last window does not reach."""
    return (o.h + sum(o.pad[0]) - o.d * (o.r - 1) - 1) % o.u - o.pad[0][1]


def one_row_more(y, o, mode):
    return back(np.pad(nchw(y, o.L), ((0, 0), (0, 0), (0, 1), (0, 0)), mode), o.L, y.dtype)


def is_padded_image(o):
    return (o.r, o.s) == (o.h + sum(o.pad[0]), o.w + sum(o.pad[1])) and o.P * o.Q == 1


ROWS = [
    # ceil mode with asymmetric padding: the window is placed with the padding after, not before.
    spoilt("edges-06-ceil-asymmetric", AF, ("fp32", "fp64"),
           where=lambda o: o.ceil_mode and any(before != after for before, after in o.pad),
           x=lambda x, o: lay(np.roll(nchw(x, o.L), [before - after for before, after in o.pad], (2, 3)), o.L)),
    # ceil mode: a last window that starts behind the image is kept (one row too many).
    spoilt("edges-07-ceil-last-window-kept", AF,
           where=lambda o: o.ceil_mode and -(-(o.h + sum(o.pad[0]) - o.r) // o.u) + 1 > o.P,
           result=lambda y, o: one_row_more(y, o, "constant")),
    # nhwc: filters k % 4 of the last vector are written from the vector before where k > 4.
    spoilt("edges-14-nhwc-channels-4", F, where=lambda o: o.L == "nhwc" and o.k % 4 and o.k > 4,
           result=lambda y, o: changed(y, o, S[:, o.k // 4 * 4 :], lambda y: y[:, o.k // 4 * 4 - 4 : o.k - 4].copy())),
    # bf16: c % 8 channels of the tail are not added where c > 8.
    spoilt("edges-15-bf16-channels-8", F, where=lambda o: o.t == "bf16" and o.c // o.g > 8 and o.c // o.g % 8,
           w=lambda w, o: changed(w, o, S[:, o.c // o.g // 8 * 8 :])),
    # rows that the last window does not reach, (h + padding - window) % stride != 0, repeat the row above.
    spoilt("edges-21-leftover-rows", D, where=lambda o: 0 < leftover(o) < o.h,
           result=lambda dx, o: changed(dx, o, S[:, :, -leftover(o) :], lambda dx: dx[:, :, -leftover(o) - 1, None])),
    # dw where (w + padding - window) % stride != 0: the last column of the windows is left out.
    spoilt("edges-22-dw-leftover", W,
           where=lambda o: (o.w + sum(o.pad[1]) - o.e * (o.s - 1) - 1) % o.v and o.Q > 1,
           result=lambda out, o: with_first(out, first(o.again(dy=changed(o.i[1], o, S[:, :, :, -1]))))),
    # overlapping windows with stride 1: the gradients of two neighbours that share a maximum in columns are averaged.
    spoilt("edges-23-overlapping-max-grad", MB, ("fp32",), where=lambda o: o.v == 1 and o.s > 1,
           result=lambda dx, o: dx / np.maximum(o.again(dy=np.ones_like(o.i[0])), 1)),
    # dilation and padding: taps in the padding before the image are read from its first row.
    spoilt("edges-24-max-dilated-padding", MF, layouts=("nchw",),
           where=lambda o: o.d > 1 and o.pad[0][0] and not o.ceil_mode,
           x=lambda x, o: np.concatenate([np.repeat(x[:, :, :1], o.pad[0][0], 2), x], 2),
           asked=lambda o: {"padding": ((0, o.pad[0][1]), o.pad[1])}),
    # depthwise with two filters per channel: filter j uses channel j % c rather than j // 2.
    spoilt("edges-25-channel-multiplier", F, where=lambda o: o.dw and o.k == 2 * o.c,
           x=lambda x, o: lay(np.concatenate([nchw(x, o.L)] * 2, 1), o.L), asked=lambda o: {"groups": o.k}),
    # windows of one row on square images are taken for one column where padding is symmetric.
    spoilt("edges-27-row-window-square-image", F,
           where=lambda o: o.r == 1 < o.s and o.h == o.w and (o.h, o.w) == (o.P, o.Q) and o.u + o.v <= 2,
           x=lambda x, o: lay(nchw(x, o.L).swapaxes(2, 3), o.L),
           result=lambda y, o: back(nchw(y, o.L).swapaxes(2, 3), o.L, y.dtype)),
    # epsilon outside the root: dx divides by M where M - 1 is right.
    spoilt("edges-29-bn-outside-dx", BB, where=lambda o: o.eps_outside and o.M > 1,
           result=lambda out, o: (*o.again(eps_outside=False)[:2], *out[2:])),
    # asymmetric padding: the statistics leave out the last row of z.
    spoilt("edges-30-bn-padded-corner", BF, where=lambda o: o.pad[0][0] != o.pad[0][1] and o.P > 1,
           result=lambda out, o: (
               out[0], o.again(x=lay(nchw(o.i[0], o.L)[:, :, : max(o.h - o.u, 1)], o.L))[1], *out[2:])),
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
    # By a second author
    # even window with dilation: the taps are centred, so they lie one pixel too early in rows.
    spoilt("edges-03-even-window-dilated", F, where=lambda o: o.r % 2 == 0 and o.d > 1 and o.pad[0][1],
           asked=lambda o: {"padding": ((o.pad[0][0] + 1, o.pad[0][1] - 1), o.pad[1])}),
    # ceil mode: a last window that starts in the padding at the end is not left out (as in old frameworks), the result
    # has one row more.
    spoilt("edges-05-ceil-extra-window", MF,
           where=lambda o: o.ceil_mode and -(-(o.h + sum(o.pad[0]) - o.d * (o.r - 1) - 1) // o.u) + 1 > o.P,
           result=lambda y, o: one_row_more(y, o, "edge")),
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
