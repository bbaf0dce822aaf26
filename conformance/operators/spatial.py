"""Windows on the two spatial axes: what convolution and pooling share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
"""((before, after) of the height, (before, after) of the width)."""
UNPADDED: Padding = ((0, 0), (0, 0))

BLOCK_ELEMENTS = 1 << 21
"""Elements of one block of gathered windows: 16 MiB of float64, so that a block stays near the caches and the
reference of a 67M-element layer needs little beyond its inputs and output."""


class GeometryError(ValueError):
    """A problem that no kernel could compute; the message names the field and what it must be."""


def require_windows(geometry: Any, **sizes: int) -> None:
    """Raises GeometryError for sizes below one (`sizes` beside those of image and window), negative padding, or a
    window larger than the padded image. A batch may have no images."""
    if geometry.n < 0:
        raise GeometryError(f"n is {geometry.n}; it must not be negative")
    positive = {name: getattr(geometry, name) for name in ("c", "h", "w", "r", "s")} | sizes
    for name, value in (positive | {"stride": min(geometry.stride), "dilation": min(geometry.dilation)}).items():
        if value < 1:
            raise GeometryError(f"{name} is {value}; it must be at least 1")
    (top, bottom), (left, right) = geometry.padding
    if min(top, bottom, left, right) < 0:
        raise GeometryError(f"padding is {geometry.padding}; it must not be negative")
    rows = ("h", geometry.dilation[0] * (geometry.r - 1) + 1, geometry.h + top + bottom)
    columns = ("w", geometry.dilation[1] * (geometry.s - 1) + 1, geometry.w + left + right)
    for name, extent, room in (rows, columns):
        if extent > room:
            raise GeometryError(
                f"the window spans {extent} on axis {name}, more than the padded image's {room}; "
                f"enlarge {name} or p, or shrink the window or its dilation"
            )


def taps_per_input(window: int, stride: int, dilation: int) -> int:
    """Most windows positions of one axis that touch the same input element, so that a gradient sums that many terms.

    Position h meets tap r where h + before - r*dilation is a multiple of the stride: one residue of r in every
    stride / gcd(stride, dilation).
    """
    return math.ceil(window / (stride // math.gcd(stride, dilation)))


def taps_of_padding(geometry: Any) -> bool:
    """Whether some element of the window meets padding alone, at all positions."""
    axes = ((geometry.h, geometry.r), (geometry.w, geometry.s))
    for (size, window), stride, dilation, (before, _), count in zip(
        axes, geometry.stride, geometry.dilation, geometry.padding, geometry.output_size, strict=True
    ):
        start = np.arange(window) * dilation - before
        first = np.maximum(0, -(start // stride))  # position at which the tap is in the image, or beyond
        if ((first >= count) | (start + first * stride >= size)).any():
            return True
    return False


def padded(image: np.ndarray, padding: Padding, dtype: np.dtype, fill: float = 0.0) -> np.ndarray:
    """`image[..., H, W]` in `dtype` with zeros (or `fill`) around it."""
    (top, bottom), (left, right) = padding
    *lead, height, width = image.shape
    out = np.full((*lead, top + height + bottom, left + width + right), fill, dtype)
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
