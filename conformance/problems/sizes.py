"""Thin problems: one axis is long, the others have one to three elements.

A kernel changes its path, or its index overflows, beyond 2^8, 2^10, 2^15, 2^16 or 2^24 of one axis or of a product of
axes. A problem beyond the largest of these is beyond all. 70,001 is not round, leaves one element over in every vector
width, and is so far beyond 2^16 that the sum without the rest is wrong in 16-bit formats too.
"""

from __future__ import annotations

from conformance.operators import parse
from conformance.problems.table import Problem, in_turn

TILES = (
    23,
    9,
    25,
    24,
    18,
    63,
    28,
    128,
    32,
    255,
    31,
    64,
    29,
    65,
    27,
    256,
    26,
    129,
    21,
    257,
    10,
    127,
    20,
    30,
    22,
    12,
    14,
    6,
    33,
    5,
    19,
    7,
    11,
    8,
    17,
    4,
    16,
    3,
    15,
    1,
    13,
    2,
)
"""Sizes below, at and above those of tiles and vectors, with every remainder; in an order in which the large ones, read
from four places at once, do not meet."""
FP32 = ("fp32 nchw fixed",)
FP32 = ("fp32 nchw fixed",)
OTHERS = (
    *("fp64 nhwc fixed", "fp64 nchw fixed", "bf16 nchw fixed", "fp16 nhwc fixed"),
    *("fp64 nhwc fixed", "fp16 nchw fixed", "bf16 nhwc fixed"),
)
"""In this order every long axis meets both layouts, 16 bits and 64."""
LONG = 1 << 16
"""Elements of an image or a result from which on a problem is run as one of `OTHERS` too, as one in `EVERY` of the
others is."""
EVERY = 7


def _thin(rows: str) -> tuple[Problem, ...]:
    named = {f"sizes.{row.replace(' ', '_')}": row for row in filter(None, map(str.strip, rows.splitlines()))}
    long = {name: row for name, row in named.items() if max(parse(row).x.size, parse(row).y.size) > LONG}
    seldom = [lines for other in OTHERS for lines in ((other,), *[()] * (EVERY - 1))]
    return (
        *in_turn("standard", FP32, [(other,) for other in OTHERS], long),
        *in_turn("standard", FP32, seldom, {name: row for name, row in named.items() if name not in long}),
    )


def _tiles(form: str, first: int, count: int = 21) -> tuple[Problem, ...]:
    """Channels, filters, rows and columns each take so many of `TILES`, from places far apart on."""
    turns = ((TILES * 3)[first + start : first + start + count] for start in (0, 11, 22, 33))
    return _thin("\n".join(form.format(c=c, k=k, h=h, w=w) for c, k, h, w in zip(*turns, strict=True)))


