"""Dense forward and backward-data: a gathering convolution over packed blocks.

A block is U x V outputs of one image and group.  Its source pixels are copied to a buffer
[channel][row phase][column phase][row][column], in which every tap of a unit-step lattice is a constant
shift, so a register tile reads its columns as contiguous vectors and im2col is never formed.  If a window has
several planes, those of the source are row phases.  The buffer has zeros
where the window leaves the image.  A product with such a zero is zero unless the weight is NaN or infinite, and
then a sum is NaN: the kernel reports that it stored one, and all is computed again by `rows`, which reads no padding.

A register tile takes several vectors of outputs, each with a place of its own in the buffer: where a row of
outputs fills vectors well they start at its beginning, else they run across rows.  Its sums go out in pieces, each
within one row.

Tensors, the plan (p is where the record of a lattice begins in it) and the scratch memory are pointers here.
"""

from __future__ import annotations

from typing import Any

from .launch import cached_kernel, index, njit_inner
from .microkernel import add_lanes, pack_row, pack_row_by_two, spread_lanes, tile_product, vector_lanes
from .packing import inside, transpose_lines
from .plan import F

PIECE = 3
STATUS = 8  # integers that begin `work`; the first tells of NaN

Pointer = Any


@njit_inner()
def _pack_plane(plan: Pointer, p: int, buffer: Pointer, target: int, src: Pointer, src_at: int, u: int, v: int) -> None:
    """Copy one channel of one image of a block to [phase][phase][row][column], with zeros around the image."""
    pitch, size, step, increment = plan[p + F.pitch], plan[p + F.size_w], plan[p + F.step_w], plan[p + F.src_w]
    vectors = -(-pitch // vector_lanes(buffer))
    for a in range(plan[p + F.phases_h]):
        phase = p + plan[p + F.phases_h_at] + 2 * a
        first_h, plane = u * plan[p + F.step_h] + plan[p + F.low_h] + plan[phase], src_at + plan[phase + 1]
        for b in range(plan[p + F.phases_w]):
            first_w = v * step + plan[p + F.low_w] + plan[p + plan[p + F.phases_w_at] + b]
            for row in range(plan[p + F.height]):
                h = first_h + row * plan[p + F.step_h]
                width = size if 0 <= h < plan[p + F.size_h] else 0
                at = plane + h * plan[p + F.src_h]
                if increment == 1 and step == 1:
                    pack_row(buffer, target, src, at, first_w, width, vectors)
                elif increment == 1 and step == 2:
                    pack_row_by_two(buffer, target, src, at, first_w, width, vectors)
                else:
                    low, high = inside(first_w, step, pitch, width)
                    for j in range(pitch):
                        buffer[index(target + j)] = 0
                    for j in range(low, high):
                        buffer[index(target + j)] = src[index(at + (first_w + j * step) * increment)]
                target += pitch


@njit_inner()
def _lay_out(
    plan: Pointer, p: int, images: int, extent_u: int, extent_v: int, work: Pointer, at: int, room: int, lanes: int
) -> int:
    """Find where in the buffer every vector of outputs of a block begins, and the pieces that it is stored in.

    Writes to `work`: `room` places, as many numbers of a first piece, and the pieces (lane, output offset, lanes).
    Returns the number of vectors.
    """
    pitch, by_row = plan[p + F.pitch], plan[p + F.by_row]
    run = extent_v if by_row else (extent_u - 1) * pitch + extent_v
    vectors, piece = 0, at + 2 * room
    lines = extent_u if by_row else 1
    for line in range(images * lines):
        image, row = line // lines, line % lines
        for start in range(0, run, lanes):
            # Never read a tensor behind its end.
            base = row * pitch + (min(start, run - lanes) if plan[p + F.in_place] else start)
            work[at + vectors], work[at + room + vectors] = image * plan[p + F.image_pitch] + base, piece
            lane = row * pitch + start - base
            while lane < lanes:
                u, v = (base + lane) // pitch, (base + lane) % pitch
                count = min(lanes - lane, extent_v - v)
                if u < extent_u and count > 0:
                    work[piece], work[piece + 2] = lane, count
                    work[piece + 1] = image * plan[p + F.out_n] + u * plan[p + F.out_u] + v * plan[p + F.out_v]
                    piece += PIECE
                lane += pitch - v
            vectors += 1
    work[at + room + vectors] = piece
    for spare in range(vectors, vectors + plan[p + F.tile_vectors]):
        work[at + spare] = work[at]
    return vectors


@njit_inner()
def _store(
    plan: Pointer, p: int, out: Pointer, out_at: int, tile: Pointer, tile_at: int, rows: int, work: Pointer,
    firsts: int, first: int, last: int, bias: Pointer, bias_at: int, adds: bool,
) -> int:  # fmt: skip
    """Store vectors `first` to `last` of a tile, plus the bias or the sums of earlier channels; return whether any is
    NaN."""
    odd, lanes, increment = 0, vector_lanes(tile), plan[p + F.out_v]
    for vector in range(first, last):
        for piece in range(work[firsts + vector], work[firsts + vector + 1], PIECE):
            source, count = tile_at + (vector - first) * lanes + work[piece], work[piece + 2]
            for i in range(rows):
                at, to = source + i * plan[p + F.tile_vectors] * lanes, out_at + i * plan[p + F.out_k] + work[piece + 1]
                if increment == 1:
                    odd |= add_lanes(out, to, tile, at, count, bias[index(bias_at + i)], not adds)
                elif increment == 2 and not adds:
                    odd |= spread_lanes(out, to, tile, at, count, bias[index(bias_at + i)])
                else:
                    for j in range(count):
                        where = index(to + j * increment)
                        total = tile[index(at + j)] + (out[where] if adds else bias[index(bias_at + i)])
                        out[where] = total
                        odd |= total != total
    return odd


@njit_inner()
def _multiply_block(
    plan: Pointer, p: int, out: Pointer, out_at: int, a: Pointer, a_at: int, b: Pointer, b_at: int, b_step: int,
    channels: int, rows: int, bias: Pointer, bias_at: int, adds: bool, tile: Pointer, tile_at: int, work: Pointer,
    places: int, room: int, vectors: int,
) -> int:  # fmt: skip
    """Compute all tiles of one block: every weight panel passes over the whole block while it is in cache, or every
    vector of outputs over all panels."""
    height, width, packed = plan[p + F.tile_rows], plan[p + F.tile_vectors], plan[p + F.packed]
    taps, count = p + plan[p + F.taps_at], plan[p + F.taps]
    row, step = (1, count * height) if packed else (plan[p + F.w_k], plan[p + F.w_c])
    if plan[p + F.single]:
        channels, count = 1, channels
    panels, tiles, odd = -(-rows // height), -(-vectors // width), 0
    for number in range(panels * tiles):
        if plan[p + F.by_tile]:
            done, first = number % panels * height, number // panels * width
        else:
            done, first = number // tiles * height, number % tiles * width
        start = done if packed else min(done, rows - height)  # weights are not read behind their end
        at = a_at + (done * plan[p + F.block_c] * plan[p + F.taps] if packed else start * row)
        tile_product(
            tile, tile_at, height, width, a, at, row, step, b, b_at, b_step, work, places + first, channels, plan,
            taps, count, packed, False,
        )  # fmt: skip
        odd |= _store(
            plan, p, out, out_at + done * plan[p + F.out_k], tile,
            tile_at + (done - start) * width * vector_lanes(tile), min(start + height, rows) - done, work,
            places + room, first, min(first + width, vectors), bias, bias_at + done, adds,
        )  # fmt: skip
    return odd


@njit_inner()
def _multiply_lattice(
    worker: int, workers: int, plan: Pointer, p: int, work: Pointer, out: Pointer, src: Pointer, w: Pointer,
    bias: Pointer, panels: Pointer, scratch: Pointer,
) -> int:  # fmt: skip
    """Compute blocks worker, worker + workers, ...: which worker does a block never changes its result."""
    groups, channels, targets = plan[p + F.groups], plan[p + F.channels], plan[p + F.targets]
    block_u, block_v, block_c = plan[p + F.block_u], plan[p + F.block_v], plan[p + F.block_c]
    block_k, height, room = plan[p + F.block_k], plan[p + F.tile_rows], plan[p + F.room]
    count_u, count_v = plan[p + F.count_u], plan[p + F.count_v]
    parts_u, parts_v, parts_k = -(-count_u // block_u), -(-count_v // block_v), -(-targets // block_k)
    parts_c, panels_k = -(-channels // block_c), -(-targets // height)
    parts, panel_size = parts_u * parts_v * parts_k, block_c * plan[p + F.taps] * height
    buffer, places = worker * plan[p + F.scratch_size], STATUS + worker * plan[p + F.work_size]
    tile, lanes, odd = buffer + plan[p + F.tile_at], vector_lanes(out), 0
    images, block_n = plan[p + F.images], plan[p + F.block_n]
    for unit in range(worker, -(-images // block_n) * groups * parts, workers):
        image, group, part = unit // parts // groups * block_n, unit // parts % groups, unit % parts
        held_n = min(block_n, images - image)
        k = part % parts_k * block_k
        u, v = part // parts_k // parts_v * block_u, part // parts_k % parts_v * block_v
        extent_u, extent_v = min(block_u, count_u - u), min(block_v, count_v - v)
        vectors = _lay_out(plan, p, held_n, extent_u, extent_v, work, places, room, lanes)
        k_all, rows = group * targets + k, min(block_k, targets - k)
        out_at = plan[p + F.out_at] + image * plan[p + F.out_n] + k_all * plan[p + F.out_k]
        out_at += u * plan[p + F.out_u] + v * plan[p + F.out_v]
        for part_c in range(parts_c):
            c = part_c * block_c
            depth = min(block_c, channels - c)
            src_at = plan[p + F.src_at] + image * plan[p + F.src_n] + (group * channels + c) * plan[p + F.src_c]
            if plan[p + F.packed]:
                panel = (group * parts_c + part_c) * panels_k + k // height
                a, a_at = panels, plan[p + F.panels_at] + panel * panel_size
            else:
                a, a_at = w, group * plan[p + F.w_group] + k * plan[p + F.w_k] + c * plan[p + F.w_c]
            if plan[p + F.in_place]:
                b, b_at, b_step = src, src_at + v * plan[p + F.src_w], plan[p + F.src_c]
            else:
                b, b_at, b_step = scratch, buffer, plan[p + F.channel_pitch]
                for plane in range(depth * held_n):  # in ascending order: a row's last vector may end in the next one
                    i, channel = plane % held_n, plane // held_n
                    to = buffer + channel * b_step + i * plan[p + F.image_pitch]
                    source = src_at + channel * plan[p + F.src_c] + i * plan[p + F.src_n]
                    _pack_plane(plan, p, scratch, to, src, source, u, v)
            odd |= _multiply_block(
                plan, p, out, out_at, a, a_at, b, b_at, b_step, depth, rows, bias, k_all, part_c > 0, scratch, tile,
                work, places, room, vectors,
            )  # fmt: skip
    return odd


@cached_kernel
def multiply(
    worker: int, workers: int, plan: Pointer, work: Pointer, out: Pointer, src: Pointer, w: Pointer, bias: Pointer,
    panels: Pointer, scratch: Pointer,
) -> None:  # fmt: skip
    for lattice in range(plan[0]):
        p = plan[1 + lattice]
        if _multiply_lattice(worker, workers, plan, p, work, out, src, w, bias, panels, scratch):
            work[0] = 1


@njit_inner()
def _pack_panel(
    plan: Pointer, p: int, panels: Pointer, at: int, w: Pointer, source: int, channels: int, rows: int, work: Pointer,
    rows_at: int,
) -> None:  # fmt: skip
    """Pack [channel][tap][target] of `channels` channels and `rows` targets."""
    height, taps, table = plan[p + F.tile_rows], plan[p + F.taps], p + plan[p + F.weights_at]
    increment, by_channel = plan[p + F.w_k], plan[p + F.w_c]
    compact = plan[table + taps - 1] - plan[table] == taps - 1 and plan[table] == 0
    if increment != 1 and compact and by_channel == taps:
        transpose_lines(panels, at, height, rows, w, source, increment, channels * taps, work, rows_at)
    elif increment != 1 and compact:
        for c in range(channels):
            to = at + c * taps * height
            transpose_lines(panels, to, height, rows, w, source + c * by_channel, increment, taps, work, rows_at)
    elif increment != 1 and by_channel == 1:
        for t in range(taps):
            from_, to = source + plan[table + t], at + t * height
            transpose_lines(panels, to, taps * height, rows, w, from_, increment, channels, work, rows_at)
    else:
        for c in range(channels):
            for t in range(taps):
                tap, to = source + c * by_channel + plan[table + t], at + (c * taps + t) * height
                for i in range(rows):
                    panels[index(to + i)] = w[index(tap + i * increment)]


@cached_kernel
def pack(
    worker: int, workers: int, plan: Pointer, work: Pointer, out: Pointer, src: Pointer, w: Pointer, bias: Pointer,
    panels: Pointer, scratch: Pointer,
) -> None:  # fmt: skip
    """Pack panels worker, worker + workers, ...: [group][channel block][target panel][channel][tap][target]."""
    for lattice in range(plan[0]):
        p = plan[1 + lattice]
        if not plan[p + F.packed]:
            continue
        channels, targets, block_c = plan[p + F.channels], plan[p + F.targets], plan[p + F.block_c]
        height, taps, rows_at = plan[p + F.tile_rows], plan[p + F.taps], STATUS + worker * plan[p + F.work_size]
        panels_k, parts_c = -(-targets // height), -(-channels // block_c)
        for unit in range(worker, plan[p + F.groups] * parts_c * panels_k, workers):
            group, part_c, panel = unit // panels_k // parts_c, unit // panels_k % parts_c, unit % panels_k
            c, k = part_c * block_c, panel * height
            at = plan[p + F.panels_at] + unit * block_c * taps * height
            source = group * plan[p + F.w_group] + k * plan[p + F.w_k] + c * plan[p + F.w_c]
            rows, depth = min(height, targets - k), min(block_c, channels - c)
            _pack_panel(plan, p, panels, at, w, source, depth, rows, work, rows_at)
