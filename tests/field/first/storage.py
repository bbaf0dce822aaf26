"""Class 2: wrong for some storage of an operand. Results for contiguous operands are right."""

import numpy as np

from tests.field._kit import *


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


@kernel(AF, ("fp32", "fp16"), ("nchw",), where=lambda o: o.h > 1 and o.w > 1)
def storage_19_stepped_rows(right, i, p, o):
    """every second row of an image: the step is ignored."""
    x = i[0]
    apart = x.strides[3] == x.itemsize and x.strides[2] >= 2 * o.w * x.itemsize
    return right([rows_together(x) if apart else x], p)


ROWS = [
    # x that is not contiguous is read as if it were.
    spoilt("storage-01-x-any-view", F, x=lambda x, o: blind(x)),
    # filters that are a transposed view are read in the order of memory.
    spoilt("storage-04-weights-transposed", F, w=lambda w, o: blind(w) if span(w) == w.size else w),
    # dy that is a view is read as if contiguous (the data path only).
    spoilt("storage-05-dy-view-dx", D, dy=lambda dy, o: blind(dy)),
    # dy with rows apart by more than its width is read as if contiguous; x is read rightly.
    spoilt("storage-06-dy-view-dw", W, layouts=("nchw",),
           dy=lambda dy, o: blind(dy) if dy.strides[2] > dy.shape[3] * dy.itemsize > 0 else dy),
    # only in fp64: strided x is read as if contiguous.
    spoilt("storage-07-fp64-view", F, ALL, where=lambda o: o.t == "fp64", x=lambda x, o: blind(x)),
    # only in bf16: transposed filters are read in the order of memory.
    spoilt("storage-08-bf16-transposed-weights", D, where=lambda o: o.t == "bf16", w=lambda w, o: blind(w)),
    # x with stride 0 over the batch: only the first image is computed.
    spoilt("storage-09-expanded-batch", F, where=lambda o: o.n > 1,
           result=lambda y, o: changed(y, o, S[1:]) if o.i[0].strides[0] == 0 else y),
    # dy that is not aligned to 8 bytes: the last element is read as 0.
    spoilt("storage-12-misaligned-tail", D, ("fp32", "fp16"),
           dy=lambda dy, o: changed(dy, o, S[-1:, -1:, -1:, -1:]) if dy.ctypes.data % 8 else dy),
    # a flipped x (negative strides) is read unflipped.
    spoilt("storage-15-negative-stride", F, x=lambda x, o: unflipped(x)),
    # a strided bias: neighbours in memory are added.
    spoilt("storage-16-bias-strided", F, ALL, bias=lambda bias, o: blind(bias)),
    # gamma that is a column of a matrix is read along the row.
    spoilt("storage-17-gamma-strided", BF, gamma=lambda gamma, o: blind(gamma)),
    # running_var expanded from one value (stride 0): all but the first channel read as 1.
    spoilt("storage-18-running-var-expanded", BI,
           running_var=lambda var, o: changed(var, o, S[1:], 1) if var.strides[0] == 0 else var),
    # dy expanded from one element (the gradient of a sum): all but the first count as 0 in dx.
    spoilt("storage-20-expanded-dy", BB, dy=lambda dy, o: only_first(dy) if not any(dy.strides) else dy),
    # dy with stride 0 over its columns: only the first column is spread.
    spoilt("storage-21-expanded-columns-dy", AB, layouts=("nchw",), where=lambda o: o.Q > 1,
           dy=lambda dy, o: changed(dy, o, S[..., 1:]) if dy.strides[3] == 0 else dy),
    # one channel and strides of a view: taken for nhwc, rows and columns swap (square images).
    spoilt("storage-22-one-channel-ambiguous", F, layouts=("nchw",), where=lambda o: o.c == 1 and o.h == o.w,
           x=lambda x, o: x if x.flags.c_contiguous else x.swapaxes(2, 3)),
    # batch 1 in fp32: the stride of the batch, which means nothing, is used as the number of pixels of a channel.
    spoilt("storage-23-one-image-batch-stride", W, layouts=("nchw",), where=lambda o: o.n == 1 and o.c > 1,
           x=lambda x, o: np.roll(x, 1, 1) if x.strides[0] > dense(x)[0] and span(x) == x.size else x),
    # 1x1 filters and no padding: the image goes to the matrix product as if contiguous.
    spoilt("storage-24-pointwise-view", F, where=lambda o: o.one and o.unpadded, x=lambda x, o: blind(x)),
    # depthwise: filters that are a slice of larger ones are read without their gaps.
    spoilt("storage-25-depthwise-weights-view", F, where=lambda o: o.dw, w=lambda w, o: blind(w)),
    # a row stride of more than 2^15 bytes is cut to 16 bits: all rows read row 0.
    spoilt("storage-26-int16-stride", MF, layouts=("nchw",), where=lambda o: o.w < 4096,
           x=lambda x, o: np.broadcast_to(x[:, :, :1], x.shape) if x.strides[2] >= 1 << 15 else x),
    # nhwc only: a slice of the channels of x is read with the pitch of c.
    spoilt("storage-27-x-view-dw-nhwc", W, where=lambda o: o.L == "nhwc", x=lambda x, o: blind(x)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
