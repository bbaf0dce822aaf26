"""Kernels that keep what they should not from one call to the next, each an implementation of its own."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any

import numpy as np

from tests.field import right

KEYS = {
    "padding": ("stride", "dilation", "groups", "layout"),
    "stride": ("padding", "dilation", "groups", "layout"),
    "dilation": ("stride", "padding", "groups", "layout"),
    "layout": ("stride", "padding", "dilation", "groups"),
    "anything": (),
}
"""The parameter that a cache's key lacks -> those that it has."""


def plan_without(missing):
    """Keeps the parameters that it was first called with, for inputs of these shapes."""
    plans: dict[Any, dict[str, Any]] = {}

    def kernel(x, w, bias, **parameters):
        key = (x.shape, w.shape, x.dtype, *(parameters[name] for name in KEYS[missing]))
        return right.conv_forward(x, w, bias, **plans.setdefault(key, parameters))

    return kernel


def plan_without_bias():
    """Takes the presence of a bias from the first call on these shapes."""
    plans: dict[Any, Any] = {}

    def kernel(x, w, bias, **parameters):
        has = plans.setdefault((x.shape, w.shape, x.dtype, repr(parameters)), bias is not None)
        return right.conv_forward(x, w, bias if has else None, **parameters)

    return kernel


def plan_without_dtype():
    """Rounds to the dtype of the first call on these shapes."""
    plans: dict[Any, Any] = {}

    def kernel(x, w, bias, **parameters):
        narrow = plans.setdefault((x.shape, w.shape, repr(parameters)), x.dtype)
        return right.conv_forward(x, w, bias, **parameters).astype(narrow).astype(x.dtype)

    return kernel


def packed_weights(key):
    """Packs weights once for what it takes for the same weights."""
    packs: dict[Any, np.ndarray] = {}

    def kernel(x, w, bias, **parameters):
        pack = packs.setdefault((w.shape, w.dtype, key(w)), w.copy())
        return right.conv_forward(x, pack, bias, **parameters)

    return kernel


def workspace_of_first_call():
    """The workspace has the size of the first call; what does not fit is left out."""
    sizes: list[int] = []

    def kernel(x, w, bias, **parameters):
        y = right.conv_forward(x, w, bias, **parameters)
        sizes.append(y.size)
        y.reshape(-1)[max(4 * sizes[0], 1 << 10) :] = 0
        return y

    return kernel


def workspace_not_cleared():
    """A workspace that grows keeps what larger calls have left, and a smaller one reads it."""
    largest = [np.zeros(0, np.float32)]

    def kernel(x, w, bias, **parameters):
        y = right.conv_forward(x, w, bias, **parameters)
        if y.size < largest[0].size:
            y.reshape(-1)[-1] += largest[0][y.size].astype(y.dtype)
        else:
            largest[0] = y.reshape(-1).astype(np.float32)
        return y

    return kernel


def after_calls(count):
    """A counter of calls overflows."""
    calls = itertools.count(1)

    def kernel(x, w, bias, **parameters):
        y = right.conv_forward(x, w, bias, **parameters)
        if next(calls) > count and parameters["groups"] > 1:
            y.reshape(-1)[:1] += 1  # which may be empty
        return y

    return kernel


def after_a_second():
    """Reloads its tuning a second after its first call, with a mistake in it."""
    start: list[float] = []

    def kernel(x, w, bias, **parameters):
        y = right.conv_forward(x, w, bias, **parameters)
        start.append(time.monotonic())
        if start[-1] > start[0] + 1.0 and x.itemsize == 2:
            y.reshape(-1)[:1] += 1  # which may be empty
        return y

    return kernel


