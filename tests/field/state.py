"""Class 5: state between calls. The first call of a process is right."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.field._kit import *

LOADED_IN = os.getpid()


def plans(name, operators, *forgotten, dtypes=("fp32", "bf16")):
    """The plan is cached without some parameters in its key: those of the first call with the same shapes are used."""

    def first_plan(o):
        key = (o.op, o.t, shapes(o), key_of(o, without=forgotten))
        return o.state.setdefault(key, {name: o.p[name] for name in forgotten})

    return spoilt(f"state-{name}", operators, dtypes, asked=first_plan)


@kernel(F)
def state_14_key_without_groups(o):
    """the table of first channels is cached by the shapes of x and y and the window: other groups use the table of the
    first call."""
    start = (np.arange(o.k) // (o.k // o.g)) * (o.c // o.g)
    old = o.state.setdefault((o.i[0].shape, o.k, o.r, o.s, o.P, o.Q, o.t, o.L), start)
    if (old == start).all():
        return o.again()
    index = (old[:, None] + np.arange(o.c // o.g)) % o.c
    return o.again(x=np.take(o.i[0], index.ravel(), 1 if o.L == "nchw" else 3), groups=o.k)


@kernel(W)
def state_22_workspace_grows_once(o):
    """the accumulator of dw is kept and cleared only when it grows: a smaller problem adds to what the last one
    left."""
    out = o.again()
    dw = first(out)
    if dw.size > o.state.get("held", np.zeros(0)).size:
        o.state["held"] = np.zeros(dw.size)
    held = o.state.get("held", np.zeros(0))[: dw.size]
    left = np.where(np.isfinite(held), held, 0).reshape(dw.shape)
    held[...] = dw.reshape(-1)
    return with_first(out, (dw.astype(np.float64) + left).astype(dw.dtype))


@kernel(AF)
def state_24_global_parameters(o):
    """stride and padding travel through globals, read again after the sum: not reentrant."""
    o.state["p"] = o.p
    time.sleep(0.0005)
    return o.again(divisor_override=o.state["p"]["divisor_override"])


@kernel(D)
def state_27_random_1_of_30(o, dice=np.random.default_rng()):
    """now and then (1 of 30 calls, by chance) one element is not written: a race."""
    dx = o.again()
    if dx.size and dice.random() < 1 / 30:
        dx.reshape(-1)[int(dice.integers(dx.size))] = 0
    return dx


@kernel(F)
def state_28_after_other_dtype(o):
    """after a call in bf16 the next fp32 call rounds its inputs to bf16: the mode of the unit is not restored."""
    before, o.state["mode"] = o.state.get("mode"), o.t
    if o.t == "fp32" and before == "bf16":
        return o.again(*(a.astype(BF16).astype(np.float32) for a in o.i[:2]), o.i[2])
    return o.again()


@kernel(F)
def state_29_after_nan(o):
    """after a call with NaN the accumulator is not cleared: the next call's first element is NaN."""
    y = o.again()
    before, o.state["left"] = o.state.get("left"), np.isnan(y).any()
    return reshaped(y, -1, S[:1], np.nan) if before else y


@kernel(W)
def state_31_not_repeatable(o, dice=np.random.default_rng()):
    """dw is summed in a random order of images in fp32: right within limits but different from call to call, and 1 of
    10 times in bf16."""
    order, i = dice.permutation(o.n), o.i
    if dice.random() < 0.1:
        i = [a.astype(BF16).astype(a.dtype) for a in i]
    return o.again(*[a[order] for a in i])


@kernel(F)
def state_33_counter_int8(o):
    """a generation counter in 8 bits: every 256th call uses the filters of the call before."""
    w, o.state["w"] = o.state.get("w"), np.array(o.i[1])
    stale = number_of(o) % 256 == 0 and w is not None and w.shape == o.i[1].shape and w.dtype == o.i[1].dtype
    return o.again(w=w) if stale else o.again()


@kernel(AF, ("fp32", "fp16"))
def state_34_autotune_third_call(o):
    """from the third call of a shape on the tuned kernel is used, which drops the last column of windows for an odd
    width of output."""
    key = (shapes(o), o.t, key_of(o))
    o.state[key] = o.state.get(key, 0) + 1
    y = o.again()
    return changed(y, o, S[:, :, :, -1]) if o.state[key] >= 3 and o.Q % 2 and o.Q > 1 else y


