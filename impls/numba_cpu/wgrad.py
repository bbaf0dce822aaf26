"""Dense backward-weight: matrix products contracted over output pixels.

A block of output pixels is packed pixel by pixel, dy as [target panel][pixel][tile rows] and x as
[lane panel][row][column][lanes of a tile].  There are two ways to choose the lanes.

Lanes are channels: a tap then is a shift of x, and its valid pixels are a rectangle, so padding is never read.  Tiles
add to partial sums [part][target panel][channel panel][tap][tile], which go to dw in the end.

Lanes are weights (channel, row, column) of the window: x is packed window by window, with zeros for padding, and the
tiles add to dw itself or to a copy of it per part.  It packs as many elements as there are taps for one, which pays
where there are few channels, or few pixels beside the weights.  Where a zero of padding met NaN or Inf a sum is NaN,
and all is computed again by `rows`, which reads no padding.

The parts (shares of the pixels, needed where there are few tiles) are added in a fixed order.
"""

from __future__ import annotations

from typing import Any

from .launch import cached_kernel, njit_inner
from .microkernel import add_lanes, copy_lanes, tile_product, vector_lanes
from .packing import ROW, inside, source_range, transpose_rows
from .plan import G
from .row_kernels import bias_gradient

STATUS = 8  # integers that begin `work`; the first tells of NaN
SHIFTED, WINDOWED, POINTWISE = range(3)  # lanes are channels; weights; weights of windows of one pixel
Pointer = Any


@njit_inner()
def _place(image: int, planes: int, by_image: int, by_plane: int) -> int:
    """Return where one of the planes of all images begins."""
    return image // planes * by_image + image % planes * by_plane


@njit_inner()
def _pack_pixels(
    buffer: Pointer, at: int, panel: int, src: Pointer, src_at: int, strides: tuple[int, int, int],
    rows: tuple[int, int], columns: tuple[int, int], channels: int, width: int, work: Pointer, rows_at: int,
) -> None:  # fmt: skip
    """Copy a rectangle of pixels to [panel][row][column][width], width channels a panel; `panel` is the panels'
    distance."""
    lanes, count, height = vector_lanes(buffer), columns[1] - columns[0], rows[1] - rows[0]
    start = src_at + rows[0] * strides[1] + columns[0] * strides[2]
    if strides[1] == count * strides[2]:  # whole rows are one long row
        height, count = 1, height * count
    for c in range(0, channels, width):
        for row in range(height):
            target = at + c // width * panel + row * count * width
            for first in range(c, min(c + width, channels), lanes):
                part = min(lanes, min(c + width, channels) - first)
                source = start + first * strides[0] + row * strides[1]
                if strides[0] == 1:
                    for j in range(count):
                        copy_lanes(buffer, target + j * width + first - c, src, source + j * strides[2], part)
                    continue
                for i in range(part):
                    work[rows_at + i * ROW] = source + i * strides[0]
                    work[rows_at + i * ROW + 1], work[rows_at + i * ROW + 2] = 0, count
                transpose_rows(buffer, target + first - c, width, part, src, work, rows_at, count, 1, strides[2])


@njit_inner()
def _pack_windows(
    buffer: Pointer, at: int, panel: int, x: Pointer, x_at: int, plan: Pointer, first_lane: int, weights: int,
    rows: tuple[int, int], columns: tuple[int, int], width: int, work: Pointer, rows_at: int,
) -> None:  # fmt: skip
    """Copy windows of a rectangle of outputs to [panel][row][column][width], one lane per weight of a target."""
    lanes, count, height = vector_lanes(buffer), columns[1] - columns[0], rows[1] - rows[0]
    for first in range(0, weights, lanes):
        part, to = min(lanes, weights - first), at + first // width * panel + first % width
        for row in range(height):
            for i in range(part):
                table = plan[G.lanes_at] + (first_lane + first + i) * 3
                h = (rows[0] + row) * plan[G.step_h] + plan[table + 1]
                work[rows_at + i * ROW] = x_at + plan[table] * plan[G.x_c] + h * plan[G.x_h]
                work[rows_at + i * ROW + 1] = columns[0] * plan[G.step_w] + plan[table + 2]
                work[rows_at + i * ROW + 2] = plan[G.size_w] if 0 <= h < plan[G.size_h] else 0
            target = to + row * count * width
            transpose_rows(buffer, target, width, part, x, work, rows_at, count, plan[G.step_w], plan[G.x_w])


