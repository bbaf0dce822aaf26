"""The C library's allocator, where it is glibc: what it returns to the system is cleared when it is touched again.

Whether a large result costs a kernel fresh pages depends on what else the process has allocated before, and made times
of the same kernel differ by half. So freed memory is kept while kernels are timed, up to glibc's own limit for a block.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
KEPT, LARGEST = (1 << 31) - 1, 1 << 25
"""Most bytes it accepts for them: free memory that is kept, and a block that is not mapped for itself."""


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
    return bool(library.mallopt(MMAP_THRESHOLD, LARGEST)) and bool(library.mallopt(TRIM_THRESHOLD, KEPT))


def return_pages() -> None:
    """Return what is free to the system, so that what a call touches counts."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)
