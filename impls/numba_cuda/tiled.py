"""Input tile and halo in shared memory: the input that a block of pixels needs of one channel, loaded once for all
taps.

A patch is the part of an image that the windows of a block's pixels cover, of all rows of the window or, where that
does not fit, of one row after the other. Forward and backward-data sum over channels and taps at fixed pixels;
backward-weight sums over pixels at fixed channel and taps. The innermost loops are `while` loops that increment
addresses: numba's `range` of a number known only at launch costs several instructions a round, products more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from .address import inside
from .memory import Tensor, launch
from .plan import SHARED, Patch, patch_for
from .product import NO_BIAS, Product, Table
from .static import divide, natural
from .storage import Format, inline
from .target import cuda


@inline
def fill(
    cells: Any, image: Any, widen: Any, zero: float, at: int, line: int, spot: int, shape: tuple[int, ...],
    bounds: tuple[int, int], thread: int, threads: int,
) -> None:  # fmt: skip
    """Load a patch whose first cell is image row `line` and column `spot`, and zeros outside the image."""
    high, wide, by_row, by_column = shape
    for cell in range(thread, high * wide, threads):
        row, column = divide(cell, wide)
        here = inside(line + row, spot + column, bounds[0], bounds[1])
        cells[natural(cell)] = widen(image[natural(at + row * by_row + column * by_column)]) if here else zero


@cache
def gather_kernel(stored: Format, result: Format, patch: Patch) -> Any:
    """Return the kernel of forward and backward-data. Blocks are tiles of one image, groups of rows, and parts of the
    channels."""
    widen, narrow, wide, accumulator = stored.widen, result.narrow, stored.wide, stored.accumulator
    HIGH, COLUMNS, TAPS, THREADS, EACH = patch.rows, patch.columns, patch.taps, patch.threads, patch.per_thread  # noqa: N806
    TARGETS, LINES, SUMS = patch.targets, patch.rows // patch.per_thread, patch.targets * patch.per_thread  # noqa: N806

    @inline
    def add(sums: Any, cells: Any, a: Any, weight: int, rest: int, a_row: int, at: int, below: int) -> None:
        for target in range(TARGETS):
            factor = widen(a[natural(weight + target * a_row)]) if target < rest else wide(0)
            for pixel in range(EACH):
                sums[target * EACH + pixel] += factor * cells[natural(at + pixel * below)]

    @inline
    def add_window(
        sums: Any, cells: Any, a: Any, cell: int, weight: int, taps: tuple[int, int], cell_steps: tuple[int, int],
        weight_steps: tuple[int, int, int], rest: int, below: int,
    ) -> None:  # fmt: skip
        """Add the taps of one channel to a thread's pixels; `rest` rows of the result are not beyond the last."""
        by_row, by_column, a_row = weight_steps
        for tap in range(taps[0]):
            at, factor = cell + tap * cell_steps[0], weight + tap * by_row
            end = at + taps[1] * cell_steps[1]
            while at != end:
                add(sums, cells, a, factor, rest, a_row, at, below)
                at, factor = at + cell_steps[1], factor + by_column

    @inline
    def write(
        out: Any, sums: Any, to: int, rest: int, out_row: int, first: tuple[int, int], ends: tuple[int, int],
        steps: tuple[int, int], bias: Any, bias_first: int, bias_step: int,
    ) -> None:  # fmt: skip
        """Write a thread's pixels of the rows that are left, plus bias where there is one."""
        for target in range(TARGETS):
            if target < rest:
                offset = wide(0)
                if bias_step != NO_BIAS:
                    offset = widen(bias[natural((bias_first + target) * bias_step)])
                for pixel in range(EACH):
                    p, q = first[0] + pixel * LINES, first[1]
                    if p < ends[0] and q < ends[1]:
                        at = to + target * out_row + p * steps[0] + q * steps[1]
                        out[natural(at)] = narrow(sums[target * EACH + pixel] + offset)

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
        for r in range(SUMS):
            sums[r] = wide(0)

        thread, block = cuda.threadIdx.x, cuda.blockIdx.x
        i, j = thread // COLUMNS, thread % COLUMNS
        i0, j0 = block // tiles_across % tiles_down * HIGH, block % tiles_across * COLUMNS
        n, group = block // tiles_across // tiles_down % images, block // tiles_across // tiles_down // images
        row0, split = cuda.blockIdx.y // splits * TARGETS, cuda.blockIdx.y % splits
        line0 = lines[0] + i0 * lines[2] + low_line
        spot0 = spots[0] + j0 * spots[3] + low_spot
        image = group * b_group + n * addresses[1] + line0 * by_line + spot0 * by_spot
        cell = (i * lines[2] - low_line) * across + j * spots[3] - low_spot
        steps, by_tap = (reach_lines[2] * across, reach_spots[3]), (weights[2], weights[3], a_row)

        for channel in range(split * share, min((split + 1) * share, lengths[1])):
            for tap0 in range(0, lengths[2], TAPS):
                line = line0 + tap0 * reach_lines[2]
                at = image + channel * reads[1] + tap0 * reads[2]
                shape, taps = (high, across, by_line, by_spot), (min(TAPS, lengths[2] - tap0), lengths[3])
                fill(cells, b, widen, wide(0), at, line, spot0, shape, (height, width), thread, THREADS)
                cuda.syncthreads()
                weight = group * a_group + row0 * a_row + weights[0] + channel * weights[1] + tap0 * weights[2]
                add_window(sums, cells, a, cell, weight, taps, steps, by_tap, rows - row0, LINES * lines[2] * across)
                cuda.syncthreads()

        to = split * partial_size + group * out_group + row0 * out_row + targets[0] + n * targets[1]
        ends, by_pixel, bias_step = (
            (counts[2], counts[3]),
            (targets[2], targets[3]),
            bias_step if split == 0 else NO_BIAS,
        )
        first, bias_first = (i0 + i, j0 + j), group * rows + row0
        write(out, sums, to, rows - row0, out_row, first, ends, by_pixel, bias, bias_first, bias_step)

    return gather


