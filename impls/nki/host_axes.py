"""The two axes of a convolution, as the kernels take them (`kernels/conv_windows.py` says what the numbers mean)."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


class Residue(NamedTuple):
    """Target positions that are equal modulo the stride, and the taps that reach them."""

    target: int
    start: int
    reach: int
    tap: int
    tap_step: int
    taps: int

    @property
    def ends(self) -> Pair:
        """Lowest and highest of start + j * reach."""
        last = self.start + (self.taps - 1) * self.reach
        return min(self.start, last), max(self.start, last)


class Axis(NamedTuple):
    """One axis of a gather."""

    step: int
    pitch: int
    low: int
    high: int
    spacing: int
    size: int
    residues: tuple[Residue, ...]

    @property
    def positions(self) -> int:
        """Number of positions of the longest residue."""
        return -(-self.size // self.spacing)

    def rows(self, count: int) -> int:
        """Count the source rows in the window of `count` positions."""
        return ((count - 1) * self.step + self.high - self.low) // self.pitch + 1


@dataclass(frozen=True)
class Window:
    """One axis of a convolution."""

    size: int
    kernel: int
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def outputs(self) -> int:
        """Number of windows that fit."""
        return (self.size + self.before + self.after - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def reached(self) -> int:
        """Number of rows of the padded image up to the last one that a window reads."""
        return (self.outputs - 1) * self.stride + self.dilation * (self.kernel - 1) + 1

    def forward(self, dense: bool) -> Axis:
        """Return the axis by which outputs gather from the input. A window omits rows that no tap reads unless it is
        `dense`."""
        residue = Residue(0, -self.before, self.dilation, 0, 1, self.kernel)
        pitch = gcd(self.stride, self.dilation) if self.kernel > 1 else self.stride
        return Axis(self.stride, 1 if dense else pitch, *residue.ends, 1, self.outputs, (residue,))

    @property
    def backward(self) -> Axis:
        """Return the axis by which inputs gather from the outputs, by residue modulo the stride."""
        residues = tuple(self._residue(target) for target in range(min(self.stride, self.size)))
        ends = [residue.ends for residue in residues if residue.taps] or [(0, 0)]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        return Axis(1, 1, low, high, self.stride, self.size, residues)

    @property
    def plain(self) -> Axis:
        """Axis of the outputs themselves."""
        residue = Residue(0, 0, 1, 0, 1, 1)
        return Axis(1, 1, 0, 0, 1, self.outputs, (residue,))

    def _residue(self, target: int) -> Residue:
        distances = [target + self.before - tap * self.dilation for tap in range(self.kernel)]
        taps = [tap for tap, distance in enumerate(distances) if distance % self.stride == 0]
        first = taps[0] if taps else 0
        pitch = self.stride // gcd(self.stride, self.dilation)
        reach = -(pitch * self.dilation // self.stride)
        return Residue(target, distances[first] // self.stride, reach, first, pitch, len(taps))


def windows(size: Pair, kernel: Pair, stride: Pair, padding: Padding, dilation: Pair) -> tuple[Window, Window]:
    """Return the two axes. Raises ValueError where the window does not fit."""
    rows, columns = (Window(size[i], kernel[i], stride[i], *padding[i], dilation[i]) for i in (0, 1))
    if rows.outputs < 1 or columns.outputs < 1:
        raise ValueError(f"a window of {kernel} with dilation {dilation} does not fit into the padded image of {size}")
    return rows, columns
