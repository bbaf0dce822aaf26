"""Beyond 2^31 and 2^32 elements and bytes of one operand: level huge.

Inputs are zero but for integers beside powers of two and at the ends, in memory that is reserved and not filled. What a
problem takes is its largest output, which a kernel fills: 4.1 GiB where 2^31 elements have 16 bits, 8.1 GiB in fp32.
"""

from __future__ import annotations

from conformance.problems.table import Problem, table

BOTH, NARROW = ("fp32,bf16 nchw sparse",), ("bf16 nchw sparse",)

PROBLEMS: tuple[Problem, ...] = (
    *table(
        "huge",
        BOTH,
        {
            "huge.rows": "n1 c1 h46411 w46411 k1 r1 s1 u64",
            "huge.images": "n2053 c1 h1031 w1033 k2 r3 s3 u257 p1",
        },
    ),
    *table("huge", NARROW, {"huge.elements-32": "n1 c3 h1 w1500000007 k2 r1 s2 u1x65536"}),
    *table("huge", ("fp32 nchw sparse",), {"huge.output-bytes-32": "n1 c1 h1 w1048601 k1031 r1 s1"}),
    *table("huge", NARROW, {"huge.output": "n1 c1 h1 w1048601 k2051 r1 s1"}),
    *table(
        "huge",
        BOTH,
        {
            "huge.pool.rows": "pool n1 c1 h46411 w46411 r2 s2 u64",
            "huge.pool.images": "pool n2053 c2 h1031 w521 r2 s4 u257",
        },
    ),
    *table("huge", NARROW, {"huge.pool.elements-32": "pool n1 c1 h66013 w66013 r2 s2 u64"}),
    *table(
        "huge",
        BOTH,
        {
            "huge.maxpool.rows": "maxpool n1 c1 h46411 w46411 r3 s2 u64 p1",
            "huge.maxpool.images": "maxpool n2053 c2 h1031 w521 r2 s4 u257",
        },
    ),
    *table("huge", NARROW, {"huge.maxpool.elements-32": "maxpool n1 c1 h66013 w66013 r2 s2 u64"}),
)
