"""Implicit grouped matrix product: tiles in shared memory, read through `product`'s tables, never unfolded in memory.

A block has one tile of the result. Along the depth it goes in steps; while it multiplies one step's tiles, the next
step's elements are being loaded into registers, to be stored into the other of two buffers: one barrier a step. All
threads look up the addresses of a number of depths together, so that the digits of a depth are computed once, not once
an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from . import direct, tiled
from .blocks import (
    PAD,
    bounding,
    bringing_a,
    bringing_b,
    clearing,
    finishing,
    locating,
    looking_up,
    multiplying,
    storing,
    way,
)
from .direct import Direct
from .memory import Tensor, launch
from .plan import Tile, tile_for
from .product import NO_BIAS, Product, Table
from .storage import Format
from .target import SIMULATED, cuda, types
from .tiled import Tiled


@cache
def kernel(stored: Format, result: Format, tile: Tile, rank: int = 2) -> Any:
    """Return the kernel for a storage format, a tile and a number of spatial axes; `result` is the format, or that of
    partial sums."""
    accumulator, A_EACH, B_EACH = stored.accumulator, tile.per_thread(tile.rows), tile.per_thread(tile.columns)  # noqa: N806
    ROWS, COLUMNS, DEPTH, THREADS, LANES = tile.rows, tile.columns, tile.depth, tile.threads, tile.lanes  # noqa: N806
    A_WIDTH, B_WIDTH, MINE, OURS = ROWS + PAD, COLUMNS + PAD, tile.thread_rows, tile.thread_columns  # noqa: N806
    A_SIZE, B_SIZE, RESULTS, REACH = DEPTH * A_WIDTH, DEPTH * B_WIDTH, tile.results, THREADS // DEPTH  # noqa: N806
    CELLS = 2 * (A_SIZE + B_SIZE)  # noqa: N806
    (start_a, bring_a), (start_b, bring_b) = bringing_a(stored, A_EACH), bringing_b(stored, B_EACH, rank)
    (bounds, _), look_up, locate, COORDINATES = bounding(rank), looking_up(rank), locating(rank), rank * B_EACH  # noqa: N806
    store_a, store_b, multiply = storing(A_EACH), storing(B_EACH), multiplying(tile)
    clear, finish = clearing(tile, stored.wide(0)), finishing(stored, result, tile)

    @cuda.jit
    def igemm(
        out: Any, a: Any, b: Any, bias: Any, columns: Table, depth: Table, scalars: tuple[int, ...],
        cut: tuple[int, ...],
    ) -> None:  # fmt: skip
        rows, _, a_row, a_group, b_group, out_row, out_group = scalars[:7]
        a_along_depth, b_along_depth, share, splits, tiles, partial, bias_step = cut
        # aligned, for reads of 16 bytes; the simulator has no alignment
        cells = cuda.shared.array(CELLS, accumulator) if SIMULATED else cuda.shared.array(CELLS, accumulator, 16)
        far = cuda.shared.array((2, THREADS), types.int64)
        near = cuda.shared.array((rank, THREADS), types.int32)
        placed = cuda.shared.array(COLUMNS, types.int64)
        a_next, b_next = cuda.local.array(A_EACH, accumulator), cuda.local.array(B_EACH, accumulator)
        a_from, b_at = cuda.local.array(A_EACH, types.int64), cuda.local.array(B_EACH, types.int64)
        b_from = b_at, cuda.local.array(COORDINATES, types.int32)
        sums = cuda.local.array(RESULTS, accumulator)
        mine, ours = cuda.local.array(MINE, accumulator), cuda.local.array(OURS, accumulator)

        thread, line, lane = cuda.threadIdx.x, cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
        block, row_start = cuda.blockIdx.x // tiles, cuda.blockIdx.y * ROWS
        column_start, group, split = cuda.blockIdx.x % tiles * COLUMNS, block // splits, block % splits
        begin, end = split * share, min((split + 1) * share, depth[0][0])
        a_way = way(thread, ROWS, DEPTH, THREADS, a_along_depth)
        b_way = way(thread, COLUMNS, DEPTH, THREADS, b_along_depth)
        start_a(a_from, a_way, row_start, rows, group * a_group, a_row)
        start_b(b_from, b_way, column_start, columns, group * b_group)
        locate(placed, thread, THREADS, column_start, columns, split * partial + group * out_group)
        clear(sums)

        steps, image = (end - begin + DEPTH - 1) // DEPTH, bounds(scalars)
        for start in range(0, steps + 1, REACH):
            look_up(far, near, thread, begin + start * DEPTH + thread, end, depth)
            cuda.syncthreads()
            for step in range(start, min(start + REACH, steps + 1)):
                first, now, last = (step - start) * DEPTH, step & 1, step + 1 & 1
                if step < steps:
                    bring_a(a_next, a, a_from, far, first + a_way[1], a_way[3])
                    bring_b(b_next, b, b_from, far, near, first + b_way[1], b_way[3], image)
                if step > 0:
                    multiply(sums, cells, last * A_SIZE, 2 * A_SIZE + last * B_SIZE, line, lane, mine, ours)
                if step < steps:
                    store_a(cells, now * A_SIZE, a_way, A_WIDTH, a_next)
                    store_b(cells, 2 * A_SIZE + now * B_SIZE, b_way, B_WIDTH, b_next)
                cuda.syncthreads()
        bias_step = bias_step if split == 0 else NO_BIAS
        finish(out, sums, placed, line, lane, row_start, rows, out_row, bias, group * rows, bias_step)

    return igemm


@dataclass(frozen=True)
class Igemm:
    """A product by this kernel; a split is a whole number of steps."""

    product: Product
    tile: Tile

    @property
    def blocks(self) -> int:
        return self.tile.blocks(self.product)

    def launch(self, out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, splits: int) -> None:
        product, tile = self.product, self.tile
        tiles = -(-product.columns.total // tile.columns)
        share = -(-product.depth.total // (tile.depth * splits)) * tile.depth
        grid = tiles * product.groups * splits, -(-product.rows // tile.rows)
        cut = (
            int(product.a_along_depth), int(product.b_along_depth), share, splits, tiles, out.size // splits,
            bias.strides[0] if bias else NO_BIAS,
        )  # fmt: skip
        compiled = kernel(b.format, out.format, tile, product.rank)
        launch(compiled, grid, tile.threads, out, a, b, bias or b, *product.arguments, cut)


def engine(products: Sequence[Product], stored: Format) -> Sequence[Igemm | Direct | Tiled]:
    """Choose the engine. In a depthwise product a tile would have one row and most of it would be idle: so `tiled`
    keeps the input in shared memory where pixels are neighbours in memory, and `direct` computes an element per thread
    where channels are, and where images have one pixel, as matrices have. Both know no planes."""
    first = products[0]
    if first.depthwise and first.rank == 2:
        other = direct if first.b_step < first.pixels.nearest(1) or set(first.image) == {1} else tiled
        return other.engine(products, stored)
    tile = tile_for(products, stored)
    return [Igemm(product, tile) for product in products]
