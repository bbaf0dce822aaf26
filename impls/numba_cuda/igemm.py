"""Implicit grouped matrix product: tiles in shared memory, read through `product`'s tables, never unfolded in memory.

A block has one tile of the result. Along the depth it goes in steps; while it multiplies one step's tiles, the next
step's elements are on their way into registers, to be stored into the other of two buffers: one barrier a step. Where
depth leads in memory, `looked_up` knows for a step ahead, so that a number is taken apart once, not once an element.
Threads' rows and columns lie `rows / thread_rows` apart, so that the lanes of a warp read neighbouring words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from .address import digits, inside, place
from .direct import Direct
from .engine import Engine
from .memory import Tensor, launch
from .plan import Tile, tile_for
from .product import Product, Table
from .storage import Format, inline
from .target import cuda, types
from .tiled import Tiled

OUTSIDE = -(1 << 30)
"""An image row that no tap brings back into the image."""
NOWHERE = -(1 << 61)
"""An address that nothing added to it makes one."""
PAD = 4
"""Words between rows of a tile: lanes that store a column of it then hit different banks."""


@inline
def _start(thread: int, extent: int, depth: int, threads: int, along_depth: bool) -> tuple[int, int, int, int]:
    """Of the elements that a thread brings: the first's place along rows and along depth, and steps to the next."""
    if along_depth:
        return thread // depth, thread % depth, threads // depth, 0
    return thread % extent, thread // extent, 0, threads // extent