# dense 1x1, dense 3x3, depthwise, grouped: a kernel may be declared for one of these alone
CONVOLUTIONS = (
    _thin("""
    n70001 c2 h1 w1 k3 r1 s1 b1
    n1 c70001 h1 w2 k2 r1 s1
    n2 c2 h1 w1 k70001 r1 s1 b1
    n1 c2 h70001 w1 k2 r1 s1
    n1 c1 h1 w70001 k3 r1 s1
    n1 c2 h1 w70001 k2 r1 s1 u1x260
    n2 c1 h70001 w1 k2 r1 s1 u261x1
    n2 c2 h2 w3 k2 r1 s1 p260:0x3:259
    n1 c2 h3 w2 k3 r1 s1 p0:261x258:0
    n2 c1 h257 w273 k1 r1 s1
    n263 c267 h1 w1 k2 r1 s1
    n267 c2 h1 w1 k263 r1 s1
    n1 c263 h1 w2 k267 r1 s1

    n70001 c1 h1 w2 k2 r3 s3 p1
    n1 c70001 h1 w1 k2 r3 s3 p1
    n1 c1 h2 w1 k70001 r3 s3 p1
    n1 c2 h70001 w2 k1 r3 s3 p1
    n1 c1 h2 w70001 k2 r3 s3 p1 b1
    n1 c1 h257 w273 k2 r3 s3 p1
    n263 c267 h1 w1 k2 r3 s3 p1
    n267 c2 h2 w1 k263 r3 s3 p1
    n2 c2 h530 w3 k2 r3 s3 u260x1 p1
    n1 c2 h3 w530 k3 r3 s3 u1x260 p1
    n1 c2 h523 w3 k2 r3 s3 p0x1 d260x1
    n1 c2 h4 w523 k2 r3 s3 p1x0 d1x260
    n1 c2 h5 w4 k2 r3 s3 p260 d260
    n1 c2 h2 w2 k2 r3 s3 p260:1x1:259
    n1 c2 h2 w3 k2 r3 s3 p1:261x260:0

    n70001 c1 h3 w3 k1 r3 s3
    n1 c7789 h3 w3 k2 r3 s3
    n1 c1 h3 w3 k70001 r2 s3
    n1 c1 h70001 w3 k2 r3 s3
    n1 c1 h3 w70001 k2 r3 s3

    n70001 c2 h1 w1 k2 r3 s3 p1 g2
    n1 c70001 h2 w1 k70001 r3 s3 p1 g70001
    n1 c70001 h1 w1 k70001 r1 s1 g70001
    n1 c35001 h1 w1 k70002 r1 s1 g35001
    n1 c2 h70001 w1 k4 r3 s3 p1 g2 b1
    n1 c2 h1 w70001 k2 r3 s3 p1 g2
    n1 c2 h257 w273 k2 r3 s3 p1 g2
    n263 c267 h1 w1 k267 r3 s1 p1x0 g267
    n1 c3 h1300 w2 k3 r3 s3 u260x1 p1:260x1:259 g3
    n1 c2 h1 w1300 k2 r3 s3 u1x260 p1 g2
    n1 c2 h523 w3 k2 r3 s3 p0x1 d260x1 g2
    n1 c2 h3 w600 k2 r3 s3 p1x260 d1x260 g2
    n2 c2 h3 w2 k2 r3 s3 p260:1x0:259 g2

    n70001 c4 h2 w3 k2 r1 s2 g2
    n1 c70002 h1 w1 k2 r1 s1 g2 b1
    n1 c4 h1 w1 k70002 r1 s1 g2
    n1 c4 h70001 w1 k2 r2 s1 u2x1 g2 b1
    n1 c4 h1 w70001 k4 r1 s3 u1x2 g2

    n2 c5 h1 w9 k4 r1 s1
    n2 c5 h9 w1 k4 r1 s1
    n2 c1 h6 w7 k4 r1 s1
    n2 c5 h6 w7 k1 r1 s1
    n1 c5 h6 w7 k4 r1 s1
    n2 c6 h1 w1 k4 r1 s1 g2 b1
    n2 c5 h1 w9 k4 r3 s3 p1
    n2 c5 h9 w1 k4 r3 s3 p1
    n2 c1 h6 w7 k4 r3 s3 p1
    n2 c5 h6 w7 k1 r3 s3 p1
    n2 c5 h3 w9 k4 r3 s3
    n2 c5 h9 w3 k4 r3 s3
    n2 c5 h1 w9 k5 r3 s3 p1 g5
    n2 c5 h9 w1 k5 r3 s3 p1 g5
    n2 c5 h1 w1 k5 r3 s3 p1 g5
    n2 c6 h1 w9 k4 r1 s3 p0x1 g2
    n2 c6 h9 w1 k4 r3 s1 p1x0 g2

    n1 c1 h1040 w2 k2 r1031 s1
    n2 c1 h2 w1040 k1 r1 s1031 b1
    n1 c2 h18 w19 k2 r16 s17 p1
    n1 c2 h40 w36 k2 r33 s32 p3
    n1 c2 h1033 w2 k2 r1031 s1 g2
    n1 c3 h2 w300 k3 r1 s1031 p0x500 g3
    n1 c2 h36 w34 k2 r31 s33 p4 g2
""")
    + _tiles("n1 c{c} h{h} w{w} k{k} r1 s1", 0)
    + _tiles("n1 c{c} h{h} w{w} k{k} r3 s3 p1", 21)
    + _tiles("n1 c{c} h{h} w{w} k{c} r3 s3 p1 g{c}", 10)
)

