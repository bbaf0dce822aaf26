"""Convolution and its two gradients on the CPU: a problem is planned once, a call fills in the tensors.

Layouts: "nchw" is x[N, C, H, W], w[K, C/g, R, S], y[N, K, P, Q]; "nhwc" is x[N, H, W, C], w[K, R, S, C/g],
y[N, P, Q, K]; and those of one and of three dimensions.  Half-precision inputs are widened exactly to float32 and each
result is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numba import get_num_threads

from conformance.implementations.windows import Extents, Padding, shape_of, sizes, windows

from . import gather, gradient, rows
from .blocks import Dense, dense_plan
from .geometry import (
    Array,
    Axis,
    Problem,
    Shape,
    backward_axes,
    forward_axis,
    image_strides,
    in_space,
    require_same,
    through_planes,
)
from .launch import run
from .packing import aligned
from .plan import Lattice, joined, record
from .row_kernels import ANY, MOST_VECTORS, OPEN, unrolled
from .storage import compute_dtype, converted, operand, widened
from .vectors import lanes_of

NARROW_TARGETS = 3
PLANS = 128
DEEP = 1 << 10
"""Planes of an image beyond which its depth takes the place of its height: a plan lists every plane, and took four
seconds for 70,001."""


def is_deep(array: Array, layout: str) -> bool:
    """Return whether an image has more planes than a plan should list, and fewer rows."""
    depth = layout.find("d")
    return depth > 0 and array.shape[depth] > max(DEEP, array.shape[depth + 1])


def turned(array: Array | None, layout: str) -> Array | None:
    """Return the array with depth and height exchanged."""
    depth = layout.index("d")
    return None if array is None else np.ascontiguousarray(array.swapaxes(depth, depth + 1))


def exchanged(depth: Any, height: Any, width: Any) -> tuple[Any, Any, Any]:
    """Exchange the sizes, strides, dilations or padding of depth and height."""
    return height, depth, width


@dataclass(frozen=True)
class Gathering:
    """Plan of forward or backward-data of one problem; `dense` is None for groups that fill no register tile."""

    shape: Shape
    channels: int
    covered: bool
    by_rows: Array
    dense: Dense | None

    def run(self, src: Array, w: Array, bias: Array | None, dtype: np.dtype, workers: int) -> Array:
        out = (np.empty if self.covered else np.zeros)(self.shape, dtype)
        if not out.size:
            return out
        src, w = operand(src, dtype), operand(w, dtype)
        bias = np.zeros(self.channels, dtype) if bias is None else operand(bias, dtype)
        require_same("size of bias", bias.shape, (self.channels,))
        if self.dense is None or self._meets_nan(out, src, w, bias, self.dense, workers):
            scratch = aligned((workers, MOST_VECTORS * lanes_of(dtype)), dtype, np.empty)
            run(rows.gather, dtype, workers, self.by_rows, self.by_rows, out, src, w, bias, scratch)
        return out

    def _meets_nan(self, out: Array, src: Array, w: Array, bias: Array, dense: Dense, workers: int) -> bool:
        """Run the dense kernel; return whether padding met NaN or Inf in the weights, or any other sum is NaN."""
        panels, scratch = np.empty(dense.panels, out.dtype), aligned((1, dense.scratch), out.dtype, np.empty)
        work = np.empty(dense.work, np.int64)
        work[0] = 0
        if dense.panels:
            run(gather.pack, out.dtype, workers, dense.packing, work, out, src, w, bias, panels, scratch)
        run(gather.multiply, out.dtype, workers, dense.plan, work, out, src, w, bias, panels, scratch)
        return dense.pads and bool(work[0])


def _gathering(
    shape: Shape, out_strides: Shape, src_strides: Shape, w_strides: Shape, w_group: int, problem: Problem,
    parts: list[tuple[Axis, Axis]], covered: bool, dtype: np.dtype, workers: int,
) -> Gathering:  # fmt: skip
    lattices = [Lattice(axes, problem, out_strides, src_strides, w_strides, w_group) for axes in parts]
    planes = problem[0] * problem[1] * problem[3]
    records: list[Array] = []
    if not planes:
        return Gathering(shape, 0, True, joined(records), None)
    for lattice in lattices:
        step, taps = lattice.axes[1].step, (lattice.axes[0].taps.size, lattice.axes[1].taps.size)
        in_one_plane = not np.ptp(lattice.axes[0].starts)
        kind = step if src_strides[3] == 1 and step <= 2 else ANY
        fields = lattice.fields() | {
            "row_taps": lattice.axes[0].taps.size, "column_taps": lattice.axes[1].taps.size,
            "row_kind": kind, "window": unrolled(taps, kind) if problem[2] == 1 and in_one_plane else OPEN,
            "bands": min(lattice.axes[0].count, -(-rows.UNITS_PER_WORKER * workers // planes)),
        }  # fmt: skip
        records.append(record(fields, lattice.tables()))
    dense = None if problem[3] < NARROW_TARGETS else dense_plan(lattices, dtype, workers)
    return Gathering(shape, problem[1] * problem[3], covered, joined(records), dense)


@lru_cache(PLANS)
def _forward(
    x_shape: Shape, w_shape: Shape, stride: Extents, padding: Padding, dilation: Extents, groups: int, layout: str,
    dtype: np.dtype, workers: int,
) -> Gathering:  # fmt: skip
    n, c, size = sizes(x_shape, layout)
    k, per_group, kernel = sizes(w_shape, layout)
    require_same("channels of x", (c,), (per_group * groups,))
    axes = windows(size, kernel, stride, padding, dilation)
    planes, rows, columns = in_space(axes)
    shape = shape_of(n, k, tuple(axis.outputs for axis in axes), layout)
    w_strides = image_strides(w_shape, layout, columns.kernel)
    lines = through_planes(forward_axis(planes), forward_axis(rows), rows.kernel, rows.outputs)
    return _gathering(
        shape, image_strides(shape, layout, columns.outputs), image_strides(x_shape, layout, columns.size), w_strides,
        k // groups * w_strides[0], (n, groups, c // groups, k // groups),
        [(line, forward_axis(columns)) for line in lines], True, dtype, workers,
    )  # fmt: skip


@lru_cache(PLANS)
def _backward(
    dy_shape: Shape, w_shape: Shape, input_size: Extents, stride: Extents, padding: Padding, dilation: Extents,
    groups: int, layout: str, dtype: np.dtype, workers: int,
) -> Gathering:  # fmt: skip
    n, k, outputs = sizes(dy_shape, layout)
    filters, c, kernel = sizes(w_shape, layout)
    axes = windows(input_size, kernel, stride, padding, dilation)
    require_same("channels and size of dy", (k, *outputs), (filters, *(axis.outputs for axis in axes)))
    planes, rows, columns = in_space(axes)
    shape = shape_of(n, c * groups, input_size, layout)
    by_k, by_c, by_r, by_s = image_strides(w_shape, layout, columns.kernel)
    parts = [
        (line, of_columns)
        for of_planes, of_rows in product(backward_axes(planes), backward_axes(rows))
        for line in through_planes(of_planes, of_rows, rows.kernel, rows.size)
        for of_columns in backward_axes(columns)
    ]
    covered = sum(line.count * of_columns.count for line, of_columns in parts) == prod(input_size)
    return _gathering(
        shape, image_strides(shape, layout, columns.size), image_strides(dy_shape, layout, columns.outputs),
        (by_c, by_k, by_r, by_s), k // groups * by_k, (n, groups, k // groups, c), parts, covered, dtype, workers,
    )  # fmt: skip


def conv_forward(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, *, stride: Extents, padding: Padding, dilation: Extents,
    groups: int, layout: str, into: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Return y = x cross-correlated with w, plus bias[K], plus the array `into`."""
    if is_deep(x, layout):
        y = conv_forward(
            turned(x, layout), turned(w, layout), bias, stride=exchanged(*stride), padding=exchanged(*padding),
            dilation=exchanged(*dilation), groups=groups, layout=layout, into=turned(into, layout),
        )  # fmt: skip
        return turned(y, layout)
    dtype, workers = compute_dtype(x.dtype), get_num_threads()
    plan = _forward(x.shape, w.shape, stride, padding, dilation, groups, layout, dtype, workers)
    return added(plan.run(x, w, bias, dtype, workers), into, x.dtype)


