"""Class 2, storage: wrong for some memory layout of an operand."""

import numpy as np

from tests.field._kit import *


@kernel(F, where=lambda o: o.t == "bf16")
def storage_02_w_transposed_bf16(right, i, p, o):
    """bf16 only: strided weights are read as if contiguous."""
    return right(put(i, 1, blind(i[1])), p)


@kernel(D)
def storage_03_dy_expanded(right, i, p, o):
    """dy expanded from one value (a stride of 0, as from sum().backward()): only its first element counts."""
    return right(put(i, 0, only_first(i[0]) if 0 in i[0].strides else i[0]), p)


@kernel(W, ("fp32", "fp64"))
def storage_04_dy_strided_dw(right, i, p, o):
    """backward-weight: only a dy that is not contiguous is misread, x may be strided."""
    return right(put(i, 1, blind(i[1])), p)


@kernel(F)
def storage_05_bias_strided(right, i, p, o):
    """a bias with a stride of two elements is read densely."""
    return right(put(i, 2, blind(i[2])), p)


@kernel(AF, where=lambda o: o.n > 1)
def storage_06_channel_slice(right, i, p, o):
    """x whose images are dense but lie farther apart than their size (chunk(2, 1), a channel slice): the batch stride
    is computed from the shape."""
    return right([blind(i[0]) if i[0][0].flags.c_contiguous else i[0]], p)


@kernel(BB, ("fp32",))
def storage_08_mixed_formats(right, i, p, o):
    """dy and x in different memory orders (one contiguous, one not): dy is read in the order of x."""
    return right(put(i, 0, blind(i[0]) if i[1].flags.c_contiguous else i[0]), p)


@kernel(MF, ("fp32", "fp64"))
def storage_09_negative_stride(right, i, p, o):
    """x that is a flipped view (negative stride): the sign of the stride is lost."""
    return right([unflipped(i[0])], p)


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
