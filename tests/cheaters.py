"""Kernels that are right in a single call, or look so, and cheat or misbehave: each made from the right one."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tests import kernels
from tests.field._right import extents

Kernel = Callable[..., Any]
"""conv_forward: (x, w, bias, *, stride, padding, dilation, groups) -> y."""
Spoil = Callable[..., Any]
"""(y, x, w, bias) -> what is returned instead of y."""

honest = kernels.conv_forward
DELAY = 0.02
"""Seconds after which work that was left behind is done: after the return, before the result is looked at again."""


def after(spoil: Spoil) -> Kernel:
    """The right kernel, and what becomes of its result."""
    return lambda x, w, bias, **parameters: spoil(honest(x, w, bias, **parameters), x, w, bias)


# Memory


def in_memory(use: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Kernel:
    """Memory that is taken before anything is computed, which nobody has cleared, and what is made of it and y."""

    def kernel(x, w, bias, **parameters):
        found = np.empty((len(x), len(w), *extents(x.shape[2:], w.shape[2:], parameters)), x.dtype)
        return use(found, honest(x, w, bias, **parameters))

    return kernel


def unwritten() -> Kernel:
    """Returns what the allocator gave."""
    return in_memory(lambda found, y: found)


def uncleared() -> Kernel:
    """Accumulates into memory that it takes for zero, as fresh pages are."""
    return in_memory(lambda found, y: np.add(found, y, out=found))


def unwritten_tail() -> Kernel:
    """Leaves the last row of every image to the allocator."""

    def use(found, y):
        found[..., :-1, :] = y[..., :-1, :]
        return found

    return in_memory(use)


def written_once() -> Kernel:
    """Relies on the memory of the first result for all later ones of that shape."""
    seen: list[tuple[int, ...]] = []

    def use(found, y):
        seen.append(y.shape)
        return found if y.shape in seen[:-1] else y

    return in_memory(use)


def spoils_input() -> Kernel:
    """Uses an input as scratch space."""

    def spoil(y, x, w, bias):
        w *= 2
        return y

    return after(spoil)


def result_in_input() -> Kernel:
    """Saves an allocation: the result lies in the input's memory, where it fits."""

    def spoil(y, x, w, bias):
        if y.size > x.size or not x.flags.c_contiguous:
            return y
        place = x.reshape(-1)[: y.size].reshape(y.shape)
        place[...] = y
        return place

    return after(spoil)


def _behind(x: np.ndarray) -> np.ndarray | None:
    """The element behind an input, if it is known to be anybody's memory: then touching it harms no heap."""
    if x.base is None or x.base.nbytes <= x.nbytes:
        return None
    return as_strided(x, (x.size + 1,), (x.itemsize,))[-1:]


def writes_behind_input() -> Kernel:
    """A vector store that runs over the end."""

    def spoil(y, x, w, bias):
        if (behind := _behind(x)) is not None:
            behind[...] = 0
        return y

    return after(spoil)


def reads_behind_input() -> Kernel:
    """A vector load that runs over the end, masked by multiplication."""
    return after(lambda y, x, w, bias: y if (behind := _behind(x)) is None else y + 0 * behind[0])


def refuses_without_a_word() -> Kernel:
    """Asserts that inputs are contiguous, and does not say so."""

    def spoil(y, x, w, bias):
        assert x.flags.c_contiguous
        return y

    return after(spoil)


def refuses_clearly() -> Kernel:
    """Takes contiguous inputs only, and says so: legitimate."""

    def spoil(y, x, w, bias):
        if not x.flags.c_contiguous:
            raise ValueError("x must be contiguous")
        return y

    return after(spoil)


def static_buffer(count: int) -> Kernel:
    """Writes all results of a shape into the same `count` arrays, in turn."""
    rings: dict[Any, list[np.ndarray]] = {}

    def spoil(y, *_):
        ring = rings.setdefault((y.shape, y.dtype), [np.empty_like(y) for _ in range(count)])
        ring.append(ring.pop(0))
        ring[-1][...] = y
        return ring[-1]

    return after(spoil)


