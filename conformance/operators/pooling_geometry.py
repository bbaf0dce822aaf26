"""The part of the geometry that poolings share: how many windows there are.

The output extent is floor((H + before + after - d*(R-1) - 1) / u) + 1; in ceil mode it is rounded up, less a last
window that would start behind the image and the padding before it (as in torch.nn.AvgPool2d and MaxPool2d, with a
padding of its own on each side). Elements of a window beyond the padded image, which exist in ceil mode only, are
ignored. This is a separate file because a kernel's process may import geometries but no references: see
`conformance.worker.guard`.
"""

from __future__ import annotations

from typing import Any

from conformance.operators.base import Tensor
from conformance.operators.descriptor import EXTENTS, FLAG, SIDES, Described, Field, sized
from conformance.operators.spatial import IMAGE, RESULT, WINDOW, Padding, Spatial, spans, unpadded


class Pooled(Described, Spatial):
    """Geometry of a pooling. Mistakes that poolings share look at n, c, size, window, stride, padding, dilation and
    ceil_mode: a pooling without one of these has it as a property."""

    overhang: Padding
    """Padding that contains every window: in ceil mode the last windows may reach beyond the problem's padding."""


def pooling_fields(rank: int) -> tuple[Field, ...]:
    """Return the descriptor fields that every pooling has."""
    return (
        Field("n", "batch"),
        Field("c", "channels"),
        *sized("size", IMAGE[rank]),
        *sized("window", WINDOW[rank]),
        Field("u", "stride", EXTENTS[rank], "stride", lambda values: values["window"]),
        Field("p", "padding", SIDES[rank], "padding", unpadded(rank)),
    )


CEIL = Field("ceil", "ceil mode (0 or 1)", FLAG, "ceil_mode", False)


def laid_out(g: Any) -> dict[str, Any]:
    """Derive from a pooling's parameters `output_size` (P, Q), the tensors `x` and `y`, and `overhang`."""
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
