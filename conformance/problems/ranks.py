"""One and three dimensions: edges of every family, and layers of networks.

1-D: WaveNet (van den Oord et al. 2016, dilated convolutions of width 2), Conformer (Gulati et al. 2020, depthwise,
width 31), wav2vec 2.0 (Baevski et al. 2020, its feature encoder). 3-D: U-Net (Cicek et al. 2016), R(2+1)D (Tran et al.
2018), X3D (Feichtenhofer 2020, depthwise), I3D (Carreira and Zisserman 2017, poolings). Lengths and areas are reduced.
"""

from __future__ import annotations

from conformance.problems import edges, normalised, pooling
from conformance.problems.networks import LAYER
from conformance.problems.networks import OTHERS as OTHER_LAYERS
from conformance.problems.table import Problem, in_turn, table

_PLAIN = (
    *table(
        "standard",
        edges.FULL_CARE,
        {
            "rank1.plain": "n2 c8 w19 k12 s3 p1 b1",
            "rank3.plain": "n2 c4 d5 h6 w7 k6 t3 r3 s3 p1 b1",
        },
    ),
    *table(
        "standard",
        (
            "fp32 nchw,nhwc special,nonfinite,range,subnormal",
            "bf16,fp16 nhwc nonfinite,range",
            "fp32 nchw mixed,large,small",
        ),
        {"rank1.values": "n2 c6 w17 k8 s3 p1 g2 b1", "rank3.values": "n2 c4 d4 h5 w6 k6 t2 r3 s3 p1 g2 b1"},
    ),
)

_SHAPES = in_turn(
    "standard",
    edges.SHAPE,
    edges.OTHERS,
    {
        "rank1.asymmetric": "n3 c6 w23 k10 s4 u3 p2:1 d2 g2 b1",
        "rank1.pointwise-gaps": "n2 c9 w14 k5 s1 u3",
        "rank1.depthwise": "n2 c7 w20 k14 s5 p2 g7",
        "rank1.stride-beyond-window": "n2 c6 w25 k6 s2 u5 p0:3",
        "rank1.window-is-padded-image": "n2 c5 w4 k6 s7 p1:2",
        "rank1.element": "n4 c8 w1 k6 s1 b1",
        "rank1.long": "n1 c3 w1031 k4 s9 u2 p4 d3",
        "rank3.asymmetric": "n2 c4 d7 h6 w8 k6 t2 r3 s2 u2x1x3 p1:0x0:2x2:1 dil1x2x3 g2 b1",
        "rank3.stride-by-axis": "n2 c3 d7 h9 w8 k4 t3 r2 s3 u3x1x2 p1",
        "rank3.dilation-by-axis": "n1 c4 d9 h8 w7 k4 t3 r2 s3 p2x1x1 dil3x1x2",
        "rank3.padding-by-axis": "n2 c3 d4 h5 w6 k5 t2 r3 s4 p0x1x3",
        "rank3.pointwise-gaps": "n2 c6 d5 h4 w7 k5 t1 r1 s1 u2x1x3 b1",
        "rank3.temporal": "n2 c6 d9 h4 w5 k5 t3 r1 s1 u2x1x1 p1:0x0x0",
        "rank3.spatial": "n2 c6 d3 h8 w7 k5 t1 r3 s2 u1x2x1 p0x1x0:1",
        "rank3.depthwise": "n2 c5 d5 h6 w4 k10 t3 r3 s2 p1 g5 b1",
        "rank3.groups": "n2 c6 d4 h5 w5 k9 t2 r2 s3 g3",
        "rank3.window-is-image": "n2 c5 d3 h4 w2 k7 t3 r4 s2 b1",
        "rank3.flat": "n2 c4 d1 h9 w8 k6 t1 r3 s3 p0x1x1",
        "rank3.voxel": "n3 c6 d1 h1 w1 k4 t3 r3 s3 p1 g2",
        "rank3.remainder": "n1 c4 d8 h9 w10 k4 t2 r3 s2 u3 p1x0x1",
    },
)

