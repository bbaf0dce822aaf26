"""An end for kernels that hang without issuing instructions, or that make Python hold more and more."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from types import TracebackType

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = [ctypes.c_ulong, ctypes.py_object]
_PAGES = Path("/proc/self/statm")
_LOOK = 0.05
"""Seconds between two looks at the memory of the process."""


class TimeUp(BaseException):
    """Raised inside a kernel that has run for too long; no `except Exception` of a kernel stops it."""


class MemoryUp(TimeUp):
    """The same for one that holds too much."""


def _resident() -> int:
    """Bytes of this process in memory, 0 where the system does not say."""
    try:
        return int(_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class Watchdog:
    """Raise `TimeUp` in the thread that entered it when it has not left after so many seconds, or `MemoryUp` when
    the process has grown by more than `memory` bytes in the meantime.

    A thread and not a signal: kernels also run outside the main thread, and alarms may belong to the test runner.
    """

    def __init__(self, seconds: float, memory: int | None = None) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._over = self._fired = False
        self._seconds, self._memory = seconds, memory
        self._watch = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        end, before = time.monotonic() + self._seconds, _resident() if self._memory is not None else 0
        while not self._left.wait(max(0.0, min(_LOOK, end - time.monotonic()))):
            if time.monotonic() >= end:
                return self._fire()
            if self._memory is not None and _resident() - before > self._memory:
                return self._fire(MemoryUp)
        return None

    def _fire(self, kind: type[TimeUp] = TimeUp) -> None:
        with self._lock:
            if not self._over:
                self._fired = True
                _raise_in(self._thread, ctypes.py_object(kind))

    def __enter__(self) -> None:
        self._watch.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._left.set()
        with self._lock:
            self._over = True
        if self._fired and not (kind is not None and issubclass(kind, TimeUp)):
            _raise_in(self._thread, None)
