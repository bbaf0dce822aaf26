"""Parts of the matrix product of `igemm`, as device functions: a block's threads load, keep, multiply and write
elements.

Cells are the shared memory of a block: two buffers of tile a, then two of tile b, depth by depth. A thread's rows and
columns are chunks of neighbours, which one instruction reads, and the chunks of a warp's lanes are neighbours too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .address import SPACES, Form, inside
from .plan import Tile
from .product import NO_BIAS, Table
from .static import natural, unrolled
from .storage import Format, inline

OUTSIDE = -(1 << 30)
"""An image row that stays outside of the image whatever a tap adds to it."""
NOWHERE = -(1 << 61)
"""An address that stays invalid whatever is added to it."""
PAD = 4
"""Words between rows of a tile: lanes that store a column of it then hit different banks, and rows stay aligned."""
CHUNK = 4
"""Number of neighbouring rows, or columns, of a thread."""

Parts = Callable[..., None]


@inline
def way(thread: int, extent: int, depth: int, threads: int, along_depth: bool) -> tuple[int, int, int, int]:
    """Return the place along rows and along depth of the first element that a thread loads, and the steps to its
    next."""
    if along_depth:
        return thread // depth, thread % depth, threads // depth, 0
    return thread % extent, thread // extent, 0, threads // extent


@cache
def looking_up(rank: int) -> Parts:
    """Return look_up(far, near, lane, number, end, depth): finds the addresses in b and a of depth `number`, and its
    coordinates in the image; outside of it from `end` on."""
    digits, place = SPACES[rank]

    @inline
    def coordinate(axis: int, near: Any, lane: int, depth: Table, index: tuple[int, ...]) -> None:
        near[axis, lane] = place(depth[2 + axis], index)

    coordinates = unrolled(rank, coordinate)

    @inline
    def look_up(far: Any, near: Any, lane: int, number: int, end: int, depth: Table) -> None:
        if number < end:
            index = digits(number, depth[0])
            far[0, lane] = place(depth[1], index)
            coordinates(near, lane, depth, index)
            far[1, lane] = place(depth[-1], index)
        else:
            near[0, lane] = OUTSIDE
            far[1, lane] = NOWHERE

    return look_up


@cache
def locating(rank: int) -> Parts:
    """Return locate(placed, thread, threads, start, columns, base): finds the places of a block's columns in the
    result, and none behind the last column."""
    digits, place = SPACES[rank]

    @inline
    def locate(placed: Any, thread: int, threads: int, start: int, columns: tuple[Form, ...], base: int) -> None:
        for column in range(thread, placed.size, threads):
            at = base + place(columns[-1], digits(start + column, columns[0]))
            placed[column] = at if start + column < columns[0][0] else NOWHERE

    return locate


@cache
def bounding(rank: int) -> tuple[Callable[..., tuple[int, ...]], Callable[..., bool]]:
    """Return bounds(scalars): the size of the image. And here(e, spots, near, k, image): whether the coordinates of a
    thread's element and of a depth together are in it."""

    @inline
    def coordinate(axis: int, e: int, spots: Any, near: Any, k: int) -> int:
        return np.int32(spots[e * rank + axis] + near[axis, k])

    @inline
    def rows_and_columns(scalars: tuple[int, ...]) -> tuple[int, ...]:
        return np.int32(scalars[7]), np.int32(scalars[8])

    @inline
    def in_plane(e: int, spots: Any, near: Any, k: int, image: tuple[int, ...]) -> bool:
        row, column = coordinate(rank - 2, e, spots, near, k), coordinate(rank - 1, e, spots, near, k)
        return inside(row, column, image[rank - 2], image[rank - 1])

    @inline
    def planes_too(scalars: tuple[int, ...]) -> tuple[int, ...]:
        return np.int32(scalars[7]), np.int32(scalars[8]), np.int32(scalars[9])

    @inline
    def in_space(e: int, spots: Any, near: Any, k: int, image: tuple[int, ...]) -> bool:
        plane = coordinate(0, e, spots, near, k)
        return plane >= 0 and plane < image[0] and in_plane(e, spots, near, k, image)

    return (rows_and_columns, in_plane) if rank == 2 else (planes_too, in_space)


@cache
def bringing_a(stored: Format, count: int) -> tuple[Parts, Parts]:
    """Return start(at, way, row_start, rows, base, a_row), which finds the addresses of a thread's elements of a, less
    the depth's part; and bring(values, a, at, far, first, depth_step), which loads those of a step from depth `first`
    on."""
    widen, wide = stored.widen, stored.wide

    @inline
    def start(e: int, at: Any, way: tuple[int, ...], row_start: int, rows: int, base: int, a_row: int) -> None:
        row = row_start + way[0] + e * way[2]
        at[e] = base + row * a_row if row < rows else NOWHERE

    @inline
    def bring(e: int, values: Any, a: Any, at: Any, far: Any, first: int, step: int) -> None:
        address = at[e] + far[1, natural(first + e * step)]
        values[e] = widen(a[natural(address)]) if address >= 0 else wide(0)

    return unrolled(count, start), unrolled(count, bring)


