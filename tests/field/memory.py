"""Class 6: memory. Results are right unless it is said; the accesses are real."""

import time

import numpy as np

from tests.field._kit import *


@kernel(AF, layouts=("nchw",), where=lambda o: o.w % 4)
def memory_07_reads_beside_crop(o):
    """a crop of columns: the vector of 4 reads into what lies beside the row."""
    x = o.i[0]
    crop = x.size and x.strides[3] == x.itemsize and x.strides[2] >= (o.w + 4) * x.itemsize
    return use(o.again(), as_strided(x[0, 0, 0, -1:], (-o.w % 4 + 1,), (x.itemsize,))[1:] if crop else None)


@kernel(MB, layouts=("nchw",))
def memory_11_writes_between_rows(o):
    """a crop of dy: zeros are written behind each row, outside the view."""
    dy = o.i[0]
    if dy.size and dy.strides[3] == dy.itemsize and dy.strides[2] > o.Q * dy.itemsize and dy.flags.writeable:
        as_strided(dy[:, :, :, -1:], (*dy.shape[:3], 2), dy.strides, writeable=True)[..., 1] = 0
    return o.again()


@kernel(D)
def memory_13_scales_and_restores(o):
    """dy is doubled in place while it works and halved before it returns: the very large are then Inf."""
    dx, dy = o.again(), writable(o.i[0])
    if dy.size and 0 not in dy.strides:
        dy *= dy.dtype.type(2)
        dy /= dy.dtype.type(2)
    return dx


@kernel(MF)
def memory_22_ring_of_four(o):
    """results come from a ring of four buffers: the fifth call overwrites the first result."""
    y = o.again()
    ring = o.state.setdefault((y.shape, o.t), [np.empty_like(y) for _ in range(4)])
    ring.append(ring.pop(0))
    ring[-1][...] = y
    return ring[-1]


@kernel(AF)
def memory_24_late_rewrite(o):
    """the result is complete on return, but a slow thread adds and subtracts 1 of its first element 20 ms later."""
    y = o.again()
    place = y.reshape(-1)[:1]

    def rewrite():
        old = place.copy()
        place[...] += y.dtype.type(1)
        time.sleep(0.005)
        place[...] = old

    if y.size:
        late(rewrite, 0.02)
    return y


@kernel(D)
def memory_25_late_read_of_x(o):
    """the first image of dx is computed by a thread from dy after the call: a caller that reuses dy at once corrupts
    it."""
    dx = o.again()
    if o.n:
        late(lambda: dx.__setitem__(S[:1], o.again(dy=o.i[0][:1])), 0.002)
    return dx


@kernel(F, where=lambda o: o.Q % 2 and o.Q > 1)
def memory_26_uninitialised_odd(o):
    """an odd number of columns of output > 1: the last is not written (memory as it was)."""
    y = o.again()
    out = np.empty_like(y)
    nchw(out, o.L)[:, :, :, :-1] = nchw(y, o.L)[:, :, :, :-1]
    return out


@kernel(F, layouts=("nchw",), where=lambda o: o.w % 2)
def memory_01_reads_past_odd_x(o):
    """the last pixel of the last channel is read one element past the end of x where W is odd; its value is multiplied
    by 1e-3 and added."""
    y, v = o.again(), beyond(o.i[0])
    if y.size and v is not None:
        y[-1, -1, -1, -1] = float(y[-1, -1, -1, -1]) + 1e-3 * float(v[0]) if np.isfinite(float(v[0])) else np.nan
    return y


@kernel(F, ("fp32",), ("nchw",))
def memory_05_writes_past_input_restores(o):
    """x is padded in place with a sentinel one element past its end and the old value is put back (not thread safe,
    faults at the end of a page)."""
    v = beyond(o.i[0])
    old = None if v is None else v.copy()
    write(None, v, 0)
    return write(o.again(), v, old)


@kernel(AF, layouts=("nchw",), where=lambda o: o.ceil_mode and not any(o.pad[1]) and (o.w - o.s) % o.v)
def memory_11_as_strided_window(o):
    """as_strided windows one column too far in ceil mode: what lies behind the row's end is averaged in."""
    y, v = o.again(), beyond(o.i[0])
    if v is not None:
        y[-1, -1, -1, -1] = np.float32(y[-1, -1, -1, -1]) + np.float32(v[0])
    return y


