"""What is measured beside kernels, in the process that they run in: seconds, memory, caches, threads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter  # the clock itself: a kernel that puts another one into `time` is not timed by that
from typing import Any

import numpy as np

from conformance.implementations.bridges import ArrayBridge
from conformance.worker import memory, repeating
from conformance.worker.repeating import Call


@dataclass(frozen=True, slots=True)
class Instruments:
    """Those of this process, for arrays of one bridge. `conformance.execution.remote.RemoteInstruments` are
    those of another."""

    bridge: ArrayBridge

    def timed(self, call: Call, inputs: Sequence[Sequence[Any]]) -> tuple[Any, tuple[float, ...], float | None]:
        """Calls on each of several inputs, one after the other, each until the device is idle.

        Returns the result of the last call, the seconds of each, and those of the last between the device's own events,
        where it has some. Python's garbage collector waits.
        """
        (function, parameters), results = call, list[Any]()
        walls, events = list[float](), None
        collecting = gc.isenabled()

        def called(given: Sequence[Any]) -> Any:
            results.append(function(*given, **parameters))
            return results[0]

        gc.disable()
        try:
            for given in inputs:
                results.clear()  # freeing a result is not the next call's work
                watched = self.bridge.stopwatch(partial(called, given))
                if watched is None:
                    start = perf_counter()
                    self.bridge.synchronize(called(given))
                    walls.append(perf_counter() - start)
                else:
                    events, wall = watched
                    walls.append(wall)
        finally:
            if collecting:
                gc.enable()
        return results[0], tuple(walls), events

    def growth(self, call: Call, inputs: Sequence[Any]) -> tuple[int | None, int | None]:
        """Bytes that a call takes, see `memory.growth`."""
        function, parameters = call
        return memory.growth(lambda: self.bridge.synchronize(function(*inputs, **parameters)), self.bridge)

    def repeated(
        self, function: Callable[..., Any], turns: Sequence[repeating.Turn], calls: int, seconds: float
    ) -> list[tuple[Any, Any, int]]:
        """Many calls, see `repeating.repeated`."""
        return repeating.repeated(self.bridge, function, turns, calls, seconds)

    def forked(self, call: Call, inputs: Sequence[Any], seconds: float) -> Any:
        """The results of a call in a forked child, or why there are none; see `repeating.forked`."""
        found = repeating.forked(self.bridge, call, inputs, seconds)
        return found if isinstance(found, str) else tuple(map(self.bridge.from_host, found))

    def growth_by_shape(
        self, function: Callable[..., Any], cases: Sequence[Any], least: int, seconds: float
    ) -> tuple[int, int, int]:
        """What calls on new shapes leave behind, see `repeating.growth`."""
        return repeating.growth(self.bridge, function, cases, least, seconds)

    def copies(self, inputs: Sequence[Any], results: Sequence[Any]) -> tuple[float, float]:
        """Seconds of the inputs' way to the device, and of the results' way back."""
        hosts = [self.bridge.to_host(array) for array in inputs if array is not None]
        start = perf_counter()
        self.bridge.synchronize([self.bridge.from_host(host) for host in hosts])
        there = perf_counter()
        for array in results:
            self.bridge.to_host(array)
        return there - start, perf_counter() - there

    def exchange(self) -> None:
        """Nothing, which takes as long as it takes to ask."""

    def keep_pages(self) -> bool:
        return memory.keep_pages()

    def cache(self, device: str) -> int | None:
        """Bytes of the last cache before a device's memory."""
        return memory.last_level_cache(device)

    def flood(self, device: str, count: int) -> None:
        """Write to so many bytes of a device's memory."""
        if device == "cpu":
            memory.touch(count)
        else:
            self.bridge.synchronize(self.bridge.from_host(np.zeros(count, np.uint8)))

    def release(self) -> None:
        """Give back memory of a CUDA device that torch keeps and no longer uses: other frameworks share the device."""
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            with suppress(RuntimeError):  # what broke the context has been reported
                torch.cuda.empty_cache()

    def threads(self, count: int) -> dict[str, int]:
        """Give torch and numba, where they are loaded, so many threads; the threads that each framework has then.

        XLA sizes its pool by the process's cores, and numba cannot have more than it was started with.
        """
        found = dict.fromkeys(("jax",) if "jax" in sys.modules else (), count)
        for name in ("torch", "numba"):
            module: Any = sys.modules.get(name)
            if module is not None:
                with suppress(ValueError):
                    module.set_num_threads(count)
                found[name] = int(module.get_num_threads())
        return found

    def tf32(self) -> tuple[str, ...]:
        """The parts of torch that may use TF32: its flags, as they are now."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return ()
        parts = (("matmul", torch.backends.cuda.matmul), ("cudnn", torch.backends.cudnn))
        return tuple(name for name, holder in parts if holder.allow_tf32)
