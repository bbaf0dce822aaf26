"""Many calls in the process of a kernel: over and over, from several threads, in a forked child, on new shapes."""

from __future__ import annotations

import gc
import math
import os
import pickle
import select
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from time import perf_counter, sleep, thread_time
from types import FrameType
from typing import Any

import numpy as np
from msgspec import Struct

from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import Unsupported
from conformance.worker import memory
from conformance.worker.call import Result

Turn = tuple[Sequence[Any], Mapping[str, Any]]
"""Inputs and parameters of calls that are made over and over."""
SWITCH = 1e-6
"""Seconds after which Python's interpreter lets another thread run that waits for it."""
INTERRUPTED = 3
"""Calls of each thread that let the others run at each of their lines. Otherwise only chance interrupts a kernel
between the line that fills a workspace of the module and the line that reads it."""
PAUSE = 1e-5
"""Seconds that other threads run at each such line."""
TRACED = 0.2
"""Seconds of a call in which threads are interrupted. A loop in Python over a window of 257 x 257 was called a hang:
Python asks at each line whether it is a new one, with three other threads in its way."""
PATIENCE = 40
"""How many times longer than asked a few calls are waited for. A kernel that compiles for each shape is not waited
for."""
KEPT_FROM = "jax_persistent_cache_min_compile_time_secs"
FOREIGN = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Folders of files whose lines are not interrupted: those of Python and of installed packages."""


class Repeated(Struct, frozen=True):
    """The result of the first of many calls, the result that differs most from it (None where all have the same bits),
    and the number of calls."""

    first: Result
    other: Result | None
    calls: int


class _Calls:
    """Calls on the same inputs, of whose results the first and the one farthest from it are kept."""

    def __init__(self) -> None:
        self._first: Any = None
        self._before: list[np.ndarray] = []
        self._farthest: Any = None
        self._most, self._number = 0.0, 0

    def add(self, result: Any, hosts: list[np.ndarray]) -> None:
        """Add the result of a call, and copies of its arrays."""
        self._number += 1
        if self._number == 1:
            self._first, self._before = result, hosts
        elif (distance := max(map(_distance, self._before, hosts))) > self._most:
            self._farthest, self._most = result, distance

    @property
    def result(self) -> Repeated:
        return Repeated(Result(self._first), None if self._farthest is None else Result(self._farthest), self._number)


def alternated(
    bridge: ArrayBridge, function: Callable[..., Any], turns: Sequence[Turn], calls: int, seconds: float
) -> list[Repeated]:
    """Make at most `calls` calls of a function in each of several turns, which take each other's place after every
    call."""
    of_turns, end = [_Calls() for _ in turns], perf_counter() + seconds
    for number in range(calls):
        for turn, (inputs, parameters) in zip(of_turns, turns, strict=True):
            result = function(*inputs, **parameters)
            bridge.synchronize(result)
            turn.add(result, _hosts(bridge, result))
        if number and perf_counter() > end:
            break
    return [turn.result for turn in of_turns]


def repeated(
    bridge: ArrayBridge, function: Callable[..., Any], turns: Sequence[Turn], calls: int, seconds: float
) -> list[Repeated]:
    """Make at most `calls` calls of a function in each of several turns, each in a thread of its own if there are
    several. Raises what a call raises."""
    results: dict[int, Repeated] = {}
    errors: list[BaseException] = []
    start, tracing = threading.Barrier(len(turns)), threading.Lock()

    def run(place: int) -> None:
        try:
            start.wait()
            inputs, parameters = turns[place]
            calls_of_one = _Calls()
            for number in range(1, calls + 1):
                interrupted = len(turns) > 1 and number <= INTERRUPTED
                trace = _interruption(tracing) if interrupted else None
                with tracing:
                    sys.settrace(trace)
                result = function(*inputs, **parameters)
                bridge.synchronize(result)
                calls_of_one.add(result, _hosts(bridge, result))
                if number == 1:
                    end = perf_counter() + seconds
                elif perf_counter() > end:
                    break
            results[place] = calls_of_one.result
        except BaseException as error:
            errors.append(error)

    if len(turns) == 1:
        run(0)
    else:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        try:
            threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(turns))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    return [results[place] for place in range(len(turns))]


def _interruption(tracing: threading.Lock) -> Callable[..., Any]:
    """Return a trace function that sleeps when a line of a kernel is reached for the first time.

    Python refuses to install one while it installs another, in whatever thread: whoever installs or removes one holds
    the lock. Without the lock at the end, one case in a thousand was an error on a busy machine.
    """
    lines, end = set(), perf_counter() + TRACED

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if perf_counter() > end:
            with tracing:
                sys.settrace(None)
            return None
        if frame.f_code.co_filename.startswith(FOREIGN):
            return None
        if event == "line" and (line := (frame.f_code, frame.f_lineno)) not in lines:
            lines.add(line)
            sleep(PAUSE)
        return trace

    return trace


def _hosts(bridge: ArrayBridge, result: Any) -> list[np.ndarray]:
    return [bridge.to_host(array).copy() for array in (result if isinstance(result, (tuple, list)) else (result,))]


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest difference of two elements: 0 for the same bits, infinite where the shape or the places of NaN
    differ."""
    if first.shape != second.shape:
        return np.inf
    if first.tobytes() == second.tobytes():
        return 0.0
    with np.errstate(all="ignore"):
        former, other = first.astype(np.float64), second.astype(np.float64)
        both = (former == other) | (np.isnan(former) & np.isnan(other))
        differences = np.where(both, np.finfo(np.float64).tiny, np.abs(former - other))
    return float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max(initial=0.0))


