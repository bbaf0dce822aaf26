"""Copying between tensors and the packed operands of the register tile."""

from __future__ import annotations

import numpy as np

from conformance.implementations.windows import Pair

from .geometry import Array, Quad, Strides, Triple
from .launch import index, njit_inner
from .microkernel import SEGMENT, TILE_ROWS, VECTOR_BYTES

GROUP = 8


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


@njit_inner()
def pack_panel(
    panels: Array, at: int, w: Array, w_at: int, w_strides: Pair, taps: Array, rows: int, channels: int,
    pitch: int,
) -> None:  # fmt: skip
    """Weights of up to TILE_ROWS targets to [tap][channel][target]; `taps` are element offsets in w."""
    target_stride, source_stride = w_strides
    for i in range(rows):
        for c in range(channels):
            base = w_at + i * target_stride + c * source_stride
            for t in range(taps.size):
                panels[index(at + (t * pitch + c) * TILE_ROWS + i)] = w[index(base + taps[t])]


@njit_inner()
def pack_block(
    buffer: Array, live: Array, src: Array, src_at: int, src_strides: Triple, size: Pair, origin: Pair,
    step: Pair, phases_h: Array, phases_w: Array, plane: Quad, channels: int,
) -> None:  # fmt: skip
    """Source pixels of one block to [channel][phase][phase][row][column]; padding is only marked dead."""
    channel_stride, row_stride, column_stride = src_strides
    rows, columns, pitch, channel_pitch = plane
    live[:] = 0
    for a in range(phases_h.size):
        first_h = origin[0] + phases_h[a]
        row_low, row_high = inside(first_h, step[0], rows, size[0])
        for b in range(phases_w.size):
            first_w = origin[1] + phases_w[b]
            low, high = inside(first_w, step[1], columns, size[1])
            at = (a * phases_w.size + b) * rows * pitch
            for row in range(row_low, row_high):
                for j in range(low, high):
                    live[index(at + row * pitch + j)] = 1
            for c in range(channels):
                for row in range(row_low, row_high):
                    h = first_h + row * step[0]
                    source = src_at + c * channel_stride + h * row_stride + first_w * column_stride
                    target = at + c * channel_pitch + row * pitch
                    for j in range(low, high):
                        buffer[index(target + j)] = src[index(source + j * step[1] * column_stride)]


@njit_inner(fastmath={"contract", "reassoc"})
def row_total(a: Array, at: int, increment: int, count: int) -> float:
    total = a.dtype.type(0)
    for j in range(count):
        total += a[index(at + j * increment)]
    return total


@njit_inner()
def _transpose_rows(
    target: Array, target_at: int, pitch: int, src: Array, src_at: int, lane_stride: int,
    column_stride: int, lanes: int, columns: int,
) -> None:  # fmt: skip
    """target[j * pitch + lane] = src[lane * lane_stride + j * column_stride].

    GROUP source rows at a time: rows an image apart fall into one cache set, which holds about twice as many.
    """
    for first in range(0, lanes - lanes % GROUP, GROUP):
        for j in range(columns):
            for lane in range(first, first + GROUP):
                source = src_at + lane * lane_stride + j * column_stride
                target[index(target_at + j * pitch + lane)] = src[index(source)]
    for lane in range(lanes - lanes % GROUP, lanes):
        for j in range(columns):
            source = src_at + lane * lane_stride + j * column_stride
            target[index(target_at + j * pitch + lane)] = src[index(source)]