_LAYERS = in_turn(
    "standard",
    LAYER,
    OTHER_LAYERS,
    {
        "wavenet.dilated512": "n1 c64 w1200 k128 s2 d512",
        "wav2vec2.conv2": "n1 c128 w257 k128 s3 u2",
        "conformer.depthwise31": "n2 c256 w64 k256 s31 p15 g256",
        "unet3d.32x64": "n1 c32 d8 h8 w8 k64 t3 r3 s3 p1 b1",
        "r2plus1d.spatial": "n1 c64 d4 h14 w14 k144 t1 r3 s3 p0x1x1",
        "r2plus1d.temporal": "n1 c144 d4 h14 w14 k64 t3 r1 s1 p1x0x0",
        "x3d.depthwise": "n1 c54 d8 h14 w14 k54 t3 r3 s3 p1 g54",
    },
)

_NORMALISED = (
    *table(
        "standard",
        normalised.FULL_CARE,
        {
            "bn.rank1": "bn n3 c6 w15 k8 s3 p1",
            "bn.rank3": "bn n2 c4 d4 h5 w4 k6 t2 r3 s2 p1",
        },
    ),
    *in_turn(
        "standard",
        normalised.SHAPE,
        normalised.OTHERS,
        {
            "bn.rank1-groups": "bn n2 c8 w21 k12 s4 u2 p2:1 d2 g4 affine0 eps3 outside1",
            "bn.rank3-stride": "bn n2 c6 d5 h6 w7 k6 t3 r2 s3 u2x1x3 p1 g3 run0",
        },
    ),
)

_AVERAGE = (
    *table(
        "standard",
        pooling.FULL_CARE,
        {
            "pool.rank1": "pool n2 c5 w19 s3 u2 p1",
            "pool.rank3": "pool n2 c3 d5 h6 w7 t2 r3 s3 u1x2x2 p1",
        },
    ),
    *in_turn(
        "standard",
        pooling.SHAPE,
        pooling.OTHERS,
        {
            "pool.rank1-ceil": "pool n2 c4 w16 s4 u3 p1:2 ceil1",
            "pool.rank1-valid": "pool n2 c4 w14 s3 u1 p2:1 valid1",
            "pool.rank1-global": "pool n3 c6 w13 s13",
            "pool.rank3-2x2x2": "pool n2 c4 d4 h6 w4 t2 r2 s2",
            "pool.rank3-ceil": "pool n2 c3 d6 h7 w8 t3 r2 s3 u2x3x2 p1:0x0:1x1 ceil1",
            "pool.rank3-valid": "pool n1 c3 d5 h6 w5 t3 r2 s3 u1x2x1 p1x0:1x2 valid1",
            "pool.rank3-divisor": "pool n2 c3 d5 h5 w6 t2 r2 s3 u2 p1 div5",
            "pool.rank3-global": "pool n2 c8 d3 h4 w5 t3 r4 s5",
        },
    ),
)

_MAXIMUM = (
    *table(
        "standard",
        pooling.FULL_CARE,
        {
            "maxpool.rank1": "maxpool n2 c5 w19 s3 u2 p1",
            "maxpool.rank3": "maxpool n2 c3 d5 h6 w7 t2 r3 s3 u1x2x2 p1",
        },
    ),
    *in_turn(
        "standard",
        pooling.SHAPE,
        pooling.OTHERS,
        {
            "maxpool.rank1-ceil": "maxpool n2 c4 w16 s4 u3 p1:2 ceil1",
            "maxpool.rank1-dilation": "maxpool n2 c4 w17 s3 u2 p2:1 d3",
            "maxpool.rank3-2x2x2": "maxpool n2 c4 d4 h6 w4 t2 r2 s2",
            "maxpool.rank3-by-axis": "maxpool n2 c3 d7 h6 w8 t3 r2 s3 u2x3x1 p1:0x0:1x1 dil1x2x3 ceil1",
            "maxpool.rank3-i3d": "maxpool n1 c24 d4 h7 w7 t3 r3 s3 u1 p1",
            "maxpool.rank3-global": "maxpool n2 c8 d3 h4 w5 t3 r4 s5",
        },
    ),
)

PROBLEMS: tuple[Problem, ...] = (*_PLAIN, *_SHAPES, *_LAYERS, *_NORMALISED, *_AVERAGE, *_MAXIMUM)
