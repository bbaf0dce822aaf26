"""Decides whether taps of a convolution with few channels are packed onto the partitions, and how
(`kernels/conv_packed.py`).

A plan decides instructions and traffic, never which products are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .host_axes import Pair, Window
from .host_plan import BANK, PARTITIONS, Operand

QUADRANT, LEAST, BUDGET = 32, 64, 120 << 10
"""Partitions where an engine may begin; cycles of the shortest product; bytes of SBUF a partition."""
IMAGES, TARGETS = 128, 512
"""Most images, which are computed one by one (otherwise one tile has several), and most targets, whose weights are
held."""
WORTH = 0.8
"""Share of the cycles without packing, below which taps are packed."""
BYTES = 100
"""Bytes that the DMA moves in a cycle of the Tensor Engine: 272 GB/s at 2.8 GHz."""
COPIED = 2
"""Cycles of the Tensor Engine in which an engine copies an element of each partition, beside its other work."""


class PackedAxis(NamedTuple):
    """An axis as the kernel takes it."""

    stride: int
    low: int
    reach: int
    taps: int
    group: int
    size: int
    rest: int = 1

    @property
    def wide(self) -> int:
        """Number of elements of a lattice that all targets read."""
        return self.count(self.size)

    def count(self, targets: int) -> int:
        """Count the elements of a lattice that `targets` targets read."""
        return targets + (self.taps - 1) * self.reach // self.stride

    @property
    def steps(self) -> int:
        """Number of groups of taps."""
        return -(-self.taps // self.group)


Axes = tuple[PackedAxis, PackedAxis]


@dataclass(frozen=True)
class PackedPlan:
    """Axes with their groups of taps; rows that are loaded and that are summed at once; whether positions are
    stationary."""

    axes: Axes
    tile: Pair
    swapped: bool


def forward(window: Window) -> PackedAxis:
    """Return the axis of a forward convolution, in which outputs gather from the input."""
    return PackedAxis(window.stride, -window.before, window.dilation, window.kernel, 1, window.outputs)


def backward(window: Window) -> PackedAxis:
    """Return the axis of backward-data, in which inputs gather from the outputs, at stride 1."""
    low = window.before - (window.kernel - 1) * window.dilation
    return PackedAxis(1, low, window.dilation, window.kernel, 1, window.size)


def packed_plan(axes: Axes, operand: Operand, images: int, flipped: bool) -> PackedPlan | None:
    """Return the cheapest plan, where packing is worth it. `flipped` says that rows of the weights are sources."""
    if images > IMAGES or operand.targets > TARGETS:
        return None
    if operand.groups > 1 or operand.sources > PARTITIONS or axes[1].size > BANK:
        return None
    rows, columns = axes
    area = rows.size * columns.size
    plain = operand.taps * -(-operand.targets // PARTITIONS) * area * _passes(operand)
    best = min(_candidates(axes, operand, flipped), default=None)
    if best is None or best[0] > WORTH * plain:
        return None
    _, high, wide, rest, swapped = best
    grouped = rows._replace(group=high), columns._replace(group=wide, rest=rest)
    loaded = _rows(grouped, operand)
    if loaded < 1:
        return None
    summed = max(1, BANK // (columns.wide if swapped else columns.size))
    summed = -(-loaded // -(-loaded // summed))
    return PackedPlan(grouped, (loaded, summed), swapped)


def _passes(operand: Operand) -> int:
    """Return the passes of a product: the Tensor Engine multiplies fp32 in four."""
    return 4 if operand.itemsize == 4 else 1


def _candidates(axes: Axes, operand: Operand, flipped: bool) -> Iterator[tuple[int, int, int, int, bool]]:
    """Yield cycles of the Tensor Engine, row and column taps of a group, column taps where fewer rows are left, and
    whether positions are stationary."""
    rows, columns = axes
    aligned = operand.sources % QUADRANT == 0
    # sums of two runs of rows are transposed at once
    together = 2 if 2 * operand.targets <= PARTITIONS and operand.targets % QUADRANT == 0 else 1
    for high, wide, rest in _groups(axes, PARTITIONS // operand.sources):
        if not aligned and (rest > 1 or (high * wide > 1 and flipped)):
            continue
        remainder = 1 if rows.taps % high else 0
        steps = (rows.taps // high) * -(-columns.taps // wide) + remainder * -(-columns.taps // max(wide, rest))
        # engines copy to other partitions; where these are not aligned the DMA does
        copied = (high * wide - 1) + (rest if rest > 1 else 0)
        elements = copied * rows.wide * columns.wide
        moved = elements * COPIED if aligned else elements * operand.sources * operand.itemsize // BYTES
        plain = steps * -(-operand.targets // PARTITIONS) * rows.size * columns.size * _passes(operand)
        yield max(plain, moved), high, wide, rest, False
        if operand.targets <= PARTITIONS:
            tiles = _tiles(rows, columns)
            cycles = steps * max(LEAST, operand.targets) * _passes(operand) + PARTITIONS // together
            yield max(tiles * cycles, moved), high, wide, rest, True


def _tiles(rows: PackedAxis, columns: PackedAxis) -> int:
    """Count tiles of stationary positions: a bank holds some rows with the elements between them, or one row
    without."""
    if 2 * columns.wide > BANK:
        return rows.size * -(-columns.size // PARTITIONS)
    return -(-rows.size * columns.wide // PARTITIONS)


def _groups(axes: Axes, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield taps of rows and of columns that are a prefix of the group in every step, whose lattices stay the same; and
    taps of columns for a last row that has no group."""
    rows, columns = axes
    # a group of one column tap serves the next only if that reads the same lattice
    alone = columns.taps == 1 or columns.reach % columns.stride == 0
    for high in range(1, min(rows.taps, most) + 1 if alone else 1):
        if high == rows.taps or high * rows.reach % rows.stride == 0:
            yield high, 1, 1
            if rows.taps % high == 1 and rows.stride * columns.stride == 1:
                yield high, 1, min(columns.taps, most)
    for wide in range(2, min(columns.taps, most // rows.taps) + 1):
        if wide == columns.taps or wide * columns.reach % columns.stride == 0:
            yield rows.taps, wide, 1


def _rows(axes: Axes, operand: Operand) -> int:
    """Return how many target rows have operands that fit, all if possible."""
    rows, columns = axes
    count = rows.size
    while count > 0:
        lattices = rows.stride * columns.stride
        lattice = (rows.count(count) + 2) * columns.wide
        dense = (rows.count(count) + 2) * rows.stride * columns.stride * columns.wide
        planes = lattices * lattice if lattices > 1 else lattice if columns.rest > 1 else 0
        if (lattice + dense + planes + count * columns.size) * operand.itemsize <= BUDGET:
            return count
        count = count // 2
    return 0