@cache
def bringing_b(stored: Format, count: int, rank: int) -> tuple[Parts, Parts]:
    """Return both for b: start(begins, way, column_start, columns, base), where `begins` is addresses, and coordinates
    in the image, an element's side by side; and bring(values, b, begins, far, near, first, depth_step, image)."""
    widen, wide, (digits, place), (_, here) = stored.widen, stored.wide, SPACES[rank], bounding(rank)

    @inline
    def coordinate(axis: int, e: int, spots: Any, columns: Any, index: tuple[int, ...], there: bool) -> None:
        spots[e * rank + axis] = place(columns[2 + axis], index) if there or axis else OUTSIDE

    coordinates = unrolled(rank, coordinate)

    @inline
    def start(e: int, begins: Any, way: tuple[int, ...], column_start: int, columns: Any, base: int) -> None:
        at, spots = begins
        column = column_start + way[0] + e * way[2]
        index = digits(column, columns[0])
        at[e] = base + place(columns[1], index)
        coordinates(e, spots, columns, index, column < columns[0][0])

    @inline
    def bring(
        e: int, values: Any, b: Any, begins: Any, far: Any, near: Any, first: int, step: int, image: tuple[int, ...]
    ) -> None:
        at, spots = begins
        k = natural(first + e * step)
        values[e] = widen(b[natural(at[e] + far[0, k])]) if here(e, spots, near, k, image) else wide(0)

    return unrolled(count, start), unrolled(count, bring)


@cache
def storing(count: int) -> Parts:
    """Return store(cells, first, way, width, values): stores a thread's loaded elements into a tile with rows of
    `width`."""

    @inline
    def store(e: int, cells: Any, first: int, way: tuple[int, ...], width: int, values: Any) -> None:
        cells[natural(first + (way[1] + e * way[3]) * width + way[0] + e * way[2])] = values[e]

    return unrolled(count, store)


@inline
def nth(i: int, thread: int, chunk: int, threads: int) -> int:
    """Return the place in a tile of a thread's i-th row or column; `threads` is how many threads have rows."""
    return i // chunk * (threads * chunk) + thread * chunk + i % chunk


@cache
def multiplying(tile: Tile) -> Parts:
    """Return multiply(sums, cells, a_first, b_first, line, lane, mine, ours): adds one step's products to a thread's
    results; `mine` and `ours` are registers for its rows and columns."""
    MINE, OURS, LINES, LANES = tile.thread_rows, tile.thread_columns, tile.lines, tile.lanes  # noqa: N806
    TALL, WIDE = min(CHUNK, MINE), min(CHUNK, OURS)  # noqa: N806

    @inline
    def take(i: int, cells: Any, first: int, thread: int, into: Any, chunk: int, threads: int) -> None:
        into[i] = cells[natural(first + nth(i, thread, chunk, threads))]

    @inline
    def add(j: int, i: int, sums: Any, mine: Any, ours: Any) -> None:
        sums[i * OURS + j] += mine[i] * ours[j]

    add_row = unrolled(OURS, add)

    @inline
    def row(i: int, sums: Any, mine: Any, ours: Any) -> None:
        add_row(i, sums, mine, ours)

    take_mine, take_ours, add_rows = unrolled(MINE, take), unrolled(OURS, take), unrolled(MINE, row)
    A_WIDTH, B_WIDTH = tile.rows + PAD, tile.columns + PAD  # noqa: N806

    @inline
    def at_depth(
        k: int, sums: Any, cells: Any, a_first: int, b_first: int, line: int, lane: int, mine: Any, ours: Any
    ) -> None:
        take_mine(cells, a_first + k * A_WIDTH, line, mine, TALL, LINES)
        take_ours(cells, b_first + k * B_WIDTH, lane, ours, WIDE, LANES)
        add_rows(sums, mine, ours)

    return unrolled(tile.depth, at_depth)


@cache
def clearing(tile: Tile, zero: float) -> Parts:
    """Return clear(sums), which sets a thread's sums to zero."""
    OURS = tile.thread_columns  # noqa: N806

    @inline
    def clear(j: int, i: int, sums: Any) -> None:
        sums[i * OURS + j] = zero

    clear_row = unrolled(OURS, clear)

    @inline
    def row(i: int, sums: Any) -> None:
        clear_row(i, sums)

    return unrolled(tile.thread_rows, row)


@cache
def finishing(stored: Format, result: Format, tile: Tile) -> Parts:
    """Return finish(out, sums, placed, line, lane, row_start, rows, out_row, bias, bias_first, bias_step): writes a
    thread's results, plus bias where there is one."""
    widen, narrow, wide = stored.widen, result.narrow, stored.wide
    MINE, OURS, LINES, LANES = tile.thread_rows, tile.thread_columns, tile.lines, tile.lanes  # noqa: N806
    TALL, WIDE = min(CHUNK, MINE), min(CHUNK, OURS)  # noqa: N806

    @inline
    def write(j: int, i: int, out: Any, sums: Any, offset: float, placed: Any, lane: int, to: int) -> None:
        at = placed[natural(nth(j, lane, WIDE, LANES))]
        if at >= 0:
            out[natural(at + to)] = narrow(sums[i * OURS + j] + offset)

    write_row = unrolled(OURS, write)

    @inline
    def row(
        i: int, out: Any, sums: Any, placed: Any, line: int, lane: int, row_start: int, rows: int, out_row: int,
        bias: Any, bias_first: int, bias_step: int,
    ) -> None:  # fmt: skip
        number = row_start + nth(i, line, TALL, LINES)
        if number < rows:
            offset = wide(0)
            if bias_step != NO_BIAS:
                offset = widen(bias[natural((bias_first + number) * bias_step)])
            write_row(i, out, sums, offset, placed, lane, number * out_row)

    return unrolled(MINE, row)
