"""A kernel's time on one problem and what follows from it: rates, the share of the roofline, whether to believe it."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgspec

from conformance.dtypes import STORAGE
from conformance.execution.trial import Trial
from conformance.results import schema
from conformance.timing.roofline import Ceilings

RATES = ("flops", "roofline_share")
"""Fields that the record of an impossible time lacks, so that a reader of these alone does not take it for a result."""
CONFIDENCE = 0.95
MARGIN = 0.25
"""By what share good code may exceed the ceilings: these are rates that libraries reach, not those of a data sheet."""

Key = tuple[str, str, str, str]
"""Device, operator, problem, implementation."""
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Visit:
    """Rounds that were timed one after the other: seconds by the device's own events where `clock` is `events`, else
    until it was idle, as `wall` is."""

    seconds: tuple[float, ...]
    wall: tuple[float, ...]
    clock: str = "wall"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds of the baseline over a kernel's own (higher is faster), and bounds that hold it with 95%, if known."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class RooflineFinding:
    """Why a share of the roofline is above 100%. A time that is `impossible` is not compared."""

    text: str
    impossible: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of a verified kernel on one problem, and quantities measured beside them.

    first    the first call of all, in which kernels are compiled or loaded from a cache
    copy_in  copying inputs to the device, and `copy_out` copying results back, through the suite's own copies
    growth   the most bytes that a call takes beyond its inputs
    rotated  bytes of inputs and floods touched between two uses of a buffer; `cache` is the last level's size
    """

    trial: Trial
    visits: tuple[Visit, ...]
    first: float
    copy_in: float
    copy_out: float
    ceilings: Ceilings | None = None
    rotated: int = 0
    cache: int | None = None
    host_growth: int | None = None
    device_growth: int | None = None
    threads: Mapping[str, int] = field(default_factory=dict)
    """Framework -> its number of threads."""

    @property
    def key(self) -> Key:
        trial = self.trial
        return trial.implementation.device, trial.operator.name, trial.problem.name, trial.implementation.name

    @property
    def rounds(self) -> tuple[float, ...]:
        return tuple(seconds for visit in self.visits for seconds in visit.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def minimum(self) -> float:
        return min(self.rounds)

    @property
    def centres(self) -> tuple[float, ...]:
        """Median of each visit. Rounds of a visit share a process and a moment: only visits repeat independently."""
        return tuple(statistics.median(visit.seconds) for visit in self.visits)

    @property
    def interval(self) -> Interval | None:
        """Bounds that hold the time with 95%; None for fewer than three visits."""
        bounds = interval(self.centres)
        return bounds and (min(bounds[0], self.median), max(bounds[1], self.median))

    @property
    def flops(self) -> float:
        """Required operations a second."""
        return self.trial.workload.flops / self.median

    @property
    def bandwidth(self) -> float:
        """Bytes a second of the least possible traffic."""
        return self._traffic / self.median

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.trial.workload.flops / self._traffic

    @property
    def share(self) -> float | None:
        """Roofline's time over the median; None where the device's ceilings are unknown."""
        if self.ceilings is None:
            return None
        workload, ceilings = self.trial.workload, self.ceilings
        floor = max(workload.flops / ceilings.flops, self._traffic / ceilings.bandwidth)
        return floor / self.median

    @property
    def cold(self) -> bool:
        """Return whether inputs had to be read from memory."""
        return self.cache is not None and self.rotated >= self.cache

    @property
    def finding(self) -> RooflineFinding | None:
        """Meaning of a share above 100%. It is impossible where the time lies below the roofline's by more than the
        ceilings' spread and nothing else explains it.

        Inputs that may lie in a cache, and results that may stay in it, need no memory's time. An algorithm that saves
        multiplications has no such floor, nor has arithmetic on rounded or narrow inputs, whose ceiling is another one.
        """
        contract, ceilings, share = self.trial.kernel.contract, self.ceilings, self.share
        if ceilings is None or share is None:
            return None
        workload = self.trial.workload
        floor = products = workload.flops / ceilings.flops
        if self.cold:
            dtype = self.trial.variant.dtype
            read = sum(t.size * STORAGE[t.stored_as(dtype)].itemsize for t in workload.inputs.values())
            floor = max(floor, read / ceilings.bandwidth)
        arithmetic = ""
        if contract.algorithm != "direct":
            arithmetic = f"its algorithm ({contract.algorithm}) needs fewer operations"
        elif contract.inputs != "exact" or self.trial.variant.dtype not in ("fp32", "fp64"):
            inputs = self.trial.variant.dtype if contract.inputs == "exact" else f"rounded to {contract.inputs}"
            arithmetic = f"the ceiling is that of fp32, its inputs are {inputs}"
        # for a single call only the products count, because its data may lie in the cache
        for seconds, least in ((self.median, floor), (self.minimum, products)):
            if not arithmetic and seconds * (1 + ceilings.spread + MARGIN) < least:
                return RooflineFinding(
                    f"{seconds:.3g} s is less than the {least:.3g} s of the ceilings (which spread by "
                    f"{ceilings.spread:.0%}): work is left out, or not waited for, or Contract(algorithm=...) is not "
                    f"what the kernel does",
                    impossible=True,
                )
        if share <= 1:
            return None
        faster, cached = "it is faster than the libraries that set the ceiling", "its data may lie in the cache"
        why = arithmetic or (faster if self.median < floor else cached)
        return RooflineFinding(f"{share:.0%} of the roofline: {why}", impossible=False)

    @property
    def impossible(self) -> bool:
        return self.finding is not None and self.finding.impossible

    def record(self, ratio: Ratio | None, state: schema.MachineState | None = None) -> dict[str, Any]:
        """Return plain values: operations a second and the share of the roofline, and under `timing` everything. Times
        on an unusable machine have no ratio."""
        finding, ceilings, bounds = self.finding, self.ceilings, self.interval
        timing = schema.Timing(
            status="finding" if self.impossible else "recorded",
            finding=finding.text if finding else "",
            clock=self.visits[0].clock,
            median_s=self.median,
            minimum_s=self.minimum,
            low_s=bounds[0] if bounds else None,
            high_s=bounds[1] if bounds else None,
            visits=tuple(len(visit.seconds) for visit in self.visits),
            machine=state,
            wall_median_s=statistics.median(wall for visit in self.visits for wall in visit.wall),
            rounds=len(self.rounds),
            first_call_s=self.first,
            copy_in_s=self.copy_in,
            copy_out_s=self.copy_out,
            gflop_per_s=self.flops / 1e9,
            gb_per_s=self.bandwidth / 1e9,
            flop_per_byte=self.intensity,
            roofline_share=self.share,
            ratio_to_torch=ratio.value if ratio else None,
            host_growth_bytes=self.host_growth,
            device_growth_bytes=self.device_growth,
            rotated_bytes=self.rotated,
            cache_bytes=self.cache,
            cold=self.cold,
            ceilings=None
            if ceilings is None
            else schema.CeilingsRecord(
                flop_per_s=ceilings.flops, byte_per_s=ceilings.bandwidth, spread=ceilings.spread
            ),
        )
        rates = {} if self.impossible else dict(zip(RATES, (self.flops, self.share), strict=True))
        return {**rates, "timing": msgspec.to_builtins(timing)}

    @property
    def _traffic(self) -> int:
        """Bytes of the least possible traffic."""
        return self.trial.workload.traffic(self.trial.variant.dtype)


def medians(rounds: Sequence[float], visits: Sequence[int]) -> tuple[float, ...]:
    """Return the median of each visit, from all rounds in order and how many belong to each. Without visits, and where
    these do not add up, all rounds are one visit."""
    if not all(visits) or sum(visits) != len(rounds):
        visits = (len(rounds),)
    ends = list(accumulate(visits))
    return tuple(statistics.median(rounds[end - count : end]) for end, count in zip(ends, visits, strict=True))


def interval(centres: Sequence[float]) -> Interval | None:
    """Return bounds that hold the centre of positive values with 95%: Student's interval of the mean of their
    logarithms, whose scatter is symmetric. None for fewer than three values, which would give no useful interval."""
    if len(centres) < 3:
        return None
    from scipy import stats  # imported here: it takes half a second, and most commands time nothing

    logs = [math.log(value) for value in centres]
    deviation = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1)) * deviation
    return math.exp(statistics.fmean(logs) - reach), math.exp(statistics.fmean(logs) + reach)


