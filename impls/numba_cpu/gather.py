"""Dense forward and backward-data: a gathering convolution over packed blocks.

A block is U x V outputs of one image and group.  Its source pixels are copied to a buffer
[channel][row phase][column phase][row][column], in which every tap of a unit-step lattice is a constant
shift, so a register tile reads its columns as contiguous vectors and im2col is never formed.  The bytes of
`live` tell data from padding; the tile leaves dead columns alone, which keeps NaN and Inf where they belong.

Sizes: CHANNELS = 128 keeps a weight panel (9 taps * 128 * 13 * 4 bytes = 60 KB) and, with BLOCK_BYTES, the
source block in a 2 MB second-level cache; about 1024..4096 outputs amortise the panel's way there.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads

from conformance.implementations.windows import Pair

from .geometry import Array, Axis, Problem, Quad, Strides, Triple, even_split, lattice_strides
from .launch import cached_kernel, index, launch, njit_inner
from .microkernel import SEGMENT, TILE_ROWS, lanes_of, tile_columns, tile_product
from .packing import aligned, pack_block, pack_panel

CHANNELS = 128
BLOCK_BYTES = 768 * 1024
BLOCK_COLUMNS = 128
BLOCK_OUTPUTS = 2048
MIN_PANELS = 4
UNITS_PER_WORKER = 4


@njit_inner()
def _store_tile(
    out: Array, out_at: int, out_strides: Triple, tile: Array, base: int, lanes: int, pitch: int,
    columns: int, rows: int, bias: Array, bias_at: int, first: bool,
) -> None:  # fmt: skip
    """Tile columns to the target lattice, plus the bias or what earlier channel blocks left there."""
    target_stride, row_stride, column_stride = out_strides
    width = tile.size // TILE_ROWS
    lane = 0
    while lane < lanes:
        u, v = (base + lane) // pitch, (base + lane) % pitch
        at, run = out_at + u * row_stride + v * column_stride, max(0, min(lanes - lane, columns - v))
        for i in range(rows):
            row = at + i * target_stride
            for j in range(run):
                target = index(row + j * column_stride)
                before = bias[bias_at + i] if first else out[target]
                out[target] = before + tile[index(i * width + lane + j)]
        lane += pitch - v


@njit_inner()
def _multiply_block(
    out: Array, out_at: int, out_strides: Triple, panels: Array, panels_at: int, panel_size: int,
    buffer: Array, live: Array, segments: Array, plane: Quad, extent: Pair, by_row: bool, rows: int,
    bias: Array, bias_at: int, first: bool, tile: Array,
) -> None:  # fmt: skip
    """All tiles of one block: every weight panel passes over the whole block while it is in cache."""
    pitch, channel_pitch = plane[2], plane[3]
    width = tile.size // TILE_ROWS
    run = extent[1] if by_row else (extent[0] - 1) * pitch + extent[1]
    for done in range(0, rows, TILE_ROWS):
        a_at = panels_at + done // TILE_ROWS * panel_size
        for line in range(extent[0] if by_row else 1):
            for start in range(0, run, width):
                base = line * pitch + start
                tile_product(
                    tile, 0, False, panels, a_at, buffer, base, channel_pitch, live, 1, segments, 0,
                    segments.size // SEGMENT,
                )  # fmt: skip
                _store_tile(
                    out, out_at + done * out_strides[0], out_strides, tile, base, min(width, run - start),
                    pitch, extent[1], min(TILE_ROWS, rows - done), bias, bias_at + done, first,
                )  # fmt: skip


@cached_kernel
def _multiply(
    worker: int, workers: int, out: Array, out_strides: Strides, src: Array, src_strides: Strides,
    size: Pair, panels: Array, w: Array, w_strides: Triple, taps: Array, bias: Array, problem: Problem,
    counts: Pair, block: Quad, step: Pair, low: Pair, phases_h: Array, phases_w: Array, plane: Quad,
    segments_of: Array, by_row: bool, buffers: Array, lives: Array, tiles: Array,
) -> None:  # fmt: skip
    """Blocks worker, worker + workers, ...: which worker does a block never changes its result."""
    images, groups, channels, targets = problem
    block_u, block_v, block_c, block_k = block
    panels_k, parts_c = -(-targets // TILE_ROWS), -(-channels // block_c)
    panel_size = panels.size // (groups * parts_c * panels_k)
    parts_u, parts_v, parts_k = -(-counts[0] // block_u), -(-counts[1] // block_v), -(-targets // block_k)
    parts = parts_u * parts_v * parts_k
    segments, buffer, live = segments_of[worker], buffers[worker], lives[worker]
    for unit in range(worker, images * groups * parts, workers):
        image, group, part = unit // parts // groups, unit // parts % groups, unit % parts
        k = part % parts_k * block_k
        u, v = part // parts_k // parts_v * block_u, part // parts_k % parts_v * block_v
        extent = (min(block_u, counts[0] - u), min(block_v, counts[1] - v))
        origin = (u * step[0] + low[0], v * step[1] + low[1])
        k_all = group * targets + k
        out_at = image * out_strides[0] + k_all * out_strides[1] + u * out_strides[2] + v * out_strides[3]
        for part_c in range(parts_c):
            c = part_c * block_c
            held = min(block_c, channels - c)
            segments[2::SEGMENT] = held
            pack_block(
                buffer, live, src, image * src_strides[0] + (group * channels + c) * src_strides[1],
                src_strides[1:], size, origin, step, phases_h, phases_w, plane, held,
            )  # fmt: skip
            panels_at = ((group * parts_c + part_c) * panels_k + k // TILE_ROWS) * panel_size
            _multiply_block(
                out, out_at, out_strides[1:], panels, panels_at, panel_size, buffer, live, segments, plane,
                extent, by_row, min(block_k, targets - k), bias, k_all, part_c == 0, tiles[worker],
            )  # fmt: skip


@cached_kernel
def _pack(
    worker: int, workers: int, out: Array, out_strides: Strides, src: Array, src_strides: Strides,
    size: Pair, panels: Array, w: Array, w_strides: Triple, taps: Array, bias: Array, problem: Problem,
    counts: Pair, block: Quad, step: Pair, low: Pair, phases_h: Array, phases_w: Array, plane: Quad,
    segments_of: Array, by_row: bool, buffers: Array, lives: Array, tiles: Array,
) -> None:  # fmt: skip
    """Weight panels worker, worker + workers, ...; they lie as [group][channel block][target panel]."""
    groups, channels, targets = problem[1:]
    block_c = block[2]
    panels_k, parts_c = -(-targets // TILE_ROWS), -(-channels // block_c)
    for unit in range(worker, groups * parts_c * panels_k, workers):
        group, part_c, panel = unit // panels_k // parts_c, unit // panels_k % parts_c, unit % panels_k
        c, k = part_c * block_c, panel * TILE_ROWS
        w_at = group * w_strides[2] + k * w_strides[0] + c * w_strides[1]
        rows, held = min(TILE_ROWS, targets - k), min(block_c, channels - c)
        at = unit * taps.size * block_c * TILE_ROWS
        pack_panel(panels, at, w, w_at, w_strides[:2], taps, rows, held, block_c)


def _plane(axes: tuple[Axis, Axis], extent: tuple[int, int], dtype: np.dtype) -> tuple[int, int, int, int]:
    """(rows, columns, pitch, channel pitch) of a block buffer.

    Rows start at whole vectors where tiles keep to a row, else they touch so that tiles run across them.  The
    channel pitch is an odd number of vectors: a power of two would put all channels into one cache set.
    """
    lanes = lanes_of(dtype)
    height, width = (extent[i] + int(axes[i].slots.max()) for i in (0, 1))
    pitch = -(-width // lanes) * lanes if _by_row(extent, width, dtype) else width
    size = axes[0].phases.size * axes[1].phases.size * height * pitch
    return height, width, pitch, (-(-size // lanes) | 1) * lanes


def _by_row(extent: tuple[int, int], width: int, dtype: np.dtype) -> bool:
    """Whether tiles that keep to one row of the block are as few as tiles that run across rows."""
    columns = tile_columns(dtype)
    return extent[0] * -(-extent[1] // columns) <= -(-((extent[0] - 1) * width + extent[1]) // columns)


def _plan(axes: tuple[Axis, Axis], problem: Problem, workers: int, dtype: np.dtype) -> tuple[Quad, Quad]:
    """Outputs (U, V), channels and targets of a unit of work, and its `_plane`: the largest block that stays in cache;
    few blocks are shared out by splitting the targets as well."""
    images, groups, channels, targets = problem
    rows, columns = axes
    v = columns.count if columns.count <= BLOCK_COLUMNS * 3 // 2 else BLOCK_COLUMNS
    u = even_split(rows.count, max(1, BLOCK_OUTPUTS // v))
    wanted = min(channels, CHANNELS // 2) * dtype.itemsize
    while u > 1 and _plane(axes, (u, v), dtype)[3] * wanted > BLOCK_BYTES:
        u = -(-u // 2)
    plane = _plane(axes, (u, v), dtype)
    c = even_split(channels, max(1, min(CHANNELS, BLOCK_BYTES // (plane[3] * dtype.itemsize))))
    units = images * groups * -(-rows.count // u) * -(-columns.count // v)
    panels = max(MIN_PANELS, -(-targets // TILE_ROWS) * units // (UNITS_PER_WORKER * workers))
    return (u, v, c, panels * TILE_ROWS), plane


def _segments(axes: tuple[Axis, Axis], block: Quad, plane: Quad, workers: int) -> Array:
    """One (panel offset, buffer offset, channels) row per tap and worker; channels are set per block."""
    rows, columns = axes
    height, _, pitch, _ = plane
    planes = rows.planes[:, None] * columns.phases.size + columns.planes
    offsets = (planes * height + rows.slots[:, None]) * pitch + columns.slots
    table = np.empty((workers, offsets.size, SEGMENT), np.int64)
    table[:, :, 0] = np.arange(offsets.size) * block[2] * TILE_ROWS
    table[:, :, 1] = offsets.ravel()
    return table.reshape(workers, -1)


def gather(
    out: Array, out_strides: Strides, src: Array, src_strides: Strides, w: Array,
    w_strides: Strides, group_stride: int, bias: Array, problem: Problem, axes: tuple[Axis, Axis],
) -> None:  # fmt: skip
    """Fills one lattice of `out`; tensors are flat, `w_strides` are (target, source channel, R, S).

    problem = (images, groups, source channels per group, targets per group); bias is [groups * targets].
    """
    rows, columns = axes
    workers, width = get_num_threads(), tile_columns(out.dtype)
    block, plane = _plan(axes, problem, workers, out.dtype)
    _, groups, channels, targets = problem
    block_c, channel_pitch = block[2], plane[3]
    panels_k, parts_c = -(-targets // TILE_ROWS), -(-channels // block_c)
    taps = (rows.taps[:, None] * w_strides[2] + columns.taps * w_strides[3]).ravel()
    panels = np.zeros(groups * parts_c * panels_k * taps.size * block_c * TILE_ROWS, out.dtype)
    start, lattice = lattice_strides(axes, out_strides)
    arguments = (
        out[start:], lattice, src, src_strides, (rows.source, columns.source), panels, w,
        (*w_strides[:2], group_stride), taps, bias, problem, (rows.count, columns.count), block,
        (rows.step, columns.step), (rows.low, columns.low), rows.phases, columns.phases, plane,
        _segments(axes, block, plane, workers), _by_row(block[:2], plane[1], out.dtype),
        aligned((workers, channel_pitch * block_c + width), out.dtype),
        np.empty((workers, channel_pitch + width), np.uint8), aligned((workers, TILE_ROWS * width),
        out.dtype),
    )  # fmt: skip
    launch(_pack, out.dtype, workers, *arguments)
    launch(_multiply, out.dtype, workers, *arguments)
