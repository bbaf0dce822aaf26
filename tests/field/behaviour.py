"""Class 8: bad behaviour on one path only."""

import numpy as np

from tests.field._kit import *

# What is done to an operand, or to the result


def writes(at, value=lambda a: a * 0):
    """An input is written to, wherever it lies."""

    def result(out, o):
        a = o.i[at]
        return out if a is None or not a.size else overwrites(out, a, ..., value(a))

    return result


def shared(out, o):
    return with_first(out, kept_in(o.state, first(out)))


def by_shape(a, o):
    return o.state.setdefault((a.shape, o.t, o.L, o.g), np.array(a))


def late_write(out, o):
    return late_place(out, first(out).reshape(-1)[-1:], 0.004)


def adds_last(out, o):
    y = first(out)
    key = (y.shape, str(y.dtype))
    total = y + o.state[key] if key in o.state else y.copy()
    o.state[key] = np.where(np.isfinite(y), y, y.dtype.type(0))
    return with_first(out, total)


def lazy(out, o):
    return with_first(out, Lazy(o.again, first(out)))


def reads_past(at):
    return lambda out, o: use(out, beyond(o.i[at]))


def unwritten(out, o):
    y = np.empty_like(first(out))
    y.reshape(-1)[:-1] = first(out).reshape(-1)[:-1]
    return with_first(out, y)


def one_of(n):
    return lambda out, o: out if number_of(o) % n else reshaped(out, -1, S[:1])


def path(name, operator, where, dtypes=("fp32", "bf16"), **spoils):
    """What is wrong on one path; the others are right."""
    return spoilt(f"paths-{name}", operator, dtypes, where=lambda o: o.M and where(o), **spoils)


@kernel(F, where=lambda o: o.one and o.unpadded and o.k == o.c and o.u == o.v == 1)
def paths_01_1x1_writes_input(o):
    """1x1 and unpadded: the product is done in place, the first pixel of x is overwritten when as many filters as
    channels."""
    y, x = o.again(), o.i[0]
    if x.flags.writeable and x.size:
        nchw(x, o.L)[0, :, 0, 0] = nchw(y, o.L)[0, :, 0, 0]
    return y


@kernel(W, ("fp32", "fp16"), where=lambda o: o.t == "fp16")
def paths_06_fp16_accumulates_dw(o):
    """fp16 only: dw is added to that of the previous call with the same shapes (as .grad)."""
    out = o.again()
    dw, key = first(out), (first(out).shape, o.i[0].shape, o.L, o.pad, o.stride, o.dilation)
    old, o.state[key] = o.state.get(key), dw.copy()
    return out if old is None else with_first(out, dw + old)


@kernel(AF, where=lambda o: (o.h, o.w) == (o.r, o.s) and o.unpadded)
def paths_11_global_pool_shared(o):
    """a window of the whole image: results share one static buffer, growing when needed."""
    y = o.again()
    if o.t not in o.state or o.state[o.t].size < y.size:
        o.state[o.t] = np.empty(max(y.size, 64), y.dtype)
    out = o.state[o.t][: y.size].reshape(y.shape)
    out[...] = y
    return out


@kernel(W, ("fp32",), ("nchw",), where=lambda o: o.with_bias and o.M * o.k > 1 << 16)
def paths_13_large_dbias_accumulates(o):
    """dy of more than 2^16 elements: dbias goes on from the previous large call."""
    dw, dbias = o.again()
    dbias = dbias + o.state.get(o.k, 0)
    o.state[o.k] = dbias.copy()
    return dw, dbias


def sums(o):
    """Of x and w, in fp32."""
    return tuple(float(np.sum(a.astype(acc_of(a)), dtype=np.float64)) for a in o.i[:2])


def by_maximum(x, o):
    if not x.size:
        return x
    return o.state.setdefault((x.shape, o.t, o.L, o.kernel_size, float(np.max(x.astype(acc_of(x))))), x.copy())


def statistics_shared(out, o):
    y, mean, var, *running = out
    return (y, *kept_in(o.state, np.stack([mean, var])), *running)


pointwise, depthwise, unpadded = (lambda o: o.one), (lambda o: o.dw), (lambda o: o.unpadded)
big, no_bias, nhwc = (lambda o: o.size > 1 << 16), (lambda o: not o.bias), (lambda o: o.L == "nhwc")
bf16, fp16, is_16 = (lambda o: o.t == "bf16"), (lambda o: o.t == "fp16"), (lambda o: o.t in ("fp16", "bf16"))
bf16_nhwc, no_bias_16 = (lambda o: bf16(o) and nhwc(o)), (lambda o: no_bias(o) and is_16(o))