def clears_its_last_result() -> Kernel:
    """Takes memory back that it has handed out."""
    last: list[np.ndarray] = []

    def spoil(y, *_):
        for old in last:
            old.fill(0)
        last[:] = [y]
        return y

    return after(spoil)


# Results that are known


def remembers(key: Callable[..., Any], handed: Callable[[np.ndarray], np.ndarray] = np.copy) -> Kernel:
    """Computes once for whatever `key` of x, w and bias takes for the content, beside shapes and parameters."""
    results: dict[Any, np.ndarray] = {}

    def kernel(x, w, bias, **parameters):
        known = repr((x.shape, x.dtype, w.shape, bias is None, parameters)), key(x, w, bias)
        if known not in results:
            results[known] = honest(x, w, bias, **parameters)
        return handed(results[known])

    return kernel


def every_byte(*arrays: np.ndarray | None) -> tuple[bytes, ...]:
    return tuple(array.tobytes() for array in arrays if array is not None)


KEYS: dict[str, Callable[..., Any]] = {
    "shape": lambda *arrays: None,
    "address": lambda *arrays: tuple(array.ctypes.data for array in arrays if array is not None),
    "data": lambda x, w, bias: x.tobytes(),
    "weights": lambda x, w, bias: w.tobytes(),
    "head": lambda *arrays: tuple(array.reshape(-1)[:2].tobytes() for array in arrays if array is not None),
    "sum": lambda *arrays: tuple(float(array.sum()) for array in arrays if array is not None),
}
"""What a cache may take for the content of the inputs."""


def remembers_and_shares() -> Kernel:
    """Recognises the whole content, but hands the same array to everybody."""
    return remembers(every_byte, np.asarray)


def remembers_every_byte() -> Kernel:
    """Computes once for every content, and hands out copies: always right."""
    return remembers(every_byte)


def remembers_by_identity() -> Kernel:
    """Computes once for every set of array objects; they live as long as the kernel, so that none is mistaken."""
    held: list[Any] = []

    def key(*arrays):
        held.append(arrays)
        return tuple(map(id, arrays))

    return remembers(key)


def takes_a_buffer_for_its_content() -> Kernel:
    """Computes all over again, and returns what it knows of these buffers, which live as long as the kernel."""
    known: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    return after(lambda y, x, w, bias: known.setdefault(x.ctypes.data, (y, x))[0].copy())


def knows_scaled_copies() -> Kernel:
    """Remembers results without bias by the direction of image and filters, and scales them."""
    seen: dict[bytes, tuple[Any, float]] = {}

    def kernel(x, w, bias, **parameters):
        pivots = [float(a.reshape(-1)[np.argmax(np.abs(a.reshape(-1)))]) for a in (x, w)]
        if 0 in pivots or not np.isfinite(pivots).all():
            return honest(x, w, bias, **parameters)
        key = b"".join((a / pivot).tobytes() for a, pivot in zip((x, w), pivots, strict=True))
        if key not in seen:
            seen[key] = honest(x, w, None, **parameters), pivots[0] * pivots[1]
        y, old = seen[key]
        y = y * np.float32(pivots[0] * pivots[1] / old)
        return y if bias is None else y + bias[:, None, None]

    return kernel


# State


def depends_on_the_call_before() -> Kernel:
    """Adds what scratch space of another shape still holds."""
    scratch = [np.zeros(0, np.float32)]

    def spoil(y, *_):
        if 0 < scratch[0].size != y.size:
            y += np.resize(scratch[0], y.shape)
        scratch[0] = y.copy()
        return y

    return after(spoil)


def wrong_now_and_then() -> Kernel:
    """Every fourth call loses an element, as a race does."""
    calls = itertools.count(1)

    def spoil(y, *_):
        y[0, 0, 0, 0] += next(calls) % 4 == 0
        return y

    return after(spoil)


def rounds_upwards() -> Kernel:
    """Leaves its process in another rounding mode, by x86's number for it."""
    library = ctypes.CDLL(None)

    def spoil(y, *_):
        library.fesetround(0x800)
        return y

    return after(spoil)


