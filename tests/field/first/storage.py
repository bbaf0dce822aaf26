"""Class 2: wrong for some storage of an operand. Results for contiguous operands are right."""

import numpy as np

from tests.field._kit import *


@kernel(F)
def storage_01_x_any_view(right, i, p, o):
    """x that is not contiguous is read as if it were."""
    return right(put(i, 0, blind(i[0])), p)


@kernel(F, ALL, ("nchw",))
def storage_02_batch_stride(right, i, p, o):
    """a slice of channels of x: the distance of images is taken as c*h*w."""
    x, strides = i[0], dense(i[0])
    if x.strides[1:] == strides[1:] and x.strides[0] > strides[0] and o.n > 1:
        x = as_strided(x, x.shape, strides)
    return right(put(i, 0, x), p)


def rows_together(x):
    """Rows are as far apart as they are long."""
    return as_strided(x, x.shape, (*x.strides[:2], x.shape[3] * x.itemsize, x.itemsize))


@kernel(AF, layouts=("nchw",))
def storage_03_row_pitch(right, i, p, o):
    """a crop of columns: the distance of rows is taken as w."""
    x = i[0]
    apart = x.strides[3] == x.itemsize and x.strides[2] > o.w * x.itemsize and x.size
    return right([rows_together(x) if apart else x], p)


@kernel(F)
def storage_04_weights_transposed(right, i, p, o):
    """filters that are a transposed view are read in the order of memory."""
    w = i[1]
    return right(put(i, 1, blind(w) if span(w) == w.size else w), p)


@kernel(D)
def storage_05_dy_view_dx(right, i, p, o):
    """dy that is a view is read as if contiguous (the data path only)."""
    return right(put(i, 0, blind(i[0])), p)


@kernel(W, layouts=("nchw",))
def storage_06_dy_view_dw(right, i, p, o):
    """dy with rows apart by more than its width is read as if contiguous; x is read rightly."""
    dy = i[1]
    return right(put(i, 1, blind(dy) if dy.strides[2] > dy.shape[3] * dy.itemsize > 0 else dy), p)


@kernel(F, ALL, where=lambda o: o.t == "fp64")
def storage_07_fp64_view(right, i, p, o):
    """only in fp64: strided x is read as if contiguous."""
    return right(put(i, 0, blind(i[0])), p)


@kernel(D, where=lambda o: o.t == "bf16")
def storage_08_bf16_transposed_weights(right, i, p, o):
    """only in bf16: transposed filters are read in the order of memory."""
    return right(put(i, 1, blind(i[1])), p)


@kernel(F, where=lambda o: o.n > 1)
def storage_09_expanded_batch(right, i, p, o):
    """x with stride 0 over the batch: only the first image is computed."""
    y = right(i, p)
    return changed(y, o, S[1:]) if i[0].strides[0] == 0 else y


@kernel(MF)
def storage_10_storage_offset(right, i, p, o):
    """a view that does not begin where its buffer does is read from the beginning of the buffer."""
    x, base = i[0], i[0].base
    inside = isinstance(base, np.ndarray) and base.dtype == x.dtype and base.ctypes.data < x.ctypes.data
    if inside and base.flags.c_contiguous and x.flags.c_contiguous:
        x = base.ravel()[: x.size].reshape(x.shape)
    return right([x], p)


@kernel(F)
def storage_11_misaligned_16(right, i, p, o):
    """x that is not aligned to 16 bytes: the vector load begins at the boundary, values are shifted."""
    x = i[0]
    shift = x.ctypes.data % 16 // x.itemsize
    return right(put(i, 0, np.roll(x.ravel(), shift).reshape(x.shape) if shift and x.flags.c_contiguous else x), p)


@kernel(D, ("fp32", "fp16"))
def storage_12_misaligned_tail(right, i, p, o):
    """dy that is not aligned to 8 bytes: the last element is read as 0."""
    return right(put(i, 0, changed(i[0], o, S[-1:, -1:, -1:, -1:]) if i[0].ctypes.data % 8 else i[0]), p)


@kernel(F, layouts=("nchw",), where=lambda o: o.c > 1)
def storage_13_mixed_formats(right, i, p, o):
    """x in memory nhwc with w in memory nchw: w is read as if it were nhwc as well."""
    x, w = i[0], i[1]
    if x.strides[1] == x.itemsize < x.strides[3] and w.flags.c_contiguous:
        w = w.reshape(o.k, o.r, o.s, -1).transpose(0, 3, 1, 2)
    return right(put(i, 1, w), p)