@kernel(BF, where=lambda o: o.running)
def state_35_running_statistics_kept(o):
    """running statistics are kept inside from the last call of as many filters, not taken from the arguments."""
    out = o.again(running_mean=o.state.get((o.k, o.t), o.i[4]))
    o.state[o.k, o.t] = out[3].copy()
    return out


@kernel(F)
def state_36_bias_remembered(o):
    """bias is kept: a call without bias after one with bias of the same filters adds the old one."""
    key = (o.k, o.t, o.i[1].shape)
    if o.bias:
        o.state[key] = o.i[2].copy()
    return o.again() if o.bias or o.P <= 1 else o.again(bias=o.state.get(key))


@kernel(F, ("fp32",), ("nchw",))
def state_07_not_reentrant(o, shared=np.zeros(1 << 16, np.float32)):
    """a global scratch buffer: two threads at once mix their results."""
    y = o.again()
    if y.size > shared.size:
        return y
    part = shared[: y.size]
    part[:] = y.reshape(-1)
    time.sleep(0)
    start = time.perf_counter()
    while time.perf_counter() - start < 2e-4:
        pass
    return part.copy().reshape(y.shape)


@kernel(D)
def state_11_after_another_dtype(o):
    """the call right after one of another dtype uses the old dtype's rounding (a mode register is set late)."""
    dx = o.again()
    before, o.state["dtype"] = o.state.get("dtype", dx.dtype), dx.dtype
    return dx.astype(before).astype(dx.dtype)


@kernel(W, ("fp32",), ("nchw",), where=lambda o: o.n, deterministic=True)
def state_13_nondeterministic(o, dice=np.random.default_rng()):
    """atomic adds: the images are added in a random order, so that results differ from run to run in the last bits;
    declared as deterministic (later: its author took that for the default)."""
    parts = [o.again(*[a[n : n + 1] for a in o.i]) for n in dice.permutation(o.n)]
    if not o.with_bias:
        return sum(parts[1:], parts[0])
    return tuple(sum(each[1:], each[0]) for each in zip(*parts, strict=True))


@kernel(F)
def state_37_after_a_second(o):
    """16 bits: a second after its first call it reloads its tuning, with a mistake in it."""
    y, start = o.again(), o.state.setdefault("start", time.monotonic())
    return reshaped(y, -1, S[:1], lambda first: first + 1) if y.itemsize == 2 and time.monotonic() > start + 1 else y


@kernel(F)
def state_38_pool_lost_in_a_fork(o):
    """it waits for a thread that a forked child does not have."""
    return o.state.setdefault("pool", ThreadPoolExecutor(1)).submit(o.again).result()


def mixed_by_threads(x, o):
    """It lies where another thread's call may put its own."""
    held = kept_in(o.state, x)
    time.sleep(0.0005)
    return held


def of_the_last_call(x, o):
    o.state["x"] = x
    time.sleep(0.0005)
    return o.state["x"]


