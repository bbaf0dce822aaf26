"""What partial requests and sums into an array are checked on: one problem for each path that kernels commonly have,
small, and with odd numbers of elements, so that vectors have tails."""

from __future__ import annotations

from conformance.problems.table import Problem, typed

CONVOLUTIONS = (
    "n1 c5 h7 w9 k7 r3 s3 p1 b1",
    "n3 c11 h5 w5 k7 r1 s1 b1",
    "n3 c9 h9 w9 k9 r3 s3 u2 p1 g9",
    "n2 c4 h9 w8 k6 r3 s2 u1x2 p0:1x2:0 d2x1 g2 b1",
)
NORMALISED = ("bn n3 c5 h7 w9 k7 r3 s3 p1", "bn n3 c11 h5 w5 k7 r1 s1 affine0 run0")
POOLINGS = ("pool n2 c5 h9 w8 r3 s3 u2 p1", "pool n2 c6 h5 w5 r5 s5")
MAX_POOLINGS = ("maxpool n2 c5 h9 w8 r3 s3 u2 p1", "maxpool n2 c4 h8 w6 r2 s2")
TRANSPOSED = ("convt n2 c5 h5 w6 k7 r3 s3 u2 p1 o1 b1", "convt n3 c4 h4 w5 k6 r2 s3 u1x2 p0:1x1:0 d2x1 g2 b1")

PROBLEMS: tuple[Problem, ...] = tuple(
    typed(text, "standard") for text in (*CONVOLUTIONS, *NORMALISED, *POOLINGS, *MAX_POOLINGS, *TRANSPOSED)
)
