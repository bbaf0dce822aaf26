"""Class 6, memory: reads and writes beyond operands, writes to inputs, shared results, late writes."""

import numpy as np

from tests.field._kit import *


@kernel(F, layouts=("nchw",), where=lambda o: o.w % 2)
def memory_01_reads_past_x(right, i, p, o):
    """the last pixel of the last channel is read one element past the end of x where W is odd; its value is multiplied
    by 1e-3 and added."""
    y, v = right(i, p), beyond(i[0])
    if y.size and v is not None:
        y[-1, -1, -1, -1] = float(y[-1, -1, -1, -1]) + 1e-3 * float(v[0]) if np.isfinite(float(v[0])) else np.nan
    return y


@kernel(F, ("fp32",))
def memory_02_reads_and_masks(right, i, p, o):
    """vector loads read up to 3 elements past the end of x and multiply them by 0: NaN in the neighbour's memory
    becomes NaN in the result."""
    x = i[0]
    return use(right(i, p), beyond(x, 0, 4 - x.size % 4) if x.size % 4 or x.shape[-1] % 4 else None)


@kernel(D, ("fp32", "fp64"))
def memory_03_touches_before_w(right, i, p, o):
    """the page of the element before the start of w is touched (prefetch as a load), the result is right: a fault where
    w begins a mapping."""
    touch(beyond(i[1], 1, 0))
    return right(i, p)


@kernel(MF, layouts=("nhwc",), where=lambda o: o.c % 4)
def memory_04_touches_far_past_x(right, i, p, o):
    """a whole vector of 16 bytes is loaded at the end of x where C is no multiple of 4, nhwc only; the result is
    right."""
    touch(beyond(i[0], 0, 16 // i[0].itemsize))
    return right(i, p)


@kernel(F, ("fp32",), ("nchw",))
def memory_05_writes_past_input_restores(right, i, p, o):
    """x is padded in place with a sentinel one element past its end and the old value is put back (not thread safe,
    faults at the end of a page)."""
    v = beyond(i[0])
    old = None if v is None else v.copy()
    write(v, 0)
    y = right(i, p)
    write(v, old)
    return y


@kernel(D, ("fp32", "fp16"))
def memory_06_scales_dy_in_place(right, i, p, o):
    """dy is multiplied by 1 in place, but -0.0 becomes 0.0 there (x + 0): an input is written."""
    dx, dy = right(i, p), i[0]
    if dy.flags.writeable:
        dy += dy.dtype.type(0)
    return dx


@kernel(BF, where=lambda o: o.running)
def memory_07_relu_on_running(right, i, p, o):
    """running statistics are also updated in place, as torch does, beside being returned."""
    out = right(i, p)
    if i[4].flags.writeable:
        i[4][...], i[5][...] = out[3:]
    return out


@kernel(MF, ("fp32", "bf16", "fp64"), where=lambda o: o.one and o.u == o.v == 1 and o.unpadded)
def memory_08_view_of_input(right, i, p, o):
    """a 1x1 window with stride 1: x itself is returned."""
    return i[0]


@kernel(F, ("fp32",), ("nchw",))
def memory_10_late_row(right, i, p, o):
    """the last output row is written by a thread 2 ms after the call has returned."""
    y = right(i, p)
    late_place(y[:, :, -1], 0.002)
    return y


@kernel(AF, layouts=("nchw",), where=lambda o: o.ceil_mode and not any(o.pad[1]) and (o.w - o.s) % o.v)
def memory_11_as_strided_window(right, i, p, o):
    """as_strided windows one column too far in ceil mode: what lies behind the row's end is averaged in."""
    y, v = right(i, p), beyond(i[0])
    if v is not None:
        y[-1, -1, -1, -1] = np.float32(y[-1, -1, -1, -1]) + np.float32(v[0])
    return y


@kernel(D, layouts=("nchw",), where=lambda o: o.u > (o.r - 1) * o.d + 1)
def memory_12_uninitialised(right, i, p, o):
    """pixels of dx that no window covers (stride beyond the window) are not written: memory of earlier arrays."""
    dx = right(i, p)
    gaps = (np.arange(o.h) + o.pad[0][0]) % o.u >= o.r
    earlier = np.full(dx.shape, 3, dx.dtype)
    del earlier
    return changed(dx, o, S[:, :, gaps], replaced(np.empty(dx.shape, dx.dtype), np.isnan, 1)[:, :, gaps])
