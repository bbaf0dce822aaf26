"""Windows on the two spatial axes: what convolution and pooling share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
"""((before, after) of the height, (before, after) of the width)."""

BLOCK_ELEMENTS = 1 << 21
"""Elements of one block of gathered windows: 16 MiB of float64, so that a block stays near the caches and the
reference of a 67M-element layer needs little beyond its inputs and output."""


class GeometryError(ValueError):
    """A problem that no kernel could compute; the message names the field and what it must be."""


def require_positive(values: Mapping[str, int]) -> None:
    """Raises GeometryError that names the first value below one."""
    for name, value in values.items():
        if value < 1:
            raise GeometryError(f"{name} is {value}; it must be at least 1")


def require_padding(padding: Padding) -> None:
    """Raises GeometryError for a negative padding."""
    if min(*padding[0], *padding[1]) < 0:
        raise GeometryError(f"padding is {padding}; it must not be negative")


def require_window_fits(size: Pair, window: Pair, padding: Padding, dilation: Pair) -> None:
    """Raises GeometryError for a window that is larger than the padded image."""
    for axis, name in enumerate("hw"):
        extent, room = dilation[axis] * (window[axis] - 1) + 1, size[axis] + sum(padding[axis])
        if extent > room:
            raise GeometryError(
                f"the window spans {extent} on axis {name}, more than the padded image's {room}; "
                f"enlarge {name} or p, or shrink the window or its dilation"
            )


def output_extent(size: int, window: int, stride: int, padding: Pair, dilation: int) -> int:
    """Windows that fit on one axis: floor((size + before + after - dilation*(window-1) - 1) / stride) + 1."""
    return (size + sum(padding) - dilation * (window - 1) - 1) // stride + 1


def taps_per_input(window: int, stride: int, dilation: int) -> int:
    """Most windows positions of one axis that touch the same input element, so that a gradient sums that many terms.

    Position h meets tap r where h + before - r*dilation is a multiple of the stride: one residue of r in every
    stride / gcd(stride, dilation).
    """
    return math.ceil(window / (stride // math.gcd(stride, dilation)))


def padded(image: np.ndarray, padding: Padding, dtype: np.dtype) -> np.ndarray:
    """`image[..., H, W]` in `dtype` with zeros around it."""
    (top, bottom), (left, right) = padding
    *lead, height, width = image.shape
    out = np.zeros((*lead, top + height + bottom, left + width + right), dtype)
    out[..., top : top + height, left : left + width] = image
    return out


def cropped(image: np.ndarray, padding: Padding, size: Pair) -> np.ndarray:
    """The inverse of `padded`: the view of `image` without its border."""
    (top, _), (left, _) = padding
    return image[..., top : top + size[0], left : left + size[1]]


def windows(image: np.ndarray, window: Pair, stride: Pair, dilation: Pair, output: Pair) -> np.ndarray:
    """View [..., R, S, P, Q] of a padded `image[..., H, W]`: element (r, s, p, q) is image[p*u + r*d, q*v + s*e]."""
    *lead, row, column = image.strides
    shape = (*image.shape[:-2], *window, *output)
    strides = (*lead, row * dilation[0], column * dilation[1], row * stride[0], column * stride[1])
    return np.lib.stride_tricks.as_strided(image, shape, strides, writeable=False)


def row_blocks(rows: int, elements_per_row: int) -> Iterator[slice]:
    """Slices that cover `rows`, each of at most about `BLOCK_ELEMENTS` elements."""
    step = max(1, BLOCK_ELEMENTS // max(1, elements_per_row))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
