"""Geometry of the kernels: one axis of a gathering convolution, tensor strides, block sizes.

Forward and backward-data are the same operation.  Along one axis

    target[target_step * u + target_start] = sum over taps t of weight[tap t] * source[step * u + offset t]

with out-of-range sources left out.  Forward has one such lattice (step = stride, target_step = 1);
backward-data has one per residue modulo the stride (step = 1, target_step = stride), each using only the taps
that reach that residue.

All kernels are two-dimensional. One dimension is a single row. In three, every plane of targets is a lattice of rows
and columns whose taps lie in several planes of the source: the planes follow one another in memory, so that a tap of
another plane is one some rows further on. It is cut off at the edges of its own plane, and taps of planes outside the
image are left out. Poolings of one dimension are rows, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from conformance.implementations.windows import Window
from conformance.implementations.windows import axes as in_order
from conformance.layouts import rank_of

Array = np.ndarray
Triple = tuple[int, int, int]
Quad = tuple[int, int, int, int]
Shape = tuple[int, ...]
Strides = Quad  # N, channel, row, column of an image; K, C, R, S of a weight tensor
Problem = Quad  # images, groups, source channels per group, targets per group


@dataclass(frozen=True)
class Axis:
    """One axis of a gathering convolution; `taps` are kernel indices, `offsets` their source offsets, from the position
    that the plane of each `starts` at."""

    taps: np.ndarray
    offsets: np.ndarray
    step: int
    source: int
    count: int
    target_step: int
    target_start: int
    starts: np.ndarray

    @property
    def first(self) -> int:
        return int(self.starts.min())

    @property
    def low(self) -> int:
        return int(self.offsets.min())

    @property
    def _phase_of_taps(self) -> np.ndarray:
        return np.stack(((self.offsets - self.low) % self.step, self.starts - self.first), axis=1)

    @property
    def phases(self) -> np.ndarray:
        """Residues modulo `step` that any tap reads, with the start that each counts from: a block keeps one plane for
        each."""
        return np.unique(self._phase_of_taps, axis=0)

    @property
    def planes(self) -> np.ndarray:
        """Index in `phases` of every tap's phase."""
        return np.unique(self._phase_of_taps, axis=0, return_inverse=True)[1].reshape(-1)

    @property
    def slots(self) -> np.ndarray:
        """Position of every tap in its phase's plane relative to the output position."""
        return (self.offsets - self.low) // self.step


def require_same(what: str, actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise ValueError for sizes that do not match: a kernel would read behind the end of an array."""
    if actual != expected:
        raise ValueError(f"{what}: {actual}, but {expected} is needed")


def forward_axis(window: Window) -> Axis:
    taps = np.arange(window.kernel)
    offsets = taps * window.dilation - window.before
    return Axis(taps, offsets, window.stride, window.size, window.outputs, 1, 0, np.zeros_like(taps))


def backward_axes(window: Window) -> list[Axis]:
    """Return one lattice per residue modulo the stride that has any tap: inputs gather from the outputs."""
    lattices = []
    for start in range(min(window.stride, window.size)):
        distance = start + window.before - np.arange(window.kernel) * window.dilation
        taps = np.flatnonzero(distance % window.stride == 0)
        count = -(-(window.size - start) // window.stride)
        offsets = distance[taps] // window.stride
        if taps.size:
            starts = np.zeros_like(taps)
            lattices.append(Axis(taps, offsets, 1, window.outputs, count, window.stride, start, starts))
    return lattices


LONE = Window(1, 1, 1, 0, 0)


def in_space(axes: tuple[Window, ...]) -> tuple[Window, Window, Window]:
    """Return planes, rows and columns. In three dimensions two neighbours that the window passes on unchanged become
    one, so that a window along the planes alone is one of rows."""
    planes, rows, columns = (*(LONE,) * (3 - len(axes)), *axes)
    if len(axes) == 3 and _passes_on(rows):
        if _passes_on(columns):
            return LONE, planes, _one(rows, columns)
        if _passes_on(planes):
            return LONE, _one(planes, rows), columns
    return planes, rows, columns


def _passes_on(axis: Window) -> bool:
    return axis.kernel == axis.stride == 1 and axis.before == axis.after == 0


def _one(outer: Window, inner: Window) -> Window:
    return Window(outer.size * inner.size, 1, 1, 0, 0)


def through_planes(depth: Axis, rows: Axis, taps: int, height: int) -> Iterator[Axis]:
    """Yield rows for every plane of targets that `depth` fills, with the taps of both; `taps` are rows of the window,
    `height` those of a plane of targets. If no tap has a plane, one tap without any source row stands for them."""
    for u in range(depth.count):
        planes, target = depth.step * u + depth.offsets, depth.target_step * u + depth.target_start
        inside = np.flatnonzero((planes >= 0) & (planes < depth.source))
        indices = inside if inside.size else np.zeros(1, np.int64)
        source = rows.source if inside.size else 0
        yield Axis(
            (depth.taps[indices, None] * taps + rows.taps).ravel(), np.tile(rows.offsets, indices.size), rows.step,
            source, rows.count, rows.target_step, rows.target_start + target * height,
            np.repeat(planes[indices] * rows.source, rows.taps.size),
        )  # fmt: skip


def lattice_strides(axes: tuple[Axis, Axis], strides: Strides) -> tuple[int, Strides]:
    """Return the first element and the strides of the outputs that one lattice fills."""
    rows, columns = axes
    start = rows.target_start * strides[2] + columns.target_start * strides[3]
    return start, (*strides[:2], strides[2] * rows.target_step, strides[3] * columns.target_step)


def image_strides(shape: Shape, layout: str, columns: int) -> Strides:
    """Return element strides (N, channel, row, column; K, C, R, S of weights) of a contiguous tensor with such
    columns."""
    outer = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    by_image, by_channel, *by_axis = in_order(tuple(outer), layout)
    return by_image, by_channel, columns * by_axis[rank_of(layout) - 1], by_axis[rank_of(layout) - 1]


def even_split(total: int, limit: int, multiple: int = 1) -> int:
    """Return the size of equal parts of at most `limit` (a multiple of `multiple` where more than one is needed)."""
    if total <= limit:
        return max(total, 1)
    part = -(-total // -(-total // limit))
    return -(-part // multiple) * multiple
