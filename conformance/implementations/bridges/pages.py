"""Host memory beside a page that may not be touched: what reads or writes beyond it ends with a signal."""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache

import numpy as np


@cache
def available() -> bool:
    """Whether the system can protect pages."""
    return sys.platform != "win32"


def placed(array: np.ndarray, side: str) -> np.ndarray:
    """A copy of a 1-D array that ends, or begins, where such a page begins or ends; `side` is `end` or `start`."""
    page = mmap.PAGESIZE
    span = max(1, -(-array.nbytes // page)) * page
    region = mmap.mmap(-1, span + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    handle = ctypes.c_char.from_buffer(region)
    guard = ctypes.addressof(handle) + (span if side == "end" else 0)
    del handle  # it would keep the region from being unmapped
    no_access = 0  # PROT_NONE
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), no_access):
        raise OSError(ctypes.get_errno(), "mprotect")
    start = span - array.nbytes if side == "end" else page
    memory = np.frombuffer(region, np.uint8, array.nbytes, start).view(array.dtype)
    memory[...] = array
    return memory
