"""Dense backward-weight: for every tap a matrix product contracted over output pixels.

A block of output pixels is packed pixel by pixel, dy as [target panel][pixel][TILE_ROWS] and x as
[channel panel][row][column][tile columns].  A tap then is a shift of x, and its valid pixels are one run per
output row, so padding is never read.  Tiles add to partial sums kept as [part][target panel][channel panel]
[tap][tile]; the parts (shares of the pixels, needed where there are few tiles) are added in a fixed order.

With few channels a lane is not a channel but a weight, (channel, row, column) of the window: pixels are then
packed window by window and there is a single tap.

Sizes: BLOCK_PIXELS = 1024 contracted pixels pay for adding a tile to memory; BLOCK_TARGETS * 1024 * 4 bytes
of dy and BLOCK_CHANNELS * 1024 * 4 of x together stay in a 2 MB second-level cache.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numba import get_num_threads

from conformance.implementations.windows import Pair, Window

from .geometry import Array, Problem, Quad, Strides, Triple, even_split
from .launch import cached_kernel, launch, njit_inner
from .microkernel import SEGMENT, TILE_ROWS, tile_columns, tile_product
from .packing import aligned, find_equal_runs, find_valid_runs, pack_pixels, pack_windows, row_total, source_range

BLOCK_PIXELS = 1024
BLOCK_COLUMNS = 128
BLOCK_TARGETS = 20 * TILE_ROWS
BLOCK_CHANNELS = 128
UNITS_PER_WORKER = 4
FOLDED_CHANNELS = 8

Block = tuple[int, int, int, int, int]  # rows, columns, targets, channels, parts


@njit_inner()
def _add_row_sums(
    sums: Array, at: int, dy: Array, dy_at: int, dy_strides: Triple, rows: Pair, columns: Pair,
    targets: int,
) -> None:  # fmt: skip
    target_stride, row_stride, column_stride = dy_strides
    for k in range(targets):
        for row in range(rows[0], rows[1]):
            start = dy_at + k * target_stride + row * row_stride + columns[0] * column_stride
            sums[at + k] += row_total(dy, start, column_stride, columns[1] - columns[0])


@njit_inner()
def _multiply_block(
    partials: Array, tiles_at: int, panels_c: int, a: Array, a_size: int, b: Array, b_size: int,
    b_step: int, live: Array, live_scale: int, segments: Array, counts: Array, parts: Pair, lanes: int,
) -> None:  # fmt: skip
    """Every (target panel, channel panel, tap) tile takes its pixels of the block."""
    room = segments.size // counts.size
    for panel_c in range(parts[1]):
        for panel_k in range(parts[0]):
            for tap in range(counts.size):
                tile = ((panel_k * panels_c + panel_c) * counts.size + tap) * TILE_ROWS * lanes
                tile_product(
                    partials, tiles_at + tile, True, a, panel_k * a_size, b, panel_c * b_size, b_step, live,
                    live_scale, segments, tap * room, counts[tap],
                )  # fmt: skip


@cached_kernel
def _multiply(
    worker: int, workers: int, dw: Array, dw_strides: Strides, partials: Array, sums: Array, x: Array,
    x_strides: Strides, x_group: int, size: Pair, dy: Array, dy_strides: Strides, problem: Problem,
    counts: Pair, block: Block, window_h: Quad, window_w: Quad, shifts: Array, widths: Pair, a_of: Array,
    b_of: Array, live_of: Array, segments_of: Array, counts_of: Array,
) -> None:  # fmt: skip
    """Units worker, worker + workers, ... of (part, group, target block, channel block)."""
    images, groups, channels, targets = problem
    block_p, block_q, block_k, block_c, parts = block
    height, lanes = widths
    a, b, live, segments, tap_counts = (
        a_of[worker], b_of[worker], live_of[worker], segments_of[worker], counts_of[worker],
    )  # fmt: skip
    stride = (window_h[1], window_w[1])
    tile_size = tap_counts.size * height * lanes
    panels_k, panels_c = -(-targets // height), -(-channels // lanes)
    blocks_p, blocks_q = -(-counts[0] // block_p), -(-counts[1] // block_q)
    blocks_k, blocks_c = -(-targets // block_k), -(-channels // block_c)
    blocks = images * blocks_p * blocks_q
    for unit in range(worker, parts * groups * blocks_k * blocks_c, workers):
        c, k = unit % blocks_c * block_c, unit // blocks_c % blocks_k * block_k
        group, part = unit // blocks_c // blocks_k % groups, unit // blocks_c // blocks_k // groups
        held_k, held_c = min(block_k, targets - k), min(block_c, channels - c)
        tiles_at = (((part * groups + group) * panels_k + k // height) * panels_c + c // lanes) * tile_size
        for pixels in range(part * blocks // parts, (part + 1) * blocks // parts):
            image = pixels // blocks_q // blocks_p
            p, q = pixels // blocks_q % blocks_p * block_p, pixels % blocks_q * block_q
            rows, columns = (p, min(p + block_p, counts[0])), (q, min(q + block_q, counts[1]))
            dy_at = image * dy_strides[0] + (group * targets + k) * dy_strides[1]
            x_at = image * x_strides[0] + group * x_group
            a_size = pack_pixels(a, dy, dy_at, dy_strides[1:], rows, columns, held_k, height)
            if shifts.size:
                b_size = pack_windows(
                    b, live, x, x_at, x_strides, size, shifts[:, c : c + held_c], rows, columns, stride, lanes
                )
                find_equal_runs(segments, tap_counts, rows, columns, window_w, size[1], lanes)
            else:
                source_rows = source_range(rows[0], rows[1], window_h, size[0])
                source_columns = source_range(columns[0], columns[1], window_w, size[1])
                x_at += c * x_strides[1]
                b_size = pack_pixels(b, x, x_at, x_strides[1:], source_rows, source_columns, held_c, lanes)
                find_valid_runs(
                    segments, tap_counts, rows, columns, source_rows, source_columns, window_h, window_w, lanes
                )
            b_step, live_scale = (lanes, 1) if shifts.size else (stride[1] * lanes, 0)
            _multiply_block(
                partials, tiles_at, panels_c, a, a_size, b, b_size, b_step, live, live_scale, segments,
                tap_counts, (-(-held_k // height), -(-held_c // lanes)), lanes,
            )  # fmt: skip
            if sums.size and c == 0:
                at = (part * groups + group) * targets + k
                _add_row_sums(sums, at, dy, dy_at, dy_strides[1:], rows, columns, held_k)


@cached_kernel
def _finish(
    worker: int, workers: int, dw: Array, dw_strides: Strides, partials: Array, sums: Array, x: Array,
    x_strides: Strides, x_group: int, size: Pair, dy: Array, dy_strides: Strides, problem: Problem,
    counts: Pair, block: Block, window_h: Quad, window_w: Quad, shifts: Array, widths: Pair, a_of: Array,
    b_of: Array, live_of: Array, segments_of: Array, counts_of: Array,
) -> None:  # fmt: skip
    """Adds the parts of target panels worker, worker + workers, ... and takes the weights to their layout."""
    groups, channels, targets = problem[1:]
    parts, taps, kernel_w = block[4], counts_of.shape[1], window_w[0]
    height, lanes = widths
    panels_k, panels_c = -(-targets // height), -(-channels // lanes)
    part_size = partials.size // parts
    for unit in range(worker, groups * panels_k, workers):
        group, k = unit // panels_k, unit % panels_k * height
        for tile in range(panels_c * taps):
            c, r, s = tile // taps * lanes, tile % taps // kernel_w, tile % taps % kernel_w
            at = (unit * panels_c * taps + tile) * height * lanes
            for i in range(min(height, targets - k)):
                target = (group * targets + k + i) * dw_strides[0] + c * dw_strides[1]
                target += r * dw_strides[2] + s * dw_strides[3]
                for lane in range(min(lanes, channels - c)):
                    total = partials[at + i * lanes + lane]
                    for part in range(1, parts):
                        total += partials[part * part_size + at + i * lanes + lane]
                    dw[target + lane * dw_strides[1]] = total


def _plan(axes: tuple[Window, Window], problem: Problem, workers: int, lanes: int) -> Block:
    """(rows, columns, targets, channels) of a block and the number of parts the pixels are shared into."""
    images, groups, channels, targets = problem
    p_count, q_count = axes[0].outputs, axes[1].outputs
    q = q_count if q_count <= BLOCK_COLUMNS * 3 // 2 else BLOCK_COLUMNS
    p = even_split(p_count, max(1, BLOCK_PIXELS // q))
    k = even_split(targets, BLOCK_TARGETS, TILE_ROWS)
    c = even_split(channels, BLOCK_CHANNELS, lanes)
    tiles = groups * -(-targets // k) * -(-channels // c)
    blocks = images * -(-p_count // p) * -(-q_count // q)
    parts = 1 if tiles >= UNITS_PER_WORKER * workers else -(-UNITS_PER_WORKER * workers // tiles)
    return p, q, k, c, min(parts, blocks)


def _shifts(axes: tuple[Window, Window], channels: int, dw_strides: Strides) -> Array:
    """(channel, row offset, column offset) of every weight of one target, in the order dw keeps them."""
    c, r, s = np.indices((channels, axes[0].kernel, axes[1].kernel)).reshape(3, -1)
    table = np.empty((3, c.size), np.int64)
    table[:, c * dw_strides[1] + r * dw_strides[2] + s * dw_strides[3]] = (
        c, r * axes[0].dilation - axes[0].before, s * axes[1].dilation - axes[1].before,
    )  # fmt: skip
    return table


def weight_gradient(
    dw: Array, dw_strides: Strides, x: Array, x_strides: Strides, dy: Array, dy_strides: Strides,
    problem: Problem, axes: tuple[Window, Window], with_bias: bool,
) -> Array:  # fmt: skip
    """Fills `dw` (flat, strides K C R S) and returns the bias gradient, empty unless asked for.

    problem = (images, groups, channels per group, targets per group).
    """
    images, groups, channels, targets = problem
    workers, lanes = get_num_threads(), tile_columns(dw.dtype)
    x_group, kernel = channels * x_strides[1], (axes[0].kernel, axes[1].kernel)
    shifts = np.empty((3, 0), np.int64)
    if channels <= FOLDED_CHANNELS and kernel != (1, 1):
        shifts = _shifts(axes, channels, dw_strides)
        channels, kernel, dw_strides = shifts.shape[1], (1, 1), (dw_strides[0], 1, 0, 0)
    problem = (images, groups, channels, targets)
    p, q, k, c, parts = block = _plan(axes, problem, workers, lanes)
    source = p * q if shifts.size else prod(  # pixels of the largest input rectangle that a block of outputs reads
        min(axis.size, (count - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1)
        for axis, count in zip(axes, (p, q), strict=True)
    )  # fmt: skip
    taps = kernel[0] * kernel[1]
    tiles = groups * -(-targets // TILE_ROWS) * -(-channels // lanes) * taps
    b_size = -(-c // lanes) * lanes * source
    sums = np.zeros((parts, groups * targets if with_bias else 0), dw.dtype)
    arguments = (
        dw, dw_strides, np.zeros(parts * tiles * TILE_ROWS * lanes, dw.dtype), sums.reshape(-1), x, x_strides,
        x_group, (axes[0].size, axes[1].size), dy, dy_strides, problem, (axes[0].outputs, axes[1].outputs),
        block, *((axis.kernel, axis.stride, axis.before, axis.dilation) for axis in axes), shifts,
        (TILE_ROWS, lanes), np.zeros((workers, -(-k // TILE_ROWS) * TILE_ROWS * p * q), dw.dtype),
        aligned((workers, b_size), dw.dtype), np.ones((workers, b_size if shifts.size else lanes), np.uint8),
        np.empty((workers, taps * p * (2 * axes[1].kernel + 1) * SEGMENT), np.int64),
        np.empty((workers, taps), np.int64),
    )  # fmt: skip
    launch(_multiply, dw.dtype, workers, *arguments)
    launch(_finish, dw.dtype, workers, *arguments)
    return sums.sum(axis=0)
