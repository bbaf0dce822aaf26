"""Copies of arrays that are zero almost everywhere, in which nobody touches the memory of the zeros."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

LARGE, BLOCK = 1 << 26, 1 << 21
"""Bytes from which it is worth looking for zeros, and of a block that is all zeros or copied."""


def filled(data: np.ndarray) -> Iterator[slice]:
    """Yield the blocks of bytes [N] that are not all zeros; all blocks where there are few."""
    for start in range(0, len(data), BLOCK):
        place = slice(start, min(start + BLOCK, len(data)))
        part = data[place]
        if len(data) < LARGE or (part.view(np.uint64) if len(part) % 8 == 0 else part).any():
            yield place


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Return the memory of a C-contiguous array, [N]."""
    return array.reshape(-1).view(np.uint8)


def copied(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous copy of a C-contiguous array."""
    if array.nbytes < LARGE or array.dtype.hasobject:
        return array.copy()
    copy = np.zeros(array.shape, array.dtype)
    source, target = bytes_of(array), bytes_of(copy)
    for place in filled(source):
        target[place] = source[place]
    return copy
