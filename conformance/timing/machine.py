"""The machine that a table was made on, and the same number of threads for everybody on it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from conformance.execution.case import absence_reason
from conformance.execution.process import Crash
from conformance.execution.remote import Exited, Raised
from conformance.implementations.implementation import Implementation
from conformance.worker import measuring
from conformance.worker.call import perform


class ThreadsError(RuntimeError):
    """A framework cannot have as many threads as the others; the message says how to settle it."""


def cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_threads(implementations: Iterable[Implementation]) -> dict[str, int]:
    """Give frameworks, where kernels have loaded them, a thread for each core of the process; who has how many.

    Raises ThreadsError where one was started with fewer.
    """
    count, found = cores(), dict[str, int]()
    for one in implementations:
        with suppress(Crash, Exited, Raised):  # which the verdict on its next case says
            found |= perform(one.arrays, measuring.give_threads, count)
    for name, own in found.items():
        if own != count:
            raise ThreadsError(
                f"{name} has {own} threads, and others {count}, one for each core: unset NUMBA_NUM_THREADS, or start "
                f"with taskset on fewer cores"
            )
    return found


def threads_text(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(found.items())) or f"{cores()} cores"


def tf32(implementations: Iterable[Implementation]) -> str:
    """Whether torch may use TF32: its flags where kernels run, as they are now."""
    on = set[str]()
    for one in implementations:
        with suppress(Crash, Exited, Raised):
            on |= {*perform(one.arrays, measuring.tf32)}
    return f"on in torch ({', '.join(sorted(on))})" if on else "off"


def versions(implementations: Iterable[Implementation]) -> dict[str, str]:
    """Versions and devices of those that can run here, as their frameworks tell them."""
    found = {"Python": platform.python_version(), "numpy": np.__version__}
    for implementation in implementations:
        if absence_reason(implementation) is None:
            described = implementation.arrays.describe()
            found |= {k: v for k, v in described.items() if k != "device" and v != "not installed"}
            if described.get("device", "cpu") not in ("cpu", "simulator"):
                found[implementation.device] = described["device"]
            if implementation.version not in ("", *found.values()):
                found[implementation.name] = implementation.version
    return found
