"""Class 1: wrong only beyond a size."""

import numpy as np

from tests.field._kit import *


@kernel(F, where=lambda o: max(o.d, o.e) > 15)
def sizes_13_dilation_4_bits(o):
    """dilation > 15: kept in 4 bits."""
    low = (o.d % 16, o.e % 16)
    x = nchw(o.i[0], o.L)[:, :, : o.h - (o.r - 1) * (o.d - low[0]), : o.w - (o.s - 1) * (o.e - low[1])]
    if 0 in low or 0 in x.shape:
        return o.again() * o.i[0].dtype.type(0)
    return o.again(x=lay(x, o.L), dilation=low)


@kernel(F, where=lambda o: o.pad[0][0] > 3)
def sizes_14_padding_3(o):
    """padding at the top > 3: the rows of padding behind the third hold the first row of the image."""
    x, (top, bottom) = nchw(o.i[0], o.L), o.pad[0]
    x = np.concatenate([x[:, :, :1]] * (top - 3) + [np.zeros_like(x[:, :, :1])] * 3 + [x], 2)
    return o.again(x=lay(x, o.L), padding=((0, bottom), o.pad[1]))


@kernel(F, layouts=("nhwc",), where=lambda o: o.c == 3 and o.g == 1)
def sizes_21_rgb_as_four(o):
    """nhwc with 3 channels is read as vectors of 4: the fourth channel, of the next pixel, meets the first weight."""
    x, w, _ = o.i
    following = np.roll(x.reshape(-1, 3), -1, 0)[:, :1].reshape(*x.shape[:3], 1)
    return o.again(x=np.concatenate([x, following], 3), w=np.concatenate([w, w[..., :1] / w.dtype.type(64)], 3))


@kernel(BB, ("fp32",), where=lambda o: o.M > 4096 and o.affine)
def sizes_33_bn_reduce_4096(o):
    """N*P*Q > 4096: dgamma lacks the last partial sum of 1024 elements."""
    dx, dw, _, dbeta = o.again()
    return dx, dw, o.again(dy=pixels(o.i[0], o, S[o.M - (o.M % 1024 or 1024) :]))[2], dbeta


def behind(rows, columns, count):
    """Pixels of a plane but the first `count`."""
    return (np.arange(rows * columns) >= count).reshape(rows, columns)


def in_fp16(count):
    """Indices as fp16 holds them."""
    return np.minimum(np.arange(count).astype(np.float16).astype(int), count - 1)


def next_beta(o):
    return nchw(o.again(beta=np.roll(o.i[3], -1)), o.L)