NORMALISED = _thin("""
    bn n1 c2 h2 w70001 k1 r3 s3 p1
    bn n70001 c2 h1 w1 k3 r1 s1
    bn n3 c2 h1 w1 k70001 r1 s1
    bn n2 c70001 h1 w2 k2 r1 s1
    bn n1 c2 h70001 w1 k2 r1 s1 affine0
    bn n1 c1 h1 w140009 k1 r1 s1
    bn n2 c2 h257 w273 k2 r1 s1 run0
    bn n70001 c1 h1 w2 k2 r3 s3 p1
    bn n2 c7789 h3 w2 k2 r3 s3 p1
    bn n2 c1 h2 w2 k7789 r3 s3 p1
    bn n1 c1 h70001 w2 k2 r3 s3 p1
    bn n263 c267 h1 w2 k263 r1 s1 u1x2
    bn n2 c2 h530 w3 k2 r3 s3 u260x1 p1
    bn n2 c2 h3 w530 k3 r3 s3 u1x260 p1
    bn n1 c2 h523 w4 k2 r3 s3 p0x1 d260x1
    bn n1 c2 h4 w523 k2 r3 s3 p1x0 d1x260
    bn n1 c2 h2 w2 k2 r3 s3 p260:1x1:259
    bn n1 c2 h2 w3 k2 r3 s3 p1:261x260:0
    bn n70001 c2 h1 w1 k2 r3 s3 p1 g2
    bn n2 c70001 h1 w1 k70001 r1 s1 g70001
    bn n1 c2 h70001 w1 k4 r3 s3 p1 g2
    bn n1 c3 h1 w70001 k3 r3 s3 p1 g3
    bn n70001 c4 h1 w2 k2 r1 s2 g2 eps3 outside1
    bn n2 c5 h1 w9 k4 r3 s3 p1
    bn n2 c5 h9 w1 k4 r3 s3 p1
    bn n2 c1 h6 w7 k4 r1 s1
    bn n2 c5 h6 w7 k1 r1 s1
    bn n2 c5 h1 w9 k5 r3 s3 p1 g5
    bn n2 c5 h9 w1 k5 r3 s3 p1 g5
    bn n5 c6 h1 w1 k4 r1 s1 g2

    bn n1 c1 h1040 w2 k2 r1031 s1
    bn n2 c1 h2 w1040 k1 r1 s1031
    bn n2 c2 h40 w36 k2 r33 s32 p3
""") + _tiles("bn n2 c{c} h{h} w{w} k{k} r1 s1", 5, 10)
"""The statistics of 70,001 filters, and of up to 1,100,003 elements each."""

_POOLINGS = """
    n70001 c1 h2 w2 r2 s2
    n1 c70001 h2 w2 r2 s2
    n70001 c1 h1 w2 r3 s3 u1 p1{valid}
    n1 c70001 h3 w2 r3 s3 u2 p1
    n263 c267 h2 w1 r2 s1
    n1 c2 h70001 w1 r2 s1 u1
    n1 c1 h1 w70001 r1 s2 u1
    n1 c1 h70001 w3 r3 s3 u1 p1
    n1 c1 h3 w70001 r3 s3 u1 p1{valid}
    n2 c1 h70001 w2 r3 s2 u261x1
    n1 c2 h2 w70001 r2 s3 u1x260 ceil1
    n1 c1 h257 w273 r1 s1
    n1 c1 h257 w273 r3 s3 u1 p1
    n2 c5 h1 w9 r1 s3 u2
    n2 c5 h9 w1 r3 s1 u2
    n2 c5 h1 w9 r3 s3 u1 p1
    n2 c5 h9 w1 r3 s3 u2 p1
    n2 c5 h1 w1 r3 s3 u1 p1
    n2 c1 h6 w7 r2 s3 u1
    n2 c5 h3 w9 r3 s2
    n2 c5 h9 w3 r2 s3
    n2 c3 h9 w5 r4 s5 u2x1
    n2 c3 h4 w9 r4 s5 u1x2

    n2 c1 h1040 w2 r1031 s1 u3x1
    n1 c2 h2 w1040 r1 s1031 u1x3 ceil1
    n2 c2 h18 w17 r16 s17 u1
    n2 c2 h40 w36 r33 s32 u3
    n2 c1 h3 w4 r601 s2 u260x1 p300x1{divisor}
    n2 c1 h4 w3 r2 s601 u1x260 p1x300{divisor}
    n1 c2 h257 w258 r257 s257 u1
    n1 c1 h1 w70001 r1 s70001
    n1 c1 h70001 w1 r70001 s1
"""


