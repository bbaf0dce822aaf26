"""Convolutions in the layouts that have groups as an axis, see `conformance.layouts`: who declares one is run on these.

The extents of an image all differ, so that a kernel which takes one axis for another is wrong: two images, three groups
of four channels and five filters, an area that is none of these. A dense problem has one group
and a depthwise one has one channel of each, with which kernels take other paths. Padding, stride and an odd width meet
what the axes are flattened to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from conformance.problems.table import Problem, Variant, grouped, table
from conformance.storage import KINDS, fits, repeats, written

RUN = ("fp32,bf16 nhwc fixed,special",)
"""Lines for `variants`; channels last stands for each of these layouts."""
_ROWS = {
    "groups.rank1": "n2 c12 w11 k15 s3 u2 p1 g3 b1",
    "groups.rank1-depthwise": "n2 c7 w13 k7 s5 p2 g7",
    "groups.rank1-dense": "n2 c5 w9 k6 s3 p1:0 b1",
    "groups.rank2": "n2 c12 h7 w9 k15 r2 s3 u1x2 p1 g3 b1",
    "groups.rank2-depthwise": "n2 c7 h5 w9 k14 r3 s3 p1 g7",
    "groups.rank2-dense": "n2 c5 h4 w7 k6 r2 s3 p0x1 b1",
    "groups.rank3": "n2 c12 d6 h5 w7 k15 t2 r1 s3 u1x1x2 p1x0x1 g3 b1",
    "groups.rank3-depthwise": "n2 c5 d4 h3 w7 k5 t3 r2 s3 p1 g5",
    "groups.rank3-dense": "n2 c5 d3 h4 w7 k6 t2 r2 s3 p0x1x1 b1",
}
STORED = {"groups.rank1": ("nwgc", "ngcw"), "groups.rank2": ("gnhwc", "nhwgc", "ngchw"), "groups.rank3": ("gndhwc",)}
"""Where operands are views too, by name: layouts. A view's strides are those of a groups axis as well."""
PAIRS = (("x", "w"), ("dy", "w"), ("x", "dy"))
"""Operands of each direction."""


def _stored(name: str, rank: int) -> Iterator[Variant]:
    """Every kind for each of the two operands, each time with another kind for the other one."""
    kinds = [kind for kind in KINDS if fits(kind, rank + 2)]
    for layout, (first, second) in product(STORED.get(name, ()), PAIRS):
        for place, kind in enumerate(kinds):
            text = written({first: kind, second: kinds[(place + 5) % len(kinds)]})
            yield Variant(("fp32", "bf16")[place % 2], layout, "integer" if repeats(text) else "fixed", text)


def _row(problem: Problem) -> Problem:
    rank = problem.geometry.rank
    return replace(problem, variants=(*grouped(problem.variants, rank), *_stored(problem.name, rank)))


PROBLEMS: tuple[Problem, ...] = tuple(map(_row, table("standard", RUN, _ROWS)))
