"""Problems of a few thousand products, for kernels that are executed in place of a device, and for everybody's index
arithmetic.

Images, image size, window, stride, padding, dilation, grouping and bias: every value of one meets every value of each
other in some problem (pairwise coverage: Cohen et al. 1997, "The AETG system"; the selftests list the values). So a
mistake that takes two of them together, such as dilation in grouped convolutions, shows.
"""

from __future__ import annotations

from conformance.problems.table import Problem, in_turn

_ROWS = """
        n1 c10 h5 w11 k8 r3 s1 u3 p2x0 g2 b1
        n1 c10 h8 w8 k8 r2 s2 u2 p0:1x2:1 d2 g2
        n1 c11 h4 w9 k11 r1 s4 u1x2 p1 d1x2 g11
        n1 c11 h5 w11 k11 r1 s1 u3 d2 g11 b1
        n1 c11 h5 w11 k11 r3 s3 p1:0x0:2 d1x2 g11 b1
        n1 c11 h9 w5 k22 r3 s3 u2 p1 d2 g11 b1
        n1 c12 h9 w5 k15 r1 s1 u3 p0:1x2:1 d3x1 g3
        n1 c15 h4 w9 k12 r4 s2 u1x2 p3 d3x1 g3 b1
        n1 c2 h6 w7 k3 r3 s3 u2x1 p0:1x2:1
        n1 c3 h4 w9 k2 r2 s2 u1x2 d2
        n1 c3 h5 w11 k3 r1 s1 u1x2 p3 g3
        n1 c3 h5 w11 k6 r1 s4 u2x1 p2x0 g3 b1
        n1 c4 h5 w11 k6 r3 s3 g2
        n1 c4 h5 w11 k6 r5 s5 p1 d1x2 g2
        n1 c4 h6 w7 k5 r1 s4 u2 p1:0x0:2 d1x2
        n1 c4 h9 w5 k5 r3 s1 u1x2 p3
        n1 c5 h6 w7 k10 r5 s5 u3 p1:0x0:2 d1x2 g5 b1
        n1 c5 h6 w7 k5 r4 s2 u1x2 p2x0 d3x1 g5
        n1 c5 h8 w8 k10 r3 s1 u2 p1 d3x1 g5
        n1 c7 h5 w11 k14 r1 s1 u2 p0:1x2:1 d1x2 g7
        n1 c7 h8 w8 k7 r3 s1 u1x2 d1x2 g7
        n1 c8 h6 w7 k10 r1 s1 u2x1 p2x0 d3x1 g2 b1
        n1 c9 h4 w9 k6 r3 s3 u3 p3 d3x1 g3 b1
        n1 c9 h4 w9 k9 r3 s1 u1x2 p0:1x2:1 g9
        n1 c9 h5 w11 k18 r1 s1 u2 p1 d3x1 g9
        n1 c9 h6 w7 k6 r2 s2 u2 p2x0 d1x2 g3
        n1 c9 h8 w8 k18 r4 s2 u1x2 p0:1x2:1 d2 g9 b1
        n1 c9 h8 w8 k6 r1 s4 p1 g3 b1
        n1 c9 h9 w5 k9 r2 s2 u2x1 d1x2 g9 b1
        n2 c3 h4 w9 k3 r5 s5 u2 p0:1x2:1 g3
        n2 c3 h6 w7 k3 r4 s2 p3 d1x2 g3
        n2 c4 h4 w9 k6 r2 s2 g2 b1
        n2 c4 h6 w7 k5 r1 s4 u3 p1 d3x1
        n2 c4 h8 w8 k5 r5 s5 u1x2 p1:0x0:2 d1x2
        n2 c4 h8 w8 k6 r1 s1 u2 p1:0x0:2 d3x1 g2
        n2 c5 h4 w9 k4 r2 s2 u2x1 p1:0x0:2 d1x2
        n2 c5 h5 w11 k4 r5 s5 u2 p2x0 d2
        n2 c5 h6 w7 k4 r1 s4 u2x1 p0:1x2:1 b1
        n2 c6 h5 w11 k9 r3 s1 u2x1 p1:0x0:2 d2 g3
        n2 c6 h6 w7 k9 r5 s5 u3 g3 b1
        n2 c6 h9 w5 k4 r3 s3 u1x2 p2x0 d1x2 g2
        n2 c6 h9 w5 k4 r4 s2 u3 p1 d2 g2 b1
        n2 c7 h4 w9 k7 r4 s2 u2x1 p1:0x0:2 d1x2 g7
        n2 c9 h4 w9 k18 r2 s2 u3 p3 d2 g9
        n2 c9 h4 w9 k18 r3 s3 p2x0 d3x1 g9
        n3 c1 h9 w5 k1 r5 s5 u1x2 p1:0x0:2
        n3 c3 h4 w9 k2 r1 s1 p0:1x2:1 d2
        n3 c3 h5 w11 k6 r2 s2 u2x1 p1 d3x1 g3
        n3 c3 h8 w8 k2 r5 s5 u2x1 p3 d3x1
        n3 c3 h8 w8 k3 r3 s3 u3 p2x0 d2 g3 b1
        n3 c3 h9 w5 k6 r3 s1 d3x1 g3
        n3 c4 h5 w11 k5 r4 s2 u2 b1
        n3 c4 h9 w5 k6 r1 s4 u2 p3 d2 g2
        n3 c5 h6 w7 k4 r3 s1 u2 d2 b1
        n3 c6 h4 w9 k9 r1 s4 d1x2 g3 b1
"""

PAIRWISE: tuple[Problem, ...] = in_turn(
    "standard",
    ("fp32 nchw integer,fixed",),
    (("bf16 nchw fixed",), ()),
    {f"pairwise.{row.strip().replace(' ', '_')}": row for row in _ROWS.strip().splitlines()},
)
