"""The table of tile sizes, and the cutting of a product: no other module decides about sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .product import Product
from .storage import Format
from .target import SIMULATED

PROCESSORS = 132
"""Number of multiprocessors of an H200. Devices with fewer take more turns over the same blocks."""
MIN_DEPTH = 64
"""Fewest products in a split: fewer do not pay for writing and reading a partial sum."""
MAX_SPLITS = 64
GRID = (2, 32) if SIMULATED else (16 * PROCESSORS, 128)
"""Most blocks, and threads of each, where threads share no memory and go on to the next element. The simulator starts a
thread of Python for each."""
MAX_WIDE = 32
"""Most accumulators for which a thread has registers in fp64."""


@dataclass(frozen=True)
class Tile:
    """A block's part of the result, a thread's part of that, and how much of the depth is in shared memory at once."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int = 8

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} by {self.thread_rows}x{self.thread_columns}"

    @property
    def threads(self) -> int:
        return self.rows * self.columns // self.results

    @property
    def results(self) -> int:
        """Number of a thread's accumulators."""
        return self.thread_rows * self.thread_columns

    @property
    def lines(self) -> int:
        """Number of threads along the rows."""
        return self.rows // self.thread_rows

    @property
    def lanes(self) -> int:
        """Number of threads along the columns."""
        return self.columns // self.thread_columns

    def per_thread(self, extent: int) -> int:
        """Return how many elements a thread loads for a step, with a tile of `extent` rows or columns."""
        return extent * self.depth // self.threads

    def blocks(self, product: Product) -> int:
        return product.groups * -(-product.rows // self.rows) * -(-product.columns.total // self.columns)


class Choice(NamedTuple):
    """A tile, and the range of rows in a group that it is for."""

    min_rows: int
    max_rows: int
    tile: Tile


ANY = 1 << 62
CHOICES = (
    # 64 products for 16 words of shared memory, four reads: 256 threads of 167 registers, one block a processor.
    Choice(96, ANY, Tile(128, 128, 8, 8)),
    # 32 products for 12 words, a quarter of the waste: 64 rows, or too few of the tiles above.
    Choice(48, ANY, Tile(64, 64, 4, 8)),
    # 32 rows: as many threads as the tile above, for half the results.
    Choice(17, ANY, Tile(32, 64, 4, 4)),
    # ResNeXt's groups of up to 16 rows, and products so small that only many blocks fill the device.
    Choice(5, ANY, Tile(16, 32, 4, 4)),
    # Groups of up to 4 rows: one warp, each of whose lanes has a column.
    Choice(1, 4, Tile(4, 32, 4, 1)),
)
"""Tiles, of which the first that fills the device is taken, else the last: large tiles read less, small ones are
more."""


def tile_for(products: Sequence[Product], layout: Format) -> Tile:
    """Return the tile for all products of a call, which have their rows in common."""
    rows, wide = products[0].rows, layout.accumulator.bitwidth == 64
    fit = [c.tile for c in CHOICES if c.min_rows <= rows <= c.max_rows and not (wide and c.tile.results > MAX_WIDE)]
    for tile in fit:
        if sum(tile.blocks(product) * _splits(product.depth.total) for product in products) >= PROCESSORS:
            return tile
    return fit[-1]


def _splits(depth: int) -> int:
    """Return the largest number of splits whose parts are still deep enough to pay."""
    return max(1, min(depth // MIN_DEPTH, MAX_SPLITS))


def splits_for(products: Sequence[Product], blocks: int) -> int:
    """Return the number of parts of the depth: as few as fill the device twice. `blocks` counts blocks without
    splits."""
    depth = max(product.depth.total for product in products)
    return max(1, min(_splits(depth), 2 * PROCESSORS // max(1, blocks)))


TARGETS = 4
"""Channels of the result that a thread computes for each of its pixels: one read of the input for so many products."""


@dataclass(frozen=True)
class Patch:
    """A block's pixels, how many of them each thread has, and the rows of the window whose input is in memory at
    once."""

    rows: int
    columns: int
    per_thread: int
    taps: int
    targets: int = TARGETS
    """1 where there is one channel a group, as in depthwise convolution."""

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} by {self.per_thread}x{self.targets}, {self.taps} taps"

    @property
    def threads(self) -> int:
        return self.rows * self.columns // self.per_thread


SHARED = 48 << 10
"""Bytes of shared memory that every device gives by default."""
SHAPES = ((16, 8, 32, 4), (1, 4, 8, 1))
"""Fewest columns of the result, then rows, columns and pixels a thread. A warp's lanes are neighbours in a row; small
images get blocks of one warp, four pixels high, instead of mostly idle ones."""


def patch_for(columns: int, taps: int, rows: int, fits: Callable[[Patch], bool]) -> Patch:
    """Return the largest patch whose input fits, else a row of pixels with one row of the window. `rows` are those of
    the result in a group."""
    shapes, targets = [shape for start, *shape in SHAPES if columns >= start], 1 if rows == 1 else TARGETS
    whole = (Patch(high, wide, per_thread, taps, targets) for high, wide, per_thread in shapes)
    return next(filter(fits, whole), Patch(1, 32, 1, 1, targets))


def grid_for(elements: int) -> tuple[int, int]:
    blocks, threads = GRID
    return min(-(-elements // threads), blocks), threads


def slices_for(pixels: int) -> int:
    """Return into how many parts a channel's pixels are cut: a thread sums dozens of pixels, one adds the parts."""
    return max(1, min(-(-pixels // 32), 1024))
