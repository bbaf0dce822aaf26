"""The bridge between host tensors and the arrays that an implementation's kernels take."""

from __future__ import annotations

import ctypes
import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import numpy as np

from conformance import floating_point
from conformance.implementations.bridges.tape import Footprint, Tape

P = ParamSpec("P")
T = TypeVar("T")


class ArrayBridge(ABC):
    """Moves tensors between the host and one framework's device. Construction imports no framework.

    The methods that a bridge inherits are for a framework whose arrays are values: arrays have no views, never change
    and are timed by waiting for them; and that has no autograd.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The framework's name."""

    @abstractmethod
    def require(self) -> None:
        """Raise `conformance.Unavailable` with the reason where the framework or its device cannot be used here."""

    @abstractmethod
    def from_host(self, array: np.ndarray) -> Any:
        """Return a fresh copy on the device of a C-contiguous host array (storage dtypes of `conformance.dtypes`, or
        bytes)."""

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray:
        """Return a plain NumPy copy of a result. Raises TypeError for any other type than the framework's own array."""

    @abstractmethod
    def synchronize(self, result: Any) -> None:
        """Return when `result` is computed and all work submitted to the device has finished."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Return versions and device name, for the records."""

    @property
    def unsafe(self) -> tuple[str, ...]:
        """Names of what callers must not do to any kernel of the framework, as in `Implementation`: JAX warns of a
        `fork`, since the child lacks its threads, and a call of torch in the child waits for them for ever."""
        return ()

    @property
    def compiles_per_shape(self) -> bool:
        """Tell whether the first call on a shape takes a compiler's time."""
        return False

    @property
    def stands_for(self) -> tuple[str, ...]:
        """Devices whose kernels are executed on another one, as a simulator does."""
        return ()

    @property
    def untimed(self) -> str:
        """Reason why the time of a call is not that of the kernel; empty if it is."""
        return ""

    @property
    def install(self) -> str:
        """Commands that install what the bridge needs; empty if nothing is missing."""
        return ""

    @property
    def launches(self) -> int | None:
        """Number of kernels that have been launched so far; None where nobody counts them."""
        return None

    def perform(self, routine: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a function of the suite in the process where the bridge's arrays are, and return its result."""
        return routine(*arguments, **named)

    def metered(self) -> AbstractContextManager[dict[str, int]]:
        """Return a context that counts what a device would move and issue for the calls in it: an emulator counts
        exactly, which tells more than its time on a CPU."""
        return nullcontext({})

    @property
    def can_differentiate(self) -> bool:
        """Tell whether `differentiate` records calls."""
        return type(self).differentiate is not ArrayBridge.differentiate

    def differentiate(
        self, function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int], parameters: dict[str, Any]
    ) -> Tape:
        """Record function(*arguments, **parameters), differentiated in the arguments at `places`."""
        raise NotImplementedError

    @property
    def measures_training(self) -> bool:
        """Tell whether `footprint` measures memory."""
        return type(self).footprint is not ArrayBridge.footprint

    def footprint(
        self, function: Callable[..., Any], arguments: int, parameters: dict[str, Any], batch: int
    ) -> Footprint:
        """Measure the memory of a training step with an autograd variant of so many arguments."""
        raise NotImplementedError

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any | None:
        """Return a view into a 1-D array, offset and strides in elements; None where the framework has no views."""
        return None

    def placed(self, array: np.ndarray, side: str) -> Any | None:
        """Return a copy of a 1-D host array that ends (`side` is `end`) or begins (`start`) at a page that may not be
        touched, see `beside_guard_page`; None where the framework cannot use such memory."""
        return None

    @property
    def views(self) -> bool:
        """Tell whether the framework has views."""
        return type(self).view is not ArrayBridge.view

    @property
    def negative_strides(self) -> bool:
        """Tell whether a view may have negative strides."""
        return False

    @property
    def pages(self) -> bool:
        """Tell whether arrays can be `placed`."""
        return type(self).placed is not ArrayBridge.placed and can_guard_pages()

    def overwrite(self, array: Any, host: np.ndarray) -> bool:
        """Overwrite the values of an array in the memory that it has; return False where its memory never changes."""
        return False

    def overlap(self, first: Any, second: Any) -> bool:
        """Return whether writing to one array could change the other."""
        return False

    def bare(self) -> AbstractContextManager[None]:
        """Return a context in which the framework keeps nothing for the shapes of calls, where it can be told so."""
        return nullcontext()

    def stopwatch(self, call: Callable[[], Any]) -> tuple[float, float] | None:
        """Return the seconds of a call between events on the stream it is made on, and until the whole device is idle.

        None where the device has no streams on which work could hide.
        """
        return None

    def floating_point_mode(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return how arithmetic differed from the default before the implementation was loaded, and how it differs now,
        see `conformance.floating_point.mode`; in a process that is not its own, the former is taken for the default."""
        return (), floating_point.mode()


def refuse(array: Any, expected: str) -> TypeError:
    """Return the error for a result that is not an array of the framework."""
    kind = type(array)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return TypeError(f"returned {'None' if array is None else name}; expected {expected}")


def extent(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> range:
    """Return the addresses of an array's memory; strides are in bytes."""
    if 0 in shape:
        return range(address, address)
    steps = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return range(address, address + steps + itemsize)


def meet(first: range, second: range) -> bool:
    """Return whether two ranges of addresses overlap. Views that interleave do so without a common element, too."""
    return first.start < second.stop and second.start < first.stop


def between_events(
    before: Any, after: Any, synchronize: Callable[[], Any], call: Callable[[], Any]
) -> tuple[float, float]:
    """Time a call as a `stopwatch` does, by two CUDA events with `record` and `elapsed_time` (in ms)."""
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
    """Return whether the system can protect pages of memory."""
    return sys.platform != "win32"


def beside_guard_page(array: np.ndarray, side: str) -> np.ndarray:
    """Return a copy of a 1-D array that ends or begins at a page that may not be touched (`side` is `end` or `start`),
    or that lies in pages that may not be written to (`read-only`). A kernel that goes beyond is ended by a signal."""
    page = mmap.PAGESIZE
    span = max(1, -(-array.nbytes // page)) * page
    region = mmap.mmap(-1, span + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    handle = ctypes.c_char.from_buffer(region)
    address = ctypes.addressof(handle)
    del handle  # it would keep the region from being unmapped
    start = span - array.nbytes if side == "end" else page if side == "start" else 0
    # dtypes that NumPy has no letter for have no buffers; with others, views have the array itself as their base
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
