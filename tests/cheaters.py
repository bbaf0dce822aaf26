"""Kernels that are right in a single call, or look so, and cheat or misbehave: each made from a right one."""

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

Kernel = Callable[..., Any]
"""conv_forward: (x, w, bias, *, stride, padding, dilation, groups) -> y."""

DELAY = 0.02
"""Seconds after which work that was left behind is done: after the return, before the result is looked at again."""


def honest(x, w, bias, **parameters):
    return kernels.conv_forward(x, w, bias, **parameters)


def _empty(x, w, bias, *, stride, padding, dilation, groups):
    (*_, h, w_), (k, _, r, s), ((top, bottom), (left, right)) = x.shape, w.shape, padding
    size = h + top + bottom - dilation[0] * (r - 1) - 1, w_ + left + right - dilation[1] * (s - 1) - 1
    return np.empty((len(x), k, size[0] // stride[0] + 1, size[1] // stride[1] + 1), x.dtype)


def unwritten() -> Kernel:
    """Returns what the allocator gave."""
    return _empty


def rounds_upwards() -> Kernel:
    """Leaves its process in another rounding mode, by x86's number for it."""
    library = ctypes.CDLL(None)

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        library.fesetround(0x800)
        return y

    return kernel


def uncleared() -> Kernel:
    """Accumulates into memory that it takes for zero, as fresh pages are."""

    def kernel(x, w, bias, **parameters):
        y = _empty(x, w, bias, **parameters)
        y += honest(x, w, bias, **parameters)
        return y

    return kernel


def unwritten_tail() -> Kernel:
    """Leaves the last row of every image to the allocator."""

    def kernel(x, w, bias, **parameters):
        right = honest(x, w, bias, **parameters)
        y = np.empty_like(right)
        y[..., :-1, :] = right[..., :-1, :]
        return y

    return kernel


def written_once() -> Kernel:
    """Relies on the memory of the first result for all later ones of that shape."""
    seen = set()

    def kernel(x, w, bias, **parameters):
        known = x.shape in seen
        seen.add(x.shape)
        return (_empty if known else honest)(x, w, bias, **parameters)

    return kernel


def spoils_input() -> Kernel:
    """Uses an input as scratch space."""

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        w *= 2
        return y

    return kernel


def result_in_input() -> Kernel:
    """Saves an allocation: the result lies in the input's memory, where it fits."""

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        if y.size > x.size:
            return y
        place = x.reshape(-1)[: y.size].reshape(y.shape)
        place[...] = y
        return place

    return kernel


def _behind(x: np.ndarray) -> np.ndarray | None:
    """The element behind an input, if it is known to be anybody's memory: then touching it harms no heap."""
    if x.base is None or x.base.nbytes <= x.nbytes:
        return None
    return as_strided(x, (x.size + 1,), (x.itemsize,))[-1:]


def writes_behind_input() -> Kernel:
    """A vector store that runs over the end."""

    def kernel(x, w, bias, **parameters):
        behind = _behind(x)
        if behind is not None:
            behind[...] = 0
        return honest(x, w, bias, **parameters)

    return kernel


def reads_behind_input() -> Kernel:
    """A vector load that runs over the end, masked by multiplication."""

    def kernel(x, w, bias, **parameters):
        behind = _behind(x)
        y = honest(x, w, bias, **parameters)
        return y if behind is None else y + 0 * behind[0]

    return kernel


KEYS: dict[str, Callable[[list[np.ndarray]], Any]] = {
    "shape": lambda arrays: None,
    "address": lambda arrays: [array.ctypes.data for array in arrays],
    "data": lambda arrays: arrays[0].tolist(),
    "weights": lambda arrays: arrays[1].tolist(),
    "head": lambda arrays: [array.reshape(-1)[:2].tolist() for array in arrays],
    "sum": lambda arrays: [float(array.sum()) for array in arrays],
}
"""What a cache may take for the content of the inputs, besides their shapes."""


def remembers(key: str) -> Kernel:
    """Computes a result once for every key; hands out copies."""
    results: dict[str, np.ndarray] = {}

    def kernel(x, w, bias, **parameters):
        arrays = [array for array in (x, w, bias) if array is not None]
        found = repr(([array.shape for array in arrays], KEYS[key](arrays)))
        if found not in results:
            results[found] = honest(x, w, bias, **parameters)
        return results[found].copy()

    return kernel


def remembers_and_shares() -> Kernel:
    """Recognises the whole content, but hands the same array to everybody."""
    results: dict[Any, np.ndarray] = {}

    def kernel(x, w, bias, **parameters):
        key = (x.tobytes(), w.tobytes(), x.shape, None if bias is None else bias.tobytes())
        if key not in results:
            results[key] = honest(x, w, bias, **parameters)
        return results[key]

    return kernel


def static_buffer(count: int) -> Kernel:
    """Writes all results of a shape into the same `count` arrays, in turn."""
    rings: dict[tuple[int, ...], list[np.ndarray]] = {}

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        ring = rings.setdefault(y.shape, [np.empty_like(y) for _ in range(count)])
        ring.append(ring.pop(0))
        ring[-1][...] = y
        return ring[-1]

    return kernel


def depends_on_the_call_before() -> Kernel:
    """Adds what scratch space of another shape still holds."""
    scratch = [np.zeros(0, np.float32)]

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        if 0 < scratch[0].size != y.size:
            y += np.resize(scratch[0], y.shape)
        scratch[0] = y.copy()
        return y

    return kernel


def other_bits_after_another_shape() -> Kernel:
    """Right, but chooses an order of summation by the call before: neither is wrong, and a result depends on both."""
    before: list[tuple[int, ...]] = [()]

    def kernel(x, w, bias, **parameters):
        order = slice(None, None, -1 if before[0] not in ((), x.shape) else 1)
        before[0] = x.shape
        if parameters["groups"] > 1:
            return honest(x, w, bias, **parameters)
        return honest(x[:, order], w[:, order], bias, **parameters)

    return kernel


def wrong_now_and_then() -> Kernel:
    """Every fourth call loses an element, as a race does."""
    calls = itertools.count(1)

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        if next(calls) % 4 == 0:
            y[0, 0, 0, 0] += 1
        return y

    return kernel


def reads_as_if_contiguous() -> Kernel:
    """Takes a pointer and ignores the strides, as C code behind a binding does."""

    def raw(array):
        return as_strided(array, array.shape, np.empty(array.shape, array.dtype).strides)

    return lambda x, w, bias, **p: honest(raw(x), raw(w), None if bias is None else raw(bias), **p)


def refuses_without_a_word() -> Kernel:
    """Asserts that inputs are contiguous, and does not say so."""

    def kernel(x, w, bias, **parameters):
        assert x.flags.c_contiguous
        return honest(x, w, bias, **parameters)

    return kernel


def refuses_clearly() -> Kernel:
    """Takes contiguous inputs only, and says so: legitimate."""

    def kernel(x, w, bias, **parameters):
        if not x.flags.c_contiguous:
            raise ValueError("x must be contiguous")
        return honest(x, w, bias, **parameters)

    return kernel


def sums_in_any_order() -> Kernel:
    """Right to within rounding, in an order of summation that changes from call to call: legitimate."""
    random = np.random.default_rng(0)

    def kernel(x, w, bias, **parameters):
        order = random.permutation(x.shape[1]) if parameters["groups"] == 1 else slice(None)
        return honest(x[:, order], w[:, order], bias, **parameters)

    return kernel


def sums_in_either_order(seed: int) -> Kernel:
    """The same with two orders, so that by chance a few calls in a row have the same bits."""
    random = np.random.default_rng(seed)

    def kernel(x, w, bias, **parameters):
        order = slice(None, None, random.choice((-1, 1))) if parameters["groups"] == 1 else slice(None)
        return honest(x[:, order], w[:, order], bias, **parameters)

    return kernel


def leaves_work_to_a_thread() -> Kernel:
    """Returns at once; the result arrives a little later."""

    def kernel(x, w, bias, **parameters):
        right = honest(x, w, bias, **parameters)
        y = np.zeros_like(right)
        threading.Timer(DELAY, np.copyto, [y, right]).start()
        return y

    return kernel


def tidies_up_too_late() -> Kernel:
    """A right result into which a thread writes once more."""

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        threading.Timer(DELAY, y.fill, [0]).start()
        return y

    return kernel


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


def remembers_by_identity() -> Kernel:
    """Computes once for every set of array objects; they live as long as the kernel, so that none is mistaken."""
    results: dict[Any, Any] = {}

    def kernel(x, w, bias, **parameters):
        key = (id(x), id(w), id(bias))
        if key not in results:
            results[key] = (honest(x, w, bias, **parameters), x, w, bias)
        return results[key][0].copy()

    return kernel


def remembers_every_byte() -> Kernel:
    """Computes once for every content, and hands out copies: always right."""
    results: dict[Any, np.ndarray] = {}

    def kernel(x, w, bias, **parameters):
        key = (x.tobytes(), w.tobytes(), bias.tobytes())
        if key not in results:
            results[key] = honest(x, w, bias, **parameters)
        return results[key].copy()

    return kernel


def clears_its_last_result() -> Kernel:
    """Takes memory back that it has handed out."""
    last: list[np.ndarray] = []

    def kernel(x, w, bias, **parameters):
        for old in last:
            old.fill(0)
        last[:] = [honest(x, w, bias, **parameters)]
        return last[0]

    return kernel


def takes_a_buffer_for_its_content() -> Kernel:
    """Computes all over again, and returns what it knows of these buffers, which live as long as the kernel."""
    known: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        return known.setdefault(x.ctypes.data, (y, x))[0].copy()

    return kernel


USED_TWICE = "changed after the call had returned|another one's result lies"


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


TIMED: dict[str, tuple[Callable[[], Kernel], str]] = {
    **{f"remembers-by-{key}": (partial(remembers, key), "wrong|answers from memory") for key in KEYS},
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
