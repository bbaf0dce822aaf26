"""Class 5: state between calls. The first call of a process is right."""

import collections
import itertools
import os
import time

import numpy as np

from tests.field._kit import *


def freeze(v):
    return tuple(map(freeze, v)) if isinstance(v, (tuple, list)) else v


def key_of(p, without=()):
    return tuple((name, freeze(value)) for name, value in p.items() if name not in without)


def plans(name, operators, *forgotten, dtypes=("fp32", "bf16")):
    """The plan is cached without some parameters in its key: those of the first call with the same shapes are used."""
    cache = {}

    def body(right, i, p, o):
        key = (o.op, o.t, tuple(None if a is None else a.shape for a in i), key_of(p, without=forgotten))
        return right(i, {**p, **cache.setdefault(key, {name: p[name] for name in forgotten})})

    return kernel(operators, dtypes, name=f"state-{name}")(body)


found = [
    plans("01-key-without-padding", F, "padding"),
    plans("02-key-without-dilation", F, "dilation", "padding"),
    plans("03-dw-key-without-dilation", W, "dilation", "padding"),
    plans("04-key-without-stride", F, "stride"),
    plans("05-dx-key-without-padding", D, "padding"),
    plans("06-key-without-divisor", AF, "divisor_override", dtypes=("fp32", "fp16")),
    plans("07-grad-key-without-divisor", AB, "divisor_override"),
    plans("08-key-without-include", AF, "count_include_pad"),
    plans("09-key-without-ceil", (MF, MB), "ceil_mode"),
    plans("10-maxpool-key-without-padding", MF, "padding"),
    plans("11-key-without-eps", (BF, BB), "eps"),
    plans("12-key-without-eps-outside", BI, "eps_outside"),
    plans("13-key-without-momentum", BF, "momentum"),
]
globals().update({one.name: one for one in found})


