"""Functions that poolings share: positions of windows, sums over windows, and scattering of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.operators.spatial import Index, cropped, padded, taps


def covered(g: Any) -> Iterator[tuple[Index, Index]]:
    """Yield for every window the index of its place in the output, and of its elements in the image with `overhang`."""
    axes = [*zip(g.stride, g.dilation, g.window, strict=True)]
    for place in np.ndindex(*g.output_size):
        windows = zip(place, axes, strict=True)
        yield (..., *place), (..., *(slice(p * u, p * u + d * (count - 1) + 1, d) for p, (u, d, count) in windows))


def few_windows(g: Any) -> bool:
    """Tell whether a loop over windows is shorter than a loop over `taps`."""
    return math.prod(g.output_size) < math.prod(g.window)


def window_sums(g: Any, image: np.ndarray, places: Any = None) -> np.ndarray:
    """Sum every window of an image with `overhang` over positions of the window (`places`, by default all):
    y[N, C, P, Q]."""
    y = np.zeros(g.y.shape, image.dtype)
    if places is None and few_windows(g):
        for place, elements in covered(g):
            y[place] = image[elements].sum(axis=tuple(range(-g.rank, 0)))
        return y
    for elements in taps(g) if places is None else places:
        y += image[elements]
    return y


def scattered(g: Any, values: np.ndarray, places: Any = None, put: Any = np.add) -> np.ndarray:
    """Add every window's value (or `put` it) at positions of the window (`places`, by default all): dx[N, C, H, W]."""
    image = padded(np.zeros(g.x.shape, values.dtype), g.overhang, values.dtype)
    if places is None and few_windows(g):
        for place, elements in covered(g):
            image[elements] += values[place][(..., *(None,) * g.rank)]
    else:
        for elements in taps(g) if places is None else places:
            image[elements] = put(image[elements], values)
    return np.ascontiguousarray(cropped(image, g.overhang, g.size))
