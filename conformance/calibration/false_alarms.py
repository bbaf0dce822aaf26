"""`python -m conformance false-alarms`: the judge tries every legitimate kernel; one false alarm is one too many."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from conformance.calibration.known_good import KNOWN_GOOD, KnownGood
from conformance.calibration.subject import judgements
from conformance.inputs import Expectation, Recipe
from conformance.judge import Judgement
from conformance.operators import FAMILIES, OPERATORS, parse, takes
from conformance.problems.table import applies

DTYPES = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Row:
    """A problem, the operators of its family that are run (or all of them), how many seeds lie between two runs."""

    text: str
    only: tuple[str, ...] = ()
    every: int = 1

    @property
    def operators(self) -> tuple[str, ...]:
        """Those that are run."""
        return self.only or tuple(name for name in OPERATORS if takes(name, parse(self.text)))


ROWS = (
    Row("n3 c1 h7 w5 k1 r1 s1"),
    Row("n2 c16 h6 w6 k12 r1 s1 u2 b1"),
    Row("n1 c9 h8 w8 k9 r3 s3 p1 g9 b1"),
    Row("n2 c6 h11 w8 k10 r3 s3 u2x1 p0:1x2:0 d1x2 g2 b1", every=2),
    Row("n1 c4 h15 w15 k6 r5 s5 p2", every=5),
    Row("n1 c12 h9 w9 k8 r3 s3 p1 g4 b1", every=2),
    Row("n2 c8 h9 w9 k16 r3 s3 p1 b1", every=5),
    Row("n1 c64 h6 w6 k16 r3 s3 p1", every=10),
    Row("n1 c3 h32 w32 k16 r3 s3 p1", ("conv_forward",), 10),
    Row("n1 c512 h4 w4 k8 r3 s3 p1 b1", ("conv_forward",), 10),
    Row("n1 c8 h4 w4 k512 r3 s3 p1", ("conv_backward_data",), 10),
    Row("n1 c2 h65 w65 k4 r3 s3 p1 b1", ("conv_backward_weight",), 10),
    Row("bn n2 c6 h3 w3 k8 r3 s3"),
    Row("bn n3 c8 h1 w1 k12 r1 s1 eps3"),
    Row("bn n1 c6 h4 w3 k8 r3 s3 affine0 outside1"),
    Row("bn n2 c12 h6 w5 k8 r1 s1", every=2),
    Row("bn n2 c6 h7 w7 k8 r3 s3 p1 eps3 outside1", every=2),
    Row("bn n2 c8 h9 w9 k12 r3 s3 p1 g4 eps9", every=2),
    Row("bn n2 c6 h9 w9 k12 r3 s3 u2 p1 g6 eps1 mom30", every=5),
    Row("bn n2 c8 h9 w9 k16 r3 s3 p1", every=5),
    Row("bn n1 c64 h6 w6 k16 r3 s3 p1", every=10),
    Row("bn n2 c4 h45 w46 k4 r3 s3 p1", every=25),
    Row("bn n2 c4 h45 w46 k4 r3 s3", every=25),
    Row("pool n3 c4 h7 w5 r1 s1"),
    Row("pool n2 c3 h5 w6 r1 s1 div7"),
    Row("pool n2 c6 h8 w6 r2 s2"),
    Row("pool n2 c4 h10 w12 r3 s3 u2 p1 ceil1 valid1"),
    Row("pool n2 c5 h9 w9 r3 s3 u1 p1 valid1"),
    Row("pool n2 c3 h10 w11 r4 s3 u3x2 p1:2x0:1 ceil1"),
    Row("pool n2 c3 h10 w11 r3 s3 u2 p1 div11"),
    Row("pool n4 c16 h7 w7 r7 s7", every=2),
    Row("pool n2 c8 h15 w13 r15 s13", every=5),
    Row("pool n1 c3 h5 w259 r3 s3 u2 p1", every=5),
    Row("pool n1 c16 h30 w30 r3 s3 u2 p1", every=5),
    Row("pool n1 c8 h28 w30 r5 s7 u5x7", every=5),
    Row("pool n1 c24 h28 w28 r28 s28", every=10),
    Row("pool n2 c8 h32 w32 r8 s8 u2", every=10),
    Row("pool n2 c4 h20 w20 r7 s7 u1 p3 valid1", every=5),
    Row("pool n2 c512 h7 w7 r7 s7", ("avg_pool_backward",), every=10),
    Row("pool n2 c32 h30 w30 r5 s3", ("avg_pool_backward",), every=10),
    Row("maxpool n2 c4 h8 w6 r2 s2"),
    Row("maxpool n2 c5 h9 w10 r3 s3 u2 p1 ceil1"),
    Row("maxpool n2 c3 h9 w9 r3 s3 u1 p1:2x0:1 d2x1", every=2),
    Row("maxpool n2 c8 h13 w13 r5 s5 u1 p2", ("max_pool_backward",), every=5),
)
"""Contractions from 1 term to 4,608; the longer, the fewer outputs and the fewer seeds. One row has many outputs, since
statistics see more of a systematic error then."""

MIDDLING = {
    "conv": ("n2 c8 h9 w9 k16 r3 s3 p1 b1", "n1 c64 h6 w6 k16 r3 s3 p1", "n1 c16 h12 w12 k32 r3 s3 p1"),
    "conv_bn": ("bn n2 c8 h9 w9 k16 r3 s3 p1", "bn n2 c64 h8 w8 k16 r3 s3", "bn n1 c16 h12 w12 k32 r3 s3 p1"),
    "max_pool": ("maxpool n2 c8 h13 w13 r5 s5 u1 p2",),
    "avg_pool": ("pool n4 c16 h9 w9 r3 s3 u2 p1", "pool n4 c64 h28 w28 r28 s28", "pool n2 c16 h16 w16 r2 s2 u1"),
}
"""Family -> problems on which a contract that is too good must show."""

STATISTICS = ("lambda", "rms", "gain z", "offset z")


class Verdict(NamedTuple):
    """What became of one output of one subject."""

    subject: str
    where: str
    passed: bool
    shares: dict[str, float]
    """Check -> how much of its limit the value took."""
    text: str


def verdicts(row: Row, seed: int) -> Iterator[Verdict]:
    """All that apply to one problem and seed: every direction, dtype and distribution draws its tensors once."""
    geometry = parse(row.text)
    for operator in row.operators:
        for dtype in DTYPES:
            subjects = [a for a in KNOWN_GOOD if a.subject.applies(operator, geometry, dtype)]
            for distribution in (
                distribution for distribution in FAMILIES[geometry.family].distributions if applies(distribution, dtype)
            ):
                expected = Expectation(Recipe(OPERATORS[operator], geometry, dtype, distribution, seed))
                for known_good in subjects:
                    if distribution not in known_good.exempted:
                        yield from _tried(known_good, expected)


def _tried(known_good: KnownGood, expected: Expectation) -> Iterator[Verdict]:
    recipe = expected.recipe
    where = (
        f"{recipe.geometry.descriptor} {recipe.operator.name} {recipe.dtype} {recipe.distribution} seed {recipe.seed}"
    )
    for judgement in judgements(known_good.subject, expected):
        text = "" if judgement.passed else judgement.explain()
        yield Verdict(
            known_good.subject.name, f"{where}: {judgement.output}", judgement.passed, shares(judgement), text
        )


def shares(judgement: Judgement) -> dict[str, float]:
    """Every check's share of its limit, and that of the fixed distribution's lambda."""
    found = {check.name: _share(abs(check.value), check.limit) for check in judgement.checks}
    if "lambda" in judgement.profile:
        found["lambda"] = _share(judgement.profile["lambda"], judgement.profile["lambda_limit"])
    return found


def _share(value: float, limit: float) -> float:
    if value == 0:
        return 0.0
    return value / limit if limit > 0 else float("inf")


def found_out(known_good: KnownGood, text: str) -> bool:
    """Whether the judge detects a subject of one problem under the contract that is too good for it.

    On the fixed distribution, in the first of its dtypes: a 16-bit result does not tell fp32 from fp64 accumulation.
    And on the
    shifted one, where statistics cancel.
    """
    geometry, (dtype, *_), (operator, *_) = parse(text), known_good.subject.dtypes, known_good.subject.operators
    if not known_good.subject.applies(operator, geometry, dtype):
        return False
    distributions = [
        distribution
        for distribution in ("fixed", "shifted")
        if distribution in FAMILIES[known_good.family].distributions
    ]
    expected = (
        Expectation(Recipe(OPERATORS[operator], geometry, dtype, distribution, 0)) for distribution in distributions
    )
    found = (judgement for each in expected for judgement in judgements(known_good.subject, each, known_good.too_good))
    return not all(judgement.passed for judgement in found)


def not_found_out() -> list[str]:
    """Subjects that pass everywhere under a contract that is too good for them."""
    tried = (a for a in KNOWN_GOOD if a.too_good is not None)
    return [a.subject.name for a in tried if not any(found_out(a, text) for text in MIDDLING[a.family])]


def _tasks(seeds: int) -> list[tuple[Row, int]]:
    """Long problems first, so that the last ones to end are short."""
    return [(row, seed) for row in reversed(ROWS) for seed in range(0, seeds, row.every)]


def _chunk(task: tuple[Row, int]) -> list[Verdict]:
    return list(verdicts(*task))


def campaign(seeds: int, jobs: int) -> Iterator[Verdict]:
    """All verdicts, computed by `jobs` processes."""
    pool = ProcessPoolExecutor(jobs)
    try:
        for found in pool.map(_chunk, _tasks(seeds)):
            yield from found
    finally:
        pool.shutdown(cancel_futures=True)


class Closest:
    """The largest share of a limit that anybody took, by check, and by subject and check."""

    def __init__(self) -> None:
        self.count = 0
        self.alarms: list[Verdict] = []
        self.by_check: dict[str, tuple[float, Verdict]] = {}
        self.by_subject: dict[str, dict[str, float]] = {}

    def add(self, verdict: Verdict) -> None:
        """Take in one verdict."""
        self.count += 1
        if not verdict.passed:
            self.alarms.append(verdict)
        worst = self.by_subject.setdefault(verdict.subject, {})
        for check, share in verdict.shares.items():
            worst[check] = max(worst.get(check, 0.0), share)
            if check not in self.by_check or share > self.by_check[check][0]:
                self.by_check[check] = share, verdict


def report(closest: Closest) -> Iterator[str]:
    """Lines: false alarms, margins by check, margins by subject."""
    for verdict in closest.alarms:
        yield f"FALSE ALARM {verdict.subject}: {verdict.where}\n  " + verdict.text.replace("\n", "\n  ")
    yield f"{closest.count:,} verdicts, {len(closest.alarms)} false alarms"
    yield "closest to each limit (share of it):"
    for check, (share, verdict) in sorted(closest.by_check.items()):
        yield f"  {check:22s} {share:7.1%}  {verdict.subject}: {verdict.where}"
    yield f"{'worst share by subject':24s}" + "".join(f"{name:>10s}" for name in STATISTICS)
    for subject, worst in closest.by_subject.items():
        yield f"  {subject:22s}" + "".join(_cell(worst, name) for name in STATISTICS)


def _cell(worst: dict[str, float], name: str) -> str:
    return f"{worst[name]:10.1%}" if name in worst else f"{'-':>10s}"


def declare(parser: argparse.ArgumentParser) -> None:
    """Acquittals: every legitimate algorithm before the judge, none of which it may detect."""
    parser.add_argument("--seeds", type=_positive, default=50, metavar="N", help="data sets (default: 50)")
    parser.add_argument("--jobs", type=_positive, default=2, metavar="N", help="processes (default: 2)")
    parser.set_defaults(run=_run)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 9999")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    return run(arguments.seeds, arguments.jobs)


def run(seeds: int, jobs: int) -> int:
    """Hold the campaign, print what came of it, return the exit status."""
    start = time.perf_counter()
    closest = Closest()
    for verdict in campaign(seeds, jobs):
        closest.add(verdict)
    for line in report(closest):
        print(line)
    escaped = not_found_out()
    print(f"one class too good, and not found out: {', '.join(escaped) or 'nobody'}")
    print(f"{len(KNOWN_GOOD)} subjects, {time.perf_counter() - start:.1f} s")
    return 1 if closest.alarms or escaped else 0
