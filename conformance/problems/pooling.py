"""Average pooling: edges, the public tutorial's case, and layers of networks.

NKI tutorial: arange over [2, 6, 6], window 2. ResNet-50, DenseNet (transition 2x2) and Inception v3 (3x3, stride 1,
padding 1, in its pooling branches): He et al. 2016, Huang et al. 2017, Szegedy et al. 2016.
"""

from __future__ import annotations

from conformance.problems.table import Problem, in_turn, table

FULL_CARE = (
    "fp32 nchw integer,fixed,impulse,special,wide",
    "fp32 nhwc integer,fixed,special",
    "bf16,fp16 nchw integer,fixed,wide",
    "bf16 nhwc fixed",
    "fp64 nchw fixed",
)
SHAPE = ("fp32 nchw integer,fixed,impulse,special,wide",)
OTHERS = (
    ("bf16 nhwc fixed,wide", "fp64 nchw fixed"),
    ("fp16 nchw fixed,wide", "fp32 nhwc fixed,special"),
    ("bf16 nchw fixed,wide", "fp64 nhwc fixed"),
    ("fp16 nhwc fixed,wide", "bf16 nchw fixed,wide"),
    ("fp64 nchw fixed", "fp32 nhwc fixed,special"),
)
VALUE = (
    "fp32 nchw,nhwc bits,special,nonfinite,range,subnormal,mixed",
    "fp64 nhwc bits,fixed,special,nonfinite,range,subnormal,mixed",
    "bf16,fp16 nhwc special,nonfinite,range,subnormal,mixed",
    "fp16 nhwc fixed",
)
FEW_VALUES = (
    "fp32,fp64 nchw bits",
    "fp64 nchw nonfinite",
    "bf16,fp16 nchw nonfinite,range,subnormal",
    "fp32 nchw mixed",
)
LAYER = ("fp32 nchw integer,fixed", "fp32,bf16 nhwc fixed", "fp16 nchw fixed")

BASIC = table(
    "standard",
    FULL_CARE,
    {
        "pool.tutorial": "pool n1 c2 h6 w6 r2 s2",
        "pool.3x3s2-padded": "pool n2 c5 h11 w12 r3 s3 u2 p1",
        "pool.3x3s2-ceil": "pool n2 c4 h10 w12 r3 s3 u2 p1 ceil1",
        "pool.valid": "pool n2 c3 h9 w8 r3 s3 u2 p1 valid1",
    },
)

