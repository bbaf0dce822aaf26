"""Benchmark runs made of noise with the shape that real ones have, and the files that pytest-benchmark would write."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformance.reporting.comparison import runs
from conformance.reporting.comparison.compare import RunComparison, compared
from conformance.reporting.comparison.decide import SLOWER
from conformance.reporting.comparison.runs import BenchmarkKey
from tests.report_samples import sample

OPERATORS = ("conv_forward", "conv_backward_data")
MACHINE: dict[str, Any] = {
    "cpu": {"brand_raw": "Acme CPU", "count": 2},
    "machine": "x86_64",
    "system": "Linux",
    "release": "6.1",
    "python_version": "3.11.7",
}
Factor = Callable[[BenchmarkKey], float]


@dataclass(frozen=True)
class Noise:
    """Deviations of the logarithm: of rounds, of a benchmark's visits and of its runs, of drift within a run, and of
    whole runs.

    `spike` is how many visits are hit by something else, which takes a time of heavy tail (Pareto, 1.5). `react` is by
    how much an implementation may react less, or more, to the drift of whole runs than another does. `speeds` is how
    many benchmarks have two, of which each visit has one. `moment` is by how much the machine's speed changes within
    seconds: visits to one problem share it.
    """

    rounds: float = 0.005
    spike: float = 0.002
    visit: float = 0.01
    benchmark: float = 0.003
    drift: float = 0.005
    whole: float = 0.01
    react: float = 0.0
    speeds: float = 0.0
    moment: float = 0.0


BUSY = Noise(rounds=0.03, spike=0.05, visit=0.04, benchmark=0.01, drift=0.03, whole=0.05)
REAL = Noise(visit=0.02, benchmark=0.005, whole=0.035, react=0.3, speeds=0.05)


@dataclass
class Bench:
    """A set of benchmarks, of which a run is drawn as often as wanted."""

    noise: Noise = Noise()
    implementations: tuple[str, ...] = ("torch-cpu", "acme", "other")
    problems: int = 10
    visits: int = 7
    rounds: int = 3
    memory: float = 0.98
    """Of drift: correlation of one visit with the next."""
    seed: int = 0
    """Of what the machine does to kernels in every run."""

    def keys(self) -> list[BenchmarkKey]:
        """In the order of a run that is not shuffled."""
        return [
            BenchmarkKey("cpu", name, operator, f"p{number}", "fp32", "nchw", "fixed")
            for operator in OPERATORS
            for number in range(self.problems)
            for name in self.implementations
        ]

    def drawn(self, rng: np.random.Generator, factor: Factor = lambda key: 1.0) -> dict[str, Any]:
        """The document of one run, visit by visit in shuffled order; `factor` slows what it is about."""
        n, drift, keys, fixed = self.noise, 0.0, self.keys(), np.random.default_rng(self.seed)
        react = {name: fixed.uniform(1 - n.react, 1 + n.react) for name in self.implementations}
        second = {key: fixed.uniform(0.3, 0.7) if fixed.random() < n.speeds else 0.0 for key in keys}
        whole, own = rng.normal(0, n.whole), {key: rng.normal(0, n.benchmark) for key in keys}
        data: dict[BenchmarkKey, list[float]] = {key: [] for key in keys}
        moments = defaultdict[tuple[str, str, int], float](lambda: float(rng.normal(0, n.moment)))
        for key in (keys[index] for _ in range(self.visits) for index in rng.permutation(len(keys))):
            drift = self.memory * drift + rng.normal(0, n.drift * math.sqrt(1 - self.memory**2))
            visit = own[key] + rng.normal(0, n.visit) + drift + whole * react[key.implementation]
            visit += moments[key.operator, key.problem, len(data[key])] if n.moment else 0.0
            visit += rng.choice([0.0, second[key]]) + (math.log1p(rng.pareto(1.5)) if rng.random() < n.spike else 0.0)
            rounds = rng.normal(0, n.rounds, self.rounds)
            data[key] += [1e-3 * factor(key) * math.exp(visit + own_round) for own_round in rounds]
        rows = [row(key, data[key]) for key in keys]
        for entry in rows if self.visits > 1 else ():
            entry["extra_info"]["timing"] = {"visits": [self.rounds] * self.visits}
        return {"machine_info": MACHINE, "benchmarks": rows}


def row(key: BenchmarkKey, data: list[float], **changes: Any) -> dict[str, Any]:
    """A benchmark with its record."""
    versions = {"python": "3.11.7", "torch": "2.13"} if key.implementation.startswith("torch") else {"python": "3.11.7"}
    source = hashlib.sha256(key.implementation.encode()).hexdigest()
    record = sample(**{**key._asdict(), "source": source, "versions": versions, **changes})
    return {"name": "test", "extra_info": record, "stats": {"data": data}}


def write(path: Path, document: dict[str, Any]) -> Path:
    """A file as pytest --benchmark-json writes it."""
    path.write_text(json.dumps(document))
    return path


def run_of(document: dict[str, Any]) -> runs.BenchmarkRun:
    return runs.understood(json.dumps(document).encode(), "run.json")


def tried(bench: Bench, seed: int, factor: Factor = lambda key: 1.0, more: int = 0) -> RunComparison:
    """Two runs, of which the second is slowed, `more` times more."""
    rng = np.random.default_rng(seed)
    pairs = [(run_of(bench.drawn(rng)), run_of(bench.drawn(rng, factor))) for _ in range(1 + more)]
    before, after = (runs.pooled(side) for side in zip(*pairs, strict=True))
    return compared(before, after)


def by_a_fifth(name: str, problem: str = "") -> Factor:
    return lambda key: 1.2 if key.implementation == name and problem in ("", f"{key.operator} {key.problem}") else 1.0


def slower(found: RunComparison) -> set[tuple[str, str]]:
    return {(answer.implementation, answer.name) for answer in found.answers if answer.outcome == SLOWER}
