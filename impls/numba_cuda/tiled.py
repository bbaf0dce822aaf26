"""Input tile and halo in shared memory: what a block of pixels reads of one channel, once for all taps.

A patch is the part of an image that the windows of a block's pixels cover, of all rows of the window or, where that
does not fit, of one row after the other. Forward and backward-data sum over channels and taps at fixed pixels;
backward-weight sums over pixels at fixed channel and taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from .address import inside
from .memory import Tensor, launch
from .plan import SHARED, TARGETS, Patch, patch_for
from .product import Product, Table
from .storage import Format, inline
from .target import cuda


@dataclass(frozen=True)
class Geometry:
    """A patch in numbers, as kernels take them."""

    patch: Patch
    product: Product

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the image in a patch."""
        (_, rows, columns), (_, taps, tap_columns) = self.product.pixels.digits, self.product.window.digits
        high = (self.patch.rows - 1) * rows[2] + max(0, self.patch.taps - 1) * abs(taps[2]) + 1
        return high, (self.patch.columns - 1) * columns[3] + max(0, tap_columns[0] - 1) * abs(tap_columns[3]) + 1

    @property
    def low(self) -> tuple[int, int]:
        """Image row and column of a patch's first, relative to those of its first pixel's first tap."""
        _, taps, tap_columns = self.product.window.digits
        return min(0, (self.patch.taps - 1) * taps[2]), min(0, (tap_columns[0] - 1) * tap_columns[3])

    @property
    def steps(self) -> tuple[int, int]:
        """From row to row of the image in memory, and from column to column."""
        _, taps, tap_columns = self.product.window.digits
        return taps[1] // taps[2], tap_columns[1] // tap_columns[3]

    @property
    def tiles(self) -> tuple[int, int]:
        """Blocks along the rows and columns of the pixels."""
        _, rows, columns = self.product.pixels.digits
        return -(-rows[0] // self.patch.rows), -(-columns[0] // self.patch.columns)

    @property
    def arguments(self) -> tuple[int, ...]:
        return *self.size, *self.low, *self.steps, *self.tiles, self.product.pixels.digits[0][0]


@inline
def fill(
    cells: Any, image: Any, widen: Any, zero: float, at: int, line: int, spot: int, shape: tuple[int, ...],
    bounds: tuple[int, int], thread: int, threads: int,
) -> None:  # fmt: skip
    """Bring a patch whose first cell is image row `line` and column `spot`, and zeros where there is no image."""
    high, wide, by_row, by_column = shape
    for cell in range(thread, high * wide, threads):
        row, column = cell // wide, cell % wide
        here = inside(line + row, spot + column, bounds[0], bounds[1])
        cells[cell] = widen(image[at + row * by_row + column * by_column]) if here else zero


@cache
def gather_kernel(stored: Format, result: Format, patch: Patch) -> Any:
    """Forward and backward-data. Blocks are tiles of one image, groups of rows, and parts of the channels."""
    widen, narrow, wide, accumulator = stored.widen, result.narrow, stored.wide, stored.accumulator
    COLUMNS, EACH, TAPS, THREADS = patch.columns, patch.each, patch.taps, patch.threads  # noqa: N806
    LINES, HIGH, SUMS = patch.rows // patch.each, patch.rows, TARGETS * patch.each  # noqa: N806

    @inline
    def add(sums: Any, cells: Any, a: Any, weight: int, left: int, at: int, below: int, a_row: int) -> None:
        """One tap of one channel: `left` rows of the result are not beyond the last."""
        for target in range(TARGETS):
            factor = widen(a[weight + target * a_row]) if target < left else wide(0)
            for pixel in range(EACH):
                sums[target * EACH + pixel] += factor * cells[at + pixel * below]

    @cuda.jit
    def gather(
        out: Any, a: Any, b: Any, bias: Any, columns: Table, depth: Table, scalars: tuple[int, ...],
        geometry: tuple[int, ...], cut: tuple[int, ...],
    ) -> None:  # fmt: skip
        counts, addresses, lines, spots, targets = columns
        lengths, reads, reach_lines, reach_spots, weights = depth
        rows, _, a_row, a_group, b_group, out_row, out_group, height, width = scalars
        high, across, low_line, low_spot, by_line, by_spot, tiles_down, tiles_across, images = geometry
        share, partial_size, bias_step, splits = cut
        cells = cuda.shared.array(0, accumulator)
        sums = cuda.local.array(SUMS, accumulator)

        thread, block = cuda.threadIdx.x, cuda.blockIdx.x
        i, j = thread // COLUMNS, thread % COLUMNS
        i0, j0 = block // tiles_across % tiles_down * HIGH, block % tiles_across * COLUMNS
        n, group = block // tiles_across // tiles_down % images, block // tiles_across // tiles_down // images
        row0, split = cuda.blockIdx.y // splits * TARGETS, cuda.blockIdx.y % splits
        line0 = lines[0] + i0 * lines[2] + low_line
        spot0 = spots[0] + j0 * spots[3] + low_spot
        image = group * b_group + n * addresses[1] + line0 * by_line + spot0 * by_spot
        for r in range(SUMS):
            sums[r] = wide(0)

        for channel in range(split * share, min((split + 1) * share, lengths[1])):
            for tap0 in range(0, lengths[2], TAPS):
                taps = min(TAPS, lengths[2] - tap0)
                line = line0 + tap0 * reach_lines[2]
                at = image + channel * reads[1] + tap0 * reads[2]
                fill(
                    cells, b, widen, wide(0), at, line, spot0, (high, across, by_line, by_spot), (height, width),
                    thread, THREADS,
                )  # fmt: skip
                cuda.syncthreads()
                for tap in range(taps):
                    for s in range(lengths[3]):
                        weight = group * a_group + row0 * a_row + weights[0] + channel * weights[1]
                        weight += (tap0 + tap) * weights[2] + s * weights[3]
                        cell = (i * lines[2] - low_line + tap * reach_lines[2]) * across
                        cell += j * spots[3] - low_spot + s * reach_spots[3]
                        add(sums, cells, a, weight, rows - row0, cell, LINES * lines[2] * across, a_row)
                cuda.syncthreads()

        for target in range(TARGETS):
            row = row0 + target
            if row >= rows:
                break
            offset = widen(bias[(group * rows + row) * bias_step]) if bias_step and split == 0 else wide(0)
            to = split * partial_size + group * out_group + row * out_row + targets[0] + n * targets[1]
            for pixel in range(EACH):
                p, q = i0 + i + pixel * LINES, j0 + j
                if p < counts[2] and q < counts[3]:
                    out[to + p * targets[2] + q * targets[3]] = narrow(sums[target * EACH + pixel] + offset)

    return gather


@cache
def scatter_kernel(stored: Format, result: Format, patch: Patch) -> Any:
    """Backward-weight. Blocks are channels of all groups, groups of rows, and parts of the tiles."""
    widen, narrow, wide, accumulator = stored.widen, result.narrow, stored.wide, stored.accumulator
    HIGH, COLUMNS, TAPS, THREADS = patch.rows, patch.columns, patch.taps, patch.threads  # noqa: N806
    PIXELS = HIGH * COLUMNS  # noqa: N806

    @inline
    def bring(cells: Any, first: int, a: Any, at: int, left: int, inner: tuple[int, ...], thread: int) -> None:
        """The gradient of a tile's pixels, for the rows of the result; zeros beyond the last pixel and row."""
        down, across, by_row, by_column, a_row = inner
        for cell in range(thread, TARGETS * PIXELS, THREADS):
            target, p, q = cell // PIXELS, cell // COLUMNS % HIGH, cell % COLUMNS
            here = target < left and p < down and q < across
            cells[first + cell] = widen(a[at + target * a_row + p * by_row + q * by_column]) if here else wide(0)

    @inline
    def product(cells: Any, gradient: int, cell: int, down: int, across: int, rows: int, columns: int) -> float:
        """A tile's part of one weight's gradient. Beyond the last pixel may be a NaN, which zero does not mask."""
        total = wide(0)
        for p in range(min(HIGH, rows)):
            for q in range(min(COLUMNS, columns)):
                total += cells[gradient + p * COLUMNS + q] * cells[cell + p * down + q * across]
        return total

    @cuda.jit
    def scatter(
        out: Any, a: Any, b: Any, bias: Any, columns: Table, depth: Table, scalars: tuple[int, ...],
        geometry: tuple[int, ...], cut: tuple[int, ...],
    ) -> None:  # fmt: skip
        counts, addresses, lines, spots, targets = columns
        lengths, reads, at_lines, at_spots, gradients = depth
        rows, _, a_row, a_group, b_group, out_row, out_group, height, width = scalars
        high, across, _, _, by_line, by_spot, tiles_down, tiles_across, images = geometry
        share, partial_size, _, splits = cut
        cells = cuda.shared.array(0, accumulator)
        thread = cuda.threadIdx.x
        channel, group = cuda.blockIdx.x % counts[1], cuda.blockIdx.x // counts[1]
        row0, split = cuda.blockIdx.y // splits * TARGETS, cuda.blockIdx.y % splits
        gradient, first = high * across, high * across + TARGETS * PIXELS

        for tap0 in range(0, counts[2], TAPS):
            taps = min(TAPS, counts[2] - tap0)
            window = taps * counts[3]
            for element in range(thread, TARGETS * window, THREADS):
                cells[first + element] = wide(0)
            for tile in range(split * share, min((split + 1) * share, images * tiles_down * tiles_across)):
                i0, j0 = tile // tiles_across % tiles_down * HIGH, tile % tiles_across * COLUMNS
                n = tile // tiles_across // tiles_down
                line = at_lines[0] + i0 * at_lines[2] + tap0 * lines[2]
                spot = at_spots[0] + j0 * at_spots[3]
                at = group * b_group + channel * addresses[1] + n * reads[1] + line * by_line + spot * by_spot
                fill(
                    cells, b, widen, wide(0), at, line, spot, (high, across, by_line, by_spot), (height, width),
                    thread, THREADS,
                )  # fmt: skip
                at = group * a_group + row0 * a_row + n * gradients[1] + i0 * gradients[2] + j0 * gradients[3]
                inner = lengths[2] - i0, lengths[3] - j0, gradients[2], gradients[3], a_row
                bring(cells, gradient, a, at, rows - row0, inner, thread)
                cuda.syncthreads()
                for element in range(thread, TARGETS * window, THREADS):
                    target, r, s = element // window, element % window // counts[3], element % counts[3]
                    cell = r * lines[2] * across + s * spots[3]
                    cells[first + element] += product(
                        cells, gradient + target * PIXELS, cell, at_lines[2] * across, at_spots[3], inner[0], inner[1]
                    )
                cuda.syncthreads()
            for element in range(thread, TARGETS * window, THREADS):
                target, r, s = element // window, element % window // counts[3], element % counts[3]
                to = group * out_group + (row0 + target) * out_row + channel * targets[1]
                to += (tap0 + r) * targets[2] + s * targets[3]
                if row0 + target < rows:
                    out[split * partial_size + to] = narrow(cells[first + element])

    return scatter


class Tiled:
    """The engine."""

    def blocks(self, products: Sequence[Product], operands: tuple[Tensor, Tensor]) -> int:
        """Of all products together."""
        return sum(prod(_grid(_geometry(product, operands[0].format), 1)) for product in products)

    def run(
        self,
        products: Sequence[Product],
        out: Tensor,
        operands: tuple[Tensor, Tensor],
        bias: Tensor | None,
        splits: int,
    ) -> None:
        """All products; forward and backward-data are cut by channels, backward-weight by tiles."""
        a, b = operands
        for product in products:
            geometry = _geometry(product, b.format)
            kernel = (scatter_kernel if product.over_pixels else gather_kernel)(b.format, out.format, geometry.patch)
            tables = (product.window, product.pixels) if product.over_pixels else (product.pixels, product.window)
            share = -(-_summed(geometry) // splits)
            cut = share, out.size // splits, bias.strides[0] if bias else 0, splits
            launch(
                kernel, _grid(geometry, splits), geometry.patch.threads, out, a, b, bias or b, tables[0].table,
                tables[1].table, product.scalars, geometry.arguments, cut, shared=_shared(geometry, b.format),
            )  # fmt: skip


def _geometry(product: Product, layout: Format) -> Geometry:
    def fits(patch: Patch) -> bool:
        return _shared(Geometry(patch, product), layout) <= SHARED

    return Geometry(patch_for(product.pixels.digits[2][0], max(1, product.window.digits[1][0]), fits), product)


def _shared(geometry: Geometry, layout: Format) -> int:
    """Bytes: the input, and for backward-weight the gradient of the pixels and sums for the window."""
    patch, cells = geometry.patch, prod(geometry.size)
    if geometry.product.over_pixels:
        cells += TARGETS * (patch.rows * patch.columns + patch.taps * geometry.product.window.digits[2][0])
    return cells * layout.accumulator.bitwidth // 8


def _summed(geometry: Geometry) -> int:
    """What a result is a sum over, as far as it can be split."""
    product = geometry.product
    return product.pixels.digits[0][0] * prod(geometry.tiles) if product.over_pixels else product.window.digits[0][0]


def _grid(geometry: Geometry, splits: int) -> tuple[int, int]:
    product = geometry.product
    images, channels = product.pixels.digits[0][0], product.window.digits[0][0]
    blocks = channels if product.over_pixels else images * prod(geometry.tiles)
    return blocks * product.groups, -(-product.rows // TARGETS) * splits