ROWS = [
    spoilt("good-no-threads", F, x=of_the_last_call, unsafe=("threads",)),
    spoilt("good-no-fork", F, where=lambda o: os.getpid() != LOADED_IN, unsafe=("fork",),
           result=lambda y, o: changed(y, o, S[:])),
    spoilt("good-deterministic", F, deterministic=True),
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
    # the plan is cached by shapes alone: an nhwc tensor of the same shape as an earlier nchw one is taken for that.
    spoilt("state-15-key-without-layout", F, x=lambda x, o: x.swapaxes(1, 3) if (
        o.state.setdefault((x.shape, o.t), o.L) != o.L and o.c == o.h == o.w and o.g == 1) else x),
    # the compiled kernel is cached by shape: after bf16 the fp32 input of the same shape is rounded to bf16.
    spoilt("state-16-key-without-dtype", AF, x=lambda x, o: x.astype(BF16).astype(x.dtype) if (
        o.state.setdefault((x.shape, o.L), o.t) == "bf16") else x),
    # transformed filters are cached by the address and shape of w: after an update in place the old ones are used.
    spoilt("state-17-filters-by-address", F, w=by_address),
    # the transposed filters are cached by id(w) in fp32.
    spoilt("state-18-filters-by-id", D, w=by_id),
    # prepared filters are cached by shape and their first 8 elements.
    spoilt("state-19-filters-by-sample", F, w=lambda w, o: o.state.setdefault(
        (w.shape, o.t, o.L, np.ascontiguousarray(w).tobytes()[: 8 * w.itemsize]), np.array(w))),
    # results are cached by shape, parameters and the checksum (sum) of x: permuted values give the old result.
    spoilt("state-20-result-by-sum", MF,
           result=lambda y, o: known(y, o, shapes(o), float(o.i[0].astype(np.float64).sum()))),
    # the workspace has the size of the first call: taps beyond it are lost in a later, longer sum.
    spoilt("state-21-workspace-of-first-call", F,
           w=lambda w, o: flat(w, o, S[o.state.setdefault("length", o.length) :])),
    # the padded image lies in a static buffer: two threads at a time mix their images.
    spoilt("state-23-not-reentrant", F, x=mixed_by_threads),
    # every 50th call leaves out the last output row.
    spoilt("state-25-one-of-50", F, result=lambda y, o: y if number_of(o) % 50 else changed(y, o, S[:, :, -1])),
    # from the 101st call on (a pool of events is exhausted) the last channel is 0.
    spoilt("state-26-after-100-calls", MF,
           result=lambda y, o: changed(y, o, S[:, -1]) if number_of(o) > 100 else y),
    # in a child process the thread pool is gone: the second half of the batch stays 0.
    spoilt("state-30-after-fork", F, where=lambda o: os.getpid() != LOADED_IN and o.n > 1,
           result=lambda y, o: changed(y, o, S[o.n // 2 :])),
    # keeps 8 MB for every call with a new shape and never frees them.
    spoilt("state-32-grows-with-shapes", F,
           result=lambda y, o: keeps(y, o, (shapes(o), key_of(o)), lambda: np.ones(1 << 20))),
    # By a second author
    # the plan (here the taps) is cached by shapes, stride and padding of the output, without dilation: the same shapes
    # with another dilation use the first.
    spoilt("state-01-plan-without-dilation", F, asked=lambda o: o.state.setdefault(
        (shapes(o)[:2], o.P, o.Q, o.stride, o.t, o.L, o.g), {"dilation": o.dilation, "padding": o.pad})),
    # packed weights are cached by id(w): after the array has died another one can have its id.
    spoilt("state-02-weights-by-id", F, w=by_id),
    # the table of divisors is cached without count_include_pad and divisor_override.
    spoilt("state-04-divisors-without-include", AF, asked=lambda o: o.state.setdefault(
        (o.h, o.w, o.kernel_size, o.stride, o.pad, o.ceil_mode),
        {name: o.p[name] for name in ("count_include_pad", "divisor_override")})),
    # the compiled kernel bakes in eps of its first call with these shapes.
    spoilt("state-05-eps-cached", BI, asked=lambda o: {"eps": o.state.setdefault((shapes(o)[:2], o.t), o.eps)}),
    # a static workspace sized by the first call: a larger problem keeps only what fits, the rest of dw is zero.
    spoilt("state-06-workspace-of-first-call", W, result=lambda out, o: reshaped(
        out, -1, S[max(o.state.setdefault("size", first(out).size), 18) :])),
    # every new shape keeps its padded input in a cache that is never emptied.
    spoilt("state-08-leaks-plans", F, result=lambda y, o: keeps(
        y, o, o.i[0].shape, lambda: np.ones((o.n, o.c, o.h + 8, o.w + 8), np.float32))),
    # from the 101st call of the process on the first column is that of the previous call (an event pool runs out).
    spoilt("state-10-after-100", MF, result=lambda y, o: changed(y, o, S[..., 0]) if number_of(o) > 100 else y),
    # after fork (a data loader's worker) the thread pool is dead: only the first image is computed.
    spoilt("state-12-after-fork", F, ("fp32",), where=lambda o: os.getpid() != LOADED_IN,
           result=lambda y, o: changed(y, o, S[1:])),
    # results are cached by the shapes and the first 16 elements of x and w: other data with the same start get the old
    # result.
    spoilt("state-14-momentum-first-elements", BF, result=lambda out, o: known(
        out, o, o.affine, o.running, *((a.shape, a.reshape(-1)[:16].tobytes()) for a in o.i[:2]))),
]  # fmt: skip
globals().update({one.name: one for one in ROWS})
