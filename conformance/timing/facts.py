"""What a benchmark says about one kernel on one problem: rates, the share of the ceiling, and whether to believe it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from conformance.dtypes import STORAGE
from conformance.execution.case import Case
from conformance.judge import Contract
from conformance.timing.relative import Timing
from conformance.timing.roofline import Ceilings
from conformance.timing.rotation import Rounds

RECORDED, FINDING = "recorded", "finding"
RATES = ("flops", "roofline_share")
"""Fields that a finding lacks: a reader of these alone must not take it for a result."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A verified time and all that follows from it. `first` is the first call of all, with compilation or loading.

    `finding` says why the time is not to be believed; it is then shown, but compared with nothing.
    """

    case: Case
    contract: Contract
    rounds: Rounds
    first: float
    ceilings: Ceilings | None
    finding: str = ""
    ratio: float | None = None
    """torch's seconds on the same device over these."""

    @property
    def operations(self) -> int:
        """Required ones."""
        return self.case.operator.flops(self.case.problem.geometry)

    @property
    def bytes(self) -> int:
        """Least traffic."""
        return self.case.operator.bytes(self.case.problem.geometry, STORAGE[self.case.variant.dtype].itemsize)

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes

    @property
    def flops(self) -> float:
        """Operations a second."""
        return self.operations / self.rounds.median

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.bytes / self.rounds.median

    @property
    def spread(self) -> float:
        """Interquartile range, seconds."""
        low, _, high = statistics.quantiles(self.rounds.seconds, n=4, method="inclusive")
        return high - low

    @property
    def share(self) -> float | None:
        """The roofline's time over the median."""
        if self.ceilings is None:
            return None
        floor = self.ceilings.floor(self.case.operator, self.case.problem.geometry, self.case.variant.dtype)
        return floor / self.rounds.median

    @property
    def timing(self) -> Timing:
        """For comparisons."""
        case = self.case
        names = case.implementation.device, case.operator.name, case.problem.name, case.implementation.name
        return Timing(*names, self.rounds.median, self.share)

    def record(self) -> dict[str, Any]:
        """Plain values: operations a second and the share of the roofline, and under `timing` everything."""
        found, memory = self.rounds, self.rounds.memory
        timing = {
            "status": FINDING if self.finding else RECORDED,
            "finding": self.finding,
            "clock": found.clock,
            "median_s": found.median,
            "iqr_s": self.spread,
            "wall_median_s": statistics.median(found.wall),
            "rounds": len(found.seconds),
            "first_call_s": self.first,
            "copy_in_s": found.copy_in,
            "copy_out_s": found.copy_out,
            "gflop_per_s": self.flops / 1e9,
            "gb_per_s": self.bandwidth / 1e9,
            "flop_per_byte": self.intensity,
            "roofline_share": self.share,
            "ratio_to_torch": self.ratio,
            "host_growth_bytes": memory.host,
            "device_growth_bytes": memory.device,
            "rotated_bytes": found.rotated,
            "cache_bytes": found.cache,
            "cold": found.cold,
        }
        ceilings = None
        if self.ceilings is not None:
            given = self.ceilings
            ceilings = {"flop_per_s": given.flops, "byte_per_s": given.bandwidth, "spread": given.spread}
        rates = {} if self.finding else dict(zip(RATES, (self.flops, self.share), strict=True))
        return {**rates, "timing": {**timing, "ceilings": ceilings}}


def doubt(case: Case, contract: Contract, rounds: Rounds, known: Ceilings | None) -> str:
    """Why a time is impossible: it lies below the roofline's by more than the ceilings' spread. Empty if it does not.

    Inputs that may lie in a cache, and results that may stay in it, need no memory's time. An algorithm that saves
    multiplications has no such floor, nor has arithmetic on rounded inputs, whose ceiling is another one.
    """
    if known is None or contract.algorithm != "direct" or contract.inputs != "exact":
        return ""
    operator, geometry = case.operator, case.problem.geometry
    floor = operator.flops(geometry) / known.flops
    if rounds.cold:
        itemsize = STORAGE[case.variant.dtype].itemsize
        read = sum(tensor.size * itemsize for tensor in operator.inputs(geometry).values())
        floor = max(floor, read / known.bandwidth)
    if rounds.median * (1 + known.spread) >= floor:
        return ""
    return (
        f"{rounds.median:.3g} s is less than the {floor:.3g} s of the ceilings (which spread by {known.spread:.0%}): "
        f"work is left out, or not waited for, or Contract(algorithm=...) is not what the kernel does"
    )
