"""How the processes of a run end, when something outside ends them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

import pytest

STARTED_BY = "conformance-started-by"
"""What a worker of pytest-xdist is told: the process that started it."""
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""


def stop_as_if_interrupted(config: pytest.Config) -> None:
    """SIGTERM and SIGHUP end the run as Ctrl-C does: with a footer, a summary, and 2. What `nohup` and others have
    chosen stays."""
    if threading.current_thread() is not threading.main_thread():  # nobody else may set handlers
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # one on Windows
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def restore() -> None:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)

    for number in taken:
        signal.signal(number, signal.default_int_handler)
    config.add_cleanup(restore)


def end_with(parent: int) -> None:
    """End this process when the one that started it is killed, in the middle of a kernel too.

    Elsewhere than on Linux it ends when its kernel returns, and execnet notices that nobody listens.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before this was called
        os._exit(1)
