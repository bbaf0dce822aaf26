"""What poolings share: where their windows lie, and how results are put back where they came from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.operators.spatial import Index, cropped, padded, taps


def covered(g: Any) -> Iterator[tuple[Index, Index]]:
    """For every window: indices of its place in the output, and of what it covers of the image inside `overhang`."""
    axes = [*zip(g.stride, g.dilation, g.window, strict=True)]
    for place in np.ndindex(*g.output_size):
        seen = zip(place, axes, strict=True)
        yield (..., *place), (..., *(slice(p * u, p * u + d * (count - 1) + 1, d) for p, (u, d, count) in seen))


def few_windows(g: Any) -> bool:
    """Whether going through windows is faster than through `taps`."""
    return math.prod(g.output_size) < math.prod(g.window)


def window_sums(g: Any, image: np.ndarray, places: Any = None) -> np.ndarray:
    """Every window's sum over these positions of it (all) of an image inside `overhang`: y[N, C, P, Q]."""
    y = np.zeros(g.y.shape, image.dtype)
    if places is None and few_windows(g):
        for place, seen in covered(g):
            y[place] = image[seen].sum(axis=tuple(range(-g.rank, 0)))
        return y
    for seen in taps(g) if places is None else places:
        y += image[seen]
    return y


def scattered(g: Any, values: np.ndarray, places: Any = None, put: Any = np.add) -> np.ndarray:
    """Every window's value at these positions of it (all), `put` together where windows overlap: dx[N, C, H, W]."""
    image = padded(np.zeros(g.x.shape, values.dtype), g.overhang, values.dtype)
    if places is None and few_windows(g):
        for place, seen in covered(g):
            image[seen] += values[place][(..., *(None,) * g.rank)]
    else:
        for seen in taps(g) if places is None else places:
            image[seen] = put(image[seen], values)
    return np.ascontiguousarray(cropped(image, g.overhang, g.size))
