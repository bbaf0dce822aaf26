"""Groups too narrow to fill a register tile (depthwise and its kin): direct loops over image rows.

The gathering form of geometry.py serves forward and backward-data: an output row of at most an image's width
stays in the first-level cache while every (channel, tap) adds a shifted source row to it.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads

from conformance.implementations.windows import Pair, Window

from .geometry import Array, Axis, Problem, Strides, lattice_strides
from .launch import cached_kernel, index, launch, njit_inner
from .packing import inside, row_total

UNITS_PER_WORKER = 4


@njit_inner(fastmath={"contract"})
def _add_scaled(row: Array, low: int, high: int, scale: float, src: Array, at: int, increment: int) -> None:
    for j in range(low, high):
        row[index(j)] += scale * src[index(at + j * increment)]


@njit_inner(fastmath={"contract", "reassoc"})
def _dot(a: Array, a_at: int, a_increment: int, b: Array, b_at: int, b_increment: int, count: int) -> float:
    total = a.dtype.type(0)
    for j in range(count):
        total += a[index(a_at + j * a_increment)] * b[index(b_at + j * b_increment)]
    return total


@njit_inner()
def _gather_row(
    row: Array, u: int, src: Array, src_at: int, src_strides: Strides, size: Pair, w: Array, w_at: int,
    w_strides: Strides, channels: int, taps_h: Array, step: Pair, spans: Array,
) -> None:  # fmt: skip
    """Adds to one output row every source row its window covers."""
    for c in range(channels):
        for r in range(taps_h.shape[1]):
            h = u * step[0] + taps_h[1, r]
            if h < 0 or h >= size[0]:
                continue
            at = src_at + c * src_strides[1] + h * src_strides[2]
            w_row = w_at + c * w_strides[1] + taps_h[0, r] * w_strides[2]
            for s in range(spans.shape[1]):
                weight, start = w[w_row + spans[0, s]], at + spans[1, s]
                _add_scaled(row, spans[2, s], spans[3, s], weight, src, start, step[1] * src_strides[3])


@cached_kernel
def _gather(
    worker: int, workers: int, out: Array, out_strides: Strides, src: Array, src_strides: Strides,
    size: Pair, w: Array, w_strides: Strides, group_stride: int, bias: Array, problem: Problem,
    counts: Pair, taps_h: Array, spans: Array, step: Pair, bands: int, rows: Array,
) -> None:  # fmt: skip
    """Bands worker, worker + workers, ... of output rows of one channel."""
    images, groups, channels, targets = problem
    row = rows[worker]
    for unit in range(worker, images * groups * targets * bands, workers):
        band, plane = unit % bands, unit // bands
        image, k = plane // (groups * targets), plane % (groups * targets)
        group = k // targets
        src_at = image * src_strides[0] + group * channels * src_strides[1]
        w_at = group * group_stride + k % targets * w_strides[0]
        for u in range(band * counts[0] // bands, (band + 1) * counts[0] // bands):
            for v in range(counts[1]):
                row[index(v)] = bias[k]
            _gather_row(row, u, src, src_at, src_strides, size, w, w_at, w_strides, channels, taps_h, step, spans)
            at = image * out_strides[0] + k * out_strides[1] + u * out_strides[2]
            for v in range(counts[1]):
                out[index(at + v * out_strides[3])] = row[index(v)]


def _spans(axis: Axis, w_stride: int, src_stride: int) -> Array:
    """Per tap of the columns: weight offset, source offset, and the outputs [low, high) it reaches."""
    low = np.clip(-(axis.offsets // axis.step), 0, axis.count)
    high = np.clip(-((axis.offsets - axis.source) // axis.step), low, axis.count)
    return np.stack((axis.taps * w_stride, axis.offsets * src_stride, low, high))


def gather(
    out: Array, out_strides: Strides, src: Array, src_strides: Strides, w: Array,
    w_strides: Strides, group_stride: int, bias: Array, problem: Problem, axes: tuple[Axis, Axis],
) -> None:  # fmt: skip
    """Fills one lattice of `out`; arguments as for the dense kernel."""
    rows, columns = axes
    workers = get_num_threads()
    planes = problem[0] * problem[1] * problem[3]
    bands = min(rows.count, max(1, UNITS_PER_WORKER * workers // planes))
    start, strides = lattice_strides(axes, out_strides)
    launch(
        _gather, out.dtype, workers, out[start:], strides, src, src_strides,
        (rows.source, columns.source), w, w_strides, group_stride, bias, problem, (rows.count, columns.count),
        np.stack((rows.taps, rows.offsets)), _spans(columns, w_strides[3], src_strides[3]),
        (rows.step, columns.step), bands,        np.empty((workers, columns.count), out.dtype),
    )  # fmt: skip


@njit_inner()
def _correlate(
    x: Array, x_at: int, x_strides: Strides, size: Pair, dy: Array, dy_at: int, dy_strides: Strides,
    counts: Pair, images: int, offsets: Pair, step: Pair,
) -> float:  # fmt: skip
    """Sum over images and outputs of dy times the input at one tap, row by row."""
    low, high = inside(offsets[1], step[1], counts[1], size[1])
    first, last = inside(offsets[0], step[0], counts[0], size[0])
    total = dy.dtype.type(0)
    for image in range(images):
        for p in range(first, last):
            a_at = dy_at + image * dy_strides[0] + p * dy_strides[2] + low * dy_strides[3]
            b_at = x_at + image * x_strides[0] + (p * step[0] + offsets[0]) * x_strides[2]
            b_at += (offsets[1] + low * step[1]) * x_strides[3]
            total += _dot(dy, a_at, dy_strides[3], x, b_at, step[1] * x_strides[3], high - low)
    return total


@njit_inner()
def _sum_plane(dy: Array, dy_at: int, dy_strides: Strides, counts: Pair, images: int) -> float:
    total = dy.dtype.type(0)
    for image in range(images):
        for p in range(counts[0]):
            total += row_total(dy, dy_at + image * dy_strides[0] + p * dy_strides[2], dy_strides[3], counts[1])
    return total


@cached_kernel
def _weights(
    worker: int, workers: int, dw: Array, dw_strides: Strides, dbias: Array, x: Array, x_strides: Strides,
    size: Pair, dy: Array, dy_strides: Strides, problem: Problem, counts: Pair, offsets_h: Array,
    offsets_w: Array, step: Pair,
) -> None:  # fmt: skip
    """Units worker, worker + workers, ...: a row of taps of one weight, or the bias of one target."""
    images, groups, channels, targets = problem
    pairs = groups * targets * channels
    for unit in range(worker, pairs * offsets_h.size + dbias.size, workers):
        if unit >= pairs * offsets_h.size:
            k = unit - pairs * offsets_h.size
            dbias[k] = _sum_plane(dy, k * dy_strides[1], dy_strides, counts, images)
            continue
        r, c, k = unit // pairs, unit % channels, unit % pairs // channels
        x_at = (k // targets * channels + c) * x_strides[1]
        for s in range(offsets_w.size):
            at = k * dw_strides[0] + c * dw_strides[1] + r * dw_strides[2] + s * dw_strides[3]
            dw[at] = _correlate(
                x, x_at, x_strides, size, dy, k * dy_strides[1], dy_strides, counts, images,
                (offsets_h[r], offsets_w[s]), step,
            )  # fmt: skip


def weight_gradient(
    dw: Array, dw_strides: Strides, x: Array, x_strides: Strides, dy: Array, dy_strides: Strides,
    problem: Problem, axes: tuple[Window, Window], with_bias: bool,
) -> Array:  # fmt: skip
    """Fills `dw` and returns the bias gradient, empty unless asked for; arguments as for the dense kernel."""
    dbias = np.empty(problem[1] * problem[3] if with_bias else 0, dw.dtype)
    offsets = [np.arange(axis.kernel) * axis.dilation - axis.before for axis in axes]
    launch(
        _weights, dw.dtype, get_num_threads(), dw, dw_strides, dbias, x, x_strides,
        (axes[0].size, axes[1].size), dy, dy_strides, problem, (axes[0].outputs, axes[1].outputs),
        offsets[0], offsets[1], (axes[0].stride, axes[1].stride),
    )  # fmt: skip
    return dbias