@kernel(MB, layouts=("nchw",))
def storage_14_mixed_gradients(right, i, p, o):
    """dy in another memory order than x: dy is read in the order of x."""
    dy, x = i
    return right((blind(dy) if span(dy) == dy.size and x.flags.c_contiguous else dy, x), p)


@kernel(F)
def storage_15_negative_stride(right, i, p, o):
    """a flipped x (negative strides) is read unflipped."""
    return right(put(i, 0, unflipped(i[0])), p)


@kernel(F, ALL)
def storage_16_bias_strided(right, i, p, o):
    """a strided bias: neighbours in memory are added."""
    return right(put(i, 2, blind(i[2])), p)


@kernel(BF)
def storage_17_gamma_strided(right, i, p, o):
    """gamma that is a column of a matrix is read along the row."""
    return right(put(i, 2, blind(i[2])), p)


@kernel(BI)
def storage_18_running_var_expanded(right, i, p, o):
    """running_var expanded from one value (stride 0): all but the first channel read as 1."""
    var = i[5]
    return right(put(i, 5, changed(var, o, S[1:], 1) if var.strides[0] == 0 else var), p)


@kernel(AF, ("fp32", "fp16"), ("nchw",), where=lambda o: o.h > 1 and o.w > 1)
def storage_19_stepped_rows(right, i, p, o):
    """every second row of an image: the step is ignored."""
    x = i[0]
    apart = x.strides[3] == x.itemsize and x.strides[2] >= 2 * o.w * x.itemsize
    return right([rows_together(x) if apart else x], p)


@kernel(BB)
def storage_20_expanded_dy(right, i, p, o):
    """dy expanded from one element (the gradient of a sum): all but the first count as 0 in dx."""
    return right(put(i, 0, only_first(i[0]) if not any(i[0].strides) else i[0]), p)


@kernel(AB, layouts=("nchw",), where=lambda o: o.Q > 1)
def storage_21_expanded_columns_dy(right, i, p, o):
    """dy with stride 0 over its columns: only the first column is spread."""
    return right([changed(i[0], o, S[..., 1:]) if i[0].strides[3] == 0 else i[0]], p)


@kernel(F, layouts=("nchw",), where=lambda o: o.c == 1 and o.h == o.w)
def storage_22_one_channel_ambiguous(right, i, p, o):
    """one channel and strides of a view: taken for nhwc, rows and columns swap (square images)."""
    x = i[0]
    return right(put(i, 0, x if x.flags.c_contiguous else x.swapaxes(2, 3)), p)


@kernel(W, layouts=("nchw",), where=lambda o: o.n == 1 and o.c > 1)
def storage_23_one_image_batch_stride(right, i, p, o):
    """batch 1 in fp32: the stride of the batch, which means nothing, is used as the number of pixels of a channel."""
    x = i[0]
    return right(put(i, 0, np.roll(x, 1, 1) if x.strides[0] > dense(x)[0] and span(x) == x.size else x), p)


@kernel(F, where=lambda o: o.one and o.unpadded)
def storage_24_pointwise_view(right, i, p, o):
    """1x1 filters and no padding: the image goes to the matrix product as if contiguous."""
    return right(put(i, 0, blind(i[0])), p)


@kernel(F, where=lambda o: o.dw)
def storage_25_depthwise_weights_view(right, i, p, o):
    """depthwise: filters that are a slice of larger ones are read without their gaps."""
    return right(put(i, 1, blind(i[1])), p)


@kernel(MF, layouts=("nchw",), where=lambda o: o.w < 4096)
def storage_26_int16_stride(right, i, p, o):
    """a row stride of more than 2^15 bytes is cut to 16 bits: all rows read row 0."""
    x = i[0]
    return right([np.broadcast_to(x[:, :, :1], x.shape) if x.strides[2] >= 1 << 15 else x], p)


@kernel(W, where=lambda o: o.L == "nhwc")
def storage_27_x_view_dw_nhwc(right, i, p, o):
    """nhwc only: a slice of the channels of x is read with the pitch of c."""
    return right(put(i, 0, blind(i[0])), p)
