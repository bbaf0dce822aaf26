"""Average pooling and its gradient: an element of the result by one thread, in fp32 (fp64 for fp64), rounded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .address import whose
from .memory import Tensor, empty, launch, tensor
from .plan import grid_for
from .product import Padding, Pair, axes, shape_of
from .storage import Format, inline
from .target import cuda

Axis = tuple[int, int, int, int, int, int]
"""Size of the image, window, stride, padding before and after, windows."""


def _axis(size: int, window: int, stride: int, padding: Pair, ceil_mode: bool) -> Axis:
    """Raises ValueError where no window fits. In ceil mode none starts behind the image and its padding before."""
    before, after = padding
    room = size + before + after - window
    if room < 0:
        raise ValueError(f"a window of {window} does not fit into the padded image's {size + before + after}")
    last = min(-(-room // stride), (size + before - 1) // stride) if ceil_mode else room // stride
    return size, window, stride, before, after, last + 1


@inline
def _first(start: int, low: int) -> int:
    return start if start > low else low


@inline
def _end(stop: int, high: int) -> int:
    return stop if stop < high else high


@inline
def _counted(number: int, axis: Axis, padded: bool) -> int:
    """Positions of a window that count: those in the image, or in the padded image."""
    size, window, stride, before, after, _ = axis
    start, low, high = number * stride - before, -before if padded else 0, size + after if padded else size
    return _end(start + window, high) - _first(start, low)


@inline
def _pixels(number: int, axis: Axis) -> tuple[int, int]:
    """Pixels of the image that a window covers: first, and one past the last."""
    size, window, stride, before, _, _ = axis
    start = number * stride - before
    return _first(start, 0), _end(start + window, size)


@inline
def _windows(pixel: int, axis: Axis) -> tuple[int, int]:
    """Windows that cover a pixel: first, and one past the last."""
    _, window, stride, before, _, count = axis
    return _first((pixel + before - window + stride) // stride, 0), _end((pixel + before) // stride + 1, count)


@inline
def _divisor(row: int, column: int, rows: Axis, columns: Axis, padded: bool, fixed: int) -> int:
    return fixed if fixed else _counted(row, rows, padded) * _counted(column, columns, padded)


@cache
def _kernel(stored: Format, backward: bool) -> Any:
    """Sums over the pixels of a window, to be divided, or over the windows of a pixel, divided one by one."""
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
            channel, pixel = whose(element, channels, images * height * width, to[1] == 1)
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
    source: Tensor, size: Pair, both: tuple[Axis, Axis], divide: tuple[int, int], layout: str, backward: bool
) -> Any:
    images, channels, *_ = axes(source.shape, layout)
    out = empty(shape_of(images, channels, size, layout), source.dtype)
    steps = axes(out.strides, layout), axes(source.strides, layout)
    sizes = images, channels, *size
    launch(_kernel(source.format, backward), *grid_for(out.size), out, source, *both, sizes, *steps, divide)
    return out.array


def avg_pool_forward(
    x: Any, *, kernel_size: Pair, stride: Pair, padding: Padding, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None, layout: str,
) -> Any:  # fmt: skip
    """y, the sum over the window by the divisor."""
    image = tensor(x)
    size = axes(image.shape, layout)[2:]
    rows, columns = (_axis(size[i], kernel_size[i], stride[i], padding[i], ceil_mode) for i in (0, 1))
    divide = int(count_include_pad), divisor_override or 0
    return _run(image, (rows[5], columns[5]), (rows, columns), divide, layout, backward=False)


def avg_pool_backward(
    dy: Any, *, input_size: Pair, kernel_size: Pair, stride: Pair, padding: Padding, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None, layout: str,
) -> Any:  # fmt: skip
    """dx, to which each window gives its share of dy."""
    outputs = tensor(dy)
    rows, columns = (_axis(input_size[i], kernel_size[i], stride[i], padding[i], ceil_mode) for i in (0, 1))
    if axes(outputs.shape, layout)[2:] != (rows[5], columns[5]):
        raise ValueError(f"dy has {axes(outputs.shape, layout)[2:]} windows; expected {(rows[5], columns[5])}")
    divide = int(count_include_pad), divisor_override or 0
    return _run(outputs, input_size, (rows, columns), divide, layout, backward=True)