def forked(
    bridge: ArrayBridge,
    function: Callable[..., Any],
    parameters: Mapping[str, Any],
    arguments: Sequence[Any],
    seconds: float,
) -> Result:
    """Return the result of a call that a forked child of this process makes.

    Raises KernelFailure where there is no result, and Unsupported where that may be the doing of a framework, whose
    threads the child does not have.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.close(read)
            try:
                result = function(*arguments, **parameters)
                bridge.synchronize(result)
                answer: Any = _hosts(bridge, result)
            except BaseException as error:
                answer = f"raises {type(error).__name__}: {error}"
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    parts: list[bytes] = []
    end = perf_counter() + seconds
    try:
        while select.select([read], [], [], max(0.0, end - perf_counter()))[0]:
            part = os.read(read, 1 << 20)
            if not part:
                break
            parts.append(part)
        else:
            parts = [pickle.dumps(f"gives no result within {seconds:g} s")]
        if parts and isinstance(answer := pickle.loads(b"".join(parts)), list):
            return Result(tuple(map(bridge.from_host, answer)))
        why = str(answer) if parts else "ends the process"
        if loaded := [name for name in ("jax", "numba", "torch") if name in sys.modules]:
            raise Unsupported(
                f"a call in a forked child {why}; {' and '.join(loaded)} is loaded, whose threads do not fork"
            )
        raise KernelFailure(f"a call in a forked child of the process {why}")
    finally:
        os.close(read)
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextmanager
def _unkept() -> Iterator[None]:
    """Keep JAX from storing on disk what it compiles in the block: a later run would find it, and measure something
    else."""
    config: Any = getattr(sys.modules.get("jax"), "config", None)
    least = getattr(config, KEPT_FROM, None)
    if least is not None:
        config.update(KEPT_FROM, math.inf)
    try:
        yield
    finally:
        if least is not None:
            config.update(KEPT_FROM, least)


@contextmanager
def _older_objects_left_alone() -> Iterator[None]:
    """Keep garbage collection in the block to objects that are made there: to look at all objects of a framework takes
    a tenth of a second."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@_unkept()
@_older_objects_left_alone()
def growth_by_shape(
    bridge: ArrayBridge,
    function: Callable[..., Any],
    cases: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    least: int,
    seconds: float,
    bare: bool = False,
) -> tuple[int, int, int]:
    """Make calls with arguments of these shapes (dtype and extents, None for an absent one) and parameters, one after
    the other, in three parts of equal length; the first part lasts a third of the seconds, or until a third of `least`
    calls are made. No result is kept, and with `bare` the framework keeps nothing either.

    Return the number of calls (fewer than `least` if they took this thread PATIENCE times the seconds, in processor
    time: what is measured does not depend on what else the machine does), how many bytes each leaves, and the bytes of
    the inputs and results of one. The first part fills memory that every process fills once, and is not counted; of the
    others the one that leaves less counts, because memory that is taken once is no leak. Memory is read only after each
    part: in a process with gigabytes, giving free pages back takes longer than a call.
    """
    resident, tensors, count, size, start = [], 0, 0, len(cases) // 3, perf_counter()
    begun = thread_time()
    for part in range(3):
        for shapes, parameters in cases[count : count + size]:
            hosts = [None if shape is None else np.ones(shape[1], shape[0]) for shape in shapes]
            arguments = [None if host is None else bridge.from_host(host) for host in hosts]
            with bridge.bare() if bare else nullcontext():
                result = function(*arguments, **parameters)
                bridge.synchronize(result)
            tensors += sum(array.nbytes for array in (*hosts, *_hosts(bridge, result)) if array is not None)
            del hosts, arguments, result
            count, elapsed = count + 1, perf_counter() - start
            if not part and count >= least // 3 and elapsed > seconds / 3:
                size = count
                break
            if thread_time() - begun > PATIENCE * seconds and 3 * size <= least:
                return min(count, least - 1), 0, tensors // count
        if part == 2:
            gc.collect()
        memory.return_pages()
        resident.append(memory.resident("VmRSS") or 0)
    growth = min((after - before) // size for before, after in pairwise(resident))
    return count, max(0, growth), tensors // count
