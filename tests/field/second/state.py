"""Class 5, state: caches, workspaces, threads, counters."""

import itertools
import os
import time

import numpy as np

from tests.field._kit import *


@kernel(F)
def state_01_plan_without_dilation(right, i, p, o, plans={}):
    """the plan (here the taps) is cached by shapes, stride and padding of the output, without dilation: the same shapes
    with another dilation use the first."""
    key = (i[0].shape, i[1].shape, o.P, o.Q, o.stride, o.t, o.L, o.g)
    return right(i, {**p, **plans.setdefault(key, {"dilation": o.dilation, "padding": o.pad})})


@kernel(F)
def state_02_weights_by_id(right, i, p, o, packed={}):
    """packed weights are cached by id(w): after the array has died another one can have its id."""
    w = i[1]
    key = (id(w), w.shape, w.dtype)
    if key not in packed:
        packed[key] = w.copy()
    return right(put(i, 1, packed[key]), p)


@kernel(AF)
def state_04_divisors_without_include(right, i, p, o, kept={}):
    """the table of divisors is cached without count_include_pad and divisor_override."""
    key = (o.h, o.w, o.kernel_size, o.stride, o.pad, o.ceil_mode)
    first = {name: p[name] for name in ("count_include_pad", "divisor_override")}
    return right(i, {**p, **kept.setdefault(key, first)})


@kernel(BI)
def state_05_eps_cached(right, i, p, o, kept={}):
    """the compiled kernel bakes in eps of its first call with these shapes."""
    return right(i, {**p, "eps": kept.setdefault((i[0].shape, i[1].shape, o.t), o.eps)})


@kernel(W)
def state_06_workspace_of_first_call(right, i, p, o, kept={}):
    """a static workspace sized by the first call: a larger problem keeps only what fits, the rest of dw is zero."""
    out = right(i, p)
    dw = first(out).reshape(-1)
    dw[max(kept.setdefault("size", dw.size), 18) :] = 0
    return out


@kernel(F, ("fp32",), ("nchw",))
def state_07_not_reentrant(right, i, p, o, shared=np.zeros(1 << 16, np.float32)):
    """a global scratch buffer: two threads at once mix their results."""
    y = right(i, p)
    if y.size > shared.size:
        return y
    part = shared[: y.size]
    part[:] = y.reshape(-1)
    time.sleep(0)
    start = time.perf_counter()
    while time.perf_counter() - start < 2e-4:
        pass
    return part.copy().reshape(y.shape)


@kernel(F)
def state_08_leaks_plans(right, i, p, o, kept={}):
    """every new shape keeps its padded input in a cache that is never emptied."""
    shape = i[0].shape
    if shape not in kept:
        kept[shape] = np.ones((*shape[:-2], shape[-2] + 8, shape[-1] + 8), np.float32)
    return right(i, p)


@kernel(MF)
def state_10_after_100(right, i, p, o, calls=itertools.count(1)):
    """from the 101st call of the process on the first column is that of the previous call (an event pool runs out)."""
    y = right(i, p)
    return changed(y, o, S[..., 0]) if next(calls) > 100 else y


@kernel(D)
def state_11_after_another_dtype(right, i, p, o, seen=[None]):
    """the call right after one of another dtype uses the old dtype's rounding (a mode register is set late)."""
    dx = right(i, p)
    before, seen[0] = seen[0], dx.dtype
    return dx.astype(before).astype(dx.dtype) if before is not None else dx


LOADED_IN = os.getpid()


@kernel(F, ("fp32",), where=lambda o: os.getpid() != LOADED_IN)
def state_12_after_fork(right, i, p, o):
    """after fork (a data loader's worker) the thread pool is dead: only the first image is computed."""
    return changed(right(i, p), o, S[1:])


@kernel(W, ("fp32",), ("nchw",), where=lambda o: o.n, deterministic=True)
def state_13_nondeterministic(right, i, p, o, dice=np.random.default_rng()):
    """atomic adds: the images are added in a random order, so that results differ from run to run in the last bits;
    declared as deterministic (later: its author took that for the default)."""
    parts = [right([a[n : n + 1] for a in i], p) for n in dice.permutation(o.n)]
    if not o.with_bias:
        return sum(parts[1:], parts[0])
    return tuple(sum(each[1:], each[0]) for each in zip(*parts, strict=True))


@kernel(BF)
def state_14_momentum_first_elements(right, i, p, o, results={}):
    """results are cached by the shapes and the first 16 elements of x and w: other data with the same start get the old
    result."""
    heads = ((a.shape, a.reshape(-1)[:16].tobytes()) for a in i[:2])
    parameters = (o.eps, o.momentum, o.eps_outside, o.stride, o.pad, o.dilation, o.L, o.affine, o.running)
    key = (*heads, o.t, *parameters)
    if key not in results:
        results[key] = right(i, p)
    return tuple(a.copy() for a in results[key])
