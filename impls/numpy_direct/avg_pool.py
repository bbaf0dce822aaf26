"""Average pooling and its gradient: one addition per tap, then one division."""

from __future__ import annotations

import numpy as np

from .declared import direct, small_pool
from .windows import accumulator, cropped, empty_image, padded, require_fit, taps


def _output_extent(size, window, stride, pad, ceil_mode):
    """Count windows of an axis. In ceil mode one may overhang, unless it starts behind image and padding before."""
    room = size + sum(pad) - window
    if not ceil_mode:
        return room // stride + 1
    extent = -(-room // stride) + 1
    return extent - 1 if (extent - 1) * stride >= size + pad[0] else extent


def _output_size(size, kernel_size, stride, padding, ceil_mode):
    require_fit(size, kernel_size, padding, (1,) * len(size))
    axes = zip(size, kernel_size, stride, padding, strict=True)
    return tuple(_output_extent(*axis, ceil_mode) for axis in axes)


def _overhang(size, kernel_size, stride, padding, output_size):
    """Return the padding after the padded image, so that every window lies within."""
    axes = zip(size, kernel_size, stride, padding, output_size, strict=True)
    return [(0, max(0, (count - 1) * u + window - extent - sum(pad))) for extent, window, u, pad, count in axes]


def _window_sums(image, kernel_size, stride, output_size):
    sums = np.zeros((*image.shape[: -len(output_size)], *output_size), image.dtype)
    for _, seen in taps(kernel_size, stride, (1,) * len(stride), output_size):
        sums += image[seen]
    return sums


def _divisor(size, kernel_size, stride, padding, overhang, output_size, count_include_pad):
    """Count the positions of each window that are averaged, in the output's size, as the sum over an image of ones."""
    ones = np.ones(size)
    counted = np.pad(ones, padding, constant_values=1.0 if count_include_pad else 0.0)
    return _window_sums(np.pad(counted, overhang), kernel_size, stride, output_size)


@direct("avg_pool_forward", when=small_pool)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    """Return y, the sum over the window by the divisor."""
    size = x.shape[2:]
    count = _output_size(size, kernel_size, stride, padding, ceil_mode)
    overhang = _overhang(size, kernel_size, stride, padding, count)
    image = padded(padded(x.astype(accumulator(x)), padding), overhang)
    y = _window_sums(image, kernel_size, stride, count)
    divisor = divisor_override or _divisor(size, kernel_size, stride, padding, overhang, count, count_include_pad)
    return (y / np.asarray(divisor, y.dtype)).astype(x.dtype)


@direct("avg_pool_backward", when=small_pool)
def avg_pool_backward(dy, *, input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    """Return dx: each window gives every element its share of dy; shares that fall on padding are dropped."""
    count = _output_size(input_size, kernel_size, stride, padding, ceil_mode)
    overhang = _overhang(input_size, kernel_size, stride, padding, count)
    divisor = divisor_override or _divisor(input_size, kernel_size, stride, padding, overhang, count, count_include_pad)
    wide = accumulator(dy)
    shares = dy.astype(wide) / np.asarray(divisor, wide)
    reach = [(before, after + over) for (before, after), (_, over) in zip(padding, overhang, strict=True)]
    image = empty_image(dy.shape[:2], input_size, reach, wide)
    for _, seen in taps(kernel_size, stride, (1,) * len(stride), count):
        image[seen] += shares
    return cropped(image, reach, input_size).astype(dy.dtype)
