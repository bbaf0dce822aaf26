"""Average pooling: computes windows and divisors, plans tiles, calls the kernel. Sums are fp32."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from conformance import Unsupported

from .host_axes import Axis, Padding, Pair, Window
from .host_conv import matching, tensors

Axes = tuple[Axis, Axis]

SBUF = 96 << 10
"""Bytes a partition for the tiles of one step; those of the step before are still allocated when it begins."""
PARTITION = 176 << 10
"""Bytes of SBUF that a partition has on gen2, for a window in fp32."""


def _fits(kernel: Pair) -> None:
    """Raise Unsupported for windows that do not fit in SBUF whole: there is no kernel that sums them in parts."""
    if 4 * kernel[0] * kernel[1] > PARTITION:
        raise Unsupported(f"windows of {kernel[0]} x {kernel[1]} in fp32 exceed the {PARTITION} bytes of a partition")


def _window(size: int, kernel: int, stride: int, padding: Pair, ceil_mode: bool) -> Window:
    """Return one axis, padded until all windows lie within. In ceil mode the last one may overhang, unless it starts
    behind the image and the padding before it. Raises ValueError where no window fits."""
    before, after = padding
    room = size + before + after - kernel
    if room < 0:
        raise ValueError(f"a window of {kernel} does not fit into {size} rows or columns with padding {padding}")
    overhang = -room % stride if ceil_mode else 0
    last = room + overhang
    within = last < size + before
    return Window(size, kernel, stride, before, after + (overhang if within else 0), 1)


def _counted(window: Window, padding: Pair, with_padding: bool) -> np.ndarray:
    """Count the positions of each window that lie in the image, or in the image and its padding."""
    starts = np.arange(window.outputs) * window.stride - window.before
    low, high = (-padding[0], window.size + padding[1]) if with_padding else (0, window.size)
    return np.minimum(starts + window.kernel, high) - np.maximum(starts, low)


def _reciprocals(counts: list[np.ndarray], override: int | None) -> tuple[list[np.ndarray | None], float]:
    """Return reciprocals of rows' and columns' counts where the divisor varies, else the reciprocal of all windows."""
    if override is None and any(np.ptp(count) for count in counts):
        return [(1 / count).astype(np.float32) for count in counts], 1.0
    return [None, None], 1 / (override or int(counts[0][0] * counts[1][0]))


def _lattice(axis: Axis) -> tuple[Any, ...]:
    """Return an axis as the kernel takes it: taps are adjacent rows, the lowest first."""
    residues = tuple((residue.target, residue.ends[0], residue.taps) for residue in axis.residues)
    return axis.step, axis.low, axis.high, axis.spacing, axis.size, residues


def _tile(axes: Axes) -> Pair:
    """Return row and column positions whose window, sums and result fit, counted in fp32."""
    rows, columns = axes[0].positions, axes[1].positions
    while rows * columns > 1 and _bytes(axes, rows, columns) > SBUF:
        if rows > 1:
            rows = -(-rows // 2)
        else:
            columns = -(-columns // 2)
    return rows, columns


def _bytes(axes: Axes, rows: int, columns: int) -> int:
    high, wide = axes[0].rows(rows), axes[1].rows(columns)
    below, beside = rows * axes[0].spacing, columns * axes[1].spacing
    return 4 * (2 * high * wide + high * beside + 2 * below * beside + below + beside + high + wide)


class Pooling:
    """x[N, C, H, W], y[N, C, P, Q]; parameters as everywhere in the suite."""

    def __init__(self, load: Callable[[str], ModuleType]):
        self.load = load

    def avg_pool_forward(
        self, x: Any, *, kernel_size: Pair, stride: Pair, padding: Padding, ceil_mode: bool, count_include_pad: bool,
        divisor_override: int | None,
    ) -> np.ndarray:  # fmt: skip
        """Return y, the sum over the window by the divisor."""
        _fits(kernel_size)
        (images,) = tensors(x)
        windows = [_window(images.shape[2 + i], kernel_size[i], stride[i], padding[i], ceil_mode) for i in (0, 1)]
        counts = [_counted(windows[i], padding[i], count_include_pad) for i in (0, 1)]
        axes = windows[0].forward(dense=True), windows[1].forward(dense=True)
        return self._averages(images, counts, divisor_override, axes, backward=False)

    def avg_pool_backward(
        self, dy: Any, *, input_size: Pair, kernel_size: Pair, stride: Pair, padding: Padding, ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None,
    ) -> np.ndarray:  # fmt: skip
        """Return dx: every input pixel gathers its shares from the outputs whose window holds it."""
        _fits(kernel_size)
        (outputs,) = tensors(dy)
        windows = [_window(input_size[i], kernel_size[i], stride[i], padding[i], ceil_mode) for i in (0, 1)]
        for name, size, window in zip(("rows", "columns"), outputs.shape[2:], windows, strict=True):
            matching(f"{name} of dy", size, window.outputs)
        counts = [_counted(windows[i], padding[i], count_include_pad) for i in (0, 1)]
        axes = windows[0].backward, windows[1].backward
        return self._averages(outputs, counts, divisor_override, axes, backward=True)

    def _averages(
        self, source: np.ndarray, counts: list[np.ndarray], override: int | None, axes: Axes, backward: bool
    ) -> np.ndarray:
        vectors, scale = _reciprocals(counts, override)
        varying = vectors[0] is not None
        shape = (*source.shape[:2], axes[0].size, axes[1].size)
        if not len(source):
            return np.zeros(shape, source.dtype)
        lattices = _lattice(axes[0]), _lattice(axes[1])
        return self.load("avg_pool").pool(source, *vectors, varying, scale, backward, shape, lattices, _tile(axes))
