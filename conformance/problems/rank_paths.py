"""One and three dimensions: special paths of kernels, edges of their parameters, values, batches without images.

Each of these problems is there for a known-bad kernel that nothing else in its number of dimensions detects.
"""

from __future__ import annotations

from conformance.problems import empty, pooling
from conformance.problems.table import Problem, in_turn, table

_THIN = ("fp32 nchw integer,fixed",)
_IN_TURN = (
    ("bf16 nhwc fixed",),
    ("fp64 nchw fixed",),
    ("fp16 nhwc fixed",),
    ("fp32 nhwc fixed",),
    ("fp64 nhwc fixed",),
)
"""Of what takes a path through a kernel, or lies at an edge of its parameters: the shape is what matters."""

_PATHS = (
    *in_turn(
        "standard",
        _THIN,
        _IN_TURN,
        {
            "rank1.pointwise-groups": "n2 c8 w13 k6 s1 u2 p1:2 g2 b1",
            "rank1.window-large": "n2 c8 w40 k6 s7 u2 p2:1 d2 g2 b1",
            "rank1.depthwise-steps": "n2 c6 w25 k12 s3 u2 p2:0 d2 g6 b1",
            "rank1.single-image": "n1 c8 w20 k6 s3 u2 p0:1 d2 g2 b1",
            "rank1.unpadded": "n2 c8 w19 k6 s3 u2 d2 g2",
            "rank1.square": "n2 c6 w17 k6 s3 p1 g2",
            "rank1.wide": "n2 c66 w21 k64 s3 u2 p2:1 d2 g2 b1",
            "rank1.k131": "n2 c3 w6 k131 s3 p1",
            "rank1.groups-element": "n2 c6 w1 k4 s3 p1 g2 b1",
            "rank1.depthwise-element": "n3 c7 w1 k7 s1 g7",
            "rank1.dilation-beyond-image": "n2 c4 w5 k6 s3 p3 d3",
            "rank1.even-window-dilated": "n2 c4 w13 k6 s4 u2 p3 d2",
            "rank1.prime": "n3 c7 w13 k5 s3 u2 p1",
            "rank1.pointwise-padded": "n2 c8 w13 k6 s1 u2 p1:2 b1",
            "rank3.pointwise-groups": "n2 c8 d5 h6 w7 k6 t1 r1 s1 u2x1x3 p1:0x0:2x1 g2 b1",
            "rank3.window-large": "n2 c8 d6 h8 w11 k6 t2 r3 s5 u2x1x1 p1:0x1x2 dil1x2x3 g2 b1",
            "rank3.window-one-axis": "n2 c8 d9 h5 w6 k6 t3 r1 s1 u2x1x1 p1:2x0x0 dil2x1x1 g2 b1",
            "rank3.window-one-row": "n2 c8 d5 h6 w9 k6 t1 r1 s3 u1x1x2 p0x0x1:2 dil1x1x2 g2 b1",
            "rank3.depthwise-steps": "n2 c6 d9 h11 w8 k12 t2 r3 s2 u1x2x3 p0x1:0x0:1 dil2x1x1 g6 b1",
            "rank3.single-image": "n1 c8 d6 h9 w8 k6 t2 r3 s2 u2x1x3 p1:0x0:1x2:0 dil1x2x1 g2 b1",
            "rank3.unpadded": "n2 c8 d7 h9 w8 k6 t2 r3 s2 u2x1x1 dil2x1x3 g2",
            "rank3.wide": "n2 c66 d5 h7 w6 k64 t2 r3 s2 u1x2x3 p1x0:1x1:0 dil1x1x2 g2 b1",
            "rank3.groups-voxel": "n2 c6 d1 h1 w1 k4 t3 r3 s3 p1 g2 b1",
            "rank3.depthwise-voxel": "n3 c7 d1 h1 w1 k7 t1 r1 s1 g7",
            "rank3.window-is-padded-image": "n2 c5 d3 h4 w2 k6 t5 r5 s4 p1x1:0x1",
            "rank3.dilation-beyond-image": "n2 c4 d3 h4 w5 k6 t2 r3 s3 p2x2x3 dil3x2x3",
            "rank3.stride-beyond-padded-window": "n2 c4 d9 h9 w8 k6 t2 r2 s1 u3x4x5 p1:0x0:2x1",
            "rank3.even-window-dilated": "n2 c4 d8 h9 w7 k6 t2 r4 s2 p1x2x0 dil3x2x4",
            "rank3.pointwise-padded": "n2 c8 d3 h4 w5 k6 t1 r1 s1 u1x2x1 p1:0x0:2x1 b1",
            "rank3.prime": "n3 c7 d5 h7 w11 k5 t3 r3 s3 u3x2x1 p1 dil1x2x1",
        },
    ),
    *table(
        "standard",
        ("fp32,fp64 nchw bits", "fp32 nchw fixed,subnormal,large,small", "fp64 nhwc special,nonfinite,range"),
        {
            "rank1.values-window-is-image": "n1 c9 w3 k16 s3",
            "rank1.values-filter1": "n2 c7 w50 k1 s1",
            "rank1.values-dense": "n2 c5 w40 k68 s3 p1 b1",
            "rank3.values-window-is-image": "n1 c9 d2 h3 w2 k16 t2 r3 s2",
            "rank3.values-dense": "n2 c4 d3 h4 w5 k10 t2 r2 s2 p1x0x0 b1",
            "rank3.values-filter1": "n2 c7 d4 h4 w5 k1 t1 r1 s1",
        },
    ),
    *table(
        "standard",
        ("fp32 nchw integer,fixed", "bf16 nchw fixed"),
        {
            "rank1.long-contraction": "n1 c4609 w5 k4 s3 p1",
            "rank3.long-contraction": "n1 c4609 d2 h1 w2 k4 t2 r1 s2 p1x0x0",
        },
    ),
)

