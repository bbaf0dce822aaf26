"""What poolings share: where their windows lie, and how results are put back where they came from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.operators.spatial import cropped, padded, taps_per_input


def taps(g: Any) -> Iterator[tuple[slice, slice]]:
    """For every position of the window: the rows and columns of the image inside `overhang` that it meets."""
    (p, q), (u, v), (d, e) = g.output_size, g.stride, g.dilation
    for r, s in np.ndindex(g.r, g.s):
        yield slice(r * d, r * d + (p - 1) * u + 1, u), slice(s * e, s * e + (q - 1) * v + 1, v)


def covered(g: Any) -> Iterator[tuple[int, int, slice, slice]]:
    """For every window: its place in the output, and the rows and columns of the image inside `overhang` that it
    covers."""
    (u, v), (d, e) = g.stride, g.dilation
    for p, q in np.ndindex(*g.output_size):
        yield p, q, slice(p * u, p * u + d * (g.r - 1) + 1, d), slice(q * v, q * v + e * (g.s - 1) + 1, e)


def few_windows(g: Any) -> bool:
    """Whether going through windows is faster than through `taps`."""
    few: bool = math.prod(g.output_size) < g.r * g.s
    return few


def most_windows(g: Any) -> int:
    """Most windows that hold one element."""
    rows = taps_per_input(g.r, g.stride[0], g.dilation[0])
    return rows * taps_per_input(g.s, g.stride[1], g.dilation[1])


def scattered(g: Any, values: np.ndarray, places: Any = None, put: Any = np.add) -> np.ndarray:
    """Every window's value at these positions of it (all), `put` together where windows overlap: dx[N, C, H, W]."""
    image = padded(np.zeros(g.x.shape, values.dtype), g.overhang, values.dtype)
    if places is None and few_windows(g):
        for p, q, rows, columns in covered(g):
            image[..., rows, columns] += values[..., p, q, None, None]
    else:
        for rows, columns in taps(g) if places is None else places:
            image[..., rows, columns] = put(image[..., rows, columns], values)
    return np.ascontiguousarray(cropped(image, g.overhang, (g.h, g.w)))
