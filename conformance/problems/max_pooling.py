"""Max pooling: edges, parameters by pairs, and layers of networks.

ResNet-50 (stem), VGG-16 (2x2), GoogLeNet (3x3, stride 2, ceil mode; 3x3, stride 1 in its branches) and the spatial
pyramid of YOLOv4 (5, 9 and 13 wide, stride 1): He et al. 2016, Simonyan and Zisserman 2015, Szegedy et al. 2015,
Bochkovskiy et al. 2020.
"""

from __future__ import annotations

from conformance.problems.pooling import FEW_VALUES, FULL_CARE, LAYER, OTHERS, SHAPE, VALUE
from conformance.problems.table import Problem, in_turn, table

BASIC = table(
    "standard",
    FULL_CARE,
    {
        "maxpool.2x2": "maxpool n2 c4 h8 w6 r2 s2",
        "maxpool.3x3s2-padded": "maxpool n2 c5 h11 w12 r3 s3 u2 p1",
        "maxpool.3x3s2-ceil": "maxpool n2 c4 h10 w12 r3 s3 u2 p1 ceil1",
        "maxpool.dilation": "maxpool n2 c3 h9 w10 r3 s3 u1 p1 d2",
    },
)

SHAPES = in_turn(
    "standard",
    SHAPE,
    OTHERS,
    {
        "maxpool.window1": "maxpool n2 c3 h5 w4 r1 s1",
        "maxpool.identity-gaps": "maxpool n2 c3 h7 w8 r1 s1 u2x3",
        "maxpool.global": "maxpool n2 c6 h7 w7 r7 s7",
        "maxpool.global-tall": "maxpool n2 c4 h9 w5 r9 s5",
        "maxpool.row": "maxpool n2 c4 h6 w11 r1 s4 u1x3",
        "maxpool.column": "maxpool n2 c4 h11 w6 r4 s1 u3x1",
        "maxpool.overlap": "maxpool n2 c4 h9 w9 r3 s3 u1 p1",
        "maxpool.gaps": "maxpool n2 c4 h13 w11 r2 s2 u3",
        "maxpool.remainder": "maxpool n2 c4 h11 w10 r3 s3",
        "maxpool.remainder-ceil": "maxpool n2 c4 h11 w10 r3 s3 ceil1",
        "maxpool.ceil-drops-window": "maxpool n2 c3 h8 w10 r2 s3 u3x2 p1 ceil1",
        "maxpool.by-axis": "maxpool n2 c4 h12 w15 r4 s3 u3x2 p2x1",
        "maxpool.pad-top": "maxpool n2 c3 h8 w8 r3 s3 u2 p2:0x0",
        "maxpool.pad-right": "maxpool n2 c3 h8 w9 r3 s3 u2 p0x0:2",
        "maxpool.asymmetric": "maxpool n2 c3 h9 w10 r3 s4 u2x1 p0:2x3:1",
        "maxpool.asymmetric-ceil": "maxpool n2 c3 h10 w9 r4 s3 u3x2 p1:2x0:1 ceil1",
        "maxpool.dilation-by-axis": "maxpool n2 c3 h11 w12 r2 s3 u1x2 p1 d3x2",
        "maxpool.dilation-ceil": "maxpool n2 c3 h12 w11 r3 s2 u2x3 p1:0x0:1 d2x3 ceil1",
        "maxpool.dilation-stride": "maxpool n2 c3 h13 w13 r3 s3 u2 p2 d2",
        "maxpool.window-beyond-image": "maxpool n2 c3 h3 w2 r4 s3 u1 p1",
        "maxpool.window-is-padded-image": "maxpool n2 c3 h5 w4 r7 s6 u1 p1",
        "maxpool.stride-beyond-padded-window": "maxpool n2 c3 h13 w12 r3 s2 u4x5 p1:0x1:0",
        "maxpool.asymmetric-ceil-drops": "maxpool n2 c3 h7 w8 r3 s4 u4x5 p0:2x1:3 ceil1",
        "maxpool.prime-one-side": "maxpool n2 c3 h11 w13 r3 s5 u2x3 p0:1x2:0",
        "maxpool.dilation-beyond-image": "maxpool n2 c3 h4 w5 r2 s3 u1 p1x2 d4x3",
        "maxpool.batch1-channel1": "maxpool n1 c1 h9 w9 r3 s3 u2 p1",
        "maxpool.c127": "maxpool n1 c127 h8 w8 r3 s3 u2 p1",
        "maxpool.c128": "maxpool n1 c128 h8 w8 r2 s2",
        "maxpool.c129": "maxpool n1 c129 h8 w9 r3 s2 u2 ceil1",
        "maxpool.tail-row": "maxpool n1 c3 h5 w259 r3 s3 u2 p1",
        "maxpool.large-window": "maxpool n2 c3 h50 w57 r45 s51 u5x6",
        "maxpool.long-window": "maxpool n2 c8 h56 w56 r56 s56",
    },
)

