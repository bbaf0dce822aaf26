"""Memory around a timed call: pages that the allocator keeps, caches that are flooded, and the peak of a call."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conformance.implementations.bridges.base import ArrayBridge

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""
MAX_KEPT = (1 << 31) - 1
"""Most bytes of free memory that mallopt accepts to be kept."""

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SYSCONF = ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE")
MAX_FLOOD = 1 << 30
"""Most bytes that are written to flood a cache."""

STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@cache
def glibc() -> Any | None:
    """Return the C library, if its allocator has the functions that are needed."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def keep_pages() -> bool:
    """Keep freed memory for the next call; return False where the allocator is not glibc's.

    Memory that the allocator returns to the system is cleared when it is touched again. Whether a large result costs a
    kernel fresh pages depends on what else the process has allocated before, and made times of the same kernel differ
    by half. Large blocks are not mapped separately either: whether a block of 32 MiB or more was depended on what
    happened to be free, which was worth a tenth.
    """
    library = glibc()
    if library is None:
        return False
    return bool(library.mallopt(MMAP_MAX, 0)) and bool(library.mallopt(TRIM_THRESHOLD, MAX_KEPT))


def return_pages() -> None:
    """Return free memory to the system, so that pages that a call touches count."""
    if (library := glibc()) is not None:
        library.malloc_trim(0)


def give_back() -> None:
    """Free garbage and the programs that JAX has compiled, and return their memory to the system. JAX keeps every
    program: thousands in a run, of 1.6 MB each. Without its help neither the collector nor the allocator gets them
    back."""
    clear = getattr(sys.modules.get("jax"), "clear_caches", None)
    if clear is not None:
        clear()
    gc.collect()
    return_pages()


def touch(count: int) -> None:
    """Write to `count` bytes of the host's memory, `MAX_FLOOD` at most, always the same: fresh pages would take longer
    than a benchmark."""
    memory = _flooded()[:count]
    np.add(memory, 1, out=memory)


@cache
def _flooded() -> np.ndarray:
    """Return pages that exist once they are touched, whatever the allocator does."""
    return np.frombuffer(mmap.mmap(-1, MAX_FLOOD), np.uint8)


def last_level_cache(device: str) -> int | None:
    """Return the bytes of the last cache before memory, None if unknown: inputs that lie in it are not read from
    memory.

    For a GPU, whichever framework is loaded is asked: the other one need not be installed.
    """
    if device in ("cuda", "rocm"):
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        numba: Any = sys.modules.get("numba.cuda")
        size = getattr(numba.get_current_device(), "L2_CACHE_SIZE", None) if numba is not None else None
        return None if size is None else int(size)
    texts = [file.read_text().strip() for file in CACHES.glob("index*/size")]
    sizes = [int(match[1]) * UNITS[match[2]] for text in texts if (match := re.fullmatch(r"(\d+)([KMG]?)", text))]
    sizes += [os.sysconf(name) for name in SYSCONF if name in os.sysconf_names] if not sizes else []
    return max((size for size in sizes if size > 0), default=None)


def growth(
    bridge: ArrayBridge, function: Callable[..., Any], parameters: Mapping[str, Any], inputs: Sequence[Any]
) -> tuple[int | None, int | None]:
    """Return the most bytes that a call takes beyond its inputs, results included, on the host and on the device; None
    where they are unknown. The results are freed.

    On the host, resident pages count; pages that a framework has kept from earlier calls do not count again.
    """
    return_pages()
    with suppress(OSError):
        REFERENCES.write_text("5")  # Linux forgets the peak (proc(5), clear_refs)
    before, device_growth = resident("VmRSS"), _device_meter(bridge)
    bridge.synchronize(function(*inputs, **parameters))
    peak = resident("VmHWM")
    return None if before is None or peak is None else max(0, peak - before), device_growth()


def resident(field: str) -> int | None:
    """Return the bytes that a field of Linux's /proc/self/status gives, as psutil gives no peak; None where it is not
    there."""
    try:
        match = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) << 10 if match else None


def _device_meter(bridge: Any) -> Callable[[], int | None]:
    """Return a function that returns the growth of memory on the device from now on."""
    if bridge.name == "torch" and bridge.device == "cuda":
        cuda: Any = sys.modules["torch"].cuda
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        return lambda: int(cuda.max_memory_allocated() - before)
    if bridge.name != "jax":
        return lambda: None
    device = sys.modules["jax"].devices(bridge.platform)[0]
    first = device.memory_stats() or {}

    def jax_growth() -> int | None:
        """Return the growth; None where the call does not exceed an earlier one, since jax cannot forget a peak."""
        last = device.memory_stats() or {}
        if "peak_bytes_in_use" not in first or last["peak_bytes_in_use"] <= first["peak_bytes_in_use"]:
            return None
        return int(last["peak_bytes_in_use"] - first["bytes_in_use"])

    return jax_growth