@cache
def kernel(stored: Format, result: Format, tile: Tile) -> Any:
    """The kernel for a storage format and a tile; `result` is the format, or that of partial sums."""
    widen, narrow, wide, accumulator = stored.widen, result.narrow, stored.wide, stored.accumulator
    ROWS, COLUMNS, DEPTH, THREADS = tile.rows, tile.columns, tile.depth, tile.threads  # noqa: N806
    MINE, OURS = tile.thread_rows, tile.thread_columns  # noqa: N806
    A_EACH, B_EACH = ROWS * DEPTH // THREADS, COLUMNS * DEPTH // THREADS  # noqa: N806
    LANES, LINES = COLUMNS // OURS, ROWS // MINE  # noqa: N806
    A_SHAPE, B_SHAPE, LOOKED_UP = (2, DEPTH, ROWS + PAD), (2, DEPTH, COLUMNS + PAD), (2, 4, DEPTH)  # noqa: N806
    RESULTS = tile.results  # noqa: N806

    @inline
    def look_up(found: Any, buffer: int, lane: int, number: int, end: int, depth: Table) -> None:
        """Where depth `number` is: addresses in b and a, image row and column; nowhere from `end` on."""
        if number < end:
            first, second, third = digits(number, depth[0])
            found[buffer, 0, lane] = place(depth[1], first, second, third)
            found[buffer, 1, lane] = place(depth[2], first, second, third)
            found[buffer, 2, lane] = place(depth[3], first, second, third)
            found[buffer, 3, lane] = place(depth[4], first, second, third)
        else:
            found[buffer, 1, lane] = OUTSIDE
            found[buffer, 3, lane] = NOWHERE

    @inline
    def multiply(sums: Any, tile_a: Any, tile_b: Any, buffer: int, line: int, lane: int, mine: Any, ours: Any) -> None:
        """One step's contribution to a thread's results."""
        for k in range(DEPTH):
            for i in range(MINE):
                mine[i] = tile_a[buffer, k, line + i * LINES]
            for j in range(OURS):
                ours[j] = tile_b[buffer, k, lane + j * LANES]
            for i in range(MINE):
                for j in range(OURS):
                    sums[i * OURS + j] += mine[i] * ours[j]

    @cuda.jit
    def igemm(
        out: Any,
        a: Any,
        b: Any,
        bias: Any,
        columns: Table,
        depth: Table,
        scalars: tuple[int, ...],
        cut: tuple[int, ...],
    ) -> None:
        counts, addresses, lines, spots, targets = columns
        rows, _, a_row, a_group, b_group, out_row, out_group, height, width = scalars
        a_along_depth, b_along_depth, share, splits, tiles, partial, bias_step = cut
        thread = cuda.threadIdx.x
        block, row_start = cuda.blockIdx.x // tiles, cuda.blockIdx.y * ROWS
        column_start, group, split = cuda.blockIdx.x % tiles * COLUMNS, block // splits, block % splits
        begin = split * share
        end = min(begin + share, depth[0][0])

        tile_a = cuda.shared.array(A_SHAPE, accumulator)
        tile_b = cuda.shared.array(B_SHAPE, accumulator)
        found = cuda.shared.array(LOOKED_UP, types.int64)
        placed = cuda.shared.array(COLUMNS, types.int64)
        a_next = cuda.local.array(A_EACH, accumulator)
        b_next = cuda.local.array(B_EACH, accumulator)
        a_at = cuda.local.array(A_EACH, types.int64)
        b_at = cuda.local.array(B_EACH, types.int64)
        b_line = cuda.local.array(B_EACH, types.int32)
        b_spot = cuda.local.array(B_EACH, types.int32)
        sums = cuda.local.array(RESULTS, accumulator)
        mine = cuda.local.array(MINE, accumulator)
        ours = cuda.local.array(OURS, accumulator)

        a_i, a_k, a_i_step, a_k_step = _start(thread, ROWS, DEPTH, THREADS, a_along_depth)
        b_i, b_k, b_i_step, b_k_step = _start(thread, COLUMNS, DEPTH, THREADS, b_along_depth)
        for e in range(A_EACH):
            row = row_start + a_i + e * a_i_step
            a_at[e] = group * a_group + row * a_row if row < rows else NOWHERE
        for e in range(B_EACH):
            column = column_start + b_i + e * b_i_step
            first, second, third = digits(column, counts)
            b_at[e] = group * b_group + place(addresses, first, second, third)
            b_line[e] = place(lines, first, second, third) if column < counts[0] else OUTSIDE
            b_spot[e] = place(spots, first, second, third)
        for column in range(thread, COLUMNS, THREADS):
            first, second, third = digits(column_start + column, counts)
            at = split * partial + group * out_group + place(targets, first, second, third)
            placed[column] = at if column_start + column < counts[0] else NOWHERE
        for i in range(MINE):
            for j in range(OURS):
                sums[i * OURS + j] = wide(0)
        if thread < DEPTH:
            look_up(found, 0, thread, begin + thread, end, depth)
            look_up(found, 1, thread, begin + DEPTH + thread, end, depth)
        cuda.syncthreads()

        steps = (end - begin + DEPTH - 1) // DEPTH
        for step in range(-1, steps):
            now, after = step & 1, (step + 1) & 1
            if step + 1 < steps:
                for e in range(A_EACH):
                    k = a_k + e * a_k_step
                    at = a_at[e] + found[after, 3, k]
                    a_next[e] = widen(a[at]) if at >= 0 else wide(0)
                for e in range(B_EACH):
                    k = b_k + e * b_k_step
                    here = inside(b_line[e] + found[after, 1, k], b_spot[e] + found[after, 2, k], height, width)
                    b_next[e] = widen(b[b_at[e] + found[after, 0, k]]) if here else wide(0)
            if step >= 0:
                multiply(sums, tile_a, tile_b, now, thread // LANES, thread % LANES, mine, ours)
            if step + 1 < steps:
                for e in range(A_EACH):
                    tile_a[after, a_k + e * a_k_step, a_i + e * a_i_step] = a_next[e]
                for e in range(B_EACH):
                    tile_b[after, b_k + e * b_k_step, b_i + e * b_i_step] = b_next[e]
            if step >= 0 and thread < DEPTH:
                look_up(found, now, thread, begin + (step + 2) * DEPTH + thread, end, depth)
            cuda.syncthreads()

        for i in range(MINE):
            row = row_start + thread // LANES + i * LINES
            if row < rows:
                offset = widen(bias[(group * rows + row) * bias_step]) if bias_step and split == 0 else wide(0)
                for j in range(OURS):
                    at = placed[thread % LANES + j * LANES]
                    if at >= 0:
                        out[at + row * out_row] = narrow(sums[i * OURS + j] + offset)

    return igemm


class Igemm:
    """The engine."""

    def blocks(self, products: Sequence[Product], operands: tuple[Tensor, Tensor]) -> int:
        """Of all products together."""
        other = _depthwise(products[0])
        if other is not None:
            return other.blocks(products, operands)
        tile = tile_for(products, operands[0].format)
        return sum(tile.blocks(product) for product in products)

    def run(
        self,
        products: Sequence[Product],
        out: Tensor,
        operands: tuple[Tensor, Tensor],
        bias: Tensor | None,
        splits: int,
    ) -> None:
        """All products; a split is a whole number of steps."""
        other = _depthwise(products[0])
        if other is not None:
            other.run(products, out, operands, bias, splits)
            return
        a, b = operands
        tile = tile_for(products, b.format)
        for product in products:
            grid, cut = _cut(product, tile, splits)
            rest = out.size // splits, bias.strides[0] if bias else 0
            arguments = out, a, b, bias or b, *product.arguments, (*cut, *rest)
            launch(kernel(b.format, out.format, tile), grid, tile.threads, *arguments)


def _depthwise(product: Product) -> Engine | None:
    """The engine for a tile of one row, most of which would be idle: the input in shared memory where pixels are
    neighbours in memory, an element a thread where channels are."""
    if not product.depthwise:
        return None
    return Direct() if product.b_step < product.pixels.nearest(1) else Tiled()


def _cut(product: Product, tile: Tile, splits: int) -> tuple[tuple[int, int], tuple[int, ...]]:
    """The grid, and how its blocks divide the product."""
    tiles = -(-product.columns.total // tile.columns)
    share = -(-product.depth.total // (tile.depth * splits)) * tile.depth
    grid = tiles * product.groups * splits, -(-product.rows // tile.rows)
    return grid, (int(product.a_along_depth), int(product.b_along_depth), share, splits, tiles)
