"""Batches without images, which the last step of an epoch or an empty selection gives a layer.

Images come out empty; the gradients of parameters, sums of nothing, are zero.
"""

from __future__ import annotations

from conformance.problems.table import Problem, table

EVERY_FORMAT = ("fp32,fp64,fp16 nchw fixed", "fp32,bf16 nhwc fixed", "bf16 nchw integer")
SOME = ("fp32 nchw fixed", "bf16 nhwc fixed")

CONVOLUTIONS = (
    *table(
        "standard",
        EVERY_FORMAT,
        {
            "empty.dense": "n0 c8 h9 w9 k16 r3 s3 p1 b1",
            "empty.depthwise": "n0 c9 h8 w8 k9 r3 s3 p1 g9 b1",
        },
    ),
    *table(
        "standard",
        SOME,
        {
            "empty.pointwise-stride2": "n0 c6 h8 w8 k10 r1 s1 u2",
            "empty.asymmetric-all": "n0 c6 h11 w8 k10 r3 s2 u2x1 p0:1x2:0 d1x2 g2",
        },
    ),
)
NORMALISED = table(
    "standard",
    SOME,
    {
        "empty.bn": "bn n0 c8 h9 w9 k16 r3 s3 p1",
        "empty.bn-bare": "bn n0 c6 h8 w8 k8 r1 s1 affine0 eps3 outside1",
    },
)
POOLINGS = table(
    "standard",
    SOME,
    {
        "empty.pool": "pool n0 c5 h11 w12 r3 s3 u2 p1 ceil1",
        "empty.pool-global": "pool n0 c6 h7 w7 r7 s7",
    },
)
MAX_POOLINGS = table(
    "standard",
    SOME,
    {
        "empty.maxpool": "maxpool n0 c5 h11 w12 r3 s3 u2 p1",
        "empty.maxpool-dilation": "maxpool n0 c3 h9 w10 r3 s3 u1 p1 d2",
    },
)

PROBLEMS: tuple[Problem, ...] = (*CONVOLUTIONS, *NORMALISED, *POOLINGS, *MAX_POOLINGS)