def _poolings(family: str, further: str = "", **options: str) -> tuple[Problem, ...]:
    rows = f"{_POOLINGS.format(**options)}{further}".splitlines()
    return _thin("\n".join(f"{family} {row.strip()}" for row in rows if row.strip()))


AVERAGE_POOLINGS = _poolings("pool", valid=" valid1", divisor=" div600") + _tiles(
    "pool n1 c{c} h{h} w{w} r3 s2 u1 p1", 0
)
_DILATED = """
    n1 c2 h523 w3 r3 s3 u1 p0x1 d260x1
    n1 c2 h4 w523 r3 s3 u1 p1x0 d1x260
"""
MAX_POOLINGS = _poolings("maxpool", _DILATED, valid="", divisor="") + _tiles(
    "maxpool n1 c{c} h{h} w{w} r3 s2 u1 p1", 21
)

TRANSPOSED = _thin(
    "\n".join(
        f"convt {row.strip()}"
        for row in """
    n70001 c2 h1 w1 k3 r2 s2 u2 b1
    n1 c70001 h1 w2 k2 r2 s2
    n2 c2 h1 w1 k70001 r1 s1 b1
    n1 c2 h70001 w1 k2 r2 s1
    n1 c1 h1 w70001 k3 r1 s2 b1
    n2 c1 h35001 w1 k2 r3 s1 u2x1 p1x0 o1x0
    n1 c2 h1 w35001 k2 r1 s3 u1x2 p0x1 o0x1
    n1 c1 h70001 w2 k2 r1 s2 b1
    n1 c1 h1 w1 k2 r1 s70001 b1
    n1 c2 h1 w70001 k2 r1 s1
    n1 c2 h1 w1 k1 r70001 s1
    n2 c1 h257 w273 k1 r1 s1
    n263 c267 h1 w1 k2 r1 s1
    n267 c2 h1 w1 k263 r1 s1
    n1 c263 h1 w2 k267 r1 s1
    n1 c7789 h2 w1 k2 r3 s3 u2

    n2 c2 h3 w2 k2 r3 s3 u260x1 p1 o259x0
    n1 c2 h2 w3 k3 r3 s3 u1x260 p1 o0x259 b1
    n2 c2 h2 w2 k2 r3 s3 u300 p259:1x1:258
    n1 c2 h2 w2 k3 r3 s3 u300 p1:258x259:0 b1
    n1 c2 h3 w3 k2 r3 s3 p0x1 d260x1 o259x0
    n1 c2 h3 w4 k2 r3 s3 p1x0 d1x260 o0x259 b1
    n1 c2 h2 w3 k2 r3 s3 p260 d260
    n2 c1 h2 w2 k2 r1031 s1 u3x1
    n1 c2 h2 w2 k1 r1 s1031 u1x3 p0x5
    n1 c1 h2 w3 k2 r257 s258 u2

    n1 c70002 h2 w1 k35001 r1 s1 g35001
    n70001 c2 h1 w1 k2 r2 s2 g2 b1
    n1 c70001 h1 w1 k70001 r1 s2 u2 g70001 b1
    n1 c35001 h1 w1 k70002 r2 s1 g35001
""".splitlines()
        if row.strip()
    )
) + _tiles("convt n1 c{c} h{h} w{w} k{k} r3 s3 u2 p1 o1", 14)
