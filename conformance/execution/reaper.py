"""No process outlives a run: whatever a kernel's process has started carries its token in its environment."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

TOKEN = "KERNEL_PROCESS"
"""Environment variable that children inherit, also those that leave their session. It does not name the suite."""
PATIENCE = 2.0
"""Seconds that processes have to end once they are killed."""


def kill(token: str) -> None:
    """End every process whose token begins like this. Does nothing where the system has no /proc."""
    wanted = f"{TOKEN}={token}".encode()
    for _ in range(100):  # until none is found: one that forks may be faster than one look
        found = [number for number in _processes() if _carries(number, wanted)]
        for number in found:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.01)


def _processes() -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    except OSError:
        return []


def _carries(number: int, wanted: bytes) -> bool:
    try:
        place = f"/proc/{number}/"
        with open(f"{place}stat", "rb") as file:  # noqa: PTH123
            if file.read().rpartition(b")")[2].split()[0] == b"Z":  # dead, and its parent has not asked yet
                return False
        with open(f"{place}environ", "rb") as file:  # noqa: PTH123
            return any(word.startswith(wanted) for word in file.read().split(b"\0"))
    except (OSError, IndexError):
        return False


class Reaper:
    """Hands out tokens, and has a process of its own that ends what carries one when the judge is gone, even killed."""

    def __init__(self) -> None:
        self._token, self._count = secrets.token_hex(8), 0
        read, self._alive = os.pipe()
        self._watching = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__)), f"{self._token}."],
            stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(read)

    def token(self) -> str:
        """One that no other process has."""
        self._count += 1
        return f"{self._token}.{self._count}."

    def close(self) -> None:
        """End everything. Idempotent."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
            with suppress(subprocess.TimeoutExpired):
                self._watching.wait(PATIENCE)


def watch(token: str) -> None:
    """Wait until nobody holds the other end of standard input, then end what carries the token."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    kill(token)


if __name__ == "__main__":
    watch(sys.argv[1])