@kernel(F)
def state_14_key_without_groups(right, i, p, o, cache={}):
    """the table of first channels is cached by the shapes of x and y and the window: other groups use the table of the
    first call."""
    start = (np.arange(o.k) // (o.k // o.g)) * (o.c // o.g)
    old = cache.setdefault((i[0].shape, o.k, o.r, o.s, o.P, o.Q, o.t, o.L), start)
    if (old == start).all():
        return right(i, p)
    index = (old[:, None] + np.arange(o.c // o.g)) % o.c
    return right(put(i, 0, np.take(i[0], index.ravel(), 1 if o.L == "nchw" else 3)), {**p, "groups": o.k})


@kernel(F)
def state_15_key_without_layout(right, i, p, o, cache={}):
    """the plan is cached by shapes alone: an nhwc tensor of the same shape as an earlier nchw one is taken for that."""
    x = i[0]
    if cache.setdefault((x.shape, o.t), o.L) != o.L and o.c == o.h == o.w and o.g == 1:
        x = x.swapaxes(1, 3)
    return right(put(i, 0, x), p)


@kernel(AF)
def state_16_key_without_dtype(right, i, p, o, cache={}):
    """the compiled kernel is cached by shape: after bf16 the fp32 input of the same shape is rounded to bf16."""
    x = i[0]
    narrow = cache.setdefault((x.shape, o.L), o.t) == "bf16"
    return right([x.astype(BF16).astype(x.dtype) if narrow else x], p)


@kernel(F)
def state_17_filters_by_address(right, i, p, o, cache={}):
    """transformed filters are cached by the address and shape of w: after an update in place the old ones are used."""
    w = i[1]
    if len(cache) > 64:
        cache.clear()
    return right(put(i, 1, cache.setdefault((w.ctypes.data, w.shape, w.strides, o.t), w.copy())), p)


@kernel(D)
def state_18_filters_by_id(right, i, p, o, cache={}):
    """the transposed filters are cached by id(w) in fp32."""
    w = i[1]
    old = cache.get(id(w))
    if old is None or old.shape != w.shape or old.dtype != w.dtype:
        old = cache[id(w)] = np.array(w)
    return right(put(i, 1, old), p)


@kernel(F)
def state_19_filters_by_sample(right, i, p, o, cache={}):
    """prepared filters are cached by shape and their first 8 elements."""
    w = i[1]
    key = (w.shape, o.t, o.L, np.ascontiguousarray(w).tobytes()[: 8 * w.itemsize])
    return right(put(i, 1, cache.setdefault(key, np.array(w))), p)


@kernel(MF)
def state_20_result_by_sum(right, i, p, o, cache={}):
    """results are cached by shape, parameters and the checksum (sum) of x: permuted values give the old result."""
    x = i[0]
    key = (x.shape, o.t, key_of(p), float(x.astype(np.float64).sum()))
    if key not in cache:
        cache[key] = right(i, p)
    return cache[key].copy()


@kernel(F)
def state_21_workspace_of_first_call(right, i, p, o, size=[]):
    """the workspace has the size of the first call: taps beyond it are lost in a later, longer sum."""
    if not size:
        size.append(o.length)
    return right(put(i, 1, flat(i[1], o, S[size[0] :])), p)


@kernel(W)
def state_22_workspace_grows_once(right, i, p, o, held=[np.zeros(0)]):
    """the accumulator of dw is kept and cleared only when it grows: a smaller problem adds to what the last one
    left."""
    out = right(i, p)
    dw = first(out)
    if dw.size > held[0].size:
        held[0] = np.zeros(dw.size)
    left = held[0][: dw.size].copy()
    held[0][: dw.size] = dw.reshape(-1)
    return with_first(
        out, (dw.astype(np.float64) + np.where(np.isfinite(left), left, 0).reshape(dw.shape)).astype(dw.dtype)
    )


@kernel(F)
def state_23_not_reentrant(right, i, p, o, buffers={}):
    """the padded image lies in a static buffer: two threads at a time mix their images."""
    x = kept_in(buffers, i[0])
    time.sleep(0.0005)
    return right(put(i, 0, x), p)


@kernel(AF)
def state_24_global_parameters(right, i, p, o, current={}):
    """stride and padding travel through globals, read again after the sum: not reentrant."""
    current["p"] = p
    time.sleep(0.0005)
    return right(i, {**p, "divisor_override": current["p"]["divisor_override"]})


@kernel(F)
def state_25_one_of_50(right, i, p, o, calls=itertools.count(1)):
    """every 50th call leaves out the last output row."""
    y = right(i, p)
    return changed(y, o, S[:, :, -1]) if next(calls) % 50 == 0 else y


@kernel(MF)
def state_26_after_100_calls(right, i, p, o, calls=itertools.count(1)):
    """from the 101st call on (a pool of events is exhausted) the last channel is 0."""
    y = right(i, p)
    return changed(y, o, S[:, -1]) if next(calls) > 100 else y


@kernel(D)
def state_27_random_1_of_30(right, i, p, o, dice=np.random.default_rng()):
    """now and then (1 of 30 calls, by chance) one element is not written: a race."""
    dx = right(i, p)
    if dx.size and dice.random() < 1 / 30:
        dx.reshape(-1)[int(dice.integers(dx.size))] = 0
    return dx


@kernel(F)
def state_28_after_other_dtype(right, i, p, o, mode=[None]):
    """after a call in bf16 the next fp32 call rounds its inputs to bf16: the mode of the unit is not restored."""
    before, mode[0] = mode[0], o.t
    if o.t == "fp32" and before == "bf16":
        i = [*(a.astype(BF16).astype(np.float32) for a in i[:2]), i[2]]
    return right(i, p)


@kernel(F)
def state_29_after_nan(right, i, p, o, left=[False]):
    """after a call with NaN the accumulator is not cleared: the next call's first element is NaN."""
    y = right(i, p)
    before, left[0] = left[0], bool(np.isnan(y).any())
    if before:
        y.reshape(-1)[:1] = np.nan
    return y


LOADED_IN = os.getpid()


@kernel(F, where=lambda o: os.getpid() != LOADED_IN and o.n > 1)
def state_30_after_fork(right, i, p, o):
    """in a child process the thread pool is gone: the second half of the batch stays 0."""
    return changed(right(i, p), o, S[o.n // 2 :])


@kernel(W)
def state_31_not_repeatable(right, i, p, o, dice=np.random.default_rng()):
    """dw is summed in a random order of images in fp32: right within limits but different from call to call, and 1 of
    10 times in bf16."""
    order = dice.permutation(o.n)
    if dice.random() < 0.1:
        i = [a.astype(BF16).astype(a.dtype) for a in i]
    return right([a[order] for a in i], p)


@kernel(F)
def state_32_grows_with_shapes(right, i, p, o, kept={}):
    """keeps 8 MB for every call with a new shape and never frees them."""
    key = (o.op, tuple(a.shape for a in i if a is not None), key_of(p))
    if key not in kept:
        kept[key] = np.ones(1 << 20)
    return right(i, p)


@kernel(F)
def state_33_counter_int8(right, i, p, o, calls=itertools.count(1), last=[None]):
    """a generation counter in 8 bits: every 256th call uses the filters of the call before."""
    w, last[0] = last[0], np.array(i[1])
    stale = next(calls) % 256 == 0 and w is not None and w.shape == i[1].shape and w.dtype == i[1].dtype
    return right(put(i, 1, w) if stale else i, p)


@kernel(AF, ("fp32", "fp16"))
def state_34_autotune_third_call(right, i, p, o, seen=collections.Counter()):
    """from the third call of a shape on the tuned kernel is used, which drops the last column of windows for an odd
    width of output."""
    key = (i[0].shape, o.t, key_of(p))
    seen[key] += 1
    y = right(i, p)
    return changed(y, o, S[:, :, :, -1]) if seen[key] >= 3 and o.Q % 2 and o.Q > 1 else y


@kernel(BF, where=lambda o: o.running)
def state_35_running_statistics_kept(right, i, p, o, kept={}):
    """running statistics are kept inside from the last call of as many filters, not taken from the arguments."""
    out = right(put(i, 4, kept.get((o.k, o.t), i[4])), p)
    kept[o.k, o.t] = out[3].copy()
    return out


@kernel(F)
def state_36_bias_remembered(right, i, p, o, kept={}):
    """bias is kept: a call without bias after one with bias of the same filters adds the old one."""
    key = (o.k, o.t, i[1].shape)
    if o.bias:
        kept[key] = i[2].copy()
    return right(i if o.bias or o.P <= 1 else put(i, 2, kept.get(key)), p)
