"""`python -m tests.calibration false-alarms`: the judge on every known-good kernel; one false alarm is one too many."""

from __future__ import annotations

import argparse
import itertools
import math
import re
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from conformance.inputs import Expectation, Recipe
from conformance.inputs.recipes import progress
from conformance.judge import Judgement
from conformance.operators import FAMILIES, OPERATORS, parse
from conformance.operators.spatial import EVERY_RANK
from conformance.problems.table import applies
from conformance.results import units
from conformance.results.schema import Part
from tests.calibration.kernels.kernel import CampaignRow, KnownGood
from tests.calibration.known_kernels import KNOWN_GOOD, MEDIUM, ROWS, judgements

STATISTICS = ("lambda", "rms", "gain z", "offset z")


class OutputVerdict(NamedTuple):
    """A verdict on one output of one kernel; `shares`: check -> how much of its limit the value took."""

    kernel: str
    where: str
    passed: bool
    shares: dict[str, float]
    text: str


def verdicts(row: CampaignRow, seed: int) -> Iterator[OutputVerdict]:
    """Yield all verdicts on one problem and seed: every direction, dtype and distribution draws its tensors once."""
    geometry = parse(row.text)
    for operator, dtype in itertools.product(row.operators, row.dtypes):
        kernels = [k for k in KNOWN_GOOD if row.kernels in k.name and k.applies(operator, geometry, dtype)]
        for distribution in FAMILIES[geometry.family].distributions:
            if not applies(distribution, dtype) or not OPERATORS[operator].defined(geometry, dtype):
                continue
            if not OPERATORS[operator].determines(geometry, distribution):
                continue
            expected = Expectation(Recipe(OPERATORS[operator].on(geometry), dtype, distribution, seed))
            where = f"{geometry.descriptor} {operator} {dtype} {distribution} seed {seed}"
            for kernel in kernels:
                if distribution in kernel.exempted or kernel.contract.exempts(distribution, dtype):
                    continue
                for place, judged in enumerate(judgements(kernel, expected, infer=False)):
                    text = "" if judged.passed else [*judgements(kernel, expected)][place].explain()
                    yield OutputVerdict(kernel.name, f"{where}: {judged.output}", judged.passed, shares(judged), text)


def shares(judgement: Judgement) -> dict[str, float]:
    """Return every check's share of its limit, and that of the fixed distribution's lambda."""
    values = {check.name: (abs(check.value), check.limit) for check in judgement.checks}
    if "lambda" in judgement.profile:
        values["lambda"] = judgement.profile["lambda"], judgement.profile["lambda_limit"]
    return {n: 0.0 if value == 0 else value / limit if limit > 0 else math.inf for n, (value, limit) in values.items()}


def detected_when_stricter(kernel: KnownGood, text: str) -> bool:
    """Return whether the judge detects a kernel on one problem under the contract that it does not meet.

    It is run on the fixed distribution, in the first of its dtypes: a 16-bit result does not tell fp32 from fp64
    accumulation. It is also run on the shifted distribution, where statistics cancel.
    """
    geometry, (dtype, *_), (operator, *_) = parse(text), kernel.dtypes, kernel.operators
    if not kernel.applies(operator, geometry, dtype):
        return False
    recipes = (
        Recipe(OPERATORS[operator].on(geometry), dtype, distribution, 0)
        for distribution in ("fixed", "shifted")
        if distribution in FAMILIES[kernel.family].distributions
    )
    return not all(j.passed for recipe in recipes for j in judgements(kernel, Expectation(recipe), kernel.stricter))


def _chunk(task: tuple[CampaignRow, int]) -> list[OutputVerdict]:
    return list(verdicts(*task))


