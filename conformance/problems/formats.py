"""Inputs of 8 bits: fp8, whose sums are fp32, and whole numbers, whose sums are int32.

Shapes are those that show what is about formats: depths that fill vectors of 4, 16 and 64 bytes and leave some over,
groups, padding, a bias, and of whole numbers sums that only 32 bits hold. What is about shapes alone, the other tables
show in other dtypes.
"""

from __future__ import annotations

from conformance.problems.table import Problem, table

_FP8 = "fp8_e4m3,fp8_e5m2 nchw,nhwc"
_FLOATING = (
    f"{_FP8} integer,fixed,impulse,codes",
    "fp8_e4m3,fp8_e5m2 nchw special,nonfinite,wide,mixed",
)
_QUICK = (f"{_FP8} fixed", "fp8_e4m3,fp8_e5m2 nchw codes")
_CARE = ("plain", "rank1-plain", "rank3-plain", "groups")
"""Names of the shapes that are run in every distribution."""
_WHOLE = ("int8 nchw,nhwc integer,large", "int8 nchw impulse")

_SHAPES = {
    "plain": "n2 c8 h9 w7 k12 r3 s3 p1 b1",
    "rank1-plain": "n2 c8 w19 k12 s3 p1 b1",
    "rank3-plain": "n2 c4 d5 h6 w7 k6 t3 r3 s3 p1 b1",
    "unbiased": "n3 c5 h8 w9 k7 r3 s2 u2x1 p1:0x2",
    "pointwise": "n2 c67 h5 w6 k33 r1 s1",
    "groups": "n2 c12 h7 w8 k20 r3 s3 p1 d2x1 g4 b1",
    "depthwise": "n2 c10 h8 w9 k10 r3 s3 p1 g10 b1",
    "rank1-dilated": "n2 c9 w40 k6 s5 u2 p2:4 d3 g3",
    "rank3-stride": "n2 c6 d6 h5 w7 k4 t2 r3 s2 u2x1x2 p0x1x1 g2 b1",
}
_SUMS = {
    "deep": "n2 c515 h3 w4 k6 r3 s3 p1 b1",
    "longest": "n1 c131071 h2 w1 k4 r1 s1",
    "rank1-deep": "n2 c1031 w9 k5 s3 p1 b1",
    "rank3-deep": "n1 c300 d3 h4 w3 k4 t3 r3 s3 p1 b1",
}
"""Of 3,000 to 131,071 products: sums beyond 2^24 and, in the longest, near 2^31."""
_DEPTHS = {
    "deep": _SUMS["deep"],
    "rank1-deep": "n2 c1603 w19 k12 s3 p1 b1",
    "rank1-many-filters": "n1 c16 w30 k1603 s3 p1 b1",
    "rank1-large-image": "n2 c12 w2450 k15 s3 p1 b1",
    "rank3-deep": _SUMS["rank3-deep"],
    "rank3-many-filters": "n1 c8 d3 h6 w5 k300 t3 r3 s3 p1 b1",
    "rank3-large-image": "n2 c3 d9 h17 w16 k5 t3 r3 s3 p1 b1",
    "many-filters": "n1 c16 h6 w5 k519 r3 s3 p1 b1",
    "large-image": "n2 c3 h50 w49 k5 r3 s3 p1 b1",
}
"""Of 4,600 to 8,100 products, in each direction: shorter sums of fp8 fit in the 14 bits that some accumulators have."""

PROBLEMS: tuple[Problem, ...] = (
    *table("standard", _FLOATING, {f"fp8.{name}": _SHAPES[name] for name in _CARE}),
    *table("standard", _QUICK, {f"fp8.{name}": text for name, text in _SHAPES.items() if name not in _CARE}),
    *table("standard", (f"{_FP8} fixed",), {f"fp8.{name}": text for name, text in _DEPTHS.items()}),
    *table("standard", _WHOLE, {f"int8.{name}": text for name, text in (_SHAPES | _SUMS).items()}),
)