@kernel(D, layouts=("nchw",), where=lambda o: o.u > (o.r - 1) * o.d + 1)
def memory_12_uninitialised(o):
    """pixels of dx that no window covers (stride beyond the window) are not written: memory of earlier arrays."""
    dx = o.again()
    gaps = (np.arange(o.h) + o.pad[0][0]) % o.u >= o.r
    earlier = np.full(dx.shape, 3, dx.dtype)
    del earlier
    return changed(dx, o, S[:, :, gaps], replaced(np.empty(dx.shape, dx.dtype), np.isnan, 1)[:, :, gaps])


def identity(o):
    return o.one and o.u == o.v == 1 and o.unpadded


ROWS = [
    # reads one element past the end of x and adds 0 times it.
    spoilt("memory-01-reads-past-x", F, result=lambda y, o: use(y, beyond(o.i[0]))),
    # with padding the row before the first of x is read through the pointer, and multiplied by 0.
    spoilt("memory-02-reads-before-x", MF, where=lambda o: not o.unpadded,
           result=lambda y, o: use(y, beyond(o.i[0], o.w, 0))),
    # filters whose number of elements is not a multiple of 8: the last vector of 8 is read past the end.
    spoilt("memory-03-reads-past-w-tail", F, result=lambda y, o: use(y, beyond(o.i[1], 0, -o.i[1].size % 8))),
    # 16 bits: dy is read in pairs, an odd number of elements one too far.
    spoilt("memory-04-reads-past-dy-fp16", D, ("fp16", "bf16", "fp32"),
           where=lambda o: o.i[0].itemsize == 2 and o.i[0].size % 2, result=lambda y, o: use(y, beyond(o.i[0]))),
    # more than 16 filters: bias is read in vectors of 16.
    spoilt("memory-05-reads-past-bias", F, where=lambda o: o.bias and o.k > 16,
           result=lambda y, o: use(y, beyond(o.i[2], 0, -o.k % 16))),
    # gamma is read as 64 channels, however many there are (32-bit values used in a product with 0).
    spoilt("memory-06-reads-far-past-gamma", BI, where=lambda o: o.affine and o.k < 64,
           result=lambda y, o: use(y, beyond(o.i[2], 0, 64 - o.k))),
    # pads the tail of x to a multiple of 4 elements with 0 in place, past its end.
    spoilt("memory-08-writes-past-x", F, result=lambda y, o: write(y, beyond(o.i[0], 0, -o.i[0].size % 4), 0)),
    # stores a marker in the 4 bytes before the filters while it works, and does not restore them.
    spoilt("memory-09-writes-before-w", D, ("fp32",), result=lambda y, o: write(y, beyond(o.i[1], 1, 0), 7)),
    # more than 4096 elements of x: 1 element past the end is set to the lowest value, as a sentinel.
    spoilt("memory-10-writes-past-large-x", MF, where=lambda o: o.size > 4096,
           result=lambda y, o: write(y, beyond(o.i[0]), -65504)),
    # NaN in x is replaced by 0 in x itself after the result is computed.
    spoilt("memory-12-clears-nan-in-x", F, where=lambda o: np.isnan(o.i[0]).any(),
           result=lambda y, o: overwrites(y, o.i[0], np.isnan(o.i[0]), 0)),
    # fp32 filters are rounded to bf16 in place after the first use.
    spoilt("memory-14-rounds-w-in-place", F, ("fp32",),
           result=lambda y, o: overwrites(y, o.i[1], ..., o.i[1].astype(BF16))),
    # running_mean is updated in place as well as returned.
    spoilt("memory-15-updates-running-mean", BF, where=lambda o: o.running,
           result=lambda out, o: overwrites(out, o.i[4], ..., out[3])),
    # dy of windows without a positive maximum is set to 0 in dy after use (in-place backward).
    spoilt("memory-16-masks-dy", MB, result=lambda dx, o: overwrites(dx, o.i[0], RIGHT[MF]([o.i[1]], o.p) < 0, 0)),
    # gamma is scaled by 1/std in place for the second pass.
    spoilt("memory-17-beta-negated", BB, where=lambda o: o.affine,
           result=lambda out, o: overwrites(out, o.i[3], ..., o.i[3] * 0.5)),
    # a 1x1 window with stride 1: x itself is returned.
    spoilt("memory-18-identity-pool-view", AF, where=lambda o: identity(o) and not o.divisor_override,
           result=lambda y, o: o.i[0]),
    # a 1x1 window with stride: a strided view of x is returned.
    spoilt("memory-19-identity-maxpool-slice", MF, where=lambda o: o.one and o.unpadded and not o.ceil_mode,
           result=lambda y, o: lay(nchw(o.i[0], o.L)[:, :, :: o.u, :: o.v], o.L)),
    # results lie in one static buffer per shape: the next call overwrites the last result.
    spoilt("memory-20-static-result", F, result=lambda y, o: kept_in(o.state, y)),
    # dw is new but dbias lies in a static buffer.
    spoilt("memory-21-static-dbias", W, where=lambda o: o.with_bias,
           result=lambda out, o: (out[0], kept_in(o.state, out[1]))),
    # the last row is written by a thread 3 ms after the call has returned.
    spoilt("memory-23-late-last-row", F, result=lambda y, o: late_place(y, nchw(y, o.L)[:, :, -1:], 0.003)),
    # dw is added to memory that was allocated but not cleared.
    spoilt("memory-27-accumulates-into-empty", W,
           result=lambda out, o: with_first(out, np.empty_like(first(out)) + first(out))),
    # every call with a bias keeps a copy of x for ever.
    spoilt("memory-28-leaks", F, where=lambda o: o.bias,
           result=lambda y, o: keeps(y, o, len(o.state), lambda: np.array(o.i[0]))),
    # the mean that is returned lies in a static buffer per number of filters; the rest is new.
    spoilt("memory-29-static-mean", BF, result=lambda out, o: (out[0], kept_in(o.state, out[1]), *out[2:])),
    # By a second author
    # vector loads read up to 3 elements past the end of x and multiply them by 0: NaN in the neighbour's memory
    # becomes NaN in the result.
    spoilt("memory-02-reads-and-masks", F, ("fp32",), where=lambda o: o.i[0].size % 4 or o.i[0].shape[-1] % 4,
           result=lambda y, o: use(y, beyond(o.i[0], 0, 4 - o.i[0].size % 4))),
    # the page of the element before the start of w is touched (prefetch as a load), the result is right: a fault where
    # w begins a mapping.
    spoilt("memory-03-touches-before-w", D, ("fp32", "fp64"), result=lambda dx, o: touch(dx, beyond(o.i[1], 1, 0))),
    # a whole vector of 16 bytes is loaded at the end of x where C is no multiple of 4, nhwc only; the result is right.
    spoilt("memory-04-touches-far-past-x", MF, layouts=("nhwc",), where=lambda o: o.c % 4,
           result=lambda y, o: touch(y, beyond(o.i[0], 0, 16 // o.i[0].itemsize))),
    # dy is multiplied by 1 in place, but -0.0 becomes 0.0 there (x + 0): an input is written.
    spoilt("memory-06-scales-dy-in-place", D, ("fp32", "fp16"), where=lambda o: o.i[0].flags.writeable,
           result=lambda dx, o: overwrites(dx, o.i[0], ..., o.i[0] + o.i[0].dtype.type(0))),
    # running statistics are also updated in place, as torch does, beside being returned.
    spoilt("memory-07-relu-on-running", BF, where=lambda o: o.running and o.i[4].flags.writeable,
           result=lambda out, o: overwrites(overwrites(out, o.i[4], ..., out[3]), o.i[5], ..., out[4])),
    # a 1x1 window with stride 1: x itself is returned.
    spoilt("memory-08-view-of-input", MF, ("fp32", "bf16", "fp64"), where=identity, result=lambda y, o: o.i[0]),
    # the last output row is written by a thread 2 ms after the call has returned.
    spoilt("memory-10-late-row", F, ("fp32",), ("nchw",), result=lambda y, o: late_place(y, y[:, :, -1], 0.002)),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
