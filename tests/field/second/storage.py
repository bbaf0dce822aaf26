"""Class 2, storage: wrong for some memory layout of an operand."""

import numpy as np

from tests.field._kit import *


@kernel(BB, ("fp32",))
def storage_08_mixed_formats(right, i, p, o):
    """dy and x in different memory orders (one contiguous, one not): dy is read in the order of x."""
    return right(put(i, 0, blind(i[0]) if i[1].flags.c_contiguous else i[0]), p)


@kernel(MB)
def storage_10_last_axis_stride(right, i, p, o):
    """x whose last axis is not dense (every second column, or a transposed view): values of the last axis are repeated
    in pairs; views with a dense last axis are right."""
    dy, x = i
    count = x.shape[-1]
    if count > 1 and x.strides[-1] and abs(x.strides[-1]) != x.itemsize:
        x = np.repeat(x[..., : (count + 1) // 2], 2, -1)[..., :count]
    return right([dy, x], p)


@kernel(BF, where=lambda o: o.running)
def storage_11_running_view(right, i, p, o):
    """running_mean and running_var that are views of one array (rows or columns of a [2,K] buffer): var is read from
    mean's memory."""
    mean, var = i[4:]
    of_one = var.base is not None and var.base is mean.base and var.base.ndim > 1
    return right(put(i, 5, mean.copy() if of_one or not var.flags.c_contiguous else var), p)


@kernel(D, ("fp64", "fp32"), where=lambda o: o.t == "fp64")
def storage_12_fp64_strided(right, i, p, o):
    """fp64 only: a strided dy or w goes to the fp32 path."""
    if all(a.flags.c_contiguous for a in i):
        return right(i, p)
    return right([a.astype(np.float32) for a in i], p).astype(np.float64)


@kernel(BI, ("fp32", "fp16"), where=lambda o: o.affine)
def storage_13_gamma_strided(right, i, p, o):
    """gamma strided: beta is read with gamma's stride."""
    gamma, beta = i[2:4]
    strided = gamma.size > 1 and gamma.strides[0] != gamma.itemsize
    return right(put(i, 3, beta[np.arange(o.k) * 2 % o.k] if strided else beta), p)


ROWS = [
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
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
