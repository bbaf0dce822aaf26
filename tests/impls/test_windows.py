"""Output sizes that implementations share, against those of the problems' geometry."""

from __future__ import annotations

import pytest

from conformance.implementations.windows import axes, shape_of, sizes, windows
from conformance.operators import ConvGeometry, PoolGeometry

CONVOLUTIONS = ("n1 c1 h9 w8 k1 r3 s2 p1", "n1 c1 h9 w8 k1 r3 s3 u2x3 p0:2x3:1", "n1 c1 h9 w9 k1 r3 s3 p2 d2x3")
POOLINGS = tuple(
    f"pool n1 c1 h{h} w{h + 1} r3 s2 u{stride} p{padding} ceil{ceil}"
    for h in (4, 5, 6, 7) for stride in (1, 2, 3, "3x2") for padding in (0, 1, "0:1x1:0") for ceil in (0, 1)
)  # fmt: skip


@pytest.mark.parametrize("text", CONVOLUTIONS)
def test_windows_of_convolutions(text: str):
    g = ConvGeometry.parse(text)
    rows, columns = windows((g.h, g.w), (g.r, g.s), g.stride, g.padding, g.dilation)
    assert (rows.outputs, columns.outputs) == g.output_size


def test_windows_of_poolings():
    for text in POOLINGS:
        g = PoolGeometry.parse(text)
        rows, columns = windows((g.h, g.w), (g.r, g.s), g.stride, g.padding, ceil=g.ceil_mode)
        assert (rows.outputs, columns.outputs) == g.output_size, text


@pytest.mark.parametrize("stride", [1, 3])
def test_a_window_larger_than_the_padded_image_is_refused(stride: int):
    with pytest.raises(ValueError, match="larger than the image"):
        windows((4, 2), (3, 3), (stride, stride), ((0, 0), (0, 0)))


def test_layouts():
    assert shape_of(1, 2, (3, 4), "nchw") == (1, 2, 3, 4)
    assert shape_of(1, 2, (3, 4), "nhwc") == (1, 3, 4, 2)
    assert axes((1, 3, 4, 2), "nhwc") == (1, 2, 3, 4)
    assert sizes((1, 3, 4, 2), "nhwc") == (1, 2, (3, 4))