_NORMALISED_PATHS = (
    *in_turn(
        "standard",
        ("fp32 nchw fixed,scaled,shifted",),
        _IN_TURN,
        {
            "bn.rank1-pointwise": "bn n2 c12 w9 k8 s1 eps3",
            "bn.rank1-depthwise": "bn n3 c6 w17 k6 s3 u2 p1:0 g6 eps3",
            "bn.rank1-single-image": "bn n1 c6 w20 k8 s3 u2 p1 run0 eps3",
            "bn.rank1-not-running": "bn n2 c5 w13 k7 s3 p1 run0 eps3",
            "bn.rank1-bare": "bn n2 c6 w14 k6 s2 p1 d3 affine0 eps3 outside1",
            "bn.rank1-two-elements": "bn n1 c8 w2 k6 s1 eps3",
            "bn.rank1-many-elements": "bn n2 c2 w2063 k3 s1 eps3",
            "bn.rank1-wide": "bn n2 c3 w6 k131 s3 p1 eps3",
            "bn.rank1-groups-element": "bn n5 c6 w1 k4 s1 g2",
            "bn.rank1-depthwise-element": "bn n5 c7 w1 k7 s1 g7",
            "bn.rank1-stride-beyond-window": "bn n3 c4 w17 k6 s2 u3 p1:0",
            "bn.rank1-window-is-padded-image": "bn n7 c4 w4 k6 s6 p1",
            "bn.rank1-dilation-beyond-image": "bn n2 c4 w5 k6 s3 p3 d3",
            "bn.rank1-momentum30": "bn n3 c6 w13 k6 s3 u2 p1:0 d2 mom30",
            "bn.rank3-pointwise": "bn n2 c12 d3 h2 w3 k8 t1 r1 s1 eps3",
            "bn.rank3-depthwise": "bn n3 c6 d4 h5 w6 k6 t2 r3 s2 u2x1x2 p1:0x0:1x1:0 g6 eps3",
            "bn.rank3-single-image": "bn n1 c6 d4 h5 w4 k8 t2 r3 s2 u1x2x1 p1 run0 eps3",
            "bn.rank3-not-running": "bn n2 c5 d3 h5 w7 k7 t1 r3 s2 run0 eps3",
            "bn.rank3-bare": "bn n2 c6 d6 h7 w6 k6 t2 r2 s2 p1x0x1 dil3x2x4 affine0 eps3 outside1",
            "bn.rank3-outside": "bn n2 c6 d4 h5 w5 k6 t2 r3 s3 u1x2x1 p1x1x0 eps3 outside1",
            "bn.rank3-two-elements": "bn n1 c8 d1 h2 w1 k6 t1 r1 s1 eps3",
            "bn.rank3-many-elements": "bn n2 c2 d11 h13 w15 k3 t1 r1 s1 eps3",
            "bn.rank3-wide": "bn n2 c3 d2 h3 w2 k131 t3 r2 s3 p1x1:0x1 eps3",
            "bn.rank3-groups-voxel": "bn n5 c6 d1 h1 w1 k4 t1 r1 s1 g2",
            "bn.rank3-depthwise-voxel": "bn n5 c7 d1 h1 w1 k7 t1 r1 s1 g7",
            "bn.rank3-stride-beyond-window": "bn n3 c4 d7 h6 w8 k6 t2 r1 s2 u3x2x3 p1:0x1:0x1",
            "bn.rank3-window-is-padded-image": "bn n7 c4 d2 h3 w2 k6 t4 r4 s3 p1x1:0x1:0",
            "bn.rank3-dilation-beyond-image": "bn n2 c4 d3 h4 w5 k6 t2 r3 s3 p2x2x3 dil3x2x3",
            "bn.rank3-momentum30": "bn n3 c6 d4 h6 w7 k6 t2 r2 s3 u2x1x3 p1:0x0:1x1 dil1x2x1 mom30",
        },
    ),
    *table(
        "standard",
        ("fp32,fp64 nchw bits", "all nhwc nonfinite,range", "bf16,fp16,fp64 nchw special"),
        {
            "bn.rank1-values": "bn n2 c6 w15 k12 s3 p1 g3",
            "bn.rank3-values": "bn n2 c6 d2 h3 w4 k12 t1 r3 s3 p0x1x1 g3",
        },
    ),
    *table(
        "standard",
        ("fp32 nchw bits,nonfinite,range", "fp64 nchw bits", "fp16,bf16 nchw nonfinite,range"),
        {
            "bn.rank1-values-plain": "bn n2 c4 w15 k12 s1",
            "bn.rank1-values-channel1": "bn n2 c1 w9 k12 s1 eps3",
            "bn.rank3-values-plain": "bn n2 c4 d2 h3 w4 k12 t1 r1 s1",
            "bn.rank3-values-channel1": "bn n2 c1 d2 h2 w3 k12 t1 r1 s1 eps3",
        },
    ),
)

