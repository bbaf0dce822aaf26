"""Measurements beside those of kernels, in the process that these run in: seconds, memory, caches, threads."""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter  # the clock itself: a kernel that puts another one into `time` is not timed by that
from typing import Any

import numpy as np
from msgspec import Struct

from conformance.implementations.bridges.base import ArrayBridge
from conformance.worker import memory
from conformance.worker.call import Result


class Timed(Struct, frozen=True):
    """The result of the last of several calls, the seconds of each, and those of the last between the device's own
    events, where it has some."""

    result: Result
    walls: tuple[float, ...]
    events: float | None


def timed(
    bridge: ArrayBridge, function: Callable[..., Any], parameters: Mapping[str, Any], inputs: Sequence[Sequence[Any]]
) -> Timed:
    """Time calls on each of several inputs, one after the other, each until the device is idle. Python's garbage
    collector waits."""
    results, walls, events = list[Any](), list[float](), None
    collecting = gc.isenabled()

    def called(arguments: Sequence[Any]) -> Any:
        results.append(function(*arguments, **parameters))
        return results[0]

    gc.disable()
    try:
        for arguments in inputs:
            results.clear()  # freeing a result is not the next call's work
            watched = bridge.stopwatch(partial(called, arguments))
            if watched is None:
                start = perf_counter()
                bridge.synchronize(called(arguments))
                walls.append(perf_counter() - start)
            else:
                events, wall = watched
                walls.append(wall)
    finally:
        if collecting:
            gc.enable()
    return Timed(Result(results[0]), tuple(walls), events)


def beside_reference(bridge: Any, most: float) -> tuple[float, float]:
    """Return the seconds of a torch module at its own shape, and of its reference on the same new inputs: each the
    median of as many calls as take at most `most` seconds."""
    *modules, inputs = bridge.own()
    seconds = []
    for module in modules:
        first, *_ = timed(bridge, module, {}, [inputs]).walls  # which also warms up
        seconds.append(
            statistics.median(timed(bridge, module, {}, [inputs] * max(1, min(20, int(most / first)))).walls)
        )
    return seconds[0], seconds[1]


def copies(bridge: ArrayBridge, inputs: Sequence[Any], results: Sequence[Any]) -> tuple[float, float]:
    """Return the seconds of the inputs' way to the device, and of the results' way back."""
    hosts = [bridge.to_host(array) for array in inputs if array is not None]
    start = perf_counter()
    bridge.synchronize([bridge.from_host(host) for host in hosts])
    there = perf_counter()
    for array in results:
        bridge.to_host(array)
    return there - start, perf_counter() - there


def exchange() -> None:
    """Do nothing: the time of this call is the time that asking takes."""


def flood(bridge: ArrayBridge, device: str, count: int) -> None:
    """Write to `count` bytes of a device's memory."""
    if device == "cpu":
        memory.touch(count)
    else:
        bridge.synchronize(bridge.from_host(np.zeros(count, np.uint8)))


def release() -> None:
    """Give back memory of a CUDA device that torch keeps and no longer uses: other frameworks share the device."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        with suppress(RuntimeError):  # the error that broke the context has been reported
            torch.cuda.empty_cache()


def give_threads(count: int) -> dict[str, int]:
    """Give torch and numba, where they are loaded, `count` threads; return the threads that each framework has then.

    XLA sizes its pool by the process's cores, and numba cannot have more than it was started with.
    """
    threads = dict.fromkeys(("jax",) if "jax" in sys.modules else (), count)
    for name in ("torch", "numba"):
        module: Any = sys.modules.get(name)
        if module is not None:
            with suppress(ValueError):
                module.set_num_threads(count)
            threads[name] = int(module.get_num_threads())
    return threads
