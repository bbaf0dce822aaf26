"""Average pooling and its gradient.

Window q of an axis covers the pixels [low[q], high[q]) of the image; pixel h lies in the consecutive windows [low[h],
high[h]).  So in both directions a target adds a rectangle of sources, and no element outside the image is read or
tested for.  Forward scales the sums, backward the summands.

nhwc: every target pixel adds the channels of its sources, four pixels in one contiguous loop.
nchw: whole source rows are added to a buffer, then columns of that buffer: R + S additions an output instead of R * S.
Columns are added in the longer of two loops: over the windows for one tap, or over the pixels of one window.

Reciprocals of divisors are fp64: a product with one is as exact as the quotient.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np
from numba import get_num_threads

from conformance.implementations.windows import Extents, Padding, Pair, Window, shape_of, sizes, windows

from .geometry import Array, in_space, require_same
from .launch import cached_kernel, index, launch, njit_inner
from .packing import aligned, row_total
from .storage import add_row, add_rows, compute_dtype, narrow_row, store_row, stored, widen_row

UNITS_PER_WORKER = 4
MERGED_PLANES = 64
LINE = 16

Sizes = tuple[int, int, int, int, int, int]  # planes, source rows and width, target rows and width, channels


def _starts(axis: Window) -> Array:
    return np.arange(axis.outputs) * axis.stride - axis.before


def _covered(axis: Window) -> Array:
    """Return the pixels of the image that each window covers: first and one past the last."""
    starts = _starts(axis)
    return np.stack((np.maximum(starts, 0), np.minimum(starts + axis.kernel, axis.size)))


def _owners(axis: Window) -> Array:
    """Return the windows that hold each pixel: first and one past the last."""
    starts, pixels = _starts(axis), np.arange(axis.size)
    return np.stack((np.searchsorted(starts + axis.kernel, pixels, "right"), np.searchsorted(starts, pixels, "right")))


def _taps(axis: Window) -> Array:
    """Return, for each position in the window, the first output that has it inside the image, how many do, and
    where."""
    positions = np.arange(axis.kernel)[:, None] + _starts(axis)
    inside = (positions >= 0) & (positions < axis.size)
    first = inside.argmax(axis=1)
    return np.stack((first, inside.sum(axis=1), first * axis.stride + positions[:, 0]), axis=1)


def _divisors(axis: Window, count_include_pad: bool) -> Array:
    """Count the positions of each window that are averaged."""
    low, high = (-axis.before, axis.size + axis.after) if count_include_pad else (0, axis.size)
    starts = _starts(axis)
    return np.minimum(starts + axis.kernel, high) - np.maximum(starts, low)


@njit_inner()
def _clear(row: Array, at: int, count: int) -> None:
    for j in range(count):
        row[index(at + j)] = 0


@njit_inner()
def _scale(row: Array, at: int, count: int, share: float) -> None:
    for j in range(count):
        row[index(at + j)] = row[index(at + j)] * share


@njit_inner()
def _scale_columns(row: Array, share: float, shares: Array) -> None:
    for j in range(shares.size):
        row[index(j)] = row[index(j)] * (share * shares[index(j)])


@njit_inner()
def _add_strided(row: Array, row_at: int, row_step: int, src: Array, at: int, step: int, count: int) -> None:
    for j in range(count):
        row[index(row_at + j * row_step)] += src[index(at + j * step)]


@njit_inner()
def _add_value(row: Array, at: int, count: int, value: float) -> None:
    for j in range(count):
        row[index(at + j)] += value


@njit_inner()
def _add_taps(row: Array, buffer: Array, taps: Array, step: int, forward: bool) -> None:
    """Add one position of the window at a time: forward gathers from the columns, backward scatters to them."""
    for tap in range(taps.shape[0]):
        q, count, w = taps[tap]
        if forward:
            _add_strided(row, q, 1, buffer, w, step, count)
        else:
            _add_strided(row, w, step, buffer, q, 1, count)


@njit_inner()
def _add_totals(row: Array, src: Array, at: int, columns: Array) -> None:
    """Add to every window its part of a source row."""
    for q in range(columns.shape[1]):
        row[q] += row_total(src, at + columns[0, q], 1, columns[1, q] - columns[0, q])


@njit_inner(forceinline=True)
def _sum_row(
    row: Array, elements: Array, bits: Array, fp16: bool, rows: Pair, at: int, pitch: int, windows: Array, taps: Array,
    step: int, row_shares: Array, shares: Array, t: int, forward: bool, buffer: Array,
) -> None:  # fmt: skip
    """Sum one target row of a plane from the source rows of a range; large windows have no taps."""
    for r in range(rows[0], rows[1]):
        start = at + r * pitch
        if taps.size or not forward:
            add_row(buffer, 0, elements, bits, fp16, start, buffer.dtype.type(1 if forward else row_shares[r]), pitch)
        elif bits.size:
            widen_row(buffer, 0, bits, start, pitch, fp16)
            _add_totals(row, buffer, 0, windows)
        else:
            _add_totals(row, elements, start, windows)
    if not forward:
        _scale_columns(buffer, 1.0, shares)
    if taps.size:
        _add_taps(row, buffer, taps, step, forward)
    elif not forward:
        for q in range(windows.shape[1]):
            _add_value(row, windows[0, q], windows[1, q] - windows[0, q], buffer[q])
    if forward:
        _scale_columns(row, row_shares[t], shares)


@cached_kernel
def _pool_planes(
    worker: int, workers: int, target: Array, target_bits: Array, source: Array, source_bits: Array, fp16: bool,
    sizes: Sizes, rows: Array, columns: Array, windows: Array, taps: Array, step: int, row_shares: Array,
    shares: Array, forward: bool, bands: int, lines: Array, buffers: Array, starts_of: Array,
    scales_of: Array,
) -> None:  # fmt: skip
    """Pool bands worker, worker + workers, ... of target rows in nchw; backward computes rows in the same windows
    once."""
    planes, source_rows, pitch, target_rows, width, _ = sizes
    row, buffer = lines[worker], buffers[worker]
    for unit in range(worker, planes * bands, workers):
        plane, band = unit // bands, unit % bands
        first = band * target_rows // bands
        for t in range(first, (band + 1) * target_rows // bands):
            low, high = rows[0, t], rows[1, t]
            if forward or t == first or low != rows[0, t - 1] or high != rows[1, t - 1]:
                _clear(row, 0, width)
                _clear(buffer, 0, pitch)
                _sum_row(
                    row, source, source_bits, fp16, (low, high), plane * source_rows * pitch, pitch, windows, taps,
                    step, row_shares, shares, t, forward, buffer,
                )  # fmt: skip
            store_row(target, target_bits, fp16, (plane * target_rows + t) * width, row, width)


@njit_inner(forceinline=True)
def _sum_pixels(
    row: Array, row_at: int, elements: Array, bits: Array, fp16: bool, at: int, pitch: int, rows: Pair,
    columns: Array, channels: int, row_shares: Array, shares: Array, t: int, forward: bool, starts: Array,
    scales: Array,
) -> None:  # fmt: skip
    """Sum a target row of pixels; each adds the channels of a rectangle of source pixels."""
    for pixel in range(columns.shape[1]):
        start = row_at + pixel * channels
        _clear(row, start, channels)
        count = 0
        for r in range(rows[0], rows[1]):
            for c in range(columns[0, pixel], columns[1, pixel]):
                starts[count] = at + r * pitch + c * channels
                scales[count] = 1 if forward else row_shares[r] * shares[c]
                count += 1
        add_rows(row, start, elements, bits, fp16, starts, scales, count, channels)
        if forward:
            _scale(row, start, channels, row_shares[t] * shares[pixel])


@cached_kernel
def _pool_pixels(
    worker: int, workers: int, target: Array, target_bits: Array, source: Array, source_bits: Array, fp16: bool,
    sizes: Sizes, rows: Array, columns: Array, windows: Array, taps: Array, step: int, row_shares: Array,
    shares: Array, forward: bool, bands: int, lines: Array, buffers: Array, starts_of: Array,
    scales_of: Array,
) -> None:  # fmt: skip
    """Pool bands worker, worker + workers, ... of target rows in nhwc, in place where no narrowing is needed."""
    planes, source_rows, pitch, target_rows, width, channels = sizes
    row, starts, scales = lines[worker], starts_of[worker], scales_of[worker]
    for unit in range(worker, planes * bands, workers):
        plane, band = unit // bands, unit % bands
        at = plane * source_rows * pitch
        for t in range(band * target_rows // bands, (band + 1) * target_rows // bands):
            pixels, out = (rows[0, t], rows[1, t]), (plane * target_rows + t) * width
            if target_bits.size:
                _sum_pixels(
                    row, 0, source, source_bits, fp16, at, pitch, pixels, columns, channels, row_shares, shares, t,
                    forward, starts, scales,
                )  # fmt: skip
                narrow_row(target_bits, out, row, 0, width, fp16)
            else:
                _sum_pixels(
                    target, out, source, source_bits, fp16, at, pitch, pixels, columns, channels, row_shares, shares,
                    t, forward, starts, scales,
                )  # fmt: skip


class _Pooling(NamedTuple):
    """Both axes, and the reciprocals of the windows' divisors by row and by column."""

    axes: tuple[Window, Window]
    shares: tuple[Array, Array]