_AVERAGE_PATHS = (
    *in_turn(
        "standard",
        _THIN,
        _IN_TURN,
        {
            "pool.rank1-window1": "pool n2 c3 w9 s1 u2",
            "pool.rank1-gaps": "pool n2 c3 w17 s2 u3 p1",
            "pool.rank1-unit-stride": "pool n1 c5 w13 s3 u1 p1:0",
            "pool.rank1-ceil-valid": "pool n2 c3 w16 s3 u2 p1:0 ceil1 valid1",
            "pool.rank1-ceil-drops": "pool n2 c3 w6 s2 u2 p0:1 ceil1",
            "pool.rank1-ceil-adds": "pool n2 c3 w12 s3 u2 ceil1",
            "pool.rank1-divisor": "pool n2 c3 w11 s3 u2 p1 div7",
            "pool.rank1-divisor-valid": "pool n2 c3 w12 s3 u2 p1 ceil1 valid1 div5",
            "pool.rank1-divisor-one": "pool n2 c3 w9 s2 div1",
            "pool.rank1-window-is-padded-image": "pool n3 c4 w4 s6 p1",
            "pool.rank1-long": "pool n3 c131 w401 s3 u2 p1",
            "pool.rank1-window257": "pool n2 c9 w600 s257 u1",
            "pool.rank1-channel1": "pool n3 c1 w11 s3 u2 p1",
            "pool.rank1-window2051": "pool n2 c2 w2060 s2051 u3",
            "pool.rank3-window1": "pool n2 c3 d4 h5 w6 t1 r1 s1 u2x1x3",
            "pool.rank3-one-axis": "pool n2 c4 d6 h5 w11 t1 r1 s4 u1x2x3 p0x0x1:2",
            "pool.rank3-one-plane": "pool n2 c4 d9 h5 w6 t3 r1 s1 u2x1x2",
            "pool.rank3-gaps": "pool n2 c3 d7 h7 w8 t2 r1 s2 u3x2x3 p1x0x0:1",
            "pool.rank3-unit-stride": "pool n2 c3 d5 h6 w7 t2 r3 s3 u1 p1:0x1x0:1",
            "pool.rank3-ceil-valid": "pool n2 c3 d7 h7 w9 t3 r2 s3 u2x1x3 p1:0x0:1x1:0 ceil1 valid1",
            "pool.rank3-ceil-drops": "pool n2 c3 d6 h4 w8 t2 r2 s2 u2 p0:1x0:1x0:1 ceil1",
            "pool.rank3-divisor-valid": "pool n2 c3 d6 h5 w8 t3 r2 s3 u2 p1 ceil1 valid1 div5",
            "pool.rank3-divisor-one": "pool n2 c3 d4 h3 w5 t2 r2 s2 div1",
            "pool.rank3-stride-beyond-window": "pool n2 c4 d7 h7 w8 t2 r2 s2 u3x4x3 p1",
            "pool.rank3-window-is-padded-image": "pool n3 c4 d2 h3 w2 t4 r4 s3 p1x1:0x1:0",
            "pool.rank3-single-image": "pool n1 c5 d5 h6 w7 t2 r3 s2 u1x1x2 p0x1x0",
            "pool.rank3-prime": "pool n2 c5 d3 h7 w11 t2 r3 s3 u2 p1",
            "pool.rank3-long": "pool n2 c131 d2 h2 w257 t2 r1 s3 u1x1x2 p1x0x1",
            "pool.rank3-window270": "pool n2 c3 d11 h13 w19 t5 r6 s9 u1",
            "pool.rank3-channel1": "pool n3 c1 d4 h5 w6 t2 r3 s3 u2 p1",
            "pool.rank3-window2277": "pool n1 c2 d10 h11 w25 t9 r11 s23 u1",
        },
    ),
    *table(
        "standard",
        pooling.VALUE,
        {"pool.rank1-values": "pool n2 c5 w16 s2", "pool.rank3-values": "pool n2 c3 d4 h4 w6 t2 r2 s1"},
    ),
)