@cache
def scatter_kernel(stored: Format, result: Format, patch: Patch) -> Any:
    """Return the kernel of backward-weight. Blocks are channels of all groups, groups of rows, and parts of the
    tiles."""
    widen, narrow, wide, accumulator = stored.widen, result.narrow, stored.wide, stored.accumulator
    HIGH, COLUMNS, TAPS, THREADS = patch.rows, patch.columns, patch.taps, patch.threads  # noqa: N806
    TARGETS, PIXELS = patch.targets, patch.rows * patch.columns  # noqa: N806

    @inline
    def bring(cells: Any, first: int, a: Any, at: int, rest: int, inner: tuple[int, ...], thread: int) -> None:
        """Load the gradient of a tile's pixels, for the rows of the result that are left; zeros beyond the last
        pixel."""
        down, across, by_row, by_column, a_row = inner
        for cell in range(thread, TARGETS * PIXELS, THREADS):
            target, p, q = cell // COLUMNS // HIGH, cell // COLUMNS % HIGH, cell % COLUMNS
            here = target < rest and p < down and q < across
            value = widen(a[natural(at + target * a_row + p * by_row + q * by_column)]) if here else wide(0)
            cells[natural(first + cell)] = value

    @inline
    def product(cells: Any, gradient: int, cell: int, steps: tuple[int, ...], rows: int, columns: int) -> float:
        """Return the sum for one weight. Cells beyond the last pixel may hold a NaN, which a zero does not mask."""
        total, across = wide(0), min(COLUMNS, columns)
        for p in range(min(HIGH, rows)):
            at, other = gradient + p * COLUMNS, cell + p * steps[2]
            end = at + across
            while at < end:
                total += cells[natural(at)] * cells[natural(other)]
                at, other = at + 1, other + steps[3]
        return total

    @inline
    def correlate(
        cells: Any, first: int, gradient: int, window: tuple[int, int], inner: tuple[int, ...], steps: tuple[int, ...],
        thread: int,
    ) -> None:  # fmt: skip
        """Add a tile's part of the gradients of a window's weights, which begin at `first`; each thread has some
        weights. `inner` is how many pixels down and across there are."""
        for element in range(thread, TARGETS * window[0] * window[1], THREADS):
            above, s = divide(element, window[1])
            target, r = divide(above, window[0])
            cell = r * steps[0] + s * steps[1]
            part = product(cells, gradient + target * PIXELS, cell, steps, inner[0], inner[1])
            cells[natural(first + element)] += part

    @inline
    def empty(
        out: Any, cells: Any, first: int, window: tuple[int, int], to: int, rest: int, steps: tuple[int, int, int],
        thread: int,
    ) -> None:  # fmt: skip
        """Copy the gradients of a window's weights into the result, for the rows of it that are left."""
        for element in range(thread, TARGETS * window[0] * window[1], THREADS):
            above, s = divide(element, window[1])
            target, r = divide(above, window[0])
            if target < rest:
                at = to + target * steps[0] + r * steps[1] + s * steps[2]
                out[natural(at)] = narrow(cells[natural(first + element)])

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
        gradient, first = high * across, high * across + TARGETS * HIGH * COLUMNS
        steps = lines[2] * across, spots[3], at_lines[2] * across, at_spots[3]

        for tap0 in range(0, counts[2], TAPS):
            window = min(TAPS, counts[2] - tap0), counts[3]
            for element in range(thread, TARGETS * window[0] * window[1], THREADS):
                cells[natural(first + element)] = wide(0)
            for tile in range(split * share, min((split + 1) * share, images * tiles_down * tiles_across)):
                i0, j0 = tile // tiles_across % tiles_down * HIGH, tile % tiles_across * COLUMNS
                n = tile // tiles_across // tiles_down
                line = at_lines[0] + i0 * at_lines[2] + tap0 * lines[2]
                spot = at_spots[0] + j0 * at_spots[3]
                at = group * b_group + channel * addresses[1] + n * reads[1] + line * by_line + spot * by_spot
                shape = high, across, by_line, by_spot
                fill(cells, b, widen, wide(0), at, line, spot, shape, (height, width), thread, THREADS)
                at = group * a_group + row0 * a_row + n * gradients[1] + i0 * gradients[2] + j0 * gradients[3]
                inner = lengths[2] - i0, lengths[3] - j0, gradients[2], gradients[3], a_row
                bring(cells, gradient, a, at, rows - row0, inner, thread)
                cuda.syncthreads()
                correlate(cells, first, gradient, window, inner, steps, thread)
                cuda.syncthreads()
            to = split * partial_size + group * out_group + row0 * out_row + channel * targets[1] + tap0 * targets[2]
            empty(out, cells, first, window, to, rows - row0, (out_row, targets[2], targets[3]), thread)

    return scatter


