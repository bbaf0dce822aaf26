"""Plans how much of a convolution is done at once. Budgets are bytes of SBUF a partition, of which gen2 has 192 KiB.

A plan decides instructions and traffic, never which products are summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from conformance import Unsupported

from .host_axes import Axis, Pair

Axes = tuple[Axis, Axis]
Tile = tuple[int, int, int]

PARTITIONS, BANK, BANKS = 128, 512, 8
"""Partitions; fp32 sums of a PSUM bank; banks."""
POSITIONS = 4096
"""Most positions of a tile, unless it holds several images: several banks of one window, or sums on the Vector
Engine."""
WINDOWS, WEIGHTS, RESULTS, STAGE = 56 << 10, 82 << 10, 20 << 10, 40 << 10
"""Bytes of windows, weights, results, and filters that wait for their transposes before there are windows and
results."""
SHORT, RUN, TRANSPOSES = 256, 2048, 32
"""Bytes of a run below which the DMA transposes filters; bytes of a run that the DMA moves near its peak; most
transposes a part where short filters are joined to a run."""
MOST = 2048
"""Most targets at once, whose bias is a row in SBUF."""
SMALLEST = 32
"""Positions of the smallest tile whose windows are held; below that every tap loads its own part of them."""


@dataclass(frozen=True)
class Operand:
    """Channels of a group, and bytes of an element."""

    sources: int
    targets: int
    groups: int
    taps: int
    itemsize: int

    @property
    def parts(self) -> int:
        """Number of tiles of source channels in a group."""
        return -(-self.sources // PARTITIONS)

    @property
    def by_channel(self) -> bool:
        """Tell whether the Vector Engine, with the targets of many groups side by side, takes fewer instructions."""
        if self.groups == 1 or self.targets > PARTITIONS:
            return False
        return self.sources * -(-self.groups // (PARTITIONS // self.targets)) < self.groups * self.parts


@dataclass(frozen=True)
class GatherPlan:
    """Images, row and column positions of a tile, targets (or groups) at once, whether windows are held, and filters
    and parts of the sources that are transposed at once."""

    by_channel: bool
    tile: tuple[int, int, int, int]
    resident: bool
    turning: Pair = (0, 0)
    joined: tuple[bool, bool] = (False, False)
    """Whether sources, and targets, that follow one another share a partition."""


def _largest_tile(images: int, rows: int, columns: int, limit: int) -> Tile:
    """Return a tile of whole rows, then whole images, up to a limit of positions."""
    columns = min(columns, limit)
    tile_rows = min(rows, limit // columns)
    return (min(images, limit // (rows * columns)) if tile_rows == rows else 1), tile_rows, columns


def _smaller(tile: Tile, run: int) -> Tile:
    """Return about half of a tile, with rows in whole runs as long as there is more than one."""
    images, rows, columns = tile
    if images > 1:
        return -(-images // 2), rows, columns
    if rows > run:
        return 1, max(run, rows // 2 // run * run), columns
    return (1, -(-rows // 2), columns) if rows > 1 else (1, 1, -(-columns // 2))


def _held_bytes(tile: Tile, axes: Axes, size: int) -> int:
    """Return the bytes of one window."""
    return tile[0] * axes[0].rows(tile[1]) * axes[1].rows(tile[2]) * size


def _whole_tile(images: int, axes: Axes) -> tuple[Tile, int]:
    """Return the largest tile, and how many of its rows are summed at once: as many as fill a bank of PSUM."""
    rows, columns = axes[0].positions, axes[1].positions
    some_images, run, columns = _largest_tile(images, rows, columns, BANK)
    return (some_images, rows if run == rows else min(rows, POSITIONS // (run * columns) * run), columns), run


def _fitting(whole: tuple[Tile, int], axes: Axes, windows: int, sums: int, size: int) -> Tile:
    """Halve the tile until `windows` windows, `sums` fp32 sums and the result fit."""
    tile, run = whole
    for_result = axes[0].spacing * axes[1].spacing * size + sums * 4
    while prod(tile) > 1 and (windows * _held_bytes(tile, axes, size) > WINDOWS or prod(tile) * for_result > RESULTS):
        tile = _smaller(tile, run)
    return tile


def _alone(axis: Axis) -> Axis:
    """Return the axis of a window that holds one tap only."""
    return axis._replace(pitch=axis.step, low=0, high=0)


def gather_plan(images: int, axes: Axes, operand: Operand, source: int, filters: bool = False) -> GatherPlan:
    """Plan a gather. `source` are pixels of an image of the source, `filters` says that rows of the weights are
    targets.

    Raises Unsupported where the weights of one target do not fit.
    """
    by_channel = operand.by_channel
    whole = _whole_tile(images, axes)
    windows = operand.sources if by_channel else operand.parts
    tile = _fitting(whole, axes, windows, by_channel, operand.itemsize)
    fits = windows * _held_bytes(tile, axes, operand.itemsize) <= WINDOWS
    resident = fits and (tile == whole[0] or prod(tile) >= SMALLEST)
    if not resident:
        alone = _alone(axes[0]), _alone(axes[1])
        tile = _fitting(whole, alone, 1, by_channel, operand.itemsize)
    at_once = _at_once(operand)
    turning = _turning(operand, at_once) if filters and not by_channel else (0, 0)
    joined = (False, False) if by_channel else _joined(source, axes, operand, at_once, tile, turning)
    return GatherPlan(by_channel, (*tile, at_once), resident, turning, joined)


def _at_once(operand: Operand) -> int:
    """Return how many groups have targets that fit on the partitions, or how many targets have weights that fit in
    SBUF."""
    if operand.by_channel:
        return min(operand.groups, PARTITIONS // operand.targets)
    count = WEIGHTS // (operand.parts * operand.taps * operand.itemsize)
    if count < 1:
        raise Unsupported(f"{operand.sources} channels and {operand.taps} taps: the weights of one filter exceed SBUF")
    return min(operand.targets, MOST, count - count % PARTITIONS if count > PARTITIONS else count)


def _joined(
    source: int, axes: Axes, operand: Operand, at_once: int, tile: Tile, turning: Pair
) -> tuple[bool, bool]:  # fmt: skip
    """Return whether small images of several equal parts of the channels come in one run: sources, and targets."""
    parts, blocks = operand.parts, -(-at_once // PARTITIONS)
    whole = turning in ((0, 0), (turning[0], parts))
    sources = parts > 1 and operand.sources % parts == 0 and whole and source * operand.itemsize < 2 * RUN
    area = axes[0].size * axes[1].size
    targets = blocks > 1 and at_once % blocks == 0 and operand.targets % at_once == 0
    room = prod(tile) * axes[0].spacing * axes[1].spacing * blocks * operand.itemsize
    return sources, targets and area * operand.itemsize < 2 * RUN and room <= RESULTS


def _turning(operand: Operand, at_once: int) -> Pair:
    """Return how many filters make one run, and how many parts of their sources; zeros where the DMA loads element by
    element."""
    size = operand.taps * operand.itemsize
    part, whole = min(operand.sources, PARTITIONS) * size, operand.sources * size
    if part > STAGE:
        return 0, 0
    stage, fold, rest = min(operand.parts, STAGE // part), 1, gcd(at_once, operand.targets % at_once)
    while stage == operand.parts and fold * whole < RUN and rest % (2 * fold) == 0:
        if 2 * fold * whole > STAGE or 2 * fold * operand.taps > TRANSPOSES:
            break
        fold *= 2
    return (fold, stage) if fold * whole >= SHORT else (0, 0)


@dataclass(frozen=True)
class WeightPlan:
    """A strip is images, rows, columns, and whether its rows are turns; a block is tap rows, tap columns, channels."""

    strip: tuple[int, int, int, bool]
    block: tuple[int, int, int]
    at_once: Pair
    """Number of targets and of blocks."""
    resident: bool
    pitch: int


def weight_plan(
    images: int, size: Pair, kernel: Pair, operand: Operand, stride: Pair, dilation: Pair, with_bias: bool
) -> WeightPlan:
    """Plan a weight gradient. `size` is that of dy.

    Where rows take turns, x is read S times, not R * S times, by at most three times as many products if a row fills a
    third of the partitions. It has to save more than dy costs, and so is not for few channels.
    """
    block = _block(kernel, operand.sources)
    targets = min(operand.targets, BANKS // 2 * PARTITIONS)
    parts = -(-targets // PARTITIONS)
    blocks = (BANKS - parts * with_bias) // parts
    columns, pitch = min(size[1], PARTITIONS), gcd(stride[0], dilation[0])
    saved = (kernel[0] - 1) * kernel[1] * operand.sources
    if 3 * columns < PARTITIONS or saved <= operand.targets:
        tile = _largest_tile(images, *size, PARTITIONS)
        strip, turns = (*tile, False), 1
    else:
        turns = size[0]
        while turns > 1 and turns * (_turn(block, stride, pitch) * blocks + targets) * operand.itemsize > WINDOWS:
            turns = -(-turns // 2)
        strip = (1, turns, columns, True)
    steps = -(-images // strip[0]) * -(-size[0] // strip[1]) * -(-size[1] // columns) * turns
    resident = steps * targets * operand.itemsize <= WINDOWS
    return WeightPlan(strip, block, (targets, blocks), resident, pitch)


def _block(kernel: Pair, channels: int) -> Tile:
    """Return taps and channels whose sums fill a bank."""
    if kernel[1] > BANK:
        return 1, BANK, 1
    rows = min(kernel[0], BANK // kernel[1])
    return rows, kernel[1], min(channels, BANK // (rows * kernel[1]))


def _turn(block: Tile, stride: Pair, pitch: int) -> int:
    """Return how many elements of x one more turn adds to a tile."""
    return stride[0] // pitch * block[1] * block[2]
