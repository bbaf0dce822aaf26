"""How fast the fuzzer finds kernels that are wrong only where parameters meet, and how near to the smallest problem it
shrinks them: `python -m conformance.calibration.planted`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.execution.status import Verdict
from conformance.fuzzing.search import Search, ShrunkFailure
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS, parse
from conformance.operators.known_kernels.kernel import STORED, plain
from conformance.problems.parameters import SIMPLEST, parameters
from conformance.problems.regressions import CaseSpec


@dataclass(frozen=True)
class Planted:
    """A kernel whose last column is half as large again where `when(geometry, dtype)` holds.

    `ways` parameters must meet; `smallest` is a problem on which they do, and from which none can be made simpler.
    """

    operator: str
    ways: int
    name: str
    smallest: str
    when: Callable[[Any, str], bool] = field(repr=False)


F, D, W = "conv_forward", "conv_backward_data", "conv_backward_weight"
A, M, B = "avg_pool_forward", "max_pool_forward", "conv_bn_forward"
PLANTED = (
    Planted(F, 2, "stride 3, two groups", "n1 c2 h1 w1 k2 r1 s1 u3x1 g2",
            lambda g, _: g.stride[0] == 3 and g.groups == 2),
    Planted(
        F, 3, "dilated columns, unpadded, odd channels", "n1 c1 h1 w1 k1 r1 s1 d1x2",
        lambda g, _: g.dilation[1] > 1 and g.padding[1] == (0, 0) and g.c % 2,
    ),
    Planted(F, 2, "window 2x5", "n1 c1 h2 w5 k1 r2 s5", lambda g, _: (g.r, g.s) == (2, 5)),
    Planted(F, 2, "three images, bias", "n3 c1 h1 w1 k1 r1 s1 b1", lambda g, _: g.n == 3 and g.bias),
    Planted(
        F, 2, "asymmetric rows, strided columns", "n1 c1 h1 w1 k1 r1 s1 u1x2 p1:0x0",
        lambda g, _: g.padding[0][0] != g.padding[0][1] and g.stride[1] > 1,
    ),
    Planted(F, 2, "depthwise, window 4 wide", "n1 c2 h1 w4 k2 r1 s4 g2", lambda g, _: g.groups == g.c > 1 and g.s == 4),
    Planted(
        F, 3, "window is image, five filters", "n1 c1 h2 w1 k5 r2 s1",
        lambda g, _: (g.r, g.s) == (g.h, g.w) and g.r > 1 and g.k > 4,
    ),
    Planted(
        F, 2, "stride beyond window, dilated rows", "n1 c1 h1 w1 k1 r1 s1 u2x1 d2x1",
        lambda g, _: g.stride[0] > g.r and g.dilation[0] > 1,
    ),
    Planted(F, 3, "wide image, window 1x3", "n1 c1 h1 w128 k1 r1 s3", lambda g, _: (g.r, g.s) == (1, 3) and g.w >= 128),
    Planted(
        F, 2, "13 channels a group, padded left", "n1 c13 h1 w1 k1 r1 s1 p0x1:0",
        lambda g, _: g.c // g.groups == 13 and g.padding[1][0] > 0,
    ),
    Planted(F, 2, "tail of three columns, two images", "n2 c1 h1 w3 k1 r1 s1",
            lambda g, _: g.output_size[1] % 4 == 3 and g.n == 2),
    Planted(F, 3, "17 filters, stride 2", "n1 c1 h1 w1 k17 r1 s1 u2", lambda g, _: g.k == 17 and g.stride == (2, 2)),
    Planted(
        D, 2, "rows left over, stride beyond window", "n1 c1 h2 w1 k1 r1 s1 u2x1",
        lambda g, _: g.stride[0] > g.r and (g.h + sum(g.padding[0]) - g.dilation[0] * (g.r - 1) - 1) % g.stride[0] == 1,
    ),
    Planted(D, 2, "dilation 3, groups", "n1 c2 h1 w1 k2 r1 s1 d3x1 g2",
            lambda g, _: g.dilation[0] == 3 and g.groups > 1),
    Planted(
        D, 2, "padding beyond window, three channels", "n1 c3 h1 w1 k1 r1 s1 p1:0x0",
        lambda g, _: g.padding[0][0] >= g.r and g.c >= 3,
    ),
    Planted(W, 2, "bias, three groups", "n1 c3 h1 w1 k3 r1 s1 g3 b1", lambda g, _: g.bias and g.groups == 3),
    Planted(W, 2, "one row of nine", "n1 c1 h1 w9 k1 r1 s1",
            lambda g, _: g.output_size[0] == 1 and g.output_size[1] > 8),
    Planted(W, 2, "bf16, three images", "n3 c1 h1 w1 k1 r1 s1", lambda g, dtype: g.n >= 3 and dtype == "bf16"),
    Planted(
        A, 3, "ceil mode, padding not counted, strided", "pool n1 c1 h1 w1 r1 s1 u2x1 ceil1 valid1",
        lambda g, _: g.ceil_mode and not g.count_include_pad and g.stride[0] > 1,
    ),
    Planted(
        A, 2, "divisor 3, padded right", "pool n1 c1 h1 w1 r1 s2 u1 p0x0:1 div3",
        lambda g, _: g.divisor_override == 3 and g.padding[1][1] > 0,
    ),
    Planted(A, 2, "window beyond image, ceil mode", "pool n1 c1 h1 w1 r2 s1 u1 p1:0x0 ceil1",
            lambda g, _: g.r > g.h and g.ceil_mode),
    Planted(
        M, 3, "dilated, ceil mode, padded above", "maxpool n1 c1 h1 w1 r2 s1 u1 p1:0x0 d1x2 ceil1",
        lambda g, _: g.dilation[1] > 1 and g.ceil_mode and g.padding[0][0] > 0,
    ),
    Planted(M, 2, "stride 5, window 2", "maxpool n1 c1 h1 w2 r1 s2 u1x5", lambda g, _: g.stride[1] == 5 and g.s == 2),
    Planted(B, 2, "epsilon outside, no gamma", "bn n2 c1 h1 w1 k1 r1 s1 affine0 outside1",
            lambda g, _: g.eps_outside and not g.affine),
    Planted(B, 2, "momentum 0, epsilon 0.1", "bn n2 c1 h1 w1 k1 r1 s1 eps1 mom0",
            lambda g, _: g.momentum_percent == 0 and g.eps_digits == 1),
    Planted(B, 3, "groups, no running statistics, odd batch", "bn n3 c2 h1 w1 k2 r1 s1 g2 run0",
            lambda g, _: g.groups > 1 and not g.running and g.n % 2 and g.n > 1),
)  # fmt: skip


class PlantedSearch(Search):
    """A search of one planted kernel, which is told the problem that its arguments belong to."""

    def __init__(self, planted: Planted, seed: int) -> None:
        self.now: CaseSpec
        operator = OPERATORS[planted.operator]
        implementation = Implementation("planted")

        @implementation.implements(planted.operator, dtypes=STORED, layouts=("nchw",))
        def kernel(*given: Any) -> Any:
            g, dtype = self.now.geometry, self.now.variant.dtype
            named = {name: one for name, one in zip(operator.arguments, given, strict=True) if one is not None}
            with np.errstate(all="ignore"):
                outputs = plain(operator, g, named, dtype)
            if planted.when(g, dtype):
                first = next(iter(outputs.values()))
                first[..., -1] *= 1.5
            found = tuple(outputs.values())
            return found if len(found) > 1 else found[0]

        super().__init__(implementation, [planted.operator], seed)

    def verify(self, row: CaseSpec) -> Verdict:
        self.now = row
        return super().verify(row)


def distance(descriptor: str) -> int:
    """How far a problem is from the simplest one of its family, in steps."""
    geometry = parse(descriptor)
    goal = SIMPLEST[geometry.family, geometry.rank]
    return sum(abs(value - goal[name]) for name, value in parameters(geometry).items())


def found(planted: Planted, seed: int, cases: int) -> tuple[ShrunkFailure | None, int, float]:
    """The first finding of a search of so many cases, the cases drawn until then, and the seconds that drawing and
    verifying them took."""
    search, number, seconds = PlantedSearch(planted, seed), 0, 0.0
    while search.cases < cases:
        began = time.perf_counter()
        for finding in search.run(number, float("inf")):
            return finding, finding.drawn, seconds + finding.seconds
        seconds += time.perf_counter() - began
        number += 1
    return None, search.cases, seconds


def main() -> int:
    """Print the table; exits 1 where one is not found."""
    parser = argparse.ArgumentParser(prog="python -m conformance.calibration.planted", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="searches of each kernel (default: 5)")
    parser.add_argument("--cases", type=int, default=4096, metavar="N", help="most cases of a search (default: 4096)")
    arguments = parser.parse_args()
    missed, all_cases, all_seconds, exact = 0, list[float](), list[float](), 0
    print(f"{'planted':50}{'found':>8}{'cases':>8}{'seconds':>9}{'steps':>7}{'least':>7}  smallest problem found")
    for planted in PLANTED:
        ends = [found(planted, seed, arguments.cases) for seed in range(arguments.seeds)]
        hits = [(finding, drawn, seconds) for finding, drawn, seconds in ends if finding is not None]
        missed += len(ends) - len(hits)
        cases, seconds = (statistics.median(column) for column in ([e[1] for e in ends], [e[2] for e in ends]))
        all_cases += [float(end[1]) for end in ends]
        all_seconds += [end[2] for end in ends]
        descriptors = [finding.rows[-1].geometry.descriptor for finding, _, _ in hits]
        steps = [distance(text) for text in descriptors]
        least = distance(planted.smallest)
        exact += sum(one == least for one in steps)
        what = f"{planted.operator}: {planted.name}"
        median = f"{statistics.median(steps):.0f}" if steps else "-"
        shown = max(descriptors, key=distance, default="not found")
        print(
            f"{what:50}{len(hits):>5}/{len(ends)}{cases:>8.0f}{seconds:>9.1f}{median:>7}{least:>7}  {shown}", flush=True
        )
    total = len(PLANTED) * arguments.seeds
    print(
        f"{len(PLANTED)} kernels, {total} searches: {total - missed} found; median {statistics.median(all_cases):.0f} "
        f"cases, {statistics.median(all_seconds):.1f} s; {exact} shrunk to the true minimum"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