@dataclass(frozen=True)
class Tiled:
    """A product by these kernels; forward and backward-data are cut by channels, backward-weight by tiles."""

    patch: Patch
    product: Product

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the image in a patch."""
        (_, rows, columns), (_, taps, tap_columns) = self.product.pixels.digits, self.product.window.digits
        high = (self.patch.rows - 1) * rows[2] + max(0, self.patch.taps - 1) * abs(taps[2]) + 1
        return high, (self.patch.columns - 1) * columns[3] + max(0, tap_columns[0] - 1) * abs(tap_columns[3]) + 1

    @property
    def tiles(self) -> tuple[int, int]:
        """Number of blocks along the rows and columns of the pixels."""
        _, rows, columns = self.product.pixels.digits
        return -(-rows[0] // self.patch.rows), -(-columns[0] // self.patch.columns)

    @property
    def geometry(self) -> tuple[int, ...]:
        """Numbers that kernels take: the size; image row and column of a patch's first pixel, relative to those of its
        first pixel's first tap; steps from row to row and column to column of the image in memory; tiles; images."""
        (images, *_), _, _ = self.product.pixels.digits
        _, taps, tap_columns = self.product.window.digits
        low = min(0, (self.patch.taps - 1) * taps[2]), min(0, (tap_columns[0] - 1) * tap_columns[3])
        return *self.size, *low, taps[1] // taps[2], tap_columns[1] // tap_columns[3], *self.tiles, images

    def shared(self, stored: Format) -> int:
        """Return the bytes of shared memory: of the input, and for backward-weight of the pixels' gradient and the
        window's sums."""
        patch, cells = self.patch, prod(self.size)
        if self.product.over_pixels:
            cells += patch.targets * (patch.rows * patch.columns + patch.taps * self.product.window.digits[2][0])
        return cells * stored.accumulator.bitwidth // 8

    @property
    def grid(self) -> tuple[int, int]:
        images, channels = self.product.pixels.digits[0][0], self.product.window.digits[0][0]
        blocks = channels if self.product.over_pixels else images * prod(self.tiles)
        return blocks * self.product.groups, -(-self.product.rows // self.patch.targets)

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    def launch(self, out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, splits: int) -> None:
        product, patch, (blocks, targets) = self.product, self.patch, self.grid
        summed, tables = product.window.digits[0][0], (product.pixels.table, product.window.table)
        kernel = gather_kernel
        if product.over_pixels:
            summed, tables = product.pixels.digits[0][0] * prod(self.tiles), tables[::-1]
            kernel = scatter_kernel
        cut = -(-summed // splits), out.size // splits, bias.strides[0] if bias else NO_BIAS, splits
        launch(
            kernel(b.format, out.format, patch), (blocks, targets * splits), patch.threads, out, a, b, bias or b,
            *tables, product.scalars, self.geometry, cut, shared=self.shared(b.format),
        )  # fmt: skip


def engine(products: Sequence[Product], stored: Format) -> list[Tiled]:
    """Return the products, each with the largest patch whose shared memory fits."""

    def tiled(product: Product) -> Tiled:
        def fits(patch: Patch) -> bool:
            return Tiled(patch, product).shared(stored) <= SHARED

        columns, taps = product.pixels.digits[2][0], max(1, product.window.digits[1][0])
        return Tiled(patch_for(columns, taps, product.rows, fits), product)

    return [tiled(product) for product in products]