_MAXIMUM_PATHS = (
    *in_turn(
        "standard",
        _THIN,
        _IN_TURN,
        {
            "maxpool.rank1-channels131": "maxpool n2 c131 w7 s3 u2 p1",
            "maxpool.rank1-overlap": "maxpool n2 c24 w99 s19 u1 p3",
            "maxpool.rank1-dilation-beyond-image": "maxpool n2 c4 w5 s3 u1 p1:1 d3",
            "maxpool.rank3-channels131": "maxpool n2 c131 d2 h3 w2 t2 r1 s2 u1",
            "maxpool.rank3-overlap": "maxpool n2 c4 d7 h8 w9 t3 r3 s4 u1 p1:0x0:1x1:2",
            "maxpool.rank3-dilation-beyond-image": "maxpool n2 c4 d3 h4 w5 t3 r3 s3 u1 p1 dil2x2x3",
            "maxpool.rank1-window1": "maxpool n2 c3 w9 s1 u2",
            "maxpool.rank1-global": "maxpool n3 c6 w13 s13",
            "maxpool.rank1-non-overlapping": "maxpool n2 c4 w17 s3",
            "maxpool.rank1-ceil-adds": "maxpool n2 c4 w12 s3 u2 ceil1",
            "maxpool.rank1-ceil-drops": "maxpool n2 c3 w6 s2 u2 p0:1 ceil1",
            "maxpool.rank1-even-window-dilated": "maxpool n2 c4 w11 s4 u2 p2 d2",
            "maxpool.rank1-stride-beyond-window": "maxpool n2 c4 w13 s2 u3 p1",
            "maxpool.rank1-window-is-padded-image": "maxpool n3 c4 w4 s6 p1",
            "maxpool.rank1-long": "maxpool n2 c131 w401 s3 u2 p1",
            "maxpool.rank1-window300": "maxpool n2 c9 w400 s300 u7",
            "maxpool.rank3-window1": "maxpool n2 c3 d4 h5 w6 t1 r1 s1 u2x1x3",
            "maxpool.rank3-one-axis": "maxpool n2 c4 d6 h6 w11 t1 r1 s4 u1x2x3",
            "maxpool.rank3-non-overlapping": "maxpool n2 c4 d7 h8 w5 t2 r3 s2",
            "maxpool.rank3-ceil-drops": "maxpool n2 c3 d6 h4 w8 t2 r2 s2 u2 p0:1x0:1x0:1 ceil1",
            "maxpool.rank3-even-window-dilated": "maxpool n2 c4 d7 h8 w9 t2 r4 s2 u1 p1x2x1 dil3x2x4",
            "maxpool.rank3-stride-beyond-window": "maxpool n2 c4 d7 h7 w8 t2 r2 s2 u3x4x3 p1",
            "maxpool.rank3-window-is-padded-image": "maxpool n3 c4 d2 h3 w2 t4 r4 s3 p1x1:0x1:0",
            "maxpool.rank3-prime": "maxpool n2 c5 d3 h7 w11 t2 r3 s3 u2 p1 dil1x2x1",
            "maxpool.rank3-long": "maxpool n2 c131 d2 h2 w257 t2 r1 s3 u1x1x2 p1x0x1",
            "maxpool.rank3-window270": "maxpool n2 c9 d7 h8 w10 t5 r6 s9 u1",
        },
    ),
    *table(
        "standard",
        (*pooling.VALUE, "fp64 nchw close"),
        {
            "maxpool.rank1-values": "maxpool n2 c6 w18 s3 u2 p1",
            "maxpool.rank3-values": "maxpool n2 c3 d4 h4 w6 t2 r2 s3 u1",
        },
    ),
)

