"""A scheduler for numba's simulator: the threads of a block run one after the other, each until its next barrier.

numba's own starts Python threads for every block and asks all of them in a loop whether they wait yet. Here a thread
hands its turn on and stays for the next block, which takes a third of the time. And the order never changes, first to
last: a thread that does not wait where it should overtakes all others every time, so that a missing barrier is a wrong
result, not a rare one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from .target import cuda


class _Abandoned(BaseException):
    """Ends a thread whose block has failed elsewhere."""


class _Lane(threading.Thread):
    """A thread that runs one lane of a block after the other. numba's simulator looks for `threadIdx`, `blockIdx`,
    `thread_id` and `syncthreads` on the thread that runs."""

    def __init__(self, index: Any, number: int) -> None:
        super().__init__(daemon=True)
        self.threadIdx, self.thread_id = index, number
        self.blockIdx: Any = None
        self.work: Callable[[], None] | None = None
        self.problem: Exception | None = None
        self.done = self.at_barrier = self.abandoned = False
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        self.start()

    def go_on(self) -> None:
        """Give the thread the turn until it waits or ends."""
        self._turn.release()
        self._back.acquire()

    def syncthreads(self) -> None:
        """Wait until every thread of the block has had its turn."""
        self.at_barrier = True
        self._back.release()
        self._turn.acquire()
        self.at_barrier = False
        if self.abandoned:
            raise _Abandoned

    def run(self) -> None:
        while True:
            self._turn.acquire()
            if self.work is None:
                self._back.release()
                return
            try:
                self.work()
            except _Abandoned:
                pass
            except Exception as problem:
                self.problem = problem
            self.done = True
            self._back.release()


class _Turns:
    def __init__(self, lanes: list[_Lane], function: Callable[..., None], block: tuple[int, ...]) -> None:
        if not lanes:
            dim3 = import_module("numba.cuda.simulator.kernelapi").Dim3
            places = enumerate(np.ndindex(*reversed(block)))
            lanes += [_Lane(dim3(*reversed(place)), number) for number, place in places]
        self.lanes, self.function = lanes, function

    def run(self, place: tuple[int, ...], *arguments: Any) -> None:
        """Run one block. Raises the error of a thread, and says which thread it was."""
        where = import_module("numba.cuda.simulator.kernelapi").Dim3(*place)
        for lane in self.lanes:
            lane.blockIdx, lane.done = where, False
            lane.work = lambda: self.function(*arguments)
        live = self.lanes
        while live:
            for lane in live:
                lane.go_on()
                if lane.problem is not None:
                    problem, thread = lane.problem, list(lane.threadIdx)
                    raise type(problem)(f"block {list(place)}, thread {thread}: {problem}") from problem
            live = [lane for lane in live if not lane.done]


@contextmanager
def taking_turns() -> Iterator[None]:
    simulator = cuda.simulator.kernel
    before, lanes = simulator.BlockManager, []
    simulator.BlockManager = lambda function, grid, block, debug: _Turns(lanes, function, block)
    try:
        yield
    finally:
        simulator.BlockManager = before
        for lane in lanes:  # at a barrier of a block that failed, or before its next block
            lane.work, lane.abandoned = None, True
            if lane.at_barrier:
                lane.go_on()
            lane.go_on()
            lane.join()
