"""Convolution fused with batch normalisation: edges of the statistics, of the convention, and layers of networks.

The convention with eps outside of the root is that of a PyTorch tutorial on custom functions: eps 1e-3, no affine
parameters, no running statistics. ResNet-50, ResNeXt-50, MobileNetV2 and UNet: see `conformance.problems.networks`.
"""

from __future__ import annotations

from conformance.problems.table import Problem, in_turn, table, typed

FULL_CARE = (
    "fp32 nchw fixed,scaled,shifted,special",
    "fp32 nhwc fixed,special",
    "bf16,fp16 nchw fixed,scaled",
    "bf16 nhwc fixed",
    "fp64 nchw fixed,shifted",
)
SHAPE = ("fp32 nchw fixed,scaled,shifted,special",)
OTHERS = (
    ("bf16 nhwc fixed,scaled",),
    ("fp64 nchw fixed,shifted",),
    ("fp16 nchw fixed,scaled",),
    ("fp32 nhwc fixed,special",),
    ("bf16 nchw fixed,scaled",),
    ("fp16 nhwc fixed",),
    ("fp64 nhwc fixed,shifted",),
)
LAYER = ("fp32 nchw fixed,scaled", "fp32 nhwc fixed", "bf16 nchw fixed")

BASIC = table(
    "standard",
    FULL_CARE,
    {
        "bn.plain": "bn n3 c8 h9 w9 k16 r3 s3 p1",
        "bn.tutorial": "bn n3 c6 h8 w8 k8 r3 s3 affine0 run0 eps3 outside1",
        "bn.groups-stride": "bn n2 c8 h11 w10 k12 r3 s3 u2 p1 g4",
    },
)

SHAPES = in_turn(
    "standard",
    SHAPE,
    OTHERS,
    {
        "bn.unpadded": "bn n2 c8 h8 w9 k12 r3 s3",
        "bn.pointwise": "bn n2 c12 h6 w5 k8 r1 s1",
        "bn.not-affine": "bn n2 c6 h7 w7 k8 r3 s3 p1 affine0",
        "bn.not-running": "bn n2 c6 h7 w7 k8 r3 s3 p1 run0",
        "bn.bare": "bn n2 c6 h7 w7 k8 r3 s3 affine0 run0",
        "bn.eps3": "bn n2 c8 h7 w8 k8 r3 s3 p1 eps3",
        "bn.eps1": "bn n2 c8 h6 w6 k8 r1 s1 eps1",
        "bn.eps9": "bn n2 c8 h6 w7 k8 r3 s3 eps9",
        "bn.outside-affine": "bn n2 c8 h8 w8 k8 r3 s3 p1 eps3 outside1",
        "bn.outside-eps1": "bn n2 c6 h6 w7 k8 r1 s1 affine0 eps1 outside1",
        "bn.momentum30": "bn n2 c6 h6 w6 k8 r3 s3 mom30",
        "bn.momentum100": "bn n2 c6 h6 w6 k8 r1 s1 mom100",
        "bn.momentum0": "bn n2 c6 h6 w6 k8 r1 s1 mom0",
        "bn.two-elements": "bn n2 c6 h3 w3 k8 r3 s3",
        "bn.three-elements": "bn n3 c8 h1 w1 k12 r1 s1",
        "bn.two-elements-outside": "bn n1 c6 h4 w3 k8 r3 s3 eps3 outside1",
        "bn.batch1": "bn n1 c8 h10 w9 k8 r3 s3 p1",
        "bn.depthwise": "bn n2 c9 h8 w8 k9 r3 s3 p1 g9",
        "bn.depthwise-x2-stride": "bn n2 c6 h9 w9 k12 r3 s3 u2 p1 g6",
        "bn.asymmetric-all": "bn n2 c6 h11 w8 k10 r3 s2 u2x1 p0:1x2:0 d1x2 g2",
        "bn.dilation": "bn n1 c4 h15 w15 k6 r3 s3 p2 d2",
        "bn.remainder-outside": "bn n2 c4 h12 w13 k6 r3 s3 u2 eps3 outside1",
        "bn.dilation-beyond-image": "bn n2 c4 h4 w5 k6 r3 s3 p3 d3",
        "bn.stride-beyond-padded-window": "bn n2 c4 h13 w12 k6 r2 s3 u4x5 p1:0x0:2",
        "bn.even-window-dilated": "bn n2 c4 h11 w13 k6 r2 s4 p1x3 d3x2",
        "bn.channel1": "bn n2 c1 h8 w8 k1 r3 s3",
        "bn.groups-image1x1": "bn n5 c6 h1 w1 k4 r3 s3 p1 g2",
        "bn.c127-k129": "bn n1 c127 h6 w6 k129 r3 s3 p1",
        "bn.pointwise-k129": "bn n2 c5 h5 w5 k129 r1 s1",
        "bn.long-statistics": "bn n2 c4 h65 w67 k4 r3 s3 p1",
    },
)

