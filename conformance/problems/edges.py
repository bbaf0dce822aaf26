"""Shapes at the edges, where kernels that are right on network layers go wrong."""

from __future__ import annotations

from conformance.problems.table import in_turn, table

FULL_CARE = (
    "fp32 nchw integer,fixed,impulse,special,wide",
    "fp32 nhwc integer,fixed,special",
    "bf16,fp16 nchw integer,fixed,wide",
    "bf16 nhwc fixed",
    "fp64 nchw integer,fixed",
)
SHAPE = ("fp32 nchw integer,fixed,bits,impulse,special,nonfinite,range,subnormal,wide",)
OTHERS = (
    ("bf16 nchw fixed,wide", "fp64 nhwc fixed"),
    ("fp16 nchw fixed", "fp32 nhwc fixed,special"),
    ("fp64 nchw fixed", "bf16 nhwc fixed"),
    ("bf16 nchw fixed,wide", "fp16 nhwc fixed"),
    ("fp64 nchw fixed", "fp32 nhwc fixed,special"),
    ("fp16 nchw fixed", "bf16 nhwc fixed"),
    ("bf16 nchw fixed,wide", "fp32 nhwc fixed,special"),
)
LONG = ("fp32 nchw integer,fixed", "bf16 nchw fixed")

BASIC = table(
    "standard",
    FULL_CARE,
    {
        "edge.plain": "n2 c8 h9 w9 k16 r3 s3 p1 b1",
        "edge.asymmetric-all": "n2 c6 h11 w8 k10 r3 s2 u2x1 p0:1x2:0 d1x2 g2 b1",
        "edge.stride2": "n2 c8 h16 w16 k8 r3 s3 u2 p1",
        "edge.groups": "n2 c12 h10 w10 k8 r3 s3 p1 g4",
        "edge.depthwise-x2": "n2 c8 h9 w9 k16 r3 s3 p1 g8 b1",
        "edge.dilation": "n1 c4 h15 w15 k6 r3 s3 p2 d2",
        "edge.depthwise": "n2 c9 h8 w8 k9 r3 s3 p1 g9",
        "edge.prime": "n3 c7 h13 w11 k5 r3 s3 p1",
    },
)

VALUES = (
    *table(
        "standard",
        (
            "fp32,fp64 nchw,nhwc bits,special,nonfinite,range,subnormal",
            "bf16,fp16 nchw,nhwc special,nonfinite,range,subnormal",
            "fp32 nchw mixed,large,small",
            "bf16 nhwc mixed",
        ),
        {"edge.values": "n2 c4 h9 w8 k8 r3 s3 p1 b1"},
    ),
    *table(
        "standard",
        (
            "fp32,fp16 nhwc nonfinite,range,subnormal",
            "bf16,fp64 nchw nonfinite,range,subnormal",
            "fp16,fp64 nhwc fixed",
            "fp16 nhwc mixed",
        ),
        {
            "edge.values-groups": "n3 c6 h9 w10 k8 r3 s2 u2 p1:0x0:1 g2",
            "edge.values-depthwise": "n2 c12 h7 w8 k12 r3 s3 p1 g12",
        },
    ),
    *table(
        "standard",
        ("fp32 nchw,nhwc bits", "fp64 nchw bits", "fp32 nchw range,subnormal"),
        {
            "edge.values-channel1": "n2 c1 h24 w25 k7 r1 s1 b1",
            "edge.values-filter1": "n2 c7 h24 w25 k1 r1 s1",
            "edge.values-window-is-image": "n1 c9 h3 w3 k16 r3 s3",
        },
    ),
    *table("standard", ("fp16 nchw large",), {"edge.values-opposite": "n2 c40 h4 w5 k40 r3 s3 p1 b1"}),
)
"""Values at the ends of each format. The last problems have one product in an output of one direction each, so that
only the input's own rounding shows."""

