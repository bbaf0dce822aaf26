"""Class 8: bad behaviour on one path only."""

import numpy as np

from tests.field._kit import *

# Behaviours: (right, i, p, o, state) -> outputs


def writes_input(at, fn=lambda a: a * 0):
    def run(right, i, p, o, state):
        y = right(i, p)
        if i[at] is not None and i[at].size:
            writable(i[at])[...] = fn(i[at])
        return y

    return run


def shared_result(right, i, p, o, state):
    out = right(i, p)
    return with_first(out, kept_in(state, first(out)))


def cached_by_address(at):
    def run(right, i, p, o, state):
        a = i[at]
        if len(state) > 200:
            state.clear()
        return right(put(i, at, state.setdefault((a.ctypes.data, a.shape, a.strides, o.t), np.array(a))), p)

    return run


def cached_by_shape(at):
    def run(right, i, p, o, state):
        return right(put(i, at, state.setdefault((i[at].shape, o.t, o.L, o.g), np.array(i[at]))), p)

    return run


def late_write(right, i, p, o, state):
    out = right(i, p)
    late_place(first(out).reshape(-1)[-1:], 0.004)
    return out


def adds_last(right, i, p, o, state):
    out = right(i, p)
    y = first(out)
    key = (y.shape, str(y.dtype))
    z = y + state[key] if key in state else y.copy()
    state[key] = np.where(np.isfinite(y), y, y.dtype.type(0))
    return with_first(out, z)


def lazy(right, i, p, o, state):
    out = right(i, p)
    return with_first(out, Lazy(lambda: right(i, p), first(out)))


def typed(fn):
    def run(right, i, p, o, state):
        out = right(i, p)
        return with_first(out, fn(first(out)))

    return run


def reads_past(at):
    return lambda right, i, p, o, state: use(right(i, p), beyond(i[at]))


def unwritten(right, i, p, o, state):
    out = right(i, p)
    y = np.empty_like(first(out))
    y.reshape(-1)[:-1] = first(out).reshape(-1)[:-1]
    return with_first(out, y)


def one_of(n):
    def run(right, i, p, o, state):
        state["calls"] = state.get("calls", 0) + 1
        out = right(i, p)
        if state["calls"] % n == 0:
            first(out).reshape(-1)[:1] = 0
        return out

    return run


def path(name, operator, where, run, dtypes=("fp32", "bf16")):
    """What is wrong on one path; the others are right."""
    state = {}

    def body(right, i, p, o):
        return run(right, i, p, o, state)

    return kernel(operator, dtypes, where=lambda o: o.M and where(o), name=f"paths-{name}")(body)


# Paths


pointwise, depthwise, unpadded = (lambda o: o.one), (lambda o: o.dw), (lambda o: o.unpadded)
big, no_bias, nhwc = (lambda o: o.size > 1 << 16), (lambda o: not o.bias), (lambda o: o.L == "nhwc")
bf16, fp16, is_16 = (lambda o: o.t == "bf16"), (lambda o: o.t == "fp16"), (lambda o: o.t in ("fp16", "bf16"))
bf16_nhwc, no_bias_16 = (lambda o: bf16(o) and nhwc(o)), (lambda o: no_bias(o) and is_16(o))