def one_in(calls):
    """A race that is lost once in so many calls."""
    dice = np.random.default_rng(3)

    def kernel(x, w, bias, **parameters):
        y = right.conv_forward(x, w, bias, **parameters)
        if dice.random() < 1 / calls:
            y.reshape(-1)[y.size // 2] += 1
        return y

    return kernel


def after_another_dtype():
    """A table of constants is made for the dtype of the call before."""
    before: list[Any] = [None]

    def kernel(x, w, bias, **parameters):
        y = right.conv_forward(x, w, bias, **parameters)
        if before[0] is not None and before[0] != x.dtype:
            y.reshape(-1)[-1] += 1
        before[0] = x.dtype
        return y

    return kernel


def parameters_in_the_module():
    """Parameters lie in the module while it computes: another thread's may be there."""
    current: dict[str, Any] = {}

    def kernel(x, w, bias, **parameters):
        current["call"] = (x, w, bias, parameters)
        x, w, bias, parameters = current["call"]
        return right.conv_forward(x, w, bias, **parameters)

    return kernel


def pool_lost_in_a_fork():
    """Waits for a thread that a forked child does not have."""
    work: list[Any] = []
    ready, done = threading.Semaphore(0), threading.Semaphore(0)

    def serve():
        while True:
            ready.acquire()
            x, w, bias, parameters = work.pop()
            work.append(right.conv_forward(x, w, bias, **parameters))
            done.release()

    guard = threading.Lock()
    threads: list[threading.Thread] = []

    def kernel(x, w, bias, **parameters):
        with guard:
            if not threads:
                threads.append(threading.Thread(target=serve, daemon=True))
                threads[0].start()
            work.append((x, w, bias, parameters))
            ready.release()
            done.acquire()
            return work.pop()

    return kernel


def wrong_in_a_fork():
    """A handle that belongs to the process of the first call."""
    owner: list[int] = []

    def kernel(x, w, bias, **parameters):
        owner.append(os.getpid())
        return right.conv_forward(x, w, bias, **parameters) * (owner[0] == os.getpid())

    return kernel


def keeps_every_shape():
    """A workspace for every shape that was ever seen."""
    known: dict[Any, np.ndarray] = {}

    def kernel(x, w, bias, **parameters):
        if (x.shape, w.shape) not in known:
            known[x.shape, w.shape] = np.ones(x.shape, np.float32)
        return right.conv_forward(x, w, bias, **parameters)

    return kernel


def keeps_every_input():
    """A leak: every call keeps a reference to its image."""
    known: list[np.ndarray] = []

    def kernel(x, w, bias, **parameters):
        known.append(x)
        return right.conv_forward(x, w, bias, **parameters)

    return kernel


def other_bits():
    """Promises to be deterministic and sums in another order now and then."""
    dice = np.random.default_rng(1)

    def kernel(x, w, bias, **parameters):
        if parameters["groups"] > 1 or parameters["layout"] == "nhwc" or dice.random() < 0.8:
            return right.conv_forward(x, w, bias, **parameters)
        return right.conv_forward(x[:, ::-1], w[:, ::-1], bias, **parameters)

    return kernel


KERNELS = {
    **{f"plan-without-{name}": plan_without(name) for name in KEYS},
    "plan-without-bias": plan_without_bias(),
    "plan-without-dtype": plan_without_dtype(),
    "packed-by-shape": packed_weights(lambda w: None),
    "packed-by-address": packed_weights(lambda w: w.ctypes.data),
    "packed-by-head": packed_weights(lambda w: w.reshape(-1)[:8].tobytes()),
    "packed-by-sum": packed_weights(lambda w: float(w.astype(np.float64).sum())),
    "workspace-of-first-call": workspace_of_first_call(),
    "workspace-not-cleared": workspace_not_cleared(),
    "after-100-calls": after_calls(100),
    "after-a-second": after_a_second(),
    "one-in-50": one_in(50),
    "one-in-200": one_in(200),
    "after-another-dtype": after_another_dtype(),
    "parameters-in-the-module": parameters_in_the_module(),
    "pool-lost-in-a-fork": pool_lost_in_a_fork(),
    "wrong-in-a-fork": wrong_in_a_fork(),
    "keeps-every-shape": keeps_every_shape(),
    "keeps-every-input": keeps_every_input(),
}

found = [right.implementation("good-right", right.conv_forward)]
found += [right.implementation(f"bad-{name}", kernel) for name, kernel in KERNELS.items()]
found += [right.implementation("bad-other-bits", other_bits(), deterministic=True)]
found += [right.implementation("good-no-threads", parameters_in_the_module(), unsafe=("threads",))]
found += [right.implementation("good-no-fork", wrong_in_a_fork(), unsafe=("fork",))]
found += [right.implementation("good-deterministic", right.conv_forward, deterministic=True)]
globals().update({one.name: one for one in found})