SHAPES = in_turn(
    "standard",
    SHAPE,
    OTHERS,
    {
        "edge.image1x1": "n4 c16 h1 w1 k24 r1 s1 b1",
        "edge.image1x1-padded": "n2 c16 h1 w1 k8 r3 s3 p1",
        "edge.channel1": "n2 c1 h12 w12 k1 r3 s3 p1 b1",
        "edge.one-product": "n3 c1 h7 w5 k1 r1 s1",
        "edge.window-tall": "n2 c5 h12 w10 k7 r5 s1 p2x0",
        "edge.window-wide": "n2 c5 h10 w12 k7 r1 s7 p0x3",
        "edge.image-wide": "n1 c4 h3 w40 k8 r3 s5 p1x2",
        "edge.image-tall": "n1 c4 h40 w3 k8 r5 s3 p2x1",
        "edge.stride-by-axis": "n2 c6 h13 w14 k6 r3 s3 u1x3 p1",
        "edge.padding-by-axis": "n2 c6 h9 w9 k6 r3 s5 p1x2 b1",
        "edge.pad-top": "n2 c4 h8 w8 k6 r3 s3 p2:0x0",
        "edge.pad-right": "n2 c4 h8 w8 k6 r3 s3 p0x0:2",
        "edge.pad-beyond-window": "n1 c4 h6 w6 k4 r2 s2 p3",
        "edge.stride-beyond-window": "n2 c6 h17 w16 k6 r2 s2 u3",
        "edge.stride-gaps-1x1": "n2 c8 h15 w15 k8 r1 s1 u2",
        "edge.stride-by-axis-1x1": "n2 c6 h9 w11 k5 r1 s1 u2x3 b1",
        "edge.remainder": "n2 c4 h12 w13 k6 r3 s3 u2",
        "edge.remainder3": "n1 c4 h16 w17 k6 r5 s5 u3 p1",
        "edge.window-beyond-image": "n2 c6 h3 w4 k8 r5 s5 p2",
        "edge.window-is-image": "n3 c6 h7 w5 k9 r7 s5 b1",
        "edge.dilation-by-axis": "n1 c4 h14 w16 k4 r3 s3 p2x3 d2x3",
        "edge.dilation-stride": "n1 c6 h17 w17 k6 r3 s3 u2 p2 d2",
        "edge.dilation-stride-coprime": "n1 c4 h19 w19 k4 r3 s3 u3 p2 d2",
        "edge.depthwise-x3": "n2 c4 h7 w6 k12 r3 s3 p1 g4 b1",
        "edge.depthwise-even-window": "n2 c6 h9 w9 k6 r4 s4 u2 p1:2x2:1 g6",
        "edge.groups-uneven": "n2 c6 h7 w9 k15 r3 s3 p1 g3 b1",
        "edge.batch1": "n1 c8 h8 w8 k8 r3 s3 p1 b1",
        "edge.batch-odd": "n5 c3 h6 w6 k4 r2 s3",
        "edge.pointwise-by-axis": "n2 c8 h9 w12 k6 r1 s1 u2x3 p1:0x2:1 g2 b1",
        "edge.window-one-axis": "n2 c8 h11 w16 k6 r3 s1 u2x1 p1:2x0 d2x1 g2 b1",
        "edge.window-large-by-axis": "n2 c8 h19 w16 k6 r5 s3 u2x1 p2x1 d1x2 g2",
        "edge.depthwise-by-axis": "n2 c6 h13 w11 k12 r3 s2 u1x2 p1:0x1 d2x1 g6 b1",
        "edge.unpadded-by-axis": "n2 c8 h13 w12 k6 r3 s2 u2x1 d1x2 g2",
        "edge.groups-image1x1": "n2 c6 h1 w1 k4 r3 s3 p1 g2 b1",
        "edge.depthwise-image1x1": "n3 c7 h1 w1 k7 r1 s1 g7",
        "edge.window-is-padded-image": "n2 c5 h5 w4 k6 r7 s6 p1",
        "edge.dilation-beyond-image": "n2 c4 h4 w5 k6 r3 s3 p3 d3x2",
        "edge.stride-beyond-padded-window": "n2 c4 h13 w12 k6 r2 s3 u4x5 p1:0x0:2",
        "edge.even-window-dilated": "n2 c4 h11 w13 k6 r2 s4 p1x3 d3x2",
        "edge.prime-all": "n5 c7 h11 w13 k5 r3 s3 u3x2 p1 d2x1",
        "edge.wide-by-axis": "n1 c66 h12 w10 k64 r3 s3 u2x1 p2x1 d1x2",
    },
)

SQUARES = table("standard", ("fp32 nchw fixed",), {"edge.window-one-row-square": "n2 c3 h7 w7 k4 r1 s3 p0x1"})

TILES = table(
    "standard",
    LONG,
    {
        "edge.c127-k129": "n1 c127 h6 w6 k129 r3 s3 p1",
        "edge.c128-k127": "n1 c128 h6 w6 k127 r3 s3 p1",
        "edge.c129-k128": "n1 c129 h6 w6 k128 r3 s3 p1 b1",
        "edge.tail-rows": "n1 c16 h65 w17 k33 r3 s3 p1",
        "edge.wide-row": "n1 c3 h4 w521 k5 r3 s3 p1",
        "edge.long-contraction": "n1 c12800 h3 w3 k8 r3 s3 p1",
        "edge.long-pixels": "n1 c2 h325 w323 k3 r3 s3 p1 b1",
    },
)
