"""The plan of backward-weight for one problem: by rows, or by wgrad.py, and then the blocks, tiles and shares.

Sizes: BLOCK_PIXELS = 1024 contracted pixels pay for adding a tile to memory; BLOCK_TARGETS * 1024 * 4 bytes
of dy and BLOCK_LANES * 1024 * 4 of x together stay in a 2 MB second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from conformance.implementations.windows import Window, shape_of
from conformance.implementations.windows import axes as in_order
from conformance.layouts import in_rank

from . import rows, statistics, wgrad
from .blocks import tile_of
from .geometry import LONE, Array, Shape, Strides, even_split, image_strides, in_space
from .launch import run
from .packing import aligned
from .plan import G, record
from .row_kernels import ANY, OPEN, WHOLE, unrolled
from .storage import operand
from .vectors import lanes_of

NARROW_PAIRS = 8
BLOCK_PIXELS = 1024
BLOCK_COLUMNS = 128
BLOCK_TARGETS = 256
BLOCK_LANES = 128
# Costs of moving a vector, in products of vectors: of transposing it, and of adding one of a tile to dw.
TRANSPOSED, SCATTERED = 12, 20


@dataclass(frozen=True)
class Gradient:
    """Plan of one gradient. `partials` is 0 where tiles add to dw itself; `dense` is None if weights are too few for a
    tile."""

    shape: Shape
    filters: int
    empty: bool
    by_rows: Array
    dense: Array | None = None
    parts: int = 1
    partials: int = 0
    folded: bool = False
    scratch: int = 0
    work: int = 0

    def run(self, x: Array, dy: Array, dtype: np.dtype, workers: int) -> tuple[Array, Array]:
        dw, dbias = (np.zeros if self.empty else np.empty)(self.shape, dtype), np.zeros(self.filters, dtype)
        if self.empty:
            return dw, dbias
        x, dy = operand(x, dtype), operand(dy, dtype)
        if self.dense is not None:
            sums = np.zeros((self.parts, self.filters), dtype)
            if not self._meets_nan(dw, x, dy, sums, self.dense, workers):
                return dw, sums[0] if self.parts == 1 else sums.sum(axis=0)
        run(rows.correlate, dtype, workers, self.by_rows, self.by_rows, dw, x, dy, dbias)
        return dw, dbias

    def _meets_nan(self, dw: Array, x: Array, dy: Array, sums: Array, plan: Array, workers: int) -> bool:
        """Run the dense kernel; return whether padding met NaN or Inf in dy, or any other sum is NaN."""
        partials = (np.empty if self.folded else np.zeros)(self.partials, dw.dtype)
        work, scratch = np.empty(self.work, np.int64), aligned((1, self.scratch), dw.dtype, np.empty)
        work[0] = 0
        run(wgrad.multiply, dw.dtype, workers, plan, work, dw, x, dy, sums, partials, scratch)
        if self.partials:
            run(wgrad.finish, dw.dtype, workers, plan, work, dw, x, dy, sums, partials, scratch)
        return bool(work[0])


def _lanes(axes: tuple[Window, Window], channels: int, dw_strides: Strides) -> Array:
    """Return (channel, row offset, column offset) of every weight of one target, in the order of dw."""
    c, r, s = np.indices((channels, axes[0].kernel, axes[1].kernel)).reshape(3, -1)
    table = np.empty((c.size, 3), np.int64)
    table[c * dw_strides[1] + r * dw_strides[2] + s * dw_strides[3]] = np.stack(
        (c, r * axes[0].dilation - axes[0].before, s * axes[1].dilation - axes[1].before), axis=1
    )
    return table


def _lanes_are_weights(targets: int, channels: int, axes: tuple[Window, Window], pixels: int, lanes: int) -> bool:
    """Return whether lanes that are weights take less time than lanes that are channels, see wgrad.py."""
    taps, columns = axes[0].kernel * axes[1].kernel, axes[1].outputs
    if taps == 1:
        return True

    def products(vectors: int) -> int:
        rows, width = tile_of(targets, vectors)
        return -(-targets // rows) * rows * -(-vectors // width) * width * pixels

    folded, shifted = -(-channels * taps // lanes), -(-channels // lanes)
    packing = TRANSPOSED * pixels * -(-columns // lanes) * lanes / columns
    return products(folded) + folded * packing < (
        taps * products(shifted) + shifted * packing * axes[0].stride * axes[1].stride + SCATTERED * targets * folded
    )


@dataclass(frozen=True)
class Planes:
    """Pairs of a plane of x and one of dy that are multiplied for one plane of the window: their number in every image,
    the place of the first pair, and the distance between pairs."""

    images: int
    per_image: int
    x_at: int
    dy_at: int
    by_x: int
    by_dy: int


def _pairs(planes: Window, tap: int, images: int, by_x: int, by_dy: int) -> Planes:
    positions = np.arange(planes.outputs) * planes.stride + tap * planes.dilation - planes.before
    inside = np.flatnonzero((positions >= 0) & (positions < planes.size))
    first = inside[0] if inside.size else 0
    return Planes(images, inside.size, int(positions[first]) * by_x, int(first) * by_dy, planes.stride * by_x, by_dy)


@dataclass(frozen=True)
class Gradients:
    """One gradient for every plane of the window, without a bias, or the one of two dimensions, with it."""

    shape: Shape
    layout: str
    parts: tuple[tuple[Planes, Gradient], ...]
    flat: bool
    with_bias: bool

    def run(self, x: Array, dy: Array, dtype: np.dtype, workers: int) -> tuple[Array, Array]:
        if self.flat:
            dw, dbias = self.parts[0][1].run(x, dy, dtype, workers)
            return dw.reshape(self.shape), dbias
        dw, x, dy = np.empty(self.shape, dtype), operand(x, dtype), operand(dy, dtype)
        for tap, (planes, part) in enumerate(self.parts):
            of_tap, _ = part.run(x.reshape(-1)[planes.x_at :], dy.reshape(-1)[planes.dy_at :], dtype, workers)
            dw[(slice(None),) * self.layout.index("d") + (tap,)] = of_tap
        zeros = np.zeros(self.shape[0])
        sums = statistics.sums(dy, zeros, dy, zeros, self.layout)[0] if self.with_bias and dy.size else zeros
        return dw, sums.astype(dtype)


def plan(
    shape: Shape, layout: str, x_shape: Shape, dy_shape: Shape, groups: int, axes: tuple[Window, ...],
    with_bias: bool, dtype: np.dtype, workers: int,
) -> Gradients:  # fmt: skip
    planes, rows, columns = in_space(axes)
    x_strides = image_strides(x_shape, layout, columns.size)
    dy_strides = image_strides(dy_shape, layout, columns.outputs)
    _, channels, *_ = in_order(shape, layout)
    in_plane, flat, parts = in_rank(layout, 2), planes == LONE, []
    part = shape_of(shape[0], channels, (rows.kernel, columns.kernel), in_plane)
    for tap in range(planes.kernel):
        pairs = _pairs(planes, tap, x_shape[0], rows.size * x_strides[2], rows.outputs * dy_strides[2])
        planned = _plan(
            part, in_plane, x_strides, dy_strides, pairs, groups, (rows, columns), flat and with_bias, dtype, workers
        )
        parts.append((pairs, planned))
    return Gradients(shape, layout, tuple(parts), flat, with_bias)


def _plan(
    shape: Shape, layout: str, x_strides: Strides, dy_strides: Strides, planes: Planes, groups: int,
    axes: tuple[Window, Window], with_bias: bool, dtype: np.dtype, workers: int,
) -> Gradient:  # fmt: skip
    dw_strides = image_strides(shape, layout, axes[1].kernel)
    images, lanes = planes.images * planes.per_image, lanes_of(dtype)
    filters, channels, *_ = in_order(shape, layout)
    targets, step = filters // groups, axes[1].stride
    kind = step if x_strides[3] == dy_strides[3] == 1 and step <= 2 else ANY
    window = unrolled((axes[0].kernel, axes[1].kernel), kind)
    names = G._fields[: G.biased + 1]
    numbers = (
        images, groups, channels, targets, *dw_strides, *x_strides, *dy_strides,
        *(value for a in axes for value in (a.size, a.kernel, a.stride, a.before, a.dilation, a.outputs)), with_bias,
    )  # fmt: skip
    fields = dict(zip(names, numbers, strict=True)) | {
        "planes": max(1, planes.per_image),
        "x_d": planes.by_x,
        "dy_d": planes.by_dy,
        "row_kind": kind,
        "window": window if window in WHOLE else OPEN,
    }
    by_rows, empty = record(dict(fields), {}, G), not (images and prod(shape))
    if empty or channels * targets < NARROW_PAIRS:
        return Gradient(shape, filters, empty, by_rows)

    p_count, q_count, taps = axes[0].outputs, axes[1].outputs, axes[0].kernel * axes[1].kernel
    pixels = images * p_count * q_count
    folded = _lanes_are_weights(targets, channels, axes, pixels, lanes)
    weights = channels * taps if folded else channels
    rows_, vectors = tile_of(targets, -(-weights // lanes))
    width = vectors * lanes
    q = q_count if q_count <= BLOCK_COLUMNS * 3 // 2 else BLOCK_COLUMNS
    p = even_split(p_count, max(1, BLOCK_PIXELS // q))
    n = even_split(images, max(1, BLOCK_PIXELS // (p * q))) if folded and p == p_count and q == q_count else 1
    k = even_split(targets, BLOCK_TARGETS, rows_)
    c = even_split(weights, BLOCK_LANES, width)
    blocks = -(-images // n) * -(-p_count // p) * -(-q_count // q)
    tiles = groups * -(-targets // k) * -(-weights // c)
    parts = 1 if tiles >= 4 * workers else min(blocks, workers // gcd(workers, tiles))
    source = n * p * q if folded else prod(  # pixels of the largest input rectangle that a block of outputs reads
        min(axis.size, (count - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1)
        for axis, count in zip(axes, (p, q), strict=True)
    )  # fmt: skip
    a_size, b_size = (
        -(-size // unit) * unit * count for size, unit, count in ((k, rows_, n * p * q), (c, width, source))
    )
    a_size = -(-a_size // lanes) * lanes
    panels_k, panels_c = -(-targets // rows_), -(-channels // width)
    part_size = prod(shape) if folded else groups * panels_k * panels_c * taps * rows_ * width
    scratch, work = a_size + b_size + rows_ * width, 3 * lanes
    columns = np.arange(q)[:, None] * (rows_, width if folded else width * step)
    pointwise = taps == 1 and all(axis.stride == 1 and axis.before == 0 and axis.outputs == axis.size for axis in axes)
    fields |= {
        "folded": folded and (wgrad.POINTWISE if pointwise else wgrad.WINDOWED), "block_n": n, "parts": parts,
        "block_p": p, "block_q": q, "block_k": k, "block_c": c, "tile_rows": rows_, "tile_vectors": vectors,
        "b_at": a_size, "tile_at": a_size + b_size, "scratch_size": scratch, "work_size": work,
        "part_size": part_size, "units": 4 * workers if folded else groups * panels_k,
    }  # fmt: skip
    tables = {
        "columns_at": columns, "vectors_at": np.arange(vectors) * lanes,
        "lanes_at": _lanes(axes, channels, dw_strides) if folded else np.empty(0),
    }  # fmt: skip
    partials = 0 if folded and parts == 1 else parts * part_size
    return Gradient(
        shape, filters, False, by_rows, record(fields, tables, G), parts, partials, folded, workers * scratch,
        wgrad.STATUS + workers * work,
    )  # fmt: skip