SHAPES = in_turn(
    "standard",
    SHAPE,
    OTHERS,
    {
        "pool.window1": "pool n2 c3 h5 w4 r1 s1",
        "pool.identity-gaps": "pool n2 c3 h7 w8 r1 s1 u2x3",
        "pool.global": "pool n2 c6 h7 w7 r7 s7",
        "pool.global-tall": "pool n2 c4 h9 w5 r9 s5",
        "pool.row": "pool n2 c4 h6 w11 r1 s4 u1x3",
        "pool.column": "pool n2 c4 h11 w6 r4 s1 u3x1",
        "pool.overlap": "pool n2 c4 h9 w9 r3 s3 u1 p1",
        "pool.gaps": "pool n2 c4 h13 w11 r2 s2 u3",
        "pool.remainder": "pool n2 c4 h11 w10 r3 s3",
        "pool.remainder-ceil": "pool n2 c4 h11 w10 r3 s3 ceil1",
        "pool.ceil-drops-window": "pool n2 c3 h8 w10 r2 s3 u3x2 p1 ceil1",
        "pool.ceil-valid": "pool n2 c3 h10 w11 r3 s4 u2x3 p1 ceil1 valid1",
        "pool.by-axis": "pool n2 c4 h12 w15 r4 s3 u3x2 p2x1",
        "pool.pad-top": "pool n2 c3 h8 w8 r3 s3 u2 p2:0x0",
        "pool.pad-right": "pool n2 c3 h8 w9 r3 s3 u2 p0x0:2",
        "pool.asymmetric-valid": "pool n2 c3 h9 w10 r3 s4 u2x1 p0:2x3:1 valid1",
        "pool.asymmetric-ceil": "pool n2 c3 h10 w9 r4 s3 u3x2 p1:2x0:1 ceil1",
        "pool.divisor": "pool n2 c4 h9 w9 r3 s3 u2 p1 div4",
        "pool.divisor-odd": "pool n2 c4 h8 w8 r2 s2 div7",
        "pool.divisor1": "pool n2 c3 h8 w9 r2 s3 u1 div1",
        "pool.divisor-over-valid": "pool n2 c3 h9 w8 r3 s3 u2 p1 ceil1 valid1 div5",
        "pool.power-of-two": "pool n2 c5 h16 w16 r4 s4 u2",
        "pool.window-beyond-image": "pool n2 c3 h3 w2 r4 s3 u1 p1",
        "pool.window-is-padded-image": "pool n2 c3 h5 w4 r7 s6 u1 p1",
        "pool.stride-beyond-padded-window": "pool n2 c3 h13 w12 r3 s2 u4x5 p1:0x1:0",
        "pool.asymmetric-ceil-drops": "pool n2 c3 h7 w8 r3 s4 u4x5 p0:2x1:3 ceil1",
        "pool.prime-one-side": "pool n2 c3 h11 w13 r3 s5 u2x3 p0:1x2:0",
        "pool.divisor-ceil": "pool n2 c3 h9 w10 r3 s3 u2 p1 ceil1 div7",
        "pool.batch1-channel1": "pool n1 c1 h9 w9 r3 s3 u2 p1",
        "pool.c127": "pool n1 c127 h8 w8 r3 s3 u2 p1",
        "pool.c128": "pool n1 c128 h8 w8 r2 s2",
        "pool.c129": "pool n1 c129 h8 w9 r3 s2 u2 ceil1",
        "pool.tail-row": "pool n1 c3 h5 w259 r3 s3 u2 p1",
        "pool.large-window": "pool n2 c3 h50 w57 r45 s51 u5x6",
        "pool.long-window": "pool n2 c8 h56 w56 r56 s56",
    },
)

VALUES = (
    *table("standard", VALUE, {"pool.values": "pool n2 c6 h8 w9 r3 s3 u2 p1"}),
    *table(
        "standard", (*FEW_VALUES, "fp32 nchw mixed", "fp16 nchw large"), {"pool.values-2x2": "pool n2 c5 h6 w8 r2 s2"}
    ),
)
"""Values at the ends of each format."""

THIN = (
    *table("standard", ("fp32 nchw fixed",), {"pool.ceil-far-beyond": "pool n1 c3 h6 w11 r4 s5 u4x5 ceil1"}),
    *table("standard", ("bf16 nchw fixed",), {"pool.window81": "pool n2 c5 h11 w12 r9 s9 u1"}),
)
"""Last windows of which more than one row lies beyond the image; a window between 7x7 and those of thousands of
elements, that sums in bf16 still bring to an average."""

LAYERS = table(
    "standard",
    LAYER,
    {
        "resnet50.pool": "pool n2 c512 h7 w7 r7 s7",
        "densenet.transition": "pool n2 c128 h28 w28 r2 s2",
        "inception.branch": "pool n1 c192 h35 w35 r3 s3 u1 p1 valid1",
        "resnet-d.shortcut": "pool n2 c128 h27 w27 r2 s2 ceil1 valid1",
    },
)

FULL = table(
    "full",
    ("fp32,bf16 nchw fixed",),
    {
        "resnet50.pool@7": "pool n32 c2048 h7 w7 r7 s7",
        "densenet.transition@56": "pool n16 c256 h56 w56 r2 s2",
        "inception.branch@35": "pool n16 c288 h35 w35 r3 s3 u1 p1 valid1",
    },
)

PROBLEMS: tuple[Problem, ...] = (*BASIC, *SHAPES, *VALUES, *THIN, *LAYERS, *FULL)
