"""An end for kernels that hang without issuing instructions."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = [ctypes.c_ulong, ctypes.py_object]


class TimeUp(BaseException):
    """Raised inside a kernel that has run for too long; no `except Exception` of a kernel stops it."""


class Watchdog:
    """Raise `TimeUp` in the thread that entered it when it has not left after so many seconds.

    A timer thread and not a signal: kernels also run outside the main thread, and alarms may belong to the test runner.
    """

    def __init__(self, seconds: float) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._over = self._fired = False
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True

    def _fire(self) -> None:
        with self._lock:
            if not self._over:
                self._fired = True
                _raise_in(self._thread, ctypes.py_object(TimeUp))

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
        if self._fired and kind is not TimeUp:
            _raise_in(self._thread, None)
