"""Class 1: wrong only beyond a size."""

import numpy as np

from tests.field._kit import *


@kernel(MF, ("fp32",), where=lambda o: o.L == "nchw")
def sizes_01_grid_65535(right, i, p, o):
    """n*c*rows of output > 65535: the launch grid is clamped, the rows behind stay 0."""
    y = right(i, p)
    y.reshape(-1, o.Q)[65535:] = 0
    return y


@kernel(F, where=lambda o: o.g > 32)
def sizes_05_groups_mask_31(right, i, p, o):
    """more than 32 groups: group index & 31 picks the filters."""
    size = o.k // o.g
    index = (np.arange(o.g) % 32)[:, None] * size + np.arange(size)
    return right(put(i, 1, i[1][index.ravel()]), p)


@kernel(D)
def sizes_06_rows_int8(right, i, p, o):
    """more than 127 rows of dx: the row is an int8; rows from 128 on get what row - 256 + h has."""
    rows = np.clip(np.arange(o.h).astype(np.int8).astype(int), -o.h, o.h - 1)
    return changed(right(i, p), o, S[:], lambda y: y[:, :, rows])


@kernel(F, ("fp32",), ("nchw",), where=lambda o: o.P * o.Q > 4096 and o.P * o.Q % 256)
def sizes_08_plane_tail_4096(right, i, p, o):
    """output plane > 4096: the blocked path of 256 pixels drops the tail."""
    y, plane = right(i, p), o.P * o.Q
    y.reshape(o.n, o.k, plane)[:, :, plane - plane % 256 :] = 0
    return y


@kernel(F, where=lambda o: o.v > 3 and o.s == 1 and not any(o.pad[1]))
def sizes_12_stride_2_bits(right, i, p, o):
    """stride of columns > 3: kept in two bits, the origin of a window is column * (stride & 3), clamped to the
    image."""
    every = nchw(right(i, {**p, "stride": (o.u, 1)}), o.L)
    return back(every[:, :, :, np.arange(o.Q) * (o.v & 3)], o.L, i[0].dtype)


@kernel(F, where=lambda o: max(o.d, o.e) > 15)
def sizes_13_dilation_4_bits(right, i, p, o):
    """dilation > 15: kept in 4 bits."""
    low = (o.d % 16, o.e % 16)
    x = nchw(i[0], o.L)[:, :, : o.h - (o.r - 1) * (o.d - low[0]), : o.w - (o.s - 1) * (o.e - low[1])]
    if 0 in low or 0 in x.shape:
        return right(i, p) * i[0].dtype.type(0)
    return right(put(i, 0, lay(x, o.L)), {**p, "dilation": low})


@kernel(F, where=lambda o: o.pad[0][0] > 3)
def sizes_14_padding_3(right, i, p, o):
    """padding at the top > 3: the rows of padding behind the third hold the first row of the image."""
    x, (top, bottom) = nchw(i[0], o.L), o.pad[0]
    x = np.concatenate([x[:, :, :1]] * (top - 3) + [np.zeros_like(x[:, :, :1])] * 3 + [x], 2)
    return right(put(i, 0, lay(x, o.L)), {**p, "padding": ((0, bottom), o.pad[1])})


@kernel(MF, ("fp16", "bf16"))
def sizes_16_fp16_columns(right, i, p, o):
    """more than 2048 columns: the column where a window starts is computed in fp16."""
    columns = np.minimum(np.arange(o.Q).astype(np.float16).astype(int), o.Q - 1)
    return changed(right(i, p), o, S[:], lambda y: y[:, :, :, columns])


@kernel(F, layouts=("nhwc",), where=lambda o: o.c == 3 and o.g == 1)
def sizes_21_rgb_as_four(right, i, p, o):
    """nhwc with 3 channels is read as vectors of 4: the fourth channel, of the next pixel, meets the first weight."""
    x, w, bias = i
    following = np.roll(x.reshape(-1, 3), -1, 0)[:, :1].reshape(*x.shape[:3], 1)
    return right([np.concatenate([x, following], 3), np.concatenate([w, w[..., :1] / w.dtype.type(64)], 3), bias], p)


@kernel(W, where=lambda o: o.M > 32767)
def sizes_22_dw_int16(right, i, p, o):
    """N*P*Q > 32767: a partial of the sum over pixels has a negative index and is lost."""
    return with_first(right(i, p), first(right(put(i, 1, pixels(i[1], o, S[32767:])), p)))


@kernel(MB, where=lambda o: o.h * o.w > 32767)
def sizes_25_maxpool_position_int16(right, i, p, o):
    """h*w > 32767: positions in int16, gradients behind are lost."""
    dx = right(i, p)
    dx = np.array(nchw(dx, o.L), order="C")
    dx.reshape(o.n, o.c, -1)[:, :, 32768:] = 0
    return back(dx, o.L, dx.dtype)


@kernel(BB, ("fp32",), where=lambda o: o.M > 4096 and o.affine)
def sizes_33_bn_reduce_4096(right, i, p, o):
    """N*P*Q > 4096: dgamma lacks the last partial sum of 1024 elements."""
    dx, dw, _, dbeta = right(i, p)
    return dx, dw, right(put(i, 0, pixels(i[0], o, S[o.M - (o.M % 1024 or 1024) :])), p)[2], dbeta


@kernel(W, ("fp32",), ("nchw",))
def sizes_35_dw_elements_65535(right, i, p, o):
    """more than 65535 elements of dw: the rest is 0."""
    out = right(i, p)
    first(out).reshape(-1)[65535:] = 0
    return out


@kernel(D, where=lambda o: o.g > 1 and o.c // o.g > 16 and o.c // o.g % 16)
def sizes_38_group_channels_17(right, i, p, o):
    """groups of more than 16 channels: the tile of 16 leaves out the channels c % 16 of every group."""
    size = o.c // o.g
    return changed(right(i, p), o, S[:, np.arange(o.c) % size >= size - size % 16])


@kernel(BI, where=lambda o: o.P * o.Q > 16384 and o.affine)
def sizes_39_inference_plane_16384(right, i, p, o):
    """planes of more than 16384 pixels: beta of the next filter for those behind."""
    following = nchw(right(put(i, 3, np.roll(i[3], -1)), p), o.L)
    behind = (np.arange(o.P * o.Q) >= 16384).reshape(o.P, o.Q)
    return changed(right(i, p), o, S[:, :, behind], following[:, :, behind])


@kernel(AF, where=lambda o: o.n > 32 and o.n % 32)
def sizes_40_batch_tail_32(right, i, p, o):
    """batch of more than 32 and not a multiple of 32: the tail of the batch has the last full block's results."""
    y, tail = right(i, p), o.n % 32
    y[-tail:] = y[o.n - tail - 32 : o.n - 32]
    return y


ROWS = [
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
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
