"""Convolutions of 8 bits with results of 8 bits: zero points of both signs, which padding shows; groups; long sums.

Shapes are few: where each product goes, the tables of convolution show.
"""

from __future__ import annotations

from conformance.problems.table import Problem, table

_INT8 = ("int8 nchw,nhwc scales,ties", "int8 nchw cancelled")
_FP8 = ("fp8_e4m3,fp8_e5m2 nchw,nhwc scales,ties", "fp8_e4m3,fp8_e5m2 nchw special")
_QUICK_INT8 = ("int8 nchw scales,ties",)
_QUICK_FP8 = ("fp8_e4m3,fp8_e5m2 nchw scales",)

PROBLEMS: tuple[Problem, ...] = (
    *table(
        "standard",
        _INT8,
        {
            "requantized.plain": "q n2 c8 h9 w7 k12 r3 s3 p1 b1 zx3 zy-5",
            "requantized.rank1": "q n2 c8 w41 k8 s3 p1 b1 zx-128 zy1",
            "requantized.rank3": "q n2 c6 d5 h6 w7 k6 t3 r3 s3 p1 b1 zx7 zy-9",
        },
    ),
    *table(
        "standard",
        _FP8,
        {
            "requantized.fp8": "q n2 c8 h9 w7 k12 r3 s3 p1 b1",
            "requantized.fp8-rank1": "q n2 c8 w41 k12 s3 p1 b1",
            "requantized.fp8-rank3": "q n2 c4 d5 h6 w7 k8 t3 r3 s3 p1 b1",
        },
    ),
    *table(
        "standard",
        ("int8 nchw scales,ties", "fp8_e4m3,fp8_e5m2 nchw scales"),
        {
            "requantized.no-zero-points": "q n2 c6 h8 w9 k8 r3 s3 u2 p1 b1",
            "requantized.pointwise": "q n2 c67 h5 w6 k33 r1 s1",
        },
    ),
    *table(
        "standard",
        _QUICK_INT8,
        {
            "requantized.groups": "q n2 c12 h7 w8 k20 r3 s3 p1 d2x1 g4 b1 zx-9 zy17",
            "requantized.depthwise": "q n2 c10 h8 w9 k10 r3 s3 p1 g10 b1 zx127 zy-128",
            "requantized.asymmetric": "q n3 c5 h8 w9 k7 r3 s2 u2x1 p1:0x2 zx-128 zy-1",
            "requantized.unpadded": "q n2 c16 h7 w6 k9 r3 s3 b1 zx-20 zy3",
            "requantized.y-zero-point": "q n2 c6 h7 w8 k8 r3 s3 p1 b1 zy11",
            "requantized.x-zero-point": "q n2 c6 h7 w8 k6 r3 s3 p2 b1 zx-6",
            "requantized.relu": "q n2 c7 h8 w8 k11 r3 s3 u2 p1 b1 zx-128 zy-128",
            "requantized.rank1-dilated": "q n2 c9 w40 k6 s5 u2 p2:4 d3 g3 zx5 zy127",
            "requantized.rank3-stride": "q n2 c6 d6 h7 w7 k4 t2 r3 s2 u2x1x3 p1:0x0:1x2:1 dil1x2x3 g2 b1 zx-3 zy2",
        },
    ),
    *table(
        "standard",
        ("int8 nchw scales,cancelled",),
        {
            "requantized.deep": "q n1 c515 h8 w9 k6 r3 s3 p1 b1 zx-3 zy7",
            "requantized.rank1-deep": "q n2 c1031 w19 k5 s3 p1 b1 zx2 zy-7",
            "requantized.rank3-deep": "q n3 c300 d4 h5 w5 k6 t3 r3 s3 b1 zx-1 zy1",
            "requantized.longest": "q n1 c65535 h3 w3 k4 r1 s1 b1 zx-1",
        },
    ),
    *table("standard", ("int8 nchw,nhwc ties",), {"empty.requantized": "q n0 c8 h9 w9 k16 r3 s3 p1 b1 zx3"}),
)
