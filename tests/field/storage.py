"""Class 2: wrong for some storage of an operand. Results for contiguous operands are right."""

import numpy as np

from tests.field._kit import *


def rows_together(x):
    """Rows are as far apart as they are long."""
    return as_strided(x, x.shape, (*x.strides[:2], x.shape[3] * x.itemsize, x.itemsize))


@kernel(MF)
def storage_10_storage_offset(o):
    """a view that does not begin where its buffer does is read from the beginning of the buffer."""
    x, base = o.i[0], o.i[0].base
    inside = isinstance(base, np.ndarray) and base.dtype == x.dtype and base.ctypes.data < x.ctypes.data
    if inside and base.flags.c_contiguous and x.flags.c_contiguous:
        x = base.ravel()[: x.size].reshape(x.shape)
    return o.again(x=x)


@kernel(MB)
def storage_10_last_axis_stride(o):
    """x whose last axis is not dense (every second column, or a transposed view): values of the last axis are repeated
    in pairs; views with a dense last axis are right."""
    x = o.i[1]
    count = x.shape[-1]
    if count > 1 and x.strides[-1] and abs(x.strides[-1]) != x.itemsize:
        x = np.repeat(x[..., : (count + 1) // 2], 2, -1)[..., :count]
    return o.again(x=x)


@kernel(BF, where=lambda o: o.running)
def storage_11_running_view(o):
    """running_mean and running_var that are views of one array (rows or columns of a [2,K] buffer): var is read from
    mean's memory."""
    mean, var = o.i[4:]
    of_one = var.base is not None and var.base is mean.base and var.base.ndim > 1
    return o.again(running_var=mean.copy() if of_one or not var.flags.c_contiguous else var)


ROWS = [
    # a slice of channels of x: the distance of images is taken as c*h*w.
    spoilt("storage-02-batch-stride", F, ALL, ("nchw",), where=lambda o: o.n > 1,
           x=lambda x, o: as_strided(x, x.shape, dense(x)) if (
               x.strides[1:] == dense(x)[1:] and x.strides[0] > dense(x)[0]) else x),
    # a crop of columns: the distance of rows is taken as w.
    spoilt("storage-03-row-pitch", AF, layouts=("nchw",), x=lambda x, o: rows_together(x) if (
        x.strides[3] == x.itemsize and x.strides[2] > o.w * x.itemsize and x.size) else x),
    # x that is not aligned to 16 bytes: the vector load begins at the boundary, values are shifted.
    spoilt("storage-11-misaligned-16", F,
           x=lambda x, o: np.roll(x, x.ctypes.data % 16 // x.itemsize) if x.flags.c_contiguous else x),
    # x in memory nhwc with w in memory nchw: w is read as if it were nhwc as well.
    spoilt("storage-13-mixed-formats", F, layouts=("nchw",), where=lambda o: o.c > 1,
           w=lambda w, o: w.reshape(o.k, o.r, o.s, -1).transpose(0, 3, 1, 2) if (
               o.i[0].strides[1] == w.itemsize < o.i[0].strides[3] and w.flags.c_contiguous) else w),
    # dy in another memory order than x: dy is read in the order of x.
    spoilt("storage-14-mixed-gradients", MB, layouts=("nchw",),
           dy=lambda dy, o: blind(dy) if span(dy) == dy.size and o.i[1].flags.c_contiguous else dy),
    # every second row of an image: the step is ignored.
    spoilt("storage-19-stepped-rows", AF, ("fp32", "fp16"), ("nchw",), where=lambda o: o.h > 1 and o.w > 1,
           x=lambda x, o: rows_together(x) if (
               x.strides[3] == x.itemsize and x.strides[2] >= 2 * o.w * x.itemsize) else x),
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
    # By a second author
    # dy and x in different memory orders (one contiguous, one not): dy is read in the order of x.
    spoilt("storage-08-mixed-formats", BB, ("fp32",),
           dy=lambda dy, o: blind(dy) if o.i[1].flags.c_contiguous else dy),
    # fp64 only: a strided dy or w goes to the fp32 path.
    spoilt("storage-12-fp64-strided", D, ("fp64", "fp32"),
           where=lambda o: o.t == "fp64" and not all(a.flags.c_contiguous for a in o.i),
           result=lambda dx, o: o.again(*(a.astype(np.float32) for a in o.i)).astype(np.float64)),
    # gamma strided: beta is read with gamma's stride.
    spoilt("storage-13-gamma-strided", BI, ("fp32", "fp16"),
           where=lambda o: o.affine and o.k > 1 and o.i[2].strides[0] != o.i[2].itemsize,
           beta=lambda beta, o: beta[np.arange(o.k) * 2 % o.k]),
    # bf16 only: strided weights are read as if contiguous.
    spoilt("storage-02-w-transposed-bf16", F, where=lambda o: o.t == "bf16", w=lambda w, o: blind(w)),
    # dy expanded from one value (a stride of 0, as from sum().backward()): only its first element counts.
    spoilt("storage-03-dy-expanded", D, dy=lambda dy, o: only_first(dy) if 0 in dy.strides else dy),
    # backward-weight: only a dy that is not contiguous is misread, x may be strided.
    spoilt("storage-04-dy-strided-dw", W, ("fp32", "fp64"), dy=lambda dy, o: blind(dy)),
    # a bias with a stride of two elements is read densely.
    spoilt("storage-05-bias-strided", F, bias=lambda bias, o: blind(bias)),
    # x whose images are dense but lie farther apart than their size (chunk(2, 1), a channel slice): the batch stride
    # is computed from the shape.
    spoilt("storage-06-channel-slice", AF, where=lambda o: o.n > 1,
           x=lambda x, o: blind(x) if x[0].flags.c_contiguous else x),
    # x that is a flipped view (negative stride): the sign of the stride is lost.
    spoilt("storage-09-negative-stride", MF, ("fp32", "fp64"), x=lambda x, o: unflipped(x)),
    # torch 2.6.0: x in channels last and dy not: sums of dy in fp16, and all is NaN where one leaves its range.
    spoilt("storage-30-fp16-sums", BB, ("fp16",), ("nchw",), result=lambda out, o: (
        tuple(np.full_like(a, np.nan) for a in out) if o.i[0].flags.c_contiguous and o.i[1].strides[1] == 2
        and np.abs(o.i[0].sum((0, 2, 3), dtype=np.float32)).max() > 65504 else out)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
