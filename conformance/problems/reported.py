"""What a stranger's known-bad kernels of one and three dimensions needed, and no other table had.

They were written from the guide alone: counters of 8, 15 and 16 bits, tails behind 8 planes and 128 columns, parameters
of one axis that change a path only together, values at the ends of a format in poolings.
"""

from __future__ import annotations

from conformance.problems.table import Problem, in_turn, table

_THIN = ("fp32 nchw fixed",)
_IN_TURN = (("bf16 nhwc fixed",), ("fp64 nchw fixed",), ("fp16 nhwc fixed",), ("fp32 nhwc fixed",))

_CONVOLUTIONS = (
    *in_turn(
        "standard",
        _THIN,
        _IN_TURN,
        {
            "reported.row-40000": "n1 c1 w40000 k1 s3",
            "reported.planes-300": "n1 c1 d300 h2 w2 k1 t2 r1 s1",
            "reported.planes-65540": "n1 c1 d65540 h1 w1 k1 t1 r1 s1",
            "reported.column-129": "n1 c2 w129 k2 s1",
            "reported.flat-window-groups": "n2 c4 d3 h5 w5 k4 t1 r3 s3 g2",
            "reported.remainder-odd-depth": "n2 c2 d7 h4 w4 k2 t2 r2 s2 u2",
            "reported.depth-stride-dilation": "n1 c2 d9 h5 w5 k2 t2 r2 s2 u2x1x1 dil2x1x1",
            "reported.dilation-of-rows": "n1 c2 d9 h9 w5 k2 t2 r2 s2 dil2x3x1",
            "reported.planes-12": "n1 c2 d12 h4 w4 k2 t2 r2 s2",
            "reported.planes-12-steps": "n1 c2 d12 h4 w4 k2 t2 r2 s2 u3x1x1 dil2x1x1",
            "reported.row-3000": "n1 c2 w3000 k2 s3",
            "reported.volume": "n1 c2 d33 h32 w32 k2 t2 r1 s1",
            "reported.depthwise-depth-stride": "n1 c3 d7 h4 w4 k3 t3 r2 s2 u2x1x1 p1x0x0 g3",
            "reported.pointwise-groups": "n1 c4 d3 h3 w3 k4 t1 r1 s1 g2",
            "reported.temporal-groups": "n1 c4 d5 h3 w3 k4 t3 r1 s1 g2 b1",
            "reported.row-pointwise-groups": "n1 c4 w9 k4 s1 g2",
            "reported.row-pointwise-padded": "n1 c4 w9 k4 s1 p1",
            "reported.row-stride-beyond-window": "n1 c2 w13 k2 s2 u4 p1:0",
            "reported.rows-stride-dilation": "n1 c2 d4 h9 w5 k2 t2 r2 s2 u1x2x1 dil1x2x1",
            "reported.row-depthwise-dilated": "n1 c4 w12 k4 s3 d2 g4",
        },
    ),
    *table(
        "standard", ("fp32 nchw fixed,mixed,nonfinite",), {"reported.window-9-planes": "n1 c2 d12 h3 w3 k2 t9 r1 s1"}
    ),
)

_POOLINGS = (
    *in_turn(
        "standard",
        _THIN,
        _IN_TURN,
        {
            "reported.average-ceil": "pool n1 c2 d6 h5 w5 t3 r2 s2 u2 ceil1",
            "reported.average-flat-divisor": "pool n1 c2 d4 h4 w4 t1 r2 s2 div3",
        },
    ),
    *table(
        "standard",
        ("fp32 nchw fixed,mixed,nonfinite", "fp16 nchw large,mixed"),
        {"reported.average-values": "pool n1 c2 d6 h4 w4 t3 r2 s2 u2"},
    ),
    *in_turn(
        "standard",
        _THIN,
        _IN_TURN,
        {
            "reported.maximum-dilated": "maxpool n1 c2 d8 h5 w5 t2 r2 s2 p1x0x0 dil2x1x1",
            "reported.maximum-row-40000": "maxpool n1 c1 w40000 s2 u2",
        },
    ),
    *table("standard", ("fp32 nchw fixed,bits,wide",), {"reported.maximum-343": "maxpool n1 c2 d8 h8 w8 t7 r7 s7"}),
    *table(
        "standard",
        ("fp32 nchw fixed,mixed,nonfinite",),
        {
            "reported.maximum-values": "maxpool n1 c2 d8 h5 w5 t3 r2 s2 p1x0x0",
            # a pixel of minus infinity, with padding in front: the gradient is not the padding's
            "reported.maximum-element": "maxpool n8 c8 w1 s3 u1 p1",
            "reported.maximum-pixel": "maxpool n8 c8 h1 w1 r3 s3 u1 p1",
            "reported.maximum-voxel": "maxpool n8 c8 d1 h1 w1 t3 r3 s3 u1 p1",
        },
    ),
)

_NORMALISED = table("standard", ("fp32 nchw fixed,scaled",), {"reported.one-plane": "bn n2 c3 d3 h5 w5 k4 t3 r3 s3"})

_REQUANTIZED = (
    *table(
        "standard",
        ("int8 nchw scales",),
        {
            "reported.padding-below": "q n1 c2 h4 w5 k3 r2 s2 p0:1x0 zx100",
            "reported.multiplier": "q n2 c3 h4 w5 k9 r3 s3 p1 g3 b1 zx-7",
            "reported.pointwise-padded": "q n2 c4 h3 w4 k5 r1 s1 p1 b1 zx9 zy-2",
            "reported.tile-17": "q n1 c3 h2 w17 k4 r1 s1 b1",
            "reported.dilated-columns": "q n2 c3 h5 w9 k4 r3 s3 p2 d1x2 b1 zx-11",
        },
    ),
    *table("standard", ("int8 nchw cancelled",), {"reported.groups-deep": "q n1 c3000 h1 w2 k4 r1 s1 g2 b1"}),
)
_TRANSPOSED = table("standard", ("fp32 nchw fixed",), {"reported.square-groups": "convt n1 c4 h3 w4 k4 r3 s3 u2 p1 g2"})

PROBLEMS: tuple[Problem, ...] = (*_CONVOLUTIONS, *_POOLINGS, *_NORMALISED, *_REQUANTIZED, *_TRANSPOSED)
