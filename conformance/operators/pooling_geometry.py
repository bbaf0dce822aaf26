"""What poolings share of their geometry: how many windows there are.

The output extent is floor((H + before + after - d*(R-1) - 1) / u) + 1; in ceil mode it is rounded up, less a last
window that would start behind the image and the padding before it (as in torch.nn.AvgPool2d and MaxPool2d, with a
padding of its own on each side). What a window covers beyond the padded image, which happens in ceil mode only, counts
for nothing.
"""

from __future__ import annotations

from typing import Any

from conformance.operators.base import Tensor
from conformance.operators.descriptor import FLAG, PAIR, SIDES, Field
from conformance.operators.spatial import UNPADDED

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
