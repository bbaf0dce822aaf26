"""Signals that end a command as Ctrl-C does: with its summary, and 2. Whoever sends one kills soon after."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a command as Ctrl-C does; on Windows there is one."""
TOGETHER = 1.0
"""Seconds within which two signals count as one."""


class Interrupt:
    """Raises KeyboardInterrupt, once for signals that come together: `timeout` sends one to a process and then to its
    group."""

    def __init__(self) -> None:
        self._last = -math.inf
        self.was_raised = False

    def __call__(self, *_: Any) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before > TOGETHER:
            self.was_raised = True
            raise KeyboardInterrupt


def require_none() -> None:
    """Raise KeyboardInterrupt where one was raised and lost: Python loses what is raised while an object is freed.
    Called between cases: without this, one Ctrl-C of twenty did nothing."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupt) and handler.was_raised:
        raise KeyboardInterrupt


def pass_over(*_: Any) -> None:
    """Ignore a signal. Used instead of SIG_IGN, which processes of kernels would inherit."""


def handle_signals(handler: Callable[[int, Any], None]) -> Callable[[], None]:
    """Let a handler take SIGTERM and SIGHUP, and Ctrl-C if it is an `Interrupt`; return a function that restores the
    signals. A handler that is there stays, and signals that `nohup` ignores stay ignored."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may set handlers
        return lambda: None
    taken = {number: signal.SIG_DFL for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL}
    if isinstance(handler, Interrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        taken[signal.SIGINT] = signal.default_int_handler  # type: ignore[assignment]  # two of them are one as well

    def restore() -> None:
        for number, before in taken.items():
            signal.signal(number, before)

    for number in taken:
        signal.signal(number, handler)
    return restore


def write_summary_in_peace() -> None:
    """Pass over signals that end a command as Ctrl-C does, from now on: the rest takes a moment, and whoever sends them
    kills soon after."""
    for number in (*SIGNALS, signal.SIGINT):
        if isinstance(signal.getsignal(number), Interrupt):
            signal.signal(number, pass_over)
