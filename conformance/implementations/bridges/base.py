"""The bridge between host tensors and what an implementation's kernels take."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from conformance import floating_point


class ArrayBridge(Protocol):
    """Moves tensors between the host and one framework's device. Construction imports no framework.

    What a bridge inherits is for a framework whose arrays are values: they have no views, never change and are timed by
    waiting for them.
    """

    @property
    def name(self) -> str:
        """The framework's name."""
        ...

    def require(self) -> None:
        """Raises `conformance.Unavailable` with the reason where the framework or its device cannot be used here."""
        ...

    def from_host(self, array: np.ndarray) -> Any:
        """A fresh copy of a C-contiguous host array (storage dtypes of `conformance.dtypes`, or bytes), on the
        device."""
        ...

    def to_host(self, array: Any) -> np.ndarray:
        """A plain NumPy copy of a result; raises TypeError for what is not the framework's own array."""
        ...

    def synchronize(self, result: Any) -> None:
        """Return when `result` is computed and all work submitted to the device has finished."""
        ...

    @property
    def unsafe(self) -> tuple[str, ...]:
        """What callers must not do to any kernel of the framework, in the words of `Implementation`: JAX warns of a
        `fork`, since threads are not there in the child, and a call of torch waits for them for ever."""
        return ()

    @property
    def compiles_per_shape(self) -> bool:
        """Whether a first call on a shape takes a compiler's time."""
        return False

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any | None:
        """A view into a 1-D array, offset and strides in elements; None where the framework has no views."""
        return None

    def placed(self, array: np.ndarray, side: str) -> Any | None:
        """A copy of a 1-D host array that ends (`side` is `end`) or begins (`start`) at a page that may not be touched,
        see `beside_guard_page`; None where the framework cannot use such memory."""
        return None

    @property
    def views(self) -> bool:
        """Whether there are views."""
        return type(self).view is not ArrayBridge.view

    @property
    def negative_strides(self) -> bool:
        """Whether a view may go backwards."""
        return False

    @property
    def pages(self) -> bool:
        """Whether arrays can be `placed`."""
        return type(self).placed is not ArrayBridge.placed and can_guard_pages()

    def overwrite(self, array: Any, host: np.ndarray) -> bool:
        """Give an array other values in the memory that it has; False where its memory never changes."""
        return False

    def overlap(self, first: Any, second: Any) -> bool:
        """Whether writing to one array could change the other."""
        return False

    def bare(self) -> AbstractContextManager[None]:
        """Around calls after which the framework itself keeps nothing for their shapes, where it can be told so."""
        return nullcontext()

    def stopwatch(self, call: Callable[[], Any]) -> tuple[float, float] | None:
        """Seconds of a call between events on the stream it is made on, and until the whole device is idle.

        None where work has no streams to hide on.
        """
        return None

    def floating_point_mode(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """How arithmetic differed from the default before the implementation was loaded, and how it does now, see
        `conformance.floating_point.mode`; in a process that is not its own it is expected to be the default."""
        return (), floating_point.mode()

    def describe(self) -> dict[str, str]:
        """Versions and device name, for the records."""
        ...


def refuse(array: Any, expected: str) -> TypeError:
    """The error of a result that is not an array of the framework."""
    kind = type(array)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return TypeError(f"returned {'None' if array is None else name}; expected {expected}")


def extent(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> range:
    """The addresses of an array's memory; strides in bytes."""
    if 0 in shape:
        return range(address, address)
    steps = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return range(address, address + steps + itemsize)


def meet(first: range, second: range) -> bool:
    """Whether two ranges of addresses overlap: of views that interleave nobody can tell."""
    return first.start < second.stop and second.start < first.stop


def between_events(
    before: Any, after: Any, synchronize: Callable[[], Any], call: Callable[[], Any]
) -> tuple[float, float]:
    """A `stopwatch` by two CUDA events with `record` and `elapsed_time` (in ms)."""
    synchronize()
    start = perf_counter()
    before.record()
    call()
    after.record()
    synchronize()
    wall = perf_counter() - start
    return before.elapsed_time(after) / 1e3, wall


@cache
def can_guard_pages() -> bool:
    """Whether the system can protect pages of memory."""
    return sys.platform != "win32"


def beside_guard_page(array: np.ndarray, side: str) -> np.ndarray:
    """A copy of a 1-D array that ends, or begins, where a page begins or ends that may not be touched: `side` is `end`
    or `start`; or that lies in pages that may not be written to, `read-only`. What goes beyond ends with a signal."""
    page = mmap.PAGESIZE
    span = max(1, -(-array.nbytes // page)) * page
    region = mmap.mmap(-1, span + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    handle = ctypes.c_char.from_buffer(region)
    address = ctypes.addressof(handle)
    del handle  # it would keep the region from being unmapped
    start = span - array.nbytes if side == "end" else page if side == "start" else 0
    # what NumPy has no letter for has no buffers; of other dtypes the array itself is what views have as their base
    dtype = np.dtype(f"u{array.itemsize}") if array.dtype.isbuiltin == 2 else array.dtype
    memory = np.frombuffer(region, dtype, array.size, start).view(array.dtype)
    memory[...] = array
    no_access, reading = 0, 1  # PROT_NONE, PROT_READ
    guard, size, access = {
        "end": (address + span, page, no_access),
        "start": (address, page, no_access),
        "read-only": (address, span, reading),
    }[side]
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memory
