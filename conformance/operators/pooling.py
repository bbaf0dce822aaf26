"""What poolings share: how many windows there are, where they lie, and how results are put back where they came from.

The output extent is floor((H + before + after - d*(R-1) - 1) / u) + 1; in ceil mode it is rounded up, less a last
window that would start behind the image and the padding before it (as in torch.nn.AvgPool2d and MaxPool2d, with a
padding of its own on each side). What a window covers beyond the padded image, which happens in ceil mode only, counts
for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.operators.base import Tensor
from conformance.operators.descriptor import EXTENTS, FLAG, SIDES, Field, sized
from conformance.operators.spatial import IMAGE, RESULT, WINDOW, Index, cropped, padded, spans, taps, unpadded


def pooling_fields(rank: int) -> tuple[Field, ...]:
    """Those that every pooling has."""
    return (
        Field("n", "batch"),
        Field("c", "channels"),
        *sized("size", IMAGE[rank]),
        *sized("window", WINDOW[rank]),
        Field("u", "stride", EXTENTS[rank], "stride", lambda found: found["window"]),
        Field("p", "padding", SIDES[rank], "padding", unpadded(rank)),
    )


CEIL = Field("ceil", "ceil mode (0 or 1)", FLAG, "ceil_mode", False)


def laid_out(g: Any) -> dict[str, Any]:
    """What follows from a pooling's parameters: `output_size` (P, Q), the tensors `x` and `y`, and `overhang`, the
    padding that holds every window, since in ceil mode the last ones may reach beyond the problem's own."""
    output_size, overhang = [], []
    for size, span, stride, (before, after) in zip(g.size, spans(g), g.stride, g.padding, strict=True):
        room = size + before + after - span
        extent = (-(-room // stride) if g.ceil_mode else room // stride) + 1
        if g.ceil_mode and (extent - 1) * stride >= size + before:
            extent -= 1
        output_size.append(extent)
        overhang.append((before, max(after, (extent - 1) * stride + span - size - before)))
    return {
        "output_size": tuple(output_size),
        "overhang": tuple(overhang),
        "x": Tensor(f"NC{IMAGE[g.rank].upper()}", (g.n, g.c, *g.size)),
        "y": Tensor(f"NC{RESULT[g.rank].upper()}", (g.n, g.c, *output_size)),
    }


def covered(g: Any) -> Iterator[tuple[Index, Index]]:
    """For every window: indices of its place in the output, and of what it covers of the image inside `overhang`."""
    axes = [*zip(g.stride, g.dilation, g.window, strict=True)]
    for place in np.ndindex(*g.output_size):
        seen = zip(place, axes, strict=True)
        yield (..., *place), (..., *(slice(p * u, p * u + d * (count - 1) + 1, d) for p, (u, d, count) in seen))


def few_windows(g: Any) -> bool:
    """Whether going through windows is faster than through `taps`."""
    few: bool = math.prod(g.output_size) < math.prod(g.window)
    return few


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
