"""Plans how much of a weight gradient is done at once where the Tensor Engine transposes both operands.

A plan decides instructions and traffic, never which products are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, prod

from .host_axes import Pair
from .host_plan import BANK, MOST, PARTITIONS, RUN, Operand

Tile = tuple[int, int, int, int, int, bool]

BLOCKS, TARGETS = 6, 2
"""Banks of sums, which leave two for transposes and the bias; parts of the targets that are summed together."""
OPERANDS, HELD = 96 << 10, 48 << 10
"""Bytes of SBUF a partition: both operands of a strip, as loaded and transposed; dy of all strips."""
LEAST, LONG, BYTES = 64, 2500, 100
"""Cycles of the shortest product of the Tensor Engine; bytes that the DMA moves in the time of any shorter run; bytes
that it moves in a cycle of the Tensor Engine."""


@dataclass(frozen=True)
class TurnPlan:
    """The tile: images, bands, turns, columns, channels of a block, and whether turns are taken in pairs; parts of the
    targets and channels that are summed at once; whether x and dy stay in SBUF, and whether their neighbouring channels
    share a partition; and the distance of rows of x that are transposed."""

    tile: Tile
    at_once: Pair
    resident: tuple[bool, bool]
    joined: tuple[bool, bool]
    pitch: int


@dataclass(frozen=True)
class _Problem:
    """A problem to plan. `size` is that of dy."""

    images: int
    size: Pair
    kernel: Pair
    operand: Operand
    stride: Pair
    dilation: Pair
    targets: int
    channels: int
    pitch: int
    paired: bool

    def slots(self, turns: int) -> int:
        """Count the rows of x that are transposed for each tap of a row."""
        return ((turns - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0]) // self.pitch + 1

    def cycles(self, turns: int, pieces: int) -> int:
        """Return the cycles of the Tensor Engine for a strip: products, and transposes of x and dy."""
        parts, (high, wide) = -(-self.targets // PARTITIONS), self.kernel
        rows = turns * high if not self.paired else turns // 2 * (high + 1) + turns % 2 * high
        products = parts * max(turns * LEAST, rows * wide * self.channels) * _factor(self.operand)
        transposes = self.slots(turns) * wide * max(LEAST, self.channels)
        return pieces * (products + turns * max(LEAST, self.targets) + transposes)

    def moved(self, images: int, rows: int) -> int:
        """Return the cycles of the Tensor Engine while the DMA loads `rows` rows of both operands.

        Each channel is a run, or several joined channels are one, as they are for whole images.
        """
        high = (rows - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0] + 1
        runs = (high * self.size[1] * self.stride[1], self.channels), (rows * self.size[1], self.targets)
        joined = PARTITIONS if rows == self.size[0] else max(self.channels, self.targets)
        total = 0
        for run, count in runs:
            parts = -(-count // joined)
            total += -(-count // parts) * max(LONG, run * parts * self.operand.itemsize)
        return images * total // BYTES

    def fits(self, images: int, bands: int, turns: int, pieces: int) -> bool:
        """Return whether a strip fits."""
        rows, columns = (
            (count - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1
            for axis, count in enumerate((bands * turns, self.size[1]))
        )
        x = 2 * images * rows * columns + pieces * self.slots(turns) * self.kernel[1] * self.channels
        dy = images * bands * turns * self.size[1] + pieces * turns * self.targets
        return (x + dy) * self.operand.itemsize <= OPERANDS


def _factor(operand: Operand) -> int:
    """Return the passes of a product: the Tensor Engine multiplies fp32 in four."""
    return 4 if operand.itemsize == 4 else 1


def turn_plan(
    images: int, size: Pair, kernel: Pair, operand: Operand, stride: Pair, dilation: Pair, with_bias: bool, pixels: Pair
) -> TurnPlan | None:  # fmt: skip
    """Return the plan of least cycles among strips that fit, or None; `pixels` are bytes of an image of x and of dy."""
    taps = prod(kernel)
    if taps > BANK or operand.targets > MOST:
        return None
    pitch = gcd(stride[0], dilation[0]) if kernel[0] > 1 else stride[0]
    paired = operand.targets in (32, 64) and kernel[0] > 1 and stride[0] == dilation[0] == pitch and size[0] > 1
    paired = paired and kernel[0] + 1 + with_bias <= BLOCKS
    for part in (1, TARGETS):
        targets = min(operand.targets, part * PARTITIONS)
        if paired:
            block = channels = min(operand.sources, BANK // kernel[1])
        else:
            blocks = (BLOCKS - with_bias) // -(-targets // PARTITIONS)
            block = -(-operand.sources // -(-operand.sources // min(operand.sources, BANK // taps)))
            channels = min(operand.sources, blocks * block)
        problem = _Problem(images, size, kernel, operand, stride, dilation, targets, channels, pitch, paired)
        best = min(_strips(problem), default=None)
        if best is None:
            return None
        _, *strip, steps = best
        step_bytes = operand.itemsize * steps
        x = step_bytes * problem.slots(strip[2]) * kernel[1] * operand.sources // strip[2]
        resident = x <= HELD, step_bytes * operand.targets <= HELD
        if resident[0] or targets == operand.targets:
            break
    joined = resident[0] and _joined(operand.sources, pixels[0]), resident[1] and _joined(operand.targets, pixels[1])
    tile = (*strip, block, paired)
    return TurnPlan(tile, (-(-targets // PARTITIONS), channels), resident, joined, pitch)  # type: ignore[arg-type]


def _joined(channels: int, size: int) -> bool:
    """Return whether parts of the channels are equal, and images of `size` bytes small enough to need joining."""
    parts = -(-channels // PARTITIONS)
    return parts > 1 and channels % parts == 0 and size < 2 * RUN


def _strips(problem: _Problem) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield cycles, images, bands, turns, columns, and turns of all strips."""
    rows, width = problem.size
    most = min(width, PARTITIONS)
    for columns in sorted({most, -(-width // -(-width // most)), -(-width // 2), -(-width // 3)}):
        if columns > PARTITIONS:
            continue
        pieces = -(-width // columns)
        for bands in range(1, min(rows, PARTITIONS // columns) + 1):
            for turns in range(1 + problem.paired, rows // bands + 1):
                whole = bands * turns == rows
                images = min(problem.images, PARTITIONS // (bands * columns)) if whole else 1
                if not problem.fits(images, bands, turns, pieces):
                    break
                strips, remainder = divmod(rows, bands * turns)
                cycles, steps = strips * problem.cycles(turns, pieces), strips * turns
                moved = strips * problem.moved(images, bands * turns)
                for rest, count in ((turns, remainder // turns), (remainder % turns, 1)):
                    if rest and count:
                        cycles, steps = cycles + problem.cycles(rest, pieces), steps + rest
                        moved += problem.moved(images, rest * count)
                times = -(-problem.images // images)
                yield times * max(cycles, moved), images, bands, turns, columns, times * steps * pieces