def sums_in(order: Callable[[np.ndarray], Any]) -> Kernel:
    """Sums channels in the order that is chosen for an image."""

    def kernel(x, w, bias, **parameters):
        chosen = order(x) if parameters["groups"] == 1 else slice(None)
        return honest(x[:, chosen], w[:, chosen], bias, **parameters)

    return kernel


def sums_in_any_order() -> Kernel:
    """Right to within rounding, in an order of summation that changes from call to call: legitimate."""
    random = np.random.default_rng(0)
    return sums_in(lambda x: random.permutation(x.shape[1]))


def sums_in_either_order(seed: int) -> Kernel:
    """Sum in either of two orders, so that by chance a few calls in a row have the same bits."""
    random = np.random.default_rng(seed)
    return sums_in(lambda x: slice(None, None, random.choice((-1, 1))))


def other_bits_after_another_shape() -> Kernel:
    """Right, but chooses an order of summation by the call before: neither is wrong, and a result depends on both."""
    before: list[tuple[int, ...]] = [()]

    def order(x):
        last, before[0] = before[0], x.shape
        return slice(None, None, -1 if last not in ((), x.shape) else 1)

    return sums_in(order)


# Promises instead of results


def leaves_work_to_a_thread() -> Kernel:
    """Returns at once; the result arrives a little later."""

    def spoil(y, *_):
        found = np.zeros_like(y)
        threading.Timer(DELAY, np.copyto, [found, y]).start()
        return found

    return after(spoil)


def tidies_up_too_late() -> Kernel:
    """A right result into which a thread writes once more."""

    def spoil(y, *_):
        threading.Timer(DELAY, y.fill, [0]).start()
        return y

    return after(spoil)


class LazyArray(np.ndarray):
    """An array subclass that could compute when it is compared."""


class LazyObject:
    """Computes when NumPy asks for its values."""

    def __init__(self, compute: Callable[[], np.ndarray]) -> None:
        self.compute = compute

    def __array__(self, dtype=None, copy=None):
        return self.compute()


class LazyTuple(tuple):
    """Computes when its items are asked for."""

    __slots__ = ()

    def __iter__(self):
        return (compute() for compute in super().__iter__())


def _future(compute: Callable[[], np.ndarray]) -> Future:
    future: Future = Future()
    future.set_result(compute())
    return future


LAZY: dict[str, Callable[[Callable[[], np.ndarray]], Any]] = {
    "subclass": lambda compute: compute().view(LazyArray),
    "object": LazyObject,
    "generator": lambda compute: (part for part in [compute()]),
    "future": _future,
    "tuple": lambda compute: LazyTuple([compute]),
    "function": lambda compute: compute,
}


def lazy(kind: str) -> Kernel:
    """Returns a promise instead of a result."""
    return lambda x, w, bias, **parameters: LAZY[kind](lambda: honest(x, w, bias, **parameters))


USED_TWICE = "changed after the call had returned|another one's result lies"
TIMED: dict[str, tuple[Callable[[], Kernel], str]] = {
    **{f"remembers-by-{name}": (partial(remembers, key), "wrong|answers from memory") for name, key in KEYS.items()},
    "knows-scaled-copies": (knows_scaled_copies, "answers from memory: .* on scaled copies"),
    "remembers-by-identity": (remembers_by_identity, "answers from memory"),
    "remembers-every-byte": (remembers_every_byte, "answers from memory"),
    "remembers-and-shares": (remembers_and_shares, "another one's result lies"),
    "static-buffer": (partial(static_buffer, 1), USED_TWICE),
    "two-static-buffers": (partial(static_buffer, 2), USED_TWICE),
    "clears-its-last-result": (clears_its_last_result, "changed after the call had returned"),
    "buffer-for-content": (takes_a_buffer_for_its_content, "wrong on other values in the same buffers"),
    "alias-of-input": (result_in_input, "lies in the memory of an input"),
    "spoils-input": (spoils_input, "wrong"),
    "late-thread": (leaves_work_to_a_thread, "wrong on the buffers that are timed"),
    "wrong-now-and-then": (wrong_now_and_then, "wrong in a timed call"),
    **{f"lazy-{kind}": (partial(lazy, kind), "returned|computes") for kind in LAZY},
}
"""Those that would get a time that is not their work's, and what the benchmark suite says of them."""