def wrapped_at_128(o):
    """Channels of each group, as an int8 counts them."""
    return np.arange(o.g)[:, None] * (o.c // o.g) + np.arange(o.c // o.g) % 128


def mod_64(v, o):
    return v if v is None else v[np.arange(o.k) % 64]


ROWS = [
    # n*c*rows of output > 65535: the launch grid is clamped, the rows behind stay 0.
    spoilt("sizes-01-grid-65535", MF, ("fp32",), where=lambda o: o.L == "nchw",
           result=lambda y, o: reshaped(y, (-1, o.Q), S[65535:])),
    # more than 32 groups: group index & 31 picks the filters.
    spoilt("sizes-05-groups-mask-31", F, where=lambda o: o.g > 32,
           w=lambda w, o: w.reshape(o.g, o.k // o.g, *w.shape[1:])[np.arange(o.g) % 32].reshape(w.shape)),
    # more than 127 rows of dx: the row is an int8; rows from 128 on get what row - 256 + h has.
    spoilt("sizes-06-rows-int8", D, result=lambda dx, o: changed(
        dx, o, S[:], lambda dx: dx[:, :, np.clip(np.arange(o.h).astype(np.int8).astype(int), -o.h, o.h - 1)])),
    # output plane > 4096: the blocked path of 256 pixels drops the tail.
    spoilt("sizes-08-plane-tail-4096", F, ("fp32",), ("nchw",), where=lambda o: o.P * o.Q > 4096 and o.P * o.Q % 256,
           result=lambda y, o: changed(y, o, S[:, :, behind(o.P, o.Q, o.P * o.Q // 256 * 256)])),
    # stride of columns > 3: kept in two bits, the origin of a window is column * (stride & 3), clamped to the image.
    spoilt("sizes-12-stride-2-bits", F, where=lambda o: o.v > 3 and o.s == 1 and not any(o.pad[1]),
           asked=lambda o: {"stride": (o.u, 1)},
           result=lambda y, o: back(nchw(y, o.L)[:, :, :, np.arange(o.Q) * (o.v & 3)], o.L, y.dtype)),
    # more than 2048 columns: the column where a window starts is computed in fp16.
    spoilt("sizes-16-fp16-columns", MF, ("fp16", "bf16"),
           result=lambda y, o: changed(y, o, S[:], lambda y: y[:, :, :, in_fp16(o.Q)])),
    # N*P*Q > 32767: a partial of the sum over pixels has a negative index and is lost.
    spoilt("sizes-22-dw-int16", W, where=lambda o: o.M > 32767,
           result=lambda out, o: with_first(out, first(o.again(dy=pixels(o.i[1], o, S[32767:]))))),
    # h*w > 32767: positions in int16, gradients behind are lost.
    spoilt("sizes-25-maxpool-position-int16", MB, where=lambda o: o.h * o.w > 32767,
           result=lambda dx, o: changed(dx, o, S[:, :, behind(o.h, o.w, 32768)])),
    # more than 65535 elements of dw: the rest is 0.
    spoilt("sizes-35-dw-elements-65535", W, ("fp32",), ("nchw",), result=lambda out, o: reshaped(out, -1, S[65535:])),
    # groups of more than 16 channels: the tile of 16 leaves out the channels c % 16 of every group.
    spoilt("sizes-38-group-channels-17", D, where=lambda o: o.g > 1 and o.c // o.g > 16 and o.c // o.g % 16,
           result=lambda dx, o: changed(dx, o, S[:, np.arange(o.c) % (o.c // o.g) >= o.c // o.g // 16 * 16])),
    # planes of more than 16384 pixels: beta of the next filter for those behind.
    spoilt("sizes-39-inference-plane-16384", BI, where=lambda o: o.P * o.Q > 16384 and o.affine,
           result=lambda y, o: changed(y, o, S[:, :, behind(o.P, o.Q, 16384)],
                                       lambda _: next_beta(o)[:, :, behind(o.P, o.Q, 16384)])),
    # batch of more than 32 and not a multiple of 32: the tail of the batch has the last full block's results.
    spoilt("sizes-40-batch-tail-32", AF, where=lambda o: o.n > 32 and o.n % 32,
           result=lambda y, o: changed(y, o, S[-(o.n % 32) :], lambda y: y[o.n - o.n % 32 - 32 : o.n - 32].copy())),
    # batch > 256: the image index is a uint8, image 256 reads image 0.
    spoilt("sizes-02-batch-uint8", F, x=lambda x, o: x[np.arange(o.n) % 256]),
    # more than 512 channels of a group: those behind the tile of 512 are not added.
    spoilt("sizes-03-channels-512", F, w=lambda w, o: changed(w, o, S[:, 512:])),
    # filters > 64 and not a multiple of 8: the tail of k % 8 filters stays 0.
    spoilt("sizes-04-filters-tail-64", F, ("fp32", "fp16"), where=lambda o: o.k > 64 and o.k % 8,
           result=lambda y, o: changed(y, o, S[:, o.k - o.k % 8 :])),
    # more than 256 columns of output: column index in uint8.
    spoilt("sizes-07-columns-uint8", AF, ALL,
           result=lambda y, o: changed(y, o, S[:], lambda y: y[:, :, :, np.arange(o.Q) % 256])),
    # window with more than 7 rows: rows of dw from the 8th on stay 0.
    spoilt("sizes-09-window-rows-7", W, result=lambda y, o: changed(y, o, S[:, :, 7:])),
    # window of more than 32 taps: the mask has 32 bits, later taps are not added.
    spoilt("sizes-10-window-mask-32", AF, by={"window": 32}),
    # window of more than 256 elements: the position of the maximum is kept in a byte.
    spoilt("sizes-11-argmax-uint8", MB, ("fp32",), by={"kept": lambda index: np.where(index < 0, -1, index % 256)}),
    # channels*window > 1152: what does not fit the buffer of 1152 taps is not added.
    spoilt("sizes-15-im2col-1152", F, w=lambda w, o: flat(w, o, S[1152:])),
    # N*P*Q > 65535: the count is a uint16, the mean is divided by the wrong number.
    spoilt("sizes-17-count-uint16", BF, where=lambda o: o.M > 65535 and o.M % 65536,
           result=lambda y, o: changed(y, o, S[:], lambda mean: mean * (o.M / (o.M % 65536)), at=1)),
    # fp16 and N*P*Q > 2048 and odd: the count is rounded to fp16, the variance is slightly off.
    spoilt("sizes-18-count-fp16", BF, ("fp16",), where=lambda o: o.M > 2048,
           result=lambda y, o: changed(y, o, S[:], lambda var: var * (o.M / float(np.float16(min(o.M, 65504)))), at=2)),
    # images of one row take a 1-d path that keeps the first row of the window instead of that on the image.
    spoilt("sizes-19-one-row-path", F, where=lambda o: o.h == 1 and o.r > 1,
           w=lambda w, o: changed(w, o, S[:], lambda w: w[:, :, :1].copy())),
    # images of one column: dw for the columns of the window beside it gets the centre's value.
    spoilt("sizes-20-one-column-path", W, where=lambda o: o.w == 1 and o.s > 1,
           result=lambda y, o: changed(y, o, S[:], lambda dw: dw[:, :, :, o.s // 2, None].copy())),
    # more than 1024 filters: dbias has one block of 1024 threads, the rest is 0.
    spoilt("sizes-23-dbias-1024", W, where=lambda o: o.with_bias, result=lambda y, o: changed(y, o, S[1024:], at=1)),
    # more than 256 filters: gamma of channel k % 256.
    spoilt("sizes-24-gamma-256", BI, where=lambda o: o.affine, gamma=lambda gamma, o: gamma[np.arange(o.k) % 256]),
    # one filter and an odd number of channels > 1: unrolled by two, the last channel is missing.
    spoilt("sizes-26-one-filter-odd", F, where=lambda o: o.k == o.g == 1 and o.c % 2 and o.c > 1,
           w=lambda w, o: changed(w, o, S[:, -1:])),
    # output 1x1: a matrix product with the unpadded image, aligned at its corner.
    spoilt("sizes-27-one-pixel-out", F,
           where=lambda o: o.P * o.Q <= 1 and (o.pad[0][0] or o.pad[1][0]) and o.d + o.e <= 2,
           asked=lambda o: {"padding": [(0, sum(pad)) for pad in o.pad]}),
    # fp64 and batch 1 and more than 64 channels of w: the last channel of dx is doubled.
    spoilt("sizes-28-batch-1-fp64", D, ("fp64",), where=lambda o: o.n == 1 and o.c > 64,
           result=lambda y, o: changed(y, o, S[:, -1:], lambda dx: dx[:, -1:] * 2)),
    # more than 32 rows of dx and not a multiple of 4: the last rows of the block lack their gradient.
    spoilt("sizes-29-rows-tail-blocked", AB, where=lambda o: o.h > 32 and o.h % 4,
           result=lambda y, o: changed(y, o, S[:, :, o.h - o.h % 4 :])),
    # more than 2^17 elements of x: the last element of x is not read.
    spoilt("sizes-30-elements-2-17", F, ("fp32",), where=lambda o: o.size > 1 << 17,
           x=lambda x, o: changed(x, o, S[-1, -1, -1, -1])),
    # fewer than 8 elements per channel: the mean of dy is not subtracted.
    spoilt("sizes-31-bn-few-elements", BB, ("fp32",), where=lambda o: o.M < 8,
           result=lambda y, o: changed(y, o, S[:], lambda dx: dx * np.float32(1.5))),
    # window with more than 16 columns: a column of the filter is kept in 4 bits, the 17th is the first again.
    spoilt("sizes-32-window-columns-16", F,
           w=lambda w, o: changed(w, o, S[:], lambda w: w[:, :, :, np.arange(o.s) % 16])),
    # nhwc with more than 64 channels: a block of 64 threads, later channels get no gradient.
    spoilt("sizes-34-maxpool-grad-channels-64", MB, where=lambda o: o.L == "nhwc",
           result=lambda y, o: changed(y, o, S[:, 64:])),
    # dilation * (window - 1) of 64 or more rows: the halo holds 64, the last tap is lost.
    spoilt("sizes-36-reach-64", D, where=lambda o: o.d * (o.r - 1) >= 64, w=lambda w, o: changed(w, o, S[:, :, -1])),
    # more than 1024 columns of dx: the last column of each block of 1024 threads has its gradient twice.
    spoilt("sizes-37-columns-1024", AB, ("fp32", "fp16"), where=lambda o: o.w > 1024,
           result=lambda y, o: changed(y, o, S[:, :, :, 1023::1024], lambda dx: dx[:, :, :, 1023::1024] * 2)),
    # By a second author
    # more than 127 channels per group: channel offsets in int8 wrap, the rest is read from the start.
    spoilt("sizes-01-channels-int8", F, where=lambda o: o.c // o.g > 127,
           x=lambda x, o: lay(nchw(x, o.L)[:, wrapped_at_128(o).ravel()], o.L)),
    # batch*channels above 65535 (grid.y limit): planes from 65535 on are those of plane 0.
    spoilt("sizes-03-batch-65535", AF, ("fp32",), ("nchw",),
           result=lambda y, o: reshaped(y, (o.n * o.c, o.P, o.Q), S[65535:], lambda planes: planes[:1])),
    # N*P*Q above 4096: the element count is kept in fp16 and rounds (5041 -> 5040), in the returned mean and var only.
    spoilt("sizes-04-stats-fp32-count", BF, where=lambda o: o.M > 4096, result=lambda out, o: (
        out[0], *(a * np.float32(o.M / np.float32(np.float16(o.M))) for a in out[1:3]), *out[3:])),
    # dilation of more than 7 in rows: it was packed in three bits and becomes dilation mod 8 + 8*0.
    spoilt("sizes-07-dilation-uint4", F, ("fp32",), where=lambda o: o.d > 7,
           asked=lambda o: {"dilation": (max(o.d & 7, 1), o.e)},
           result=lambda y, o: back(nchw(y, o.L)[:, :, : o.P], o.L, y.dtype)),
    # a window of more than 255 elements: the divisor is counted in uint8.
    spoilt("sizes-08-pool-window-255", AF, where=lambda o: o.r * o.s > 255, result=lambda y, o: (
        y.astype(np.float32) * np.float32(o.r * o.s / (o.r * o.s & 255 or 256))).astype(y.dtype)),
    # planes of more than 32767 elements: the argmax is stored as int16; gradients of later pixels are lost.
    spoilt("sizes-09-maxpool-index-int16", MB, ("fp32",), ("nchw",), where=lambda o: o.h * o.w > 32767,
           result=lambda dx, o: changed(dx, o, S[:, :, behind(o.h, o.w, 32768)])),
    # more than 2^16 input elements per image in fp16 indexing of columns: output columns above 2048 are read one
    # column off when odd.
    spoilt("sizes-12-fp32-index", F, ("fp32",), ("nchw",), where=lambda o: o.Q > 2048,
           result=lambda y, o: changed(y, o, S[:], lambda y: y[:, :, :, in_fp16(o.Q)])),
    # more than 64 filters and less than 8 channels: scale and shift of filter k are those of k % 64.
    spoilt("sizes-14-filters-mod", BI, ("fp32", "fp16"), where=lambda o: o.k > 64 and o.c < 8,
           **dict.fromkeys(("gamma", "beta", "running_mean", "running_var"), mod_64)),
    # more than 256 output rows: the tail of a block of 256 rows is never written (stays 0).
    spoilt("sizes-02-rows-blocked-256", F, ("fp32", "fp16"), where=lambda o: o.P > 256,
           result=lambda y, o: changed(y, o, S[:, :, o.P // 256 * 256 :])),
    # N*P*Q of at least 1024 that is no multiple of 32: the last partial chunk of pixels is dropped.
    spoilt("sizes-05-dw-long-tail", W, where=lambda o: o.M >= 1024,
           dy=lambda dy, o: pixels(dy, o, S[o.M // 32 * 32 :])),
    # windows of more than 7 columns: columns from the eighth on are not multiplied (fixed register array).
    spoilt("sizes-06-kernel-over-7", F, w=lambda w, o: changed(w, o, S[:, :, :, 7:])),
    # input of one row: treated as one column (strides of rows and columns swapped in the 1-D shortcut).
    spoilt("sizes-10-one-row", D, ("fp32", "fp64"), where=lambda o: o.h == 1 and o.u != o.v,
           result=lambda y, o: changed(y, o, S[:], lambda dx: np.roll(dx, 1, 3))),
    # stride of 4 and more: the modulo of the scatter uses two bits, gradients of rows go one row too far.
    spoilt("sizes-13-stride-above-window-3", AB, where=lambda o: o.u > 4,
           result=lambda y, o: changed(y, o, S[:], lambda dx: np.roll(dx, 1, 2))),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
