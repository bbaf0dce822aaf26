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
    """A copy of a 1-D array that ends, or begins, where such a page begins or ends: `side` is `end` or `start`; or that
    lies in pages that may not be written to, `read-only`."""
    page = mmap.PAGESIZE
    span = max(1, -(-array.nbytes // page)) * page
    region = mmap.mmap(-1, span + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    handle = ctypes.c_char.from_buffer(region)
    address = ctypes.addressof(handle)
    del handle  # it would keep the region from being unmapped
    start = span - array.nbytes if side == "end" else page if side == "start" else 0
    # what NumPy has no letter for has no buffers; of other dtypes the array itself is what views have as their base
    dtype = np.dtype(f"u{array.itemsize}") if array.dtype.isbuiltin == 2 else array.dtype
    memory = np.frombuffer(region, dtype, array.size, start).view(array.dtype)
    memory[...] = array
    no_access, reading = 0, 1  # PROT_NONE, PROT_READ
    guard, size, access = {
        "end": (address + span, page, no_access),
        "start": (address, page, no_access),
        "read-only": (address, span, reading),
    }[side]
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memory
