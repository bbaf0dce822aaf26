"""What poolings share: how many windows there are, and where they lie.

The output extent is floor((H + before + after - d*(R-1) - 1) / u) + 1; in ceil mode it is rounded up, less a last
window that would start behind the image and the padding before it (as in torch.nn.AvgPool2d and MaxPool2d, with a
padding of its own on each side). What a window covers beyond the padded image, which happens in ceil mode only, counts
for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.operators.base import Tensor
from conformance.operators.descriptor import FLAG, PAIR, SIDES, Field
from conformance.operators.spatial import UNPADDED, cropped, padded, taps_per_input

SIZES = (
    Field("n", "batch"),
    Field("c", "channels"),
    Field("h", "height"),
    Field("w", "width"),
    Field("r", "window height"),
    Field("s", "window width"),
    Field("u", "stride", PAIR, "stride", lambda found: (found["r"], found["s"])),
    Field("p", "padding", SIDES, "padding", UNPADDED),
)
CEIL = Field("ceil", "ceil mode (0 or 1)", FLAG, "ceil_mode", False)


def laid_out(g: Any) -> dict[str, Any]:
    """What follows from a pooling's parameters: `output_size` (P, Q), the tensors `x` and `y`, and `overhang`, the
    padding that holds every window, since in ceil mode the last ones may reach beyond the problem's own."""
    output_size, overhang = [], []
    axes = zip((g.h, g.w), (g.r, g.s), g.stride, g.padding, g.dilation, strict=True)
    for size, taps, stride, (before, after), dilation in axes:
        window = dilation * (taps - 1) + 1
        room = size + before + after - window
        extent = (-(-room // stride) if g.ceil_mode else room // stride) + 1
        if g.ceil_mode and (extent - 1) * stride >= size + before:
            extent -= 1
        output_size.append(extent)
        overhang.append((before, max(after, (extent - 1) * stride + window - size - before)))
    return {
        "output_size": tuple(output_size),
        "overhang": tuple(overhang),
        "x": Tensor("NCHW", (g.n, g.c, g.h, g.w)),
        "y": Tensor("NCPQ", (g.n, g.c, *output_size)),
    }


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