def baseline(device: str) -> str:
    """Return the name of the implementation that others on a device are compared with."""
    return f"torch-{device}"


def ratio(base: Sequence[float], times: Sequence[float]) -> Ratio:
    """Return the ratio of two kernels' medians, visit by visit: visits follow one another in a round of the run, so
    that a slow moment of the machine that affects both cancels."""
    pairs = [former / other for former, other in zip(base, times, strict=False)]
    return Ratio(statistics.geometric_mean(pairs), interval(pairs))


def ratios(visits: Mapping[Key, Sequence[float]]) -> dict[Key, Ratio]:
    """Return the ratio of each kernel's medians to those of its baseline, where these are known."""
    return {
        key: ratio(visits[base], centres)
        for key, centres in visits.items()
        if (base := (*key[:3], baseline(key[0]))) in visits and base != key
    }


def compared(measurements: Iterable[Measurement]) -> dict[Key, Ratio]:
    """Return ratios to torch on the same device; impossible times have none and serve for none."""
    return ratios({m.key: m.centres for m in measurements if not m.impossible})


def means(ratios: Mapping[Key, Ratio]) -> dict[tuple[str, str], tuple[float, int]]:
    """Return (operator, implementation) -> geometric mean of its ratios, and over how many problems."""
    by_operator: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for (_, operator, _, implementation), ratio in ratios.items():
        by_operator[operator, implementation].append(ratio.value)
    return {key: (statistics.geometric_mean(values), len(values)) for key, values in by_operator.items()}
