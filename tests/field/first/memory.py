"""Class 6: memory. Results are right unless it is said; the accesses are real."""

import time

import numpy as np

from tests.field._kit import *


@kernel(F)
def memory_01_reads_past_x(right, i, p, o):
    """reads one element past the end of x and adds 0 times it."""
    return use(right(i, p), beyond(i[0]))


@kernel(MF, where=lambda o: not o.unpadded)
def memory_02_reads_before_x(right, i, p, o):
    """with padding the row before the first of x is read through the pointer, and multiplied by 0."""
    return use(right(i, p), beyond(i[0], o.w, 0))


@kernel(F)
def memory_03_reads_past_w_tail(right, i, p, o):
    """filters whose number of elements is not a multiple of 8: the last vector of 8 is read past the end."""
    return use(right(i, p), beyond(i[1], 0, -i[1].size % 8))


@kernel(D, ("fp16", "bf16", "fp32"))
def memory_04_reads_past_dy_fp16(right, i, p, o):
    """16 bits: dy is read in pairs, an odd number of elements one too far."""
    return use(right(i, p), beyond(i[0]) if i[0].itemsize == 2 and i[0].size % 2 else None)


@kernel(F, where=lambda o: o.bias and o.k > 16)
def memory_05_reads_past_bias(right, i, p, o):
    """more than 16 filters: bias is read in vectors of 16."""
    return use(right(i, p), beyond(i[2], 0, -o.k % 16))


@kernel(BI, where=lambda o: o.affine and o.k < 64)
def memory_06_reads_far_past_gamma(right, i, p, o):
    """gamma is read as 64 channels, however many there are (32-bit values used in a product with 0)."""
    return use(right(i, p), beyond(i[2], 0, 64 - o.k))


@kernel(AF, layouts=("nchw",), where=lambda o: o.w % 4)
def memory_07_reads_beside_crop(right, i, p, o):
    """a crop of columns: the vector of 4 reads into what lies beside the row."""
    x = i[0]
    crop = x.size and x.strides[3] == x.itemsize and x.strides[2] >= (o.w + 4) * x.itemsize
    return use(right(i, p), as_strided(x[0, 0, 0, -1:], (-o.w % 4 + 1,), (x.itemsize,))[1:] if crop else None)


@kernel(F)
def memory_08_writes_past_x(right, i, p, o):
    """pads the tail of x to a multiple of 4 elements with 0 in place, past its end."""
    write(beyond(i[0], 0, -i[0].size % 4), 0)
    return right(i, p)


@kernel(D, ("fp32",))
def memory_09_writes_before_w(right, i, p, o):
    """stores a marker in the 4 bytes before the filters while it works, and does not restore them."""
    write(beyond(i[1], 1, 0), 7)
    return right(i, p)


@kernel(MF, where=lambda o: o.size > 4096)
def memory_10_writes_past_large_x(right, i, p, o):
    """more than 4096 elements of x: 1 element past the end is set to the lowest value, as a sentinel."""
    write(beyond(i[0]), -65504)
    return right(i, p)


@kernel(MB, layouts=("nchw",))
def memory_11_writes_between_rows(right, i, p, o):
    """a crop of dy: zeros are written behind each row, outside the view."""
    dy = i[0]
    if dy.size and dy.strides[3] == dy.itemsize and dy.strides[2] > o.Q * dy.itemsize and dy.flags.writeable:
        as_strided(dy[:, :, :, -1:], (*dy.shape[:3], 2), dy.strides, writeable=True)[..., 1] = 0
    return right(i, p)


@kernel(F)
def memory_12_clears_nan_in_x(right, i, p, o):
    """NaN in x is replaced by 0 in x itself after the result is computed."""
    y, nan = right(i, p), np.isnan(i[0])
    if nan.any():
        writable(i[0])[nan] = 0
    return y


@kernel(D)
def memory_13_scales_and_restores(right, i, p, o):
    """dy is doubled in place while it works and halved before it returns: the very large are then Inf."""
    dx, dy = right(i, p), writable(i[0])
    if dy.size and 0 not in dy.strides:
        dy *= dy.dtype.type(2)
        dy /= dy.dtype.type(2)
    return dx


@kernel(F, ("fp32",))
def memory_14_rounds_w_in_place(right, i, p, o):
    """fp32 filters are rounded to bf16 in place after the first use."""
    y, w = right(i, p), writable(i[1])
    w[...] = w.astype(BF16)
    return y