@njit_inner()
def _multiply_taps(
    plan: Pointer, partials: Pointer, tiles_at: int, panels_c: int, scratch: Pointer, a_at: int, b_at: int,
    extents: tuple[int, int], rows: tuple[int, int], columns: tuple[int, int], source_rows: tuple[int, int],
    source_columns: tuple[int, int],
) -> None:  # fmt: skip
    """Multiply the pixels of the block for every (target panel, channel panel, tap) tile."""
    height, vectors = plan[G.tile_rows], plan[G.tile_vectors]
    width = vectors * vector_lanes(scratch)
    count, pitch = columns[1] - columns[0], source_columns[1] - source_columns[0]
    taps = plan[G.kernel_h] * plan[G.kernel_w]
    a_size = (rows[1] - rows[0]) * count * height
    b_size = (source_rows[1] - source_rows[0]) * pitch * width
    for tap in range(taps):
        r, s = tap // plan[G.kernel_w], tap % plan[G.kernel_w]
        h = rows[0] * plan[G.step_h] + r * plan[G.dilation_h] - plan[G.before_h] - source_rows[0]
        w = columns[0] * plan[G.step_w] + s * plan[G.dilation_w] - plan[G.before_w] - source_columns[0]
        first, last = inside(h, plan[G.step_h], rows[1] - rows[0], source_rows[1] - source_rows[0])
        low, high = inside(w, plan[G.step_w], count, pitch)
        if first == last or low == high:
            continue
        for panel_c in range(-(-extents[1] // width)):
            b = b_at + panel_c * b_size + ((h + first * plan[G.step_h]) * pitch + w) * width
            for panel_k in range(-(-extents[0] // height)):
                tile = tiles_at + ((panel_k * panels_c + panel_c) * taps + tap) * height * width
                tile_product(
                    partials, tile, height, vectors, scratch, a_at + panel_k * a_size + first * count * height, 1,
                    count * height, scratch, b, plan[G.step_h] * pitch * width, plan, plan[G.vectors_at], last - first,
                    plan, plan[G.columns_at] + 2 * low, high - low, 1, True,
                )  # fmt: skip


@njit_inner()
def _multiply_windows(
    plan: Pointer, dw: Pointer, dw_at: int, scratch: Pointer, a_at: int, b_at: int, extents: tuple[int, int],
    rows: int, columns: int, adds: bool,
) -> int:  # fmt: skip
    """Multiply the pixels of the block for every (target panel, weight panel) tile; return whether any sum is NaN."""
    lanes, height, vectors = vector_lanes(scratch), plan[G.tile_rows], plan[G.tile_vectors]
    width = vectors * lanes
    odd, tile = 0, a_at + plan[G.tile_at]
    for panel_c in range(-(-extents[1] // width)):
        rest = min(width, extents[1] - panel_c * width)
        for panel_k in range(-(-extents[0] // height)):
            tile_product(
                scratch, tile, height, vectors, scratch, a_at + panel_k * rows * columns * height, 1, columns * height,
                scratch, b_at + panel_c * rows * columns * width, columns * width, plan, plan[G.vectors_at], rows, plan,
                plan[G.columns_at], columns, 1, False,
            )  # fmt: skip
            for i in range(min(height, extents[0] - panel_k * height)):
                at = dw_at + (panel_k * height + i) * plan[G.dw_k] + panel_c * width
                for lane in range(0, rest, lanes):
                    count = min(lanes, rest - lane)
                    odd |= add_lanes(dw, at + lane, scratch, tile + i * width + lane, count, 0.0, not adds)
    return odd


@njit_inner()
def _scatter_taps(
    plan: Pointer, dw: Pointer, at: int, partials: Pointer, tile: int, channels: int, work: Pointer, rows_at: int
) -> None:
    """Copy one target's weights of a channel panel, [tap][lane] in the tiles, to dw."""
    taps, lanes = plan[G.kernel_h] * plan[G.kernel_w], vector_lanes(dw)
    size = plan[G.tile_rows] * plan[G.tile_vectors] * lanes
    for first in range(0, taps, lanes):
        part = min(lanes, taps - first)
        if plan[G.dw_s] == 1:
            for i in range(part):
                work[rows_at + i * ROW] = tile + (first + i) * size
                work[rows_at + i * ROW + 1], work[rows_at + i * ROW + 2] = 0, channels
            transpose_rows(dw, at + first, plan[G.dw_c], part, partials, work, rows_at, channels, 1, 1)
        else:
            for i in range(part):
                tap = (
                    at + (first + i) // plan[G.kernel_w] * plan[G.dw_r] + (first + i) % plan[G.kernel_w] * plan[G.dw_s]
                )
                for c in range(0, channels, lanes):
                    copy_lanes(dw, tap + c, partials, tile + (first + i) * size + c, min(lanes, channels - c))


@cached_kernel
def multiply(
    worker: int, workers: int, plan: Pointer, work: Pointer, dw: Pointer, x: Pointer, dy: Pointer, sums: Pointer,
    partials: Pointer, scratch: Pointer,
) -> None:  # fmt: skip
    """Compute units worker, worker + workers, ... of (part, group, target block, lane block)."""
    groups, channels, targets, folded = plan[G.groups], plan[G.channels], plan[G.targets], plan[G.folded]
    height, width = plan[G.tile_rows], plan[G.tile_vectors] * vector_lanes(scratch)
    block_p, block_q, block_k, block_c = plan[G.block_p], plan[G.block_q], plan[G.block_k], plan[G.block_c]
    count_p, count_q, parts, taps = plan[G.count_p], plan[G.count_q], plan[G.parts], plan[G.kernel_h] * plan[G.kernel_w]
    lanes = channels * taps if folded else channels
    panels_k, panels_c = -(-targets // height), -(-lanes // width)
    blocks_p, blocks_q = -(-count_p // block_p), -(-count_q // block_q)
    blocks_k, blocks_c = -(-targets // block_k), -(-lanes // block_c)
    block_n, planes = plan[G.block_n], plan[G.planes]
    blocks = -(-plan[G.images] // block_n) * blocks_p * blocks_q
    a_at, rows_at = worker * plan[G.scratch_size], STATUS + worker * plan[G.work_size]
    b_at, sums_kind = a_at + plan[G.b_at], 1 if plan[G.dy_q] == 1 else 0
    dy_strides, x_strides = (plan[G.dy_k], plan[G.dy_p], plan[G.dy_q]), (plan[G.x_c], plan[G.x_h], plan[G.x_w])
    window_h = (plan[G.kernel_h], plan[G.step_h], plan[G.before_h], plan[G.dilation_h])
    window_w = (plan[G.kernel_w], plan[G.step_w], plan[G.before_w], plan[G.dilation_w])
    odd = 0
    for unit in range(worker, parts * groups * blocks_k * blocks_c, workers):
        c, k = unit % blocks_c * block_c, unit // blocks_c % blocks_k * block_k
        group, part = unit // blocks_c // blocks_k % groups, unit // blocks_c // blocks_k // groups
        extents = (min(block_k, targets - k), min(block_c, lanes - c))
        tiles_at = ((part * groups + group) * panels_k + k // height) * panels_c + c // width
        tiles_at *= taps * height * width
        dw_at = (group * targets + k) * plan[G.dw_k] + c + part * plan[G.part_size]
        start = part * blocks // parts
        for pixels in range(start, (part + 1) * blocks // parts):
            image = pixels // blocks_q // blocks_p * block_n
            images = min(block_n, plan[G.images] - image)
            p, q = pixels // blocks_q % blocks_p * block_p, pixels % blocks_q * block_q
            rows, columns = (p, min(p + block_p, count_p)), (q, min(q + block_q, count_q))
            dy_group, x_group = (group * targets + k) * plan[G.dy_k], group * channels * plan[G.x_c]
            dy_at = dy_group + _place(image, planes, plan[G.dy_n], plan[G.dy_d])
            x_at = x_group + _place(image, planes, plan[G.x_n], plan[G.x_d])
            size = (rows[1] - rows[0]) * (columns[1] - columns[0])
            for i in range(images):
                to, source = a_at + i * size * height, _place(image + i, planes, plan[G.dy_n], plan[G.dy_d])
                _pack_pixels(
                    scratch, to, images * size * height, dy, dy_group + source, dy_strides, rows, columns, extents[0],
                    height, work, rows_at,
                )  # fmt: skip
            if folded:
                for i in range(images):
                    to, panel = b_at + i * size * width, images * size * width
                    source = x_group + _place(image + i, planes, plan[G.x_n], plan[G.x_d])
                    if folded == POINTWISE:
                        source += c * plan[G.x_c]
                        _pack_pixels(
                            scratch, to, panel, x, source, x_strides, rows, columns, extents[1], width, work, rows_at
                        )
                    else:
                        _pack_windows(
                            scratch, to, panel, x, source, plan, c, extents[1], rows, columns, width, work, rows_at
                        )
                odd |= _multiply_windows(
                    plan, dw if parts == 1 else partials, dw_at, scratch, a_at, b_at, extents,
                    images * (rows[1] - rows[0]), columns[1] - columns[0], pixels > start,
                )  # fmt: skip
            else:
                source_rows = source_range(rows[0], rows[1], window_h, plan[G.size_h])
                source_columns = source_range(columns[0], columns[1], window_w, plan[G.size_w])
                panel = (source_rows[1] - source_rows[0]) * (source_columns[1] - source_columns[0]) * width
                _pack_pixels(
                    scratch, b_at, panel, x, x_at + c * plan[G.x_c], x_strides, source_rows, source_columns, extents[1],
                    width, work, rows_at,
                )  # fmt: skip
                _multiply_taps(
                    plan, partials, tiles_at, panels_c, scratch, a_at, b_at, extents, rows, columns, source_rows,
                    source_columns,
                )  # fmt: skip
            if plan[G.biased] and c == 0:
                sum_at = (part * groups + group) * targets + k
                for i in range(extents[0]):
                    line = dy_at + i * plan[G.dy_k] + rows[0] * plan[G.dy_p] + columns[0] * plan[G.dy_q]
                    bias_gradient(
                        sums, sum_at + i, sums_kind, dy, line, images, rows[1] - rows[0], columns[1] - columns[0], plan,
                        True,
                    )  # fmt: skip
    if odd:
        work[0] = 1


@cached_kernel
def finish(
    worker: int, workers: int, plan: Pointer, work: Pointer, dw: Pointer, x: Pointer, dy: Pointer, sums: Pointer,
    partials: Pointer, scratch: Pointer,
) -> None:  # fmt: skip
    """Add the parts and, where lanes are channels, copy the tiles of target panels worker, worker + workers, ... to
    dw."""
    parts, part_size, channels, targets = plan[G.parts], plan[G.part_size], plan[G.channels], plan[G.targets]
    units = plan[G.units]
    lanes = vector_lanes(dw)
    height, width, taps = plan[G.tile_rows], plan[G.tile_vectors] * lanes, plan[G.kernel_h] * plan[G.kernel_w]
    rows_at, panels_k, panels_c = STATUS + worker * plan[G.work_size], -(-targets // height), -(-channels // width)
    for unit in range(worker, units, workers):
        first, last = part_size * unit // units, part_size * (unit + 1) // units
        for at in range(first, last, lanes):
            count = min(lanes, last - at)
            if plan[G.folded]:
                for part in range(parts):
                    add_lanes(dw, at, partials, part * part_size + at, count, 0.0, part == 0)
            else:
                for part in range(1, parts):
                    add_lanes(partials, at, partials, part * part_size + at, count, 0.0, False)
        if plan[G.folded]:
            continue
        k = unit % panels_k * height
        for row in range(min(height, targets - k)):
            target = (unit // panels_k * targets + k + row) * plan[G.dw_k]
            for c in range(0, channels, width):
                at = (unit * panels_c + c // width) * taps * height * width + row * width
                _scatter_taps(
                    plan, dw, target + c * plan[G.dw_c], partials, at, min(width, channels - c), work, rows_at
                )
