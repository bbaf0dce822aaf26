"""What partial requests and sums into an array are checked on: one problem for each path that kernels commonly have."""

from __future__ import annotations

from conformance.problems.table import Problem, typed

CONVOLUTIONS = (
    "n2 c6 h7 w9 k10 r3 s3 p1 b1",
    "n2 c12 h6 w5 k8 r1 s1 b1",
    "n2 c9 h8 w7 k9 r3 s3 u2 p1 g9",
    "n1 c4 h9 w8 k6 r3 s2 u1x2 p0:1x2:0 d2x1 g2 b1",
)
NORMALISED = (
    "bn n2 c6 h7 w8 k10 r3 s3 p1",
    "bn n3 c8 h6 w5 k8 r1 s1 affine0 run0",
    "bn n2 c6 h8 w7 k6 r3 s3 u2 p1 g6 affine0",
)
POOLINGS = ("pool n2 c5 h9 w8 r3 s3 u2 p1", "pool n2 c6 h5 w5 r5 s5")
MAX_POOLINGS = ("maxpool n2 c5 h9 w8 r3 s3 u2 p1", "maxpool n2 c4 h8 w6 r2 s2")

PROBLEMS: tuple[Problem, ...] = tuple(
    typed(text, "standard") for text in (*CONVOLUTIONS, *NORMALISED, *POOLINGS, *MAX_POOLINGS)
)