_EMPTY = (
    *table(
        "standard",
        empty.SOME,
        {
            "empty.rank1": "n0 c8 w9 k16 s3 p1 b1",
            "empty.rank3": "n0 c6 d4 h5 w6 k8 t2 r3 s3 u2x1x1 p1 g2 b1",
        },
    ),
    *table(
        "standard",
        empty.SOME,
        {"empty.bn-rank1": "bn n0 c8 w9 k16 s3 p1", "empty.bn-rank3": "bn n0 c6 d3 h5 w4 k8 t1 r3 s3"},
    ),
    *table(
        "standard",
        empty.SOME,
        {
            "empty.pool-rank1": "pool n0 c5 w11 s3 u2 p1 ceil1",
            "empty.pool-rank3": "pool n0 c5 d4 h5 w6 t2 r3 s3 u2 p1",
        },
    ),
    *table(
        "standard",
        empty.SOME,
        {
            "empty.maxpool-rank1": "maxpool n0 c5 w11 s3 u2 p1",
            "empty.maxpool-rank3": "maxpool n0 c5 d4 h5 w6 t2 r3 s3 u2 p1",
        },
    ),
)

PROBLEMS: tuple[Problem, ...] = (*_PATHS, *_NORMALISED_PATHS, *_AVERAGE_PATHS, *_MAXIMUM_PATHS, *_EMPTY)
