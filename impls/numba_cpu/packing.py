"""Copying between tensors and the packed operands of the register tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.implementations.windows import Pair

from .geometry import Array, Quad
from .launch import index, njit_inner
from .microkernel import transpose, transpose_by_two, vector_lanes
from .vectors import VECTOR_BYTES

ROW = 3  # (offset, start, size) of a row to be transposed
Pointer = Any


def aligned(shape: tuple[int, int], dtype: np.dtype, allocate: Callable[..., Array] = np.zeros) -> Array:
    """Return an array of zeros, or made by `allocate`, that starts at a vector boundary, as then do rows of whole
    vectors."""
    size = shape[0] * shape[1]
    raw = allocate(size + VECTOR_BYTES // dtype.itemsize, dtype)
    start = -raw.ctypes.data % VECTOR_BYTES // dtype.itemsize
    return raw[start : start + size].reshape(shape)


@njit_inner()
def inside(start: int, step: int, count: int, size: int) -> Pair:
    """Return the range of j in [0, count) with 0 <= start + j * step < size."""
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
    """Return the input positions [low, high) that the outputs [first, last) read."""
    kernel, stride, before, dilation = window
    low = max(0, first * stride - before)
    return low, max(low, min(size, (last - 1) * stride - before + dilation * (kernel - 1) + 1))


@njit_inner()
def transpose_rows(
    out: Pointer, out_at: int, pitch: int, count: int, src: Pointer, work: Pointer, rows_at: int, columns: int,
    step: int, increment: int,
) -> None:  # fmt: skip
    """Set out[j * pitch + i] = row i [start + j * step], zero where it has none; rows are (offset, start, size)."""
    for i in range(count, vector_lanes(out)):
        work[rows_at + i * ROW + 2] = 0
        work[rows_at + i * ROW] = work[rows_at]
        work[rows_at + i * ROW + 1] = 0
    if increment == 1 and step == 1:
        transpose(out, out_at, pitch, count, src, work, rows_at, columns)
    elif increment == 1 and step == 2:
        transpose_by_two(out, out_at, pitch, count, src, work, rows_at, columns)
    else:
        for i in range(count):
            at, start, size = work[rows_at + i * ROW], work[rows_at + i * ROW + 1], work[rows_at + i * ROW + 2]
            low, high = inside(start, step, columns, size)
            for j in range(columns):
                out[index(out_at + j * pitch + i)] = 0
            for j in range(low, high):
                out[index(out_at + j * pitch + i)] = src[index(at + (start + j * step) * increment)]


@njit_inner()
def transpose_lines(
    out: Pointer, out_at: int, pitch: int, height: int, src: Pointer, src_at: int, distance: int, columns: int,
    work: Pointer, rows_at: int,
) -> None:  # fmt: skip
    """Set out[j * pitch + i] = line i [j], for `height` lines of `columns` elements, `distance` apart."""
    lanes = vector_lanes(out)
    for first in range(0, height, lanes):
        count = min(lanes, height - first)
        for i in range(count):
            work[rows_at + i * ROW] = src_at + (first + i) * distance
            work[rows_at + i * ROW + 1], work[rows_at + i * ROW + 2] = 0, columns
        transpose_rows(out, out_at + first, pitch, count, src, work, rows_at, columns, 1, 1)