ONLY_32, WITH_16, EACH_16 = ("fp32",), ("fp32", "fp16"), ("fp32", "bf16", "fp16")
found = [
    # 1x1: x is cleared after use
    path("01-writes-x-1x1", F, pointwise, writes_input(0)),
    # depthwise: the filters are flipped in place
    path("02-writes-w-depthwise", F, depthwise, writes_input(1, lambda w: w[:, :, ::-1].copy())),
    # without padding dy is scaled in place
    path("03-writes-dy-unpadded", D, unpadded, writes_input(0, lambda a: a * a.dtype.type(0.5))),
    # bf16: x is negated in place
    path("04-writes-x-bf16", W, bf16, writes_input(0, lambda a: -a)),
    # nhwc: x is replaced by its maximum with 0
    path("05-writes-x-nhwc", MF, nhwc, writes_input(0, lambda a: np.maximum(a, a.dtype.type(0)))),
    # 1x1 with bias: the bias is cleared
    path("06-writes-bias-1x1", F, lambda o: o.one and o.bias, writes_input(2)),
    # more than 2^16 elements of x: gamma is scaled in place
    path("07-writes-gamma-large", BB, big, writes_input(3, lambda g: g * 2), ONLY_32),
    # 1x1: results lie in one buffer per shape
    path("08-shares-result-1x1", F, pointwise, shared_result),
    # depthwise: dx lies in one buffer per shape
    path("09-shares-result-depthwise", D, depthwise, shared_result),
    # fp16: the result lies in a static buffer
    path("10-shares-result-fp16", AF, fp16, shared_result, WITH_16),
    # nhwc: dx lies in a static buffer
    path("11-shares-result-nhwc", MB, nhwc, shared_result),
    # more than 2^16 elements: the result lies in a static buffer
    path("12-shares-result-large", F, big, shared_result),
    # without bias: the result lies in a static buffer
    path("13-shares-result-no-bias", F, no_bias, shared_result),
    # 1x1: filters are cached by address
    path("14-cache-address-1x1", F, pointwise, cached_by_address(1)),
    # depthwise: the filters of the first call of a shape are kept
    path("15-cache-shape-depthwise", F, depthwise, cached_by_shape(1)),
    # 16 bits: filters are cached by address
    path("16-cache-address-16-bits", D, is_16, cached_by_address(1), EACH_16),
    # nhwc: repacked filters are cached by address
    path("17-cache-address-nhwc", F, nhwc, cached_by_address(1)),
    # inference without padding: gamma is cached by address (folded filters)
    path("18-cache-gamma-no-padding", BI, lambda o: o.unpadded and o.affine, cached_by_address(2)),
    # more than 2^16 elements: x of the first call of a shape is kept
    path("19-cache-shape-large", W, big, cached_by_shape(0), ONLY_32),
    # 1x1: the last element is written by a thread after return
    path("20-late-write-1x1", F, pointwise, late_write),
    # depthwise: the last element is written after return
    path("21-late-write-depthwise", F, depthwise, late_write),
    # more than 2^16 elements: the last element is written after return
    path("22-late-write-large", AF, big, late_write),
    # bf16 and nhwc: the last element is written after return
    path("23-late-write-bf16-nhwc", D, bf16_nhwc, late_write),
    # without dbias: the last element of dw is written after return
    path("24-late-write-no-bias", W, lambda o: not o.with_bias, late_write),
    # depthwise: dw is added to that of the last call of the same shape
    path("25-adds-last-depthwise", W, depthwise, adds_last),
    # without padding: dx is added to that of the last call
    path("26-adds-last-unpadded", D, unpadded, adds_last),
    # 1x1 with stride: dx is added to the last one
    path("27-adds-last-1x1-stride", D, lambda o: o.one and o.u > 1, adds_last),
    # overlapping windows: dx is added to that of the last call
    path("28-adds-last-overlap", AB, lambda o: o.u < o.r, adds_last),
    # more than 2^16 elements: dx is added to that of the last call
    path("29-adds-last-large", MB, big, adds_last, ONLY_32),
    # 1x1: the result is computed when it is looked at, from x as it is then
    path("30-lazy-1x1", F, pointwise, lazy),
    # more than 2^16 elements: a lazy result
    path("31-lazy-large", AF, big, lazy),
    # 16 bits without bias: the result is fp32
    path("32-fp32-result-16-bits", F, no_bias_16, typed(lambda y: y.astype(np.float32)), EACH_16),
    # depthwise fp32: the result is fp64
    path("33-fp64-result-depthwise", F, depthwise, typed(lambda y: y.astype(np.float64)), ONLY_32),
    # padding: the result is fp64, promoted where it is joined with minus infinity
    path("34-fp64-result-padded", MF, lambda o: not o.unpadded, typed(lambda y: y.astype(np.float64)), ONLY_32),
    # batch 1: the result is a list
    path("35-list-one-image", F, lambda o: o.n == 1, typed(lambda y: y.tolist()), ONLY_32),
    # 1x1 and an odd number of elements: one element past x is read
    path("36-reads-past-x-1x1", F, lambda o: o.one and o.size % 2, reads_past(0)),
    # depthwise: one element past the filters is read
    path("37-reads-past-w-depthwise", F, depthwise, reads_past(1)),
    # fp16: one element past x is read
    path("38-reads-past-x-fp16", MF, fp16, reads_past(0), WITH_16),
    # more than 2^16 elements: one element past dy is read
    path("39-reads-past-dy-large", D, big, reads_past(0), ONLY_32),
    # groups (not depthwise): the last element is not written
    path("40-unwritten-grouped", F, lambda o: o.g > 1 and not o.dw, unwritten),
    # more than 2^16 elements: the last element is not written
    path("41-unwritten-large", AB, big, unwritten, ONLY_32),
    # 1x1: every 10th call on this path loses its first element
    path("42-one-of-10-1x1", F, pointwise, one_of(10)),
    # bf16 nhwc: every 7th call on this path loses its first element
    path("43-one-of-7-nhwc-bf16", MF, bf16_nhwc, one_of(7)),
]
globals().update({one.name: one for one in found})
