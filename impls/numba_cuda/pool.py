"""Average pooling and its gradient: each thread computes one element of the result in fp32 (fp64 for fp64), rounded
once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from conformance.implementations.windows import Extents, Padding, axes, shape_of, windows

from .address import owner
from .memory import Tensor, empty, launch, tensor
from .plan import grid_for
from .product import with_row
from .storage import Format, inline
from .target import cuda

Axis = tuple[int, int, int, int, int, int]
"""Size of the image, window, stride, padding before and after, windows."""


@inline
def _first(start: int, low: int) -> int:
    return start if start > low else low


@inline
def _end(stop: int, high: int) -> int:
    return stop if stop < high else high


@inline
def _counted(number: int, axis: Axis, padded: bool) -> int:
    """Count the positions of a window that are averaged: those in the image, or in the padded image."""
    size, window, stride, before, after, _ = axis
    start, low, high = number * stride - before, -before if padded else 0, size + after if padded else size
    return _end(start + window, high) - _first(start, low)


@inline
def _pixels(number: int, axis: Axis) -> tuple[int, int]:
    """Return the pixels of the image that a window covers: first, and one past the last."""
    size, window, stride, before, _, _ = axis
    start = number * stride - before
    return _first(start, 0), _end(start + window, size)


@inline
def _windows(pixel: int, axis: Axis) -> tuple[int, int]:
    """Return the windows that cover a pixel: first, and one past the last."""
    _, window, stride, before, _, count = axis
    return _first((pixel + before - window + stride) // stride, 0), _end((pixel + before) // stride + 1, count)


@inline
def _divisor(row: int, column: int, rows: Axis, columns: Axis, padded: bool, fixed: int) -> int:
    return fixed if fixed else _counted(row, rows, padded) * _counted(column, columns, padded)


@cache
def _kernel(stored: Format, backward: bool) -> Any:
    """Return the kernel that sums over the pixels of a window and divides, or over the windows of a pixel, each
    divided."""
    widen, narrow, wide = stored.widen, stored.narrow, stored.wide
    sources: Callable[..., Any] = _windows if backward else _pixels

    @cuda.jit
    def pool(
        out: Any, source: Any, rows: Axis, columns: Axis, sizes: tuple[int, ...], to: tuple[int, ...],
        by: tuple[int, ...], divide: tuple[int, int],
    ) -> None:  # fmt: skip
        images, channels, height, width = sizes
        padded, fixed = divide
        for element in range(cuda.grid(1), images * channels * height * width, cuda.gridsize(1)):
            channel, pixel = owner(element, channels, images * height * width, to[1] == 1)
            n, i, j = pixel // width // height, pixel // width % height, pixel % width
            i_first, i_end = sources(i, rows)
            j_first, j_end = sources(j, columns)
            total = wide(0)
            for k in range(i_first, i_end):
                for m in range(j_first, j_end):
                    value = widen(source[n * by[0] + channel * by[1] + k * by[2] + m * by[3]])
                    if backward:
                        value /= wide(_divisor(k, m, rows, columns, padded, fixed))
                    total += value
            if not backward:
                total /= wide(_divisor(i, j, rows, columns, padded, fixed))
            out[n * to[0] + channel * to[1] + i * to[2] + j * to[3]] = narrow(total)

    return pool


def _run(
    source: Tensor, input_size: Extents, backward: bool, kernel_size: Extents, stride: Extents, padding: Padding,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    images, channels, *extents = axes(source.shape, source.layout)
    window = windows(input_size, kernel_size, stride, padding, ceil=ceil_mode)
    outputs = tuple(axis.outputs for axis in window)
    if backward and tuple(extents) != outputs:
        raise ValueError(f"dy has {tuple(extents)} windows; expected {outputs}")
    size = input_size if backward else outputs
    out = empty(shape_of(images, channels, size, source.layout), source.dtype, source.layout)
    rows, columns = ((a.size, a.kernel, a.stride, a.before, a.after, a.outputs) for a in with_row(window))
    sizes, divide = out.sizes, (int(count_include_pad), divisor_override or 0)
    kernel = _kernel(source.format, backward)
    launch(kernel, *grid_for(out.size), out, source, rows, columns, sizes, out.steps, source.steps, divide)
    return out.array


def avg_pool_forward(
    x: Any, *, kernel_size: Extents, stride: Extents, padding: Padding, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None, layout: str,
) -> Any:  # fmt: skip
    image = tensor(x, layout)
    divided = ceil_mode, count_include_pad, divisor_override
    return _run(image, axes(image.shape, layout)[2:], False, kernel_size, stride, padding, *divided)


def avg_pool_backward(
    dy: Any, *, input_size: Extents, kernel_size: Extents, stride: Extents, padding: Padding,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None, layout: str,
) -> Any:  # fmt: skip
    """Return dx, to which each window gives its share of dy."""
    divided = ceil_mode, count_include_pad, divisor_override
    return _run(tensor(dy, layout), input_size, True, kernel_size, stride, padding, *divided)
