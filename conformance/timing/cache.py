"""The last-level cache of a device: inputs that lie in it are not read from memory."""

from __future__ import annotations

import mmap
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FLOOD = 1 << 30
"""Most bytes that are written to fill a cache with others."""
SYSCONF = ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE")


def touch(count: int) -> None:
    """Write to so many bytes of the host's memory, `FLOOD` at most, always the same: fresh pages would take longer than
    a benchmark."""
    memory = _memory()[:count]
    np.add(memory, 1, out=memory)


@cache
def _memory() -> np.ndarray:
    """Pages that exist once they are touched, whatever the allocator has been told."""
    return np.frombuffer(mmap.mmap(-1, FLOOD), np.uint8)


def last_level(device: str) -> int | None:
    """Bytes of the last cache before memory; None where nobody says."""
    return _of_gpu() if device in ("cuda", "rocm") else _of_cpu()


def _of_cpu() -> int | None:
    sizes = [int(count) * UNITS[unit] for count, unit in map(_parsed, CACHES.glob("index*/size")) if count]
    if sizes:
        return max(sizes)
    known = [name for name in SYSCONF if name in os.sysconf_names]
    return next((size for name in known if (size := os.sysconf(name)) > 0), None)


def _parsed(file: Path) -> tuple[str, str]:
    found = re.fullmatch(r"(\d+)([KMG]?)", file.read_text().strip())
    return (found[1], found[2]) if found else ("", "")


def _of_gpu() -> int | None:
    """By whichever framework is loaded: the other one need not be installed."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    numba: Any = sys.modules.get("numba.cuda")
    size = getattr(numba.get_current_device(), "L2_CACHE_SIZE", None) if numba is not None else None
    return None if size is None else int(size)