def campaign(
    seeds: int,
    jobs: int,
    rank: int | None = None,
    operators: Collection[str] = tuple(OPERATORS),
    unit: Part | None = None,
) -> Iterator[OutputVerdict]:
    """Yield all verdicts, computed by `jobs` processes; long problems first, so that the last ones to end are short."""
    chosen = ((row, tuple(name for name in row.operators if name in operators)) for row in ROWS)
    rows = [replace(row, only=names) for row, names in chosen if names and rank in (None, parse(row.text).rank)]
    rows.sort(key=lambda row: OPERATORS[row.operators[0]].flops(parse(row.text)), reverse=True)
    tasks = [(row, seed) for row in rows for seed in range(0, seeds, row.every)]
    tasks = [*units.share(tasks, unit)]
    pool = ProcessPoolExecutor(jobs)
    try:
        for found in progress(pool.map(_chunk, tasks), len(tasks), "problems and seeds"):
            yield from found
    finally:
        pool.shutdown(cancel_futures=True)


class Margins:
    """The largest share of a limit that any kernel took, by check, and by kernel and check."""

    def __init__(self) -> None:
        self.count = 0
        self.alarms: list[OutputVerdict] = []
        self.by_check: dict[str, tuple[float, OutputVerdict]] = {}
        self.by_kernel: dict[str, dict[str, float]] = {}

    def add(self, verdict: OutputVerdict) -> None:
        self.count += 1
        if not verdict.passed:
            self.alarms.append(verdict)
        worst = self.by_kernel.setdefault(verdict.kernel, {})
        for check, share in verdict.shares.items():
            worst[check] = max(worst.get(check, 0.0), share)
            if check not in self.by_check or share > self.by_check[check][0]:
                self.by_check[check] = share, verdict


def report(margins: Margins) -> Iterator[str]:
    """Yield lines: false alarms, margins by check, margins by kernel."""
    for verdict in margins.alarms:
        yield f"FALSE ALARM {verdict.kernel}: {verdict.where}\n  " + verdict.text.replace("\n", "\n  ")
    yield f"{margins.count:,} verdicts, {len(margins.alarms)} false alarms"
    yield "closest to each limit (share of it):"
    for check, (share, verdict) in sorted(margins.by_check.items()):
        yield f"  {check:22s} {share:7.1%}  {verdict.kernel}: {verdict.where}"
    yield f"{'worst share by kernel':24s}" + "".join(f"{name:>10s}" for name in STATISTICS)
    for kernel, worst in margins.by_kernel.items():
        cells = (f"{worst[name]:10.1%}" if name in worst else f"{'-':>10s}" for name in STATISTICS)
        yield f"  {kernel:22s}" + "".join(cells)


def declare(parser: argparse.ArgumentParser) -> None:
    """How often the judge fails a known-good kernel; exits 1 at one false alarm."""
    parser.add_argument("--seeds", type=positive, default=1, metavar="N", help="data sets (default: 1)")
    parser.add_argument("--jobs", type=positive, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("--rank", type=int, choices=EVERY_RANK, help="only problems of so many dimensions")
    parser.add_argument("--operator", action="append", choices=tuple(OPERATORS), help="only this operator's kernels")
    units.declare(parser, "problems and kernels")
    units.declare_cluster(parser)
    parser.set_defaults(run=lambda a: run(a.seeds, a.jobs, a.rank, a.operator or tuple(OPERATORS), units.read(a.unit)))


def positive(text: str) -> int:
    """Return a whole number. Raises argparse.ArgumentTypeError."""
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 9999")
    return int(text)


def run(
    seeds: int,
    jobs: int,
    rank: int | None = None,
    operators: Collection[str] = tuple(OPERATORS),
    unit: Part | None = None,
) -> int:
    start = time.perf_counter()
    margins = Margins()
    for verdict in campaign(seeds, jobs, rank, operators, unit):
        margins.add(verdict)
    for line in report(margins):
        print(line)
    kernels = [kernel for kernel in KNOWN_GOOD if not {*kernel.operators}.isdisjoint(operators)]
    strict = units.share((kernel for kernel in kernels if kernel.stricter is not None), unit)
    undetected = [
        k.name for k in strict if not any(detected_when_stricter(k, text) for text in MEDIUM.get(k.family, ()))
    ]
    print(f"not detected under a contract one class too strict: {', '.join(undetected) or 'none'}")
    print(f"{len(kernels)} kernels, {time.perf_counter() - start:.1f} s")
    return 1 if margins.alarms or undetected else 0
