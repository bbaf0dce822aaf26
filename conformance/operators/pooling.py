"""What poolings share: where their windows lie, and how results are put back where they came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.operators.spatial import cropped, padded, taps_per_input


def taps(g: Any) -> Iterator[tuple[slice, slice]]:
    """For every position of the window: the rows and columns of the image inside `overhang` that it meets."""
    (p, q), (u, v), (d, e) = g.output_size, g.stride, g.dilation
    for r, s in np.ndindex(g.r, g.s):
        yield slice(r * d, r * d + (p - 1) * u + 1, u), slice(s * e, s * e + (q - 1) * v + 1, v)


def most_windows(g: Any) -> int:
    """Most windows that hold one element."""
    rows = taps_per_input(g.r, g.stride[0], g.dilation[0])
    return rows * taps_per_input(g.s, g.stride[1], g.dilation[1])


def scattered(g: Any, values: np.ndarray, places: Any, put: Any = np.add) -> np.ndarray:
    """Every window's value at these positions of it, `put` together where windows overlap: dx[N, C, H, W]."""
    image = padded(np.zeros(g.x.shape, values.dtype), g.overhang, values.dtype)
    for rows, columns in places:
        image[..., rows, columns] = put(image[..., rows, columns], values)
    return np.ascontiguousarray(cropped(image, g.overhang, (g.h, g.w)))
