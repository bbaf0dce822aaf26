"""A kernel's time on one problem and what follows from it: rates, the share of the roofline, whether to believe it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from conformance.dtypes import STORAGE
from conformance.execution.case import Case
from conformance.results import schema
from conformance.timing.roofline import Ceilings

RATES = ("flops", "roofline_share")
"""Fields that a finding lacks: a reader of these alone must not take it for a result."""

Key = tuple[str, str, str, str]
"""Device, operator, problem, implementation."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of a verified kernel on one problem, and what was seen beside them.

    rounds   warm calls, by the device's own events where `clock` is `events`, else until it is idle, as `wall` is
    first    the first call of all, in which kernels are compiled or loaded from a cache
    copy_in  the inputs' way to the device, and `copy_out` the results' way back, through the suite's own copies
    growth   the most bytes that a call takes beyond its inputs
    rotated  bytes of inputs and floods touched between two uses of a buffer; `cache` is the last level's size
    """

    case: Case
    rounds: tuple[float, ...]
    first: float
    copy_in: float
    copy_out: float
    ceilings: Ceilings | None = None
    wall: tuple[float, ...] = ()
    clock: str = "wall"
    rotated: int = 0
    cache: int | None = None
    host_growth: int | None = None
    device_growth: int | None = None
    threads: Mapping[str, int] = field(default_factory=dict)
    """Framework -> threads that it had."""

    @property
    def key(self) -> Key:
        case = self.case
        return case.implementation.device, case.operator.name, case.problem.name, case.implementation.name

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Interquartile range, seconds."""
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return high - low

    @property
    def flops(self) -> float:
        """Required operations a second."""
        return self.case.operator.flops(self.case.problem.geometry) / self.median

    @property
    def bandwidth(self) -> float:
        """Least traffic a second, bytes."""
        return self.case.operator.bytes(self.case.problem.geometry, self._itemsize) / self.median

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        operator, geometry = self.case.operator, self.case.problem.geometry
        return operator.flops(geometry) / operator.bytes(geometry, self._itemsize)

    @property
    def share(self) -> float | None:
        """The roofline's time over the median; None where the device's ceilings are unknown."""
        if self.ceilings is None:
            return None
        case = self.case
        return self.ceilings.floor(case.operator, case.problem.geometry, case.variant.dtype) / self.median

    @property
    def cold(self) -> bool:
        """Whether inputs had to be read from memory."""
        return self.cache is not None and self.rotated >= self.cache

    @property
    def finding(self) -> str | None:
        """Why the time is impossible: it lies below the roofline's by more than the ceilings' spread. It is then shown,
        but compared with nothing.

        Inputs that may lie in a cache, and results that may stay in it, need no memory's time. An algorithm that saves
        multiplications has no such floor, nor has arithmetic on rounded inputs, whose ceiling is another one.
        """
        contract, known = self.case.kernel.contract, self.ceilings
        if known is None or contract.algorithm != "direct" or contract.inputs != "exact":
            return None
        operator, geometry = self.case.operator, self.case.problem.geometry
        floor = operator.flops(geometry) / known.flops
        if self.cold:
            read = sum(tensor.size * self._itemsize for tensor in operator.inputs(geometry).values())
            floor = max(floor, read / known.bandwidth)
        if self.median * (1 + known.spread) >= floor:
            return None
        return (
            f"{self.median:.3g} s is less than the {floor:.3g} s of the ceilings (which spread by {known.spread:.0%}): "
            f"work is left out, or not waited for, or Contract(algorithm=...) is not what the kernel does"
        )

    def record(self, ratio: float | None) -> dict[str, Any]:
        """Plain values: operations a second and the share of the roofline, and under `timing` everything; `ratio` is
        torch's seconds on the same device over these."""
        finding, known, known_ceilings = self.finding, self.ceilings, None
        if known is not None:
            known_ceilings = schema.Ceilings(flop_per_s=known.flops, byte_per_s=known.bandwidth, spread=known.spread)
        timing = schema.Timing(
            status="finding" if finding else "recorded",
            finding=finding or "",
            clock=self.clock,
            median_s=self.median,
            iqr_s=self.spread,
            wall_median_s=statistics.median(self.wall),
            rounds=len(self.rounds),
            first_call_s=self.first,
            copy_in_s=self.copy_in,
            copy_out_s=self.copy_out,
            gflop_per_s=self.flops / 1e9,
            gb_per_s=self.bandwidth / 1e9,
            flop_per_byte=self.intensity,
            roofline_share=self.share,
            ratio_to_torch=ratio,
            host_growth_bytes=self.host_growth,
            device_growth_bytes=self.device_growth,
            rotated_bytes=self.rotated,
            cache_bytes=self.cache,
            cold=self.cold,
            ceilings=known_ceilings,
        )
        rates = {} if finding else dict(zip(RATES, (self.flops, self.share), strict=True))
        return {**rates, "timing": msgspec.to_builtins(timing)}

    @property
    def _itemsize(self) -> int:
        return STORAGE[self.case.variant.dtype].itemsize


def baseline(device: str) -> str:
    """The implementation that others on a device are compared with."""
    return f"torch-{device}"


def ratios(seconds: Mapping[Key, float]) -> dict[Key, float]:
    """Seconds of the baseline over those of each other implementation (higher is faster), where both are known."""
    return {
        key: seconds[base] / own
        for key, own in seconds.items()
        if (base := (*key[:3], baseline(key[0]))) in seconds and base != key
    }


def means(found: Mapping[Key, float]) -> dict[tuple[str, str], tuple[float, int]]:
    """(Operator, implementation) -> geometric mean of its ratios, and over how many problems."""
    by_operator: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for (_, operator, _, implementation), ratio in found.items():
        by_operator[operator, implementation].append(ratio)
    return {key: (statistics.geometric_mean(values), len(values)) for key, values in by_operator.items()}
