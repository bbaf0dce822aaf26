"""The most memory that a call takes beyond its inputs: on the host, and on the device where its framework knows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.implementations.bridges import ArrayBridge
from conformance.timing.allocator import return_pages

STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes, results included; None where they cannot be known."""

    host: int | None
    device: int | None


def growth(call: Callable[[], Any], bridge: ArrayBridge) -> Growth:
    """Of one call, whose results are freed.

    On the host resident pages; those that a framework has kept from earlier calls do not count again.
    """
    return_pages()
    _reset_peak()
    before, meter = _resident("VmRSS"), _meter(bridge)
    call()
    peak = _resident("VmHWM")
    return Growth(None if before is None or peak is None else max(0, peak - before), meter())


def _reset_peak() -> None:
    """Linux forgets the peak when 5 is written here (proc(5), clear_refs)."""
    with suppress(OSError):
        REFERENCES.write_text("5")


def _resident(field: str) -> int | None:
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None


def _meter(bridge: ArrayBridge) -> Callable[[], int | None]:
    """What tells the growth on the device from now on."""
    make = {"torch": _by_torch, "jax": _by_jax}.get(bridge.name)
    return make(bridge) if make else lambda: None


def _by_torch(bridge: Any) -> Callable[[], int | None]:
    if bridge.device != "cuda":
        return lambda: None
    cuda: Any = sys.modules["torch"].cuda
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    return lambda: int(cuda.max_memory_allocated() - before)


def _by_jax(bridge: Any) -> Callable[[], int | None]:
    """jax cannot forget a peak: where a call does not exceed the one before, nothing is known."""
    device = sys.modules["jax"].devices(bridge.platform)[0]
    first = device.memory_stats() or {}

    def grown() -> int | None:
        last = device.memory_stats() or {}
        if "peak_bytes_in_use" not in first or last["peak_bytes_in_use"] <= first["peak_bytes_in_use"]:
            return None
        return int(last["peak_bytes_in_use"] - first["bytes_in_use"])

    return grown
