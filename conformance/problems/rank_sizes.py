"""Thin problems in one and three dimensions: what `sizes` is in two, with one row for each size and path.

Here every size is met in fp32 and one layout; what takes a size and a format together is looked for in two dimensions.
"""

from __future__ import annotations

from conformance.problems.table import Problem, table

_HOW = ("fp32 nchw fixed",)
_CONVOLUTIONS = """
    n1 c1 w70001 k2 s3
    n1 c10 w23 k7 s1
    n1 c12 w26 k12 s3 p1 g12
    n1 c17 w27 k24 s3 p1
    n1 c2 w4 k2 s3 p260 d260
    n1 c2 w70001 k2 s3 p1 g2
    n1 c20 w25 k8 s3 p1
    n1 c3 w300 k3 s1031 p500 g3
    n1 c4 w70001 k2 s2 u2 g2 b1
    n1 c6 w21 k6 s3 p1 g6
    n1 c70001 w1 k2 s1
    n1 c70001 w1 k2 s3 p1
    n1 c70001 w1 k70001 s3 p1 g70001
    n1 c70002 w1 k2 s1 g2 b1
    n1 c7789 w3 k2 s3
    n2 c1 w70001 k2 s1 u261
    n70001 c1 w3 k1 s3
    n70001 c2 w1 k2 s3 p1 g2
    n70001 c2 w1 k3 s1 b1
    n70001 c4 w2 k2 s2 g2

    n1 c1 d1 h3 w70001 k2 t3 r3 s3 p1x0x0
    n1 c1 d1 h70001 w3 k2 t3 r3 s3 p1x0x0
    n1 c1 d70001 h1 w3 k2 t3 r3 s3 p0x1x0
    n1 c1 d3 h3 w70001 k1 t3 r3 s3
    n1 c1 d3 h70001 w3 k1 t3 r3 s3
    n1 c1 d70001 h3 w3 k1 t3 r3 s3
    n70001 c1 d3 h3 w3 k1 t3 r3 s3
    n1 c7789 d3 h3 w3 k2 t3 r3 s3
    n1 c10 d1 h64 w23 k7 t1 r1 s1
    n1 c15 d1 h5 w21 k128 t1 r3 s3 p0x1x1
    n1 c16 d1 h6 w26 k63 t1 r3 s3 p0x1x1
    n1 c17 d1 h12 w27 k24 t1 r3 s3 p0x1x1
    n1 c2 d1 h1 w70001 k2 t1 r1 s1
    n1 c2 d1 h1 w70001 k2 t1 r3 s3 p0x1x1 g2
    n1 c2 d1 h5 w4 k2 t1 r3 s3 p0x260x260 dil1x260x260
    n1 c2 d1 h70001 w1 k2 t1 r1 s1
    n1 c2 d1 h70001 w1 k2 t3 r3 s1 p1x1x0 g2
    n1 c2 d70001 h1 w1 k2 t3 r1 s3 p1x0x1 g2
    n1 c25 d1 h4 w22 k65 t1 r1 s1
    n1 c256 d1 h3 w28 k14 t1 r1 s1
    n1 c3 d1 h1300 w2 k3 t1 r3 s3 u1x260x1 p0x1:260x1:259 g3
    n1 c3 d1 h2 w300 k3 t1 r1 s1031 p0x0x500 g3
    n1 c3 d2 h300 w1 k3 t1 r1031 s1 p0x500x0 g3
    n1 c32 d1 h2 w19 k257 t1 r1 s1
    n1 c4 d1 h1 w70001 k2 t1 r1 s2 u1x1x2 g2 b1
    n1 c4 d1 h70001 w1 k2 t1 r2 s1 u1x2x1 g2 b1
    n1 c4 d70001 h1 w1 k2 t2 r1 s1 u2x1x1 g2 b1
    n1 c64 d1 h8 w25 k20 t1 r1 s1
    n1 c65 d1 h4 w18 k22 t1 r1 s1
    n1 c70001 d1 h1 w1 k2 t3 r3 s3 p1
    n1 c70001 d1 h1 w1 k70001 t1 r1 s1 g70001
    n1 c70001 d1 h1 w2 k2 t1 r1 s1
    n1 c70002 d1 h1 w1 k2 t1 r1 s1 g2 b1
    n2 c1 d1 h1 w70001 k2 t1 r1 s1 u1x1x261
    n70001 c1 d1 h1 w2 k2 t3 r3 s3 p1
    n70001 c2 d1 h1 w1 k2 t1 r3 s3 p0x1x1 g2
    n70001 c2 d1 h1 w1 k3 t1 r1 s1 b1
    n70001 c4 d1 h1 w2 k2 t1 r1 s2 g2
    n1 c131 d2 h3 w3 k133 t2 r1 s2 p1x0x1
    n2 c4 d3 h4 w7 k5 t3 r1 s5 p1x0x2 b1
"""
_NORMALISED = """
    n1 c1 w1040 k2 s1031
    n1 c2 w2 k2 s3 p1:259
    n1 c2 w523 k2 s3 d260
    n1 c2 w70001 k1 s3 p1
    n2 c2 w530 k2 s3 u260 p1
    n2 c70001 w2 k2 s1
    n2 c70001 w1 k70001 s1 g70001
    n70001 c1 w2 k2 s3 p1

    n1 c1 d1 h1 w140009 k1 t1 r1 s1
    n1 c1 d1 h1040 w2 k2 t1 r1031 s1
    n1 c1 d1 h2 w1040 k2 t1 r1 s1031
    n1 c2 d1 h2 w2 k2 t1 r3 s3 p0x260:1x1:259
    n1 c2 d1 h4 w523 k2 t1 r3 s3 p0x1x0 dil1x1x260
    n1 c2 d1 h523 w4 k2 t1 r3 s3 p0x0x1 dil1x260x1
    n1 c2 d1 h70001 w1 k2 t1 r1 s1 affine0
    n1 c2 d70001 h1 w1 k2 t1 r1 s1 affine0
    n2 c2 d1 h3 w530 k2 t1 r3 s3 u1x1x260 p0x1x1
    n2 c2 d1 h530 w3 k2 t1 r3 s3 u1x260x1 p0x1x1
    n2 c70001 d1 h1 w1 k70001 t1 r1 s1 g70001
    n2 c7789 d1 h3 w2 k2 t1 r3 s3 p0x1x1
    n70001 c2 d1 h1 w1 k2 t1 r3 s3 p0x1x1 g2
"""
_TRANSPOSED = """
    n1 c1 w70001 k2 s1 b1
    n1 c70001 w1 k70001 s1 u2 g70001 b1
    n70001 c2 w1 k2 s2 g2 b1
    n1 c131 w7 k133 s3 u2 p1 b1
    n2 c131 w67 k3 s3 u2 p1 o1

    n1 c2 d1 h1 w70001 k2 t1 r1 s1
    n1 c2 d1 h70001 w1 k2 t1 r1 s1
    n1 c70001 d1 h1 w1 k70001 t1 r1 s2 u1x2x2 g70001 b1
    n263 c267 d1 h1 w1 k2 t1 r1 s1
    n70001 c2 d1 h1 w1 k2 t1 r1 s2 g2 b1
    n1 c131 d2 h3 w3 k133 t1 r2 s3 p0x0x1 b1
"""
_POOLINGS = """
    n1 c1 w70001 s2 u1
    n1 c70001 w2 s2
    n2 c1 w3 s601 u260 p300
    n70001 c1 w1 s3 u1 p1
    n1 c1 d1 h1 w70001 t1 r1 s2 u1
    n1 c1 d1 h70001 w1 t1 r2 s1 u1
    n1 c1 d70001 h1 w1 t2 r1 s1 u1
    n1 c70001 d1 h2 w2 t1 r2 s2
    n2 c1 d1 h3 w4 t1 r601 s2 u1x260x1 p0x300x1
    n2 c1 d1 h4 w3 t1 r2 s601 u1x1x260 p0x1x300
    n70001 c1 d1 h1 w2 t1 r3 s3 u1 p0x1x1
"""
_DILATED = """
    n1 c2 w523 s3 u1 d260
    n1 c2 d1 h3 w523 t1 r3 s3 u1 p0x1x0 dil1x1x260
    n1 c2 d1 h523 w3 t1 r3 s3 u1 p0x0x1 dil1x260x1
"""


def _thin(prefix: str, text: str) -> tuple[Problem, ...]:
    rows = [f"{prefix}{row.strip()}" for row in text.splitlines() if row.strip()]
    return table("standard", _HOW, {f"sizes.{row.replace(' ', '_')}": row for row in rows})


PROBLEMS: tuple[Problem, ...] = (
    *(*_thin("", _CONVOLUTIONS), *_thin("bn ", _NORMALISED), *_thin("convt ", _TRANSPOSED)),
    *(*_thin("pool ", _POOLINGS), *_thin("maxpool ", _POOLINGS + _DILATED)),
)