def added(sums: np.ndarray, into: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """Return the sums plus the array `into`, rounded once."""
    if into is not None:
        sums += widened(into)
    return converted(sums, dtype)


def conv_backward_data(
    dy: np.ndarray, w: np.ndarray, *, input_size: Extents, stride: Extents, padding: Padding,
    dilation: Extents, groups: int, layout: str, into: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Return dx: every input pixel gathers from the outputs whose window covers it; plus the array `into`."""
    if is_deep(dy, layout):
        dx = conv_backward_data(
            turned(dy, layout), turned(w, layout), input_size=exchanged(*input_size), stride=exchanged(*stride),
            padding=exchanged(*padding), dilation=exchanged(*dilation), groups=groups, layout=layout,
            into=turned(into, layout),
        )  # fmt: skip
        return turned(dx, layout)
    dtype, workers = compute_dtype(dy.dtype), get_num_threads()
    plan = _backward(dy.shape, w.shape, input_size, stride, padding, dilation, groups, layout, dtype, workers)
    return added(plan.run(dy, w, None, dtype, workers), into, dy.dtype)


@lru_cache(PLANS)
def _gradient(
    x_shape: Shape, dy_shape: Shape, kernel: Extents, with_bias: bool, stride: Extents, padding: Padding,
    dilation: Extents, groups: int, layout: str, dtype: np.dtype, workers: int,
) -> gradient.Gradients:  # fmt: skip
    n, c, size = sizes(x_shape, layout)
    images, k, outputs = sizes(dy_shape, layout)
    shape = shape_of(k, c // groups, kernel, layout)
    axes = windows(size, kernel, stride, padding, dilation)
    require_same("images and size of dy", (images, *outputs), (n, *(axis.outputs for axis in axes)))
    return gradient.plan(shape, layout, x_shape, dy_shape, groups, axes, with_bias, dtype, workers)


def conv_backward_weight(
    x: np.ndarray, dy: np.ndarray, *, kernel_size: Extents, with_bias: bool, stride: Extents, padding: Padding,
    dilation: Extents, groups: int, layout: str,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return dw, or (dw, dbias): sums over all images and output pixels."""
    dtype, workers = compute_dtype(x.dtype), get_num_threads()
    plan = _gradient(
        x.shape, dy.shape, kernel_size, with_bias, stride, padding, dilation, groups, layout, dtype, workers
    )
    dw, dbias = (converted(array, x.dtype) for array in plan.run(x, dy, dtype, workers))
    return (dw, dbias) if with_bias else dw
