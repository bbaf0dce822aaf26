"""Times relative to torch on the same device."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

Key = tuple[str, str, str]
"""Operator, problem, implementation."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of a verified kernel; `share` is the roofline's time over it, where that is known."""

    device: str
    operator: str
    problem: str
    implementation: str
    seconds: float
    share: float | None = None

    @property
    def key(self) -> Key:
        """What it is a time of."""
        return self.operator, self.problem, self.implementation


def baseline(device: str) -> str:
    """The implementation that others on a device are compared with."""
    return f"torch-{device}"


def ratios(timings: Iterable[Timing]) -> dict[Key, float]:
    """Seconds of the baseline over those of each other implementation (higher is faster), where both are known."""
    timings = list(timings)
    base = {(t.device, t.operator, t.problem): t.seconds for t in timings if t.implementation == baseline(t.device)}
    return {
        t.key: base[place] / t.seconds
        for t in timings
        if (place := (t.device, t.operator, t.problem)) in base and t.implementation != baseline(t.device)
    }


def means(found: dict[Key, float]) -> dict[tuple[str, str], tuple[float, int]]:
    """(Operator, implementation) -> geometric mean of its ratios, and over how many problems."""
    by_operator: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for (operator, _, implementation), ratio in found.items():
        by_operator[operator, implementation].append(ratio)
    return {key: (statistics.geometric_mean(values), len(values)) for key, values in by_operator.items()}