@njit_inner()
def pack_pixels(
    buffer: Array, src: Array, src_at: int, src_strides: Triple, rows: Pair, columns: Pair, channels: int,
    lanes: int,
) -> int:  # fmt: skip
    """A rectangle of pixels to [channel panel][row][column][lanes]; lanes past `channels` are left as is.

    Returns the size of a panel.
    """
    channel_stride, row_stride, column_stride = src_strides
    count = columns[1] - columns[0]
    height = rows[1] - rows[0]
    for first in range(0, channels, lanes):
        start = src_at + first * channel_stride + columns[0] * column_stride
        for row in range(height):
            _transpose_rows(
                buffer, (first // lanes * height + row) * count * lanes, lanes, src,
                start + (rows[0] + row) * row_stride, channel_stride, column_stride, min(lanes,
                channels - first), count,
            )  # fmt: skip
    return height * count * lanes


@njit_inner()
def pack_windows(
    buffer: Array, live: Array, x: Array, x_at: int, x_strides: Strides, size: Pair, shifts: Array,
    rows: Pair, columns: Pair, stride: Pair, lanes: int,
) -> int:  # fmt: skip
    """Windows of a rectangle of outputs to [panel][row][column][lanes], one lane per column of `shifts`.

    shifts[0..2] are the channel, row and column offset of a lane; padding is only marked dead.  Returns the
    size of a panel.
    """
    count = columns[1] - columns[0]
    panel_size = (rows[1] - rows[0]) * count * lanes
    for lane in range(shifts.shape[1]):
        low, high = inside(columns[0] * stride[1] + shifts[2, lane], stride[1], count, size[1])
        at = lane // lanes * panel_size + lane % lanes
        start = x_at + shifts[0, lane] * x_strides[1]
        start += (columns[0] * stride[1] + shifts[2, lane]) * x_strides[3]
        for row in range(rows[0], rows[1]):
            h = row * stride[0] + shifts[1, lane]
            held = 0 <= h < size[0]
            for j in range(count):
                live[index(at + j * lanes)] = held and low <= j < high
            if held:
                source = start + h * x_strides[2]
                for j in range(low, high):
                    buffer[index(at + j * lanes)] = x[index(source + j * stride[1] * x_strides[3])]
            at += count * lanes
    return panel_size


@njit_inner()
def source_range(first: int, last: int, window: Quad, size: int) -> Pair:
    """Input positions [low, high) that the outputs [first, last) read."""
    kernel, stride, before, dilation = window
    low = max(0, first * stride - before)
    return low, max(low, min(size, (last - 1) * stride - before + dilation * (kernel - 1) + 1))


@njit_inner()
def find_valid_runs(
    segments: Array, counts: Array, rows: Pair, columns: Pair, source_rows: Pair, source_columns: Pair,
    window_h: Quad, window_w: Quad, lanes: int,
) -> None:  # fmt: skip
    """Per tap the runs of pixels that are no padding, (dy offset, x offset, pixels), one per output row."""
    _, stride_h, before_h, dilation_h = window_h
    kernel_w, stride_w, before_w, dilation_w = window_w
    size, room = columns[1] - columns[0], segments.size // counts.size
    pitch = source_columns[1] - source_columns[0]
    for tap in range(counts.size):
        start = columns[0] * stride_w + tap % kernel_w * dilation_w - before_w - source_columns[0]
        low, high = inside(start, stride_w, size, pitch)
        counts[tap] = 0
        for row in range(rows[0], rows[1]):
            h = row * stride_h + tap // kernel_w * dilation_h - before_h
            if high > low and source_rows[0] <= h < source_rows[1]:
                at = tap * room + counts[tap] * SEGMENT
                segments[at] = ((row - rows[0]) * size + low) * TILE_ROWS
                segments[at + 1] = ((h - source_rows[0]) * pitch + low * stride_w + start) * lanes
                segments[at + 2] = high - low
                counts[tap] += 1


@njit_inner()
def find_equal_runs(
    segments: Array, counts: Array, rows: Pair, columns: Pair, window_w: Quad, size: int, lanes: int,
) -> None:  # fmt: skip
    """Runs of pixels of an output row whose windows stick out alike, (dy offset, window offset, pixels)."""
    kernel, stride, before, dilation = window_w
    count = columns[1] - columns[0]
    counts[0] = 0
    for row in range(rows[1] - rows[0]):
        first = 0
        while first < count:
            last = count
            for s in range(kernel):
                for edge in inside(columns[0] * stride + s * dilation - before, stride, count, size):
                    if first < edge < last:
                        last = edge
            at = counts[0] * SEGMENT
            segments[at] = (row * count + first) * TILE_ROWS
            segments[at + 1] = (row * count + first) * lanes
            segments[at + 2] = last - first
            counts[0] += 1
            first = last