VALUES = (
    *table("standard", VALUE, {"maxpool.values": "maxpool n2 c6 h8 w9 r3 s3 u2 p1"}),
    *table("standard", FEW_VALUES, {"maxpool.values-overlap": "maxpool n2 c5 h6 w8 r2 s2 u1"}),
    *table("standard", ("fp32 nchw mixed", "fp64 nchw close"), {"maxpool.values-2x3": "maxpool n2 c5 h8 w9 r2 s3"}),
)
"""Values at the ends of each format."""

THIN = table("standard", ("fp32 nchw fixed",), {"maxpool.ceil-far-beyond": "maxpool n1 c3 h6 w11 r4 s5 u4x5 ceil1"})
"""Last windows of which more than one row lies beyond the image."""

_ROWS = """
        maxpool n1 c3 h5 w11 r2 s2 u2x1 p0:1x1:0 d1x2
        maxpool n1 c3 h6 w7 r1 s1 u3
        maxpool n1 c3 h6 w7 r2 s2 d2
        maxpool n1 c3 h6 w7 r2 s4 u2 p1 d1x2
        maxpool n1 c3 h6 w7 r3 s1 u2x1 p1x0 d2
        maxpool n1 c3 h8 w8 r1 s1 u1x2 ceil1
        maxpool n1 c3 h8 w8 r1 s1 u2 d1x2 ceil1
        maxpool n1 c3 h8 w8 r2 s4 u2x1 p1x0 d2 ceil1
        maxpool n1 c3 h8 w8 r3 s1 u1x2 d1x2 ceil1
        maxpool n1 c3 h9 w5 r3 s3 u1 p1 d1x2 ceil1
        maxpool n2 c3 h5 w11 r1 s1 ceil1
        maxpool n2 c3 h5 w11 r3 s1 u2 p1x0 d1x2
        maxpool n2 c3 h5 w11 r3 s3 p1x0 d2
        maxpool n2 c3 h6 w7 r2 s4 u3 p0:1x1:0 d2 ceil1
        maxpool n2 c3 h8 w8 r2 s2 u1 p0:1x1:0
        maxpool n2 c3 h8 w8 r3 s3 u2x1 p1
        maxpool n2 c3 h9 w5 r2 s4 u1x2 p0:1x1:0 ceil1
        maxpool n2 c3 h9 w5 r3 s1 u3 p1x0 d2 ceil1
        maxpool n3 c3 h5 w11 r2 s2 u1x2 p1 d1x2
        maxpool n3 c3 h5 w11 r2 s2 u1x2 p1x0 ceil1
        maxpool n3 c3 h5 w11 r2 s4 u1 d2
        maxpool n3 c3 h6 w7 r3 s1 u1 p1x0 ceil1
        maxpool n3 c3 h6 w7 r3 s3 u1x2 p1 d2
        maxpool n3 c3 h8 w8 r2 s2 u3 p1 d1x2
        maxpool n3 c3 h8 w8 r3 s3 u2 p0:1x1:0 d2 ceil1
        maxpool n3 c3 h9 w5 r1 s1 u2x1 d2
        maxpool n3 c3 h9 w5 r2 s2 p1x0 ceil1
        maxpool n3 c3 h9 w5 r3 s3 u1x2 d2
"""
"""Images, image size, window, stride, padding, dilation and ceil mode: every pair of values that a pooling can have,
see `conformance.problems.pairwise`."""

PAIRWISE = in_turn(
    "standard",
    ("fp32 nchw integer,fixed",),
    (("bf16 nchw fixed",), ()),
    {f"pairwise.{row.strip().replace(' ', '_')}": row for row in _ROWS.strip().splitlines()},
)

LAYERS = table(
    "standard",
    LAYER,
    {
        "resnet50.maxpool": "maxpool n1 c64 h56 w56 r3 s3 u2 p1",
        "vgg16.maxpool": "maxpool n2 c128 h28 w28 r2 s2",
        "googlenet.maxpool": "maxpool n1 c192 h28 w28 r3 s3 u2 ceil1",
        "googlenet.branch": "maxpool n1 c256 h14 w14 r3 s3 u1 p1",
        "yolov4.pyramid5": "maxpool n1 c128 h13 w13 r5 s5 u1 p2",
        "yolov4.pyramid13": "maxpool n1 c128 h13 w13 r13 s13 u1 p6",
    },
)

FULL = table(
    "full",
    ("fp32,bf16 nchw fixed",),
    {
        "resnet50.maxpool@112": "maxpool n16 c64 h112 w112 r3 s3 u2 p1",
        "vgg16.maxpool@112": "maxpool n16 c128 h112 w112 r2 s2",
        "yolov4.pyramid13@19": "maxpool n8 c512 h19 w19 r13 s13 u1 p6",
    },
)

PROBLEMS: tuple[Problem, ...] = (*BASIC, *SHAPES, *VALUES, *THIN, *PAIRWISE, *LAYERS, *FULL)
