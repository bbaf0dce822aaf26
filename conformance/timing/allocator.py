"""The C library's allocator, where it is glibc: what it returns to the system is cleared when it is touched again.

Whether a large result costs a kernel fresh pages depends on what else the process has allocated before, and made times
of the same kernel differ by half. So freed memory is kept while kernels are timed, and no block is mapped for itself:
one of 32 MiB or more was, or was not, by what happened to be free, which was worth a tenth.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""
KEPT = (1 << 31) - 1
"""Most bytes of free memory that it accepts to be kept."""


@cache
def _library() -> Any | None:
    """Where the allocator has both functions."""
    try:
        found = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return found if hasattr(found, "mallopt") and hasattr(found, "malloc_trim") else None


def keep_pages() -> bool:
    """Keep freed memory for the next call; False where the allocator cannot be told."""
    library = _library()
    if library is None:
        return False
    return bool(library.mallopt(MMAP_MAX, 0)) and bool(library.mallopt(TRIM_THRESHOLD, KEPT))


def return_pages() -> None:
    """Return what is free to the system, so that what a call touches counts."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)