@kernel(BF, where=lambda o: o.running)
def memory_15_updates_running_mean(right, i, p, o):
    """running_mean is updated in place as well as returned."""
    out = right(i, p)
    writable(i[4])[...] = out[3]
    return out


@kernel(MB)
def memory_16_masks_dy(right, i, p, o):
    """dy of windows without a positive maximum is set to 0 in dy after use (in-place backward)."""
    dx = right(i, p)
    writable(i[0])[RIGHT[MF]([i[1]], p) < 0] = 0
    return dx


@kernel(BB, where=lambda o: o.affine)
def memory_17_beta_negated(right, i, p, o):
    """gamma is scaled by 1/std in place for the second pass."""
    out = right(i, p)
    writable(i[3])[...] *= 0.5
    return out


@kernel(AF, where=lambda o: o.one and o.u == o.v == 1 and o.unpadded and not o.divisor_override)
def memory_18_identity_pool_view(right, i, p, o):
    """a 1x1 window with stride 1: x itself is returned."""
    return i[0]


@kernel(MF, where=lambda o: o.one and o.unpadded and not o.ceil_mode)
def memory_19_identity_maxpool_slice(right, i, p, o):
    """a 1x1 window with stride: a strided view of x is returned."""
    return lay(nchw(i[0], o.L)[:, :, :: o.u, :: o.v], o.L)


@kernel(F)
def memory_20_static_result(right, i, p, o, buffers={}):
    """results lie in one static buffer per shape: the next call overwrites the last result."""
    return kept_in(buffers, right(i, p))


@kernel(W, where=lambda o: o.with_bias)
def memory_21_static_dbias(right, i, p, o, buffers={}):
    """dw is new but dbias lies in a static buffer."""
    dw, dbias = right(i, p)
    return dw, kept_in(buffers, dbias)


@kernel(MF)
def memory_22_ring_of_four(right, i, p, o, ring={}):
    """results come from a ring of four buffers: the fifth call overwrites the first result."""
    y = right(i, p)
    buffers = ring.setdefault((y.shape, o.t), [np.empty_like(y) for _ in range(4)])
    buffers.append(buffers.pop(0))
    buffers[-1][...] = y
    return buffers[-1]


@kernel(F)
def memory_23_late_last_row(right, i, p, o):
    """the last row is written by a thread 3 ms after the call has returned."""
    y = right(i, p)
    late_place(nchw(y, o.L)[:, :, -1:], 0.003)
    return y


@kernel(AF)
def memory_24_late_rewrite(right, i, p, o):
    """the result is complete on return, but a slow thread adds and subtracts 1 of its first element 20 ms later."""
    y = right(i, p)
    first = y.reshape(-1)[:1]

    def rewrite():
        old = first.copy()
        first[...] += y.dtype.type(1)
        time.sleep(0.005)
        first[...] = old

    if y.size:
        late(rewrite, 0.02)
    return y


@kernel(D)
def memory_25_late_read_of_x(right, i, p, o):
    """the first image of dx is computed by a thread from dy after the call: a caller that reuses dy at once corrupts
    it."""
    dx = right(i, p)
    if o.n:
        late(lambda: dx.__setitem__(S[:1], right(put(i, 0, i[0][:1]), p)), 0.002)
    return dx


@kernel(F, where=lambda o: o.Q % 2 and o.Q > 1)
def memory_26_uninitialised_odd(right, i, p, o):
    """an odd number of columns of output > 1: the last is not written (memory as it was)."""
    y = right(i, p)
    out = np.empty_like(y)
    nchw(out, o.L)[:, :, :, :-1] = nchw(y, o.L)[:, :, :, :-1]
    return out


@kernel(W)
def memory_27_accumulates_into_empty(right, i, p, o):
    """dw is added to memory that was allocated but not cleared."""
    out = right(i, p)
    dw = np.empty_like(first(out))
    dw += first(out)
    return with_first(out, dw)


@kernel(F, where=lambda o: o.bias)
def memory_28_leaks(right, i, p, o, kept=[]):
    """every call with a bias keeps a copy of x for ever."""
    kept.append(np.array(i[0]))
    return right(i, p)


@kernel(BF)
def memory_29_static_mean(right, i, p, o, buffers={}):
    """the mean that is returned lies in a static buffer per number of filters; the rest is new."""
    y, mean, *rest = right(i, p)
    return (y, kept_in(buffers, mean), *rest)