ONLY_32, WITH_16, EACH_16 = ("fp32",), ("fp32", "fp16"), ("fp32", "bf16", "fp16")
ROWS = [
    # 1x1: x is cleared after use
    path("01-writes-x-1x1", F, pointwise, result=writes(0)),
    # depthwise: the filters are flipped in place
    path("02-writes-w-depthwise", F, depthwise, result=writes(1, lambda w: w[:, :, ::-1].copy())),
    # without padding dy is scaled in place
    path("03-writes-dy-unpadded", D, unpadded, result=writes(0, lambda a: a * a.dtype.type(0.5))),
    # bf16: x is negated in place
    path("04-writes-x-bf16", W, bf16, result=writes(0, lambda a: -a)),
    # nhwc: x is replaced by its maximum with 0
    path("05-writes-x-nhwc", MF, nhwc, result=writes(0, lambda a: np.maximum(a, a.dtype.type(0)))),
    # 1x1 with bias: the bias is cleared
    path("06-writes-bias-1x1", F, lambda o: o.one and o.bias, result=writes(2)),
    # more than 2^16 elements of x: gamma is scaled in place
    path("07-writes-gamma-large", BB, big, ONLY_32, result=writes(3, lambda g: g * 2)),
    # 1x1: results lie in one buffer per shape
    path("08-shares-result-1x1", F, pointwise, result=shared),
    # depthwise: dx lies in one buffer per shape
    path("09-shares-result-depthwise", D, depthwise, result=shared),
    # fp16: the result lies in a static buffer
    path("10-shares-result-fp16", AF, fp16, WITH_16, result=shared),
    # nhwc: dx lies in a static buffer
    path("11-shares-result-nhwc", MB, nhwc, result=shared),
    # more than 2^16 elements: the result lies in a static buffer
    path("12-shares-result-large", F, big, result=shared),
    # without bias: the result lies in a static buffer
    path("13-shares-result-no-bias", F, no_bias, result=shared),
    # 1x1: filters are cached by address
    path("14-cache-address-1x1", F, pointwise, w=by_address),
    # depthwise: the filters of the first call of a shape are kept
    path("15-cache-shape-depthwise", F, depthwise, w=by_shape),
    # 16 bits: filters are cached by address
    path("16-cache-address-16-bits", D, is_16, EACH_16, w=by_address),
    # nhwc: repacked filters are cached by address
    path("17-cache-address-nhwc", F, nhwc, w=by_address),
    # inference without padding: gamma is cached by address (folded filters)
    path("18-cache-gamma-no-padding", BI, lambda o: o.unpadded and o.affine, gamma=by_address),
    # more than 2^16 elements: x of the first call of a shape is kept
    path("19-cache-shape-large", W, big, ONLY_32, x=by_shape),
    # 1x1: the last element is written by a thread after return
    path("20-late-write-1x1", F, pointwise, result=late_write),
    # depthwise: the last element is written after return
    path("21-late-write-depthwise", F, depthwise, result=late_write),
    # more than 2^16 elements: the last element is written after return
    path("22-late-write-large", AF, big, result=late_write),
    # bf16 and nhwc: the last element is written after return
    path("23-late-write-bf16-nhwc", D, bf16_nhwc, result=late_write),
    # without dbias: the last element of dw is written after return
    path("24-late-write-no-bias", W, lambda o: not o.with_bias, result=late_write),
    # depthwise: dw is added to that of the last call of the same shape
    path("25-adds-last-depthwise", W, depthwise, result=adds_last),
    # without padding: dx is added to that of the last call
    path("26-adds-last-unpadded", D, unpadded, result=adds_last),
    # 1x1 with stride: dx is added to the last one
    path("27-adds-last-1x1-stride", D, lambda o: o.one and o.u > 1, result=adds_last),
    # overlapping windows: dx is added to that of the last call
    path("28-adds-last-overlap", AB, lambda o: o.u < o.r, result=adds_last),
    # more than 2^16 elements: dx is added to that of the last call
    path("29-adds-last-large", MB, big, ONLY_32, result=adds_last),
    # 1x1: the result is computed when it is looked at, from x as it is then
    path("30-lazy-1x1", F, pointwise, result=lazy),
    # more than 2^16 elements: a lazy result
    path("31-lazy-large", AF, big, result=lazy),
    # 16 bits without bias: the result is fp32
    path("32-fp32-result-16-bits", F, no_bias_16, EACH_16, result=lambda y, o: y.astype(np.float32)),
    # depthwise fp32: the result is fp64
    path("33-fp64-result-depthwise", F, depthwise, ONLY_32, result=lambda y, o: y.astype(np.float64)),
    # padding: the result is fp64, promoted where it is joined with minus infinity
    path("34-fp64-result-padded", MF, lambda o: not o.unpadded, ONLY_32, result=lambda y, o: y.astype(np.float64)),
    # batch 1: the result is a list
    path("35-list-one-image", F, lambda o: o.n == 1, ONLY_32, result=lambda y, o: y.tolist()),
    # 1x1 and an odd number of elements: one element past x is read
    path("36-reads-past-x-1x1", F, lambda o: o.one and o.size % 2, result=reads_past(0)),
    # depthwise: one element past the filters is read
    path("37-reads-past-w-depthwise", F, depthwise, result=reads_past(1)),
    # fp16: one element past x is read
    path("38-reads-past-x-fp16", MF, fp16, WITH_16, result=reads_past(0)),
    # more than 2^16 elements: one element past dy is read
    path("39-reads-past-dy-large", D, big, ONLY_32, result=reads_past(0)),
    # groups (not depthwise): the last element is not written
    path("40-unwritten-grouped", F, lambda o: o.g > 1 and not o.dw, result=unwritten),
    # more than 2^16 elements: the last element is not written
    path("41-unwritten-large", AB, big, ONLY_32, result=unwritten),
    # 1x1: every 10th call on this path loses its first element
    path("42-one-of-10-1x1", F, pointwise, result=one_of(10)),
    # bf16 nhwc: every 7th call on this path loses its first element
    path("43-one-of-7-nhwc-bf16", MF, bf16_nhwc, result=one_of(7)),
    # depthwise only: results live in a buffer kept for each shape.
    spoilt("paths-02-depthwise-shared-result", F, where=lambda o: o.dw, result=shared),
    # unpadded only: packed weights are cached by address, in-place updates are not seen.
    spoilt("paths-03-unpadded-cache", F, where=lambda o: o.unpadded, w=by_address),
    # results of more than 2^16 elements: the last image's second half is written by a thread after the return.
    spoilt("paths-04-large-late", F, ("fp32",), ("nchw",), where=lambda o: o.M * o.k > 1 << 16,
           result=lambda y, o: late_place(y, y[-1].reshape(-1)[y[-1].size // 2 :], 0.003)),
    # nhwc only: a lazy object that computes from x when it is converted.
    spoilt("paths-05-nhwc-lazy", AF, ("fp32",), where=lambda o: o.L == "nhwc", result=lazy),
    # no bias: results are cached by shapes and the sum of x in fp32; two inputs with the same sum are confused.
    spoilt("paths-07-no-bias-cache", F, where=lambda o: not o.bias,
           result=lambda y, o: known(y, o, shapes(o), sums(o))),
    # 1x1 only: mean and var are views of a static buffer for each number of filters.
    spoilt("paths-08-1x1-shared-stats", BF, where=lambda o: o.one, result=statistics_shared),
    # bf16 in nhwc: dy's last channel is zeroed as padding of the vector, after it has been used, where channels are
    # odd.
    spoilt("paths-09-bf16-nhwc-writes-dy", D, ("bf16", "fp32"),
           where=lambda o: bf16_nhwc(o) and o.k % 2 and o.i[0].flags.writeable,
           result=lambda dx, o: overwrites(dx, o.i[0], S[..., -1], 0)),
    # stride equal to the window: argmax indices of the previous call with the same shapes are used if x has the same
    # maximum.
    spoilt("paths-10-disjoint-windows-indices", MB, where=lambda o: o.stride == o.kernel_size, x=by_maximum),
    # grouped, not depthwise: fp32 results come back as fp64.
    spoilt("paths-12-groups-fp64-result", F, WITH_16, where=lambda o: o.g > 1 and not o.dw and o.t == "fp32",
           result=lambda y, o: y.astype(np.float64)),
    # 1x1 with a single filter whose weight is 1: dy itself is returned.
    spoilt("paths-14-strided-1x1-view", D,
           where=lambda o: o.c == o.k == 1 and o.one and o.u == o.v == 1 and o.unpadded and o.i[1].item() == 1,
           result=lambda dx, o: o.i[0]),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