def _pooling(
    size: Extents, kernel_size: Extents, stride: Extents, padding: Padding, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None,
) -> _Pooling:  # fmt: skip
    """Return axes and divisors. If all rows have the same divisor, only columns are scaled. Raises ValueError if no
    window fits."""
    _, rows, columns = in_space(windows(size, kernel_size, stride, padding, ceil=ceil_mode))
    by_row, by_column = (_divisors(axis, count_include_pad) for axis in (rows, columns))
    if divisor_override is not None:
        by_row, by_column = np.full(rows.outputs, divisor_override), np.ones(columns.outputs)
    if np.all(by_row == by_row[0]):
        by_row, by_column = np.ones(rows.outputs), by_row[0] * by_column
    return _Pooling((rows, columns), (1 / by_row, 1 / by_column))


def _run(target: Array, source: Array, pooling: _Pooling, layout: str, forward: bool) -> Array:
    """Fill `target` and return it."""
    if not target.size:
        return target
    n, c, _ = sizes(source.shape, layout)
    planes, channels = (n * c, 1) if layout[1] == "c" else (n, c)
    (by_row, by_column), axes = pooling.shares, pooling.axes
    if layout[1] == "c" and all(axis.outputs == 1 and np.ptp(_covered(axis)) == axis.size for axis in axes):
        # windows as large as the image become windows of one long row, in which planes follow one another
        merged, pixels = gcd(planes, MERGED_PLANES), axes[0].size * axes[1].size
        planes, by_column = planes // merged, np.repeat(by_column, merged)
        axes = Window(1, 1, 1, 0, 0), Window(merged * pixels, pixels, pixels, 0, 0)
    dtype, workers = compute_dtype(source.dtype), get_num_threads()
    image, pooled = tuple(axis.size for axis in axes), tuple(axis.outputs for axis in axes)
    (source_rows, source_columns), (target_rows, target_columns) = (image, pooled) if forward else (pooled, image)
    pitch, width = source_columns * channels, target_columns * channels
    rows, columns = (_covered(axis) if forward else _owners(axis) for axis in axes)
    sources = int(np.prod([np.diff(ranges, axis=0).max() for ranges in (rows, columns)]))
    taps = _taps(axes[1]) if axes[1].kernel <= axes[1].outputs else np.empty((0, 3), np.int64)
    bands = min(target_rows, max(1, UNITS_PER_WORKER * workers // planes))
    lines, buffers = (aligned((workers, -(-size // LINE) * LINE), dtype) for size in (width, pitch))
    launch(
        _pool_planes if layout[1] == "c" else _pool_pixels, dtype, workers, *stored(target, True),
        *stored(source), source.dtype == np.float16, (planes, source_rows, pitch, target_rows, width, channels), rows,
        columns, _covered(axes[1]), taps, axes[1].stride, by_row, by_column, forward, bands, lines, buffers,
        np.empty((workers, sources), np.int64), np.empty((workers, sources), dtype),
    )  # fmt: skip
    return target


def avg_pool_forward(
    x: Array, *, kernel_size: Extents, stride: Extents, padding: Padding, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None, layout: str,
) -> Array:  # fmt: skip
    """Return y: window sums in fp32 (fp64 for fp64), scaled, rounded once."""
    n, c, size = sizes(x.shape, layout)
    pooling = _pooling(size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    outputs = tuple(axis.outputs for axis in pooling.axes)
    y = np.empty(shape_of(n, c, outputs[-len(size) :], layout), x.dtype)
    return _run(y, x, pooling, layout, True)


def avg_pool_backward(
    dy: Array, *, input_size: Extents, kernel_size: Extents, stride: Extents, padding: Padding,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None, layout: str,
) -> Array:  # fmt: skip
    """Return dx: every pixel adds the shares of the windows that hold it."""
    n, c, outputs = sizes(dy.shape, layout)
    pooling = _pooling(input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    require_same("size of dy", outputs, tuple(axis.outputs for axis in pooling.axes)[-len(outputs) :])
    return _run(np.empty(shape_of(n, c, input_size, layout), dy.dtype), dy, pooling, layout, False)