VALUES = (
    *table(
        "standard",
        (
            "fp32,fp64 nchw,nhwc bits",
            "all nhwc nonfinite,range",
            "bf16,fp16,fp64 nchw special",
            "fp16,fp64 nhwc fixed",
        ),
        {"bn.values": "bn n2 c6 h6 w5 k12 r3 s3 p1 g3"},
    ),
    *table(
        "standard",
        ("fp32 nchw bits,nonfinite,range", "fp64 nchw bits", "fp16,bf16 nchw nonfinite,range"),
        {
            "bn.values-plain": "bn n2 c4 h5 w6 k12 r1 s1",
            "bn.values-channel1": "bn n2 c1 h3 w3 k12 r1 s1 eps3",
            "bn.values-outside": "bn n3 c3 h5 w5 k8 r3 s3 eps3 outside1",
        },
    ),
)
"""Values at the ends of each format."""

LAYERS = table(
    "standard",
    LAYER,
    {
        "resnet50.bn.conv2.3x3": "bn n2 c64 h14 w14 k64 r3 s3 p1",
        "resnet50.bn.conv3.downsample": "bn n2 c128 h14 w14 k128 r1 s1 u2",
        "resnext50.bn.conv3": "bn n1 c128 h14 w14 k128 r3 s3 p1 g32",
        "mobilenetv2.bn.dw96s2": "bn n1 c96 h28 w28 k96 r3 s3 u2 p1 g96 eps3 mom1",
        "unet.bn.64x64": "bn n1 c64 h24 w24 k64 r3 s3 p1",
        "tutorial.bn.32x64": "bn n4 c32 h12 w12 k64 r3 s3 affine0 run0 eps3 outside1",
    },
)

FULL = table(
    "full",
    ("fp32 nchw fixed",),
    {
        "resnet50.bn.conv2.3x3@56": "bn n8 c64 h56 w56 k64 r3 s3 p1",
        "unet.bn.64x64@128": "bn n2 c64 h128 w128 k64 r3 s3 p1",
        "tutorial.bn.32x64@26": "bn n256 c32 h26 w26 k64 r3 s3 affine0 run0 eps3 outside1",
    },
)

PROBLEMS: tuple[Problem, ...] = (*BASIC, *SHAPES, *VALUES, *LAYERS, *FULL)

MEMORY_PAIRS = (
    typed("bn n8 c32 h26 w26 k64 r3 s3", "standard"),
    typed("bn n4 c24 h14 w14 k40 r3 s3 u2 p1 affine0 run0", "standard"),
)
MEMORY_STEPS = (
    typed("bn n64 c32 h26 w26 k64 r3 s3 affine0 run0 eps3", "standard"),
    typed("bn n2048 c32 h26 w26 k64 r3 s3 affine0 run0 eps3", "full"),
)
"""For the checks of memory: large enough that what is kept shows; the second step is the tutorial's own."""
