"""Geometry of the kernels: one axis of a gathering convolution, tensor strides, block sizes.

Forward and backward-data are the same operation.  Along one axis

    target[target_step * u + target_start] = sum over taps t of weight[tap t] * source[step * u + offset t]

with out-of-range sources left out.  Forward has one such lattice (step = stride, target_step = 1);
backward-data has one per residue modulo the stride (step = 1, target_step = stride), each using only the taps
that reach that residue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.implementations.windows import Window
from conformance.implementations.windows import axes as in_order

Array = np.ndarray
Triple = tuple[int, int, int]
Quad = tuple[int, int, int, int]
Shape = tuple[int, ...]
Strides = Quad  # N, channel, row, column of an image; K, C, R, S of a weight tensor
Problem = Quad  # images, groups, source channels per group, targets per group


@dataclass(frozen=True)
class Axis:
    """One axis of a gathering convolution; `taps` are kernel indices, `offsets` their source offsets."""

    taps: np.ndarray
    offsets: np.ndarray
    step: int
    source: int
    count: int
    target_step: int
    target_start: int

    @property
    def low(self) -> int:
        return int(self.offsets.min())

    @property
    def phases(self) -> np.ndarray:
        """Residues modulo `step` that any tap reads: a block keeps one plane for each."""
        return np.unique((self.offsets - self.low) % self.step)

    @property
    def planes(self) -> np.ndarray:
        """For every tap, the index of its phase in `phases`."""
        return np.searchsorted(self.phases, (self.offsets - self.low) % self.step)

    @property
    def slots(self) -> np.ndarray:
        """For every tap, its position in that plane relative to the output position."""
        return (self.offsets - self.low) // self.step


def require_same(what: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises ValueError for sizes that do not match: a kernel would read behind the end of an array."""
    if found != expected:
        raise ValueError(f"{what}: {found}, but {expected} is needed")


def forward_axis(window: Window) -> Axis:
    taps = np.arange(window.kernel)
    offsets = taps * window.dilation - window.before
    return Axis(taps, offsets, window.stride, window.size, window.outputs, 1, 0)


def backward_axes(window: Window) -> list[Axis]:
    """Inputs gather from the outputs: one lattice per residue modulo the stride that has any tap."""
    lattices = []
    for start in range(min(window.stride, window.size)):
        distance = start + window.before - np.arange(window.kernel) * window.dilation
        taps = np.flatnonzero(distance % window.stride == 0)
        count = -(-(window.size - start) // window.stride)
        offsets = distance[taps] // window.stride
        if taps.size:
            lattices.append(Axis(taps, offsets, 1, window.outputs, count, window.stride, start))
    return lattices


def lattice_strides(axes: tuple[Axis, Axis], strides: Strides) -> tuple[int, Strides]:
    """First element and strides of the outputs that one lattice fills."""
    rows, columns = axes
    start = rows.target_start * strides[2] + columns.target_start * strides[3]
    return start, (*strides[:2], strides[2] * rows.target_step, strides[3] * columns.target_step)


def image_strides(shape: tuple[int, ...], layout: str) -> Strides:
    """Element strides (N, channel, row, column; K, C, R, S of weights) of a contiguous tensor."""
    _, second, third, last = shape
    return in_order((second * third * last, third * last, last, 1), layout)


def even_split(total: int, limit: int, multiple: int = 1) -> int:
    """Size of equal parts of at most `limit` (a multiple of `multiple` where more than one is needed)."""
    if total <= limit:
        return max(total, 1)
    part = -(-total // -(-total // limit))
    return -(-part // multiple) * multiple
