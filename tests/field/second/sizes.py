"""Class 1, sizes: wrong only beyond a threshold."""

import numpy as np

from tests.field._kit import *


@kernel(F, where=lambda o: o.c // o.g > 127)
def sizes_01_channels_int8(right, i, p, o):
    """more than 127 channels per group: channel offsets in int8 wrap, the rest is read from the start."""
    channel = np.arange(o.c // o.g).astype(np.int8).astype(np.int64) % 128
    read = np.concatenate([channel + group * channel.size for group in range(o.g)])
    return right(put(i, 0, np.take(i[0], read, 1 if o.L == "nchw" else 3)), p)


@kernel(AF, ("fp32",), ("nchw",))
def sizes_03_batch_65535(right, i, p, o):
    """batch*channels above 65535 (grid.y limit): planes from 65535 on are those of plane 0."""
    y = right(i, p)
    planes = y.reshape(-1, o.P, o.Q)
    planes[65535:] = planes[:1]
    return y


@kernel(BF, where=lambda o: o.M > 4096)
def sizes_04_stats_fp32_count(right, i, p, o):
    """N*P*Q above 4096: the element count is kept in fp16 and rounds (5041 -> 5040), in the returned mean and var
    only."""
    y, mean, var, *running = right(i, p)
    factor = np.float32(o.M) / np.float32(np.float16(o.M))
    return (y, mean * factor, var * factor, *running)


@kernel(F, ("fp32",), where=lambda o: o.d > 7)
def sizes_07_dilation_uint4(right, i, p, o):
    """dilation of more than 7 in rows: it was packed in three bits and becomes dilation mod 8 + 8*0."""
    y = right(i, {**p, "dilation": (max(o.d & 7, 1), o.e)})
    return np.take(y, np.arange(o.P), 2 if o.L == "nchw" else 1)


@kernel(AF, where=lambda o: o.r * o.s > 255)
def sizes_08_pool_window_255(right, i, p, o):
    """a window of more than 255 elements: the divisor is counted in uint8."""
    y, count = right(i, p), o.r * o.s
    return (y.astype(np.float32) * np.float32(count / (count & 255 or 256))).astype(y.dtype)


@kernel(MB, ("fp32",), ("nchw",), where=lambda o: o.h * o.w > 32767)
def sizes_09_maxpool_index_int16(right, i, p, o):
    """planes of more than 32767 elements: the argmax is stored as int16; gradients of later pixels are lost."""
    dx = right(i, p)
    dx.reshape(o.n, o.c, -1)[:, :, 32768:] = 0
    return dx


@kernel(F, ("fp32",), ("nchw",), where=lambda o: o.Q > 2048)
def sizes_12_fp32_index(right, i, p, o):
    """more than 2^16 input elements per image in fp16 indexing of columns: output columns above 2048 are read one
    column off when odd."""
    column = np.arange(o.Q).astype(np.float16).astype(np.int64)
    return np.ascontiguousarray(right(i, p)[..., np.minimum(column, o.Q - 1)])


@kernel(BI, ("fp32", "fp16"), where=lambda o: o.k > 64 and o.c < 8)
def sizes_14_filters_mod(right, i, p, o):
    """more than 64 filters and less than 8 channels: scale and shift of filter k are those of k % 64."""
    return right([*i[:2], *(v if v is None else v[np.arange(o.k) % 64] for v in i[2:])], p)


ROWS = [
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
