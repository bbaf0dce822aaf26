"""Copying between tensors and the packed operands of the register tile."""

from __future__ import annotations

import numpy as np

from conformance.implementations.windows import Pair

from .geometry import Array, Quad
from .launch import index, njit_inner
from .vectors import VECTOR_BYTES


def aligned(shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Zeros that start at a vector boundary; rows a multiple of a vector long then all do."""
    size = shape[0] * shape[1]
    raw = np.zeros(size + VECTOR_BYTES // dtype.itemsize, dtype)
    start = -raw.ctypes.data % VECTOR_BYTES // dtype.itemsize
    return raw[start : start + size].reshape(shape)


@njit_inner()
def inside(start: int, step: int, count: int, size: int) -> Pair:
    """Range of j in [0, count) with 0 <= start + j * step < size."""
    low = min(count, max(0, -(start // step)))
    high = max(low, min(count, -((start - size) // step)))
    return low, high


@njit_inner(fastmath={"contract", "reassoc"})
def row_total(a: Array, at: int, increment: int, count: int) -> float:
    total = a.dtype.type(0)
    for j in range(count):
        total += a[index(at + j * increment)]
    return total


@njit_inner()
def source_range(first: int, last: int, window: Quad, size: int) -> Pair:
    """Input positions [low, high) that the outputs [first, last) read."""
    kernel, stride, before, dilation = window
    low = max(0, first * stride - before)
    return low, max(low, min(size, (last - 1) * stride - before + dilation * (kernel - 1) + 1))
