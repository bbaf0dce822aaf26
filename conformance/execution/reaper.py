"""No process outlives a run: whatever a kernel's process has started carries its mark.

The mark is the value of a resource limit on something that no system counts any more. Descendants inherit it, also
those that leave their session or are given another environment, and without privileges it cannot be raised again. This
works on Linux only: where a process cannot be marked, one that leaves its session stays.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress

RLIMIT_LOCKS = 10
"""From <asm-generic/resource.h>: locks of files, which Linux counted until 2.4.24."""
PROCESSES = 1 << 20
"""Number of marks of one run."""
PATIENCE = 2.0
"""Seconds that processes have to end once they are killed."""


def kill(first: int, count: int = 1) -> None:
    """End every process that carries one of `count` marks from `first` on. Does nothing if the system has no /proc."""
    marks = range(first, first + count)
    for _ in range(100):  # until none is found: one that forks may be faster than one look
        numbers = [number for number in _processes() if carried(number) in marks]
        for number in numbers:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        if not numbers:
            return
        time.sleep(0.01)


def _processes() -> list[int]:
    try:  # psutil lies in a folder of packages, which the watching process does not see
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    except OSError:
        return []


def carried(number: int) -> int:
    """Return the mark of a process that is alive; -1 if it has none."""
    try:
        mark, _ = resource.prlimit(number, RLIMIT_LOCKS)
        if mark >= 0:
            with open(f"/proc/{number}/stat", "rb") as file:  # noqa: PTH123
                if file.read().rpartition(b")")[2].split()[0] == b"Z":  # dead, and its parent has not asked yet
                    return -1
    except (OSError, IndexError):
        return -1
    return mark


class Reaper:
    """Marks processes, and has a process of its own that ends the marked ones when the judge is gone, even killed."""

    def __init__(self) -> None:
        self._next = self._first = int.from_bytes(os.urandom(5), "little") * PROCESSES
        read, self._alive = os.pipe()
        self._watching = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self._first)],  # packages may start slowly; it needs none
            stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(read)

    def mark(self, number: int) -> int:
        """Give a process, which has started nothing yet, a mark that no other has."""
        mark, self._next = self._next, self._next + 1
        if hasattr(resource, "prlimit"):
            with suppress(OSError, ValueError):  # where somebody has set this limit, or forbids to set any
                resource.prlimit(number, RLIMIT_LOCKS, (mark, mark))
        return mark

    def close(self) -> None:
        """End all marked processes. Idempotent."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
            with suppress(subprocess.TimeoutExpired):
                self._watching.wait(PATIENCE)


def watch(first: int) -> None:
    """Wait until nobody holds the other end of standard input, then end all processes that carry a mark of this run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    kill(first, PROCESSES)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
