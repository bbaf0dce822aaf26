"""The ceilings of a device, measured in the run that uses them: fp32 products, and bytes copied.

A kernel of F operations that moves B bytes takes at least max(F / rate, B / bandwidth) (Williams, Waterman and
Patterson 2009). Both ceilings are what good code reaches on this machine, not what its data sheet says: a kernel may
lie above them, and one that saves multiplications (Winograd) may by far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.dtypes import STORAGE
from conformance.execution.process import Crash, Process
from conformance.execution.remote import Exited, Raised, run
from conformance.implementations.devices import Unavailable
from conformance.operators import Operator
from conformance.worker import ceilings


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Operations and bytes a second; `source` is how they were measured.

    `spread` is how far the median round lay from the fastest, which is the ceiling, as a share of it: the larger one's.
    """

    flops: float
    bandwidth: float
    source: str
    spread: float = 0.0

    def floor(self, operator: Operator, geometry: Any, dtype: str) -> float:
        """Least seconds of a problem: its operations, or its inputs read and its outputs written once."""
        moved = operator.bytes(geometry, STORAGE[dtype].itemsize)
        return max(operator.flops(geometry) / self.flops, moved / self.bandwidth)

    def __str__(self) -> str:
        return f"{self.flops / 1e12:.3g} TFLOP/s fp32 products, {self.bandwidth / 1e9:.3g} GB/s copied ({self.source})"


def measure_ceilings(device: str, process: Process | None) -> Ceilings:
    """In a process that loads no vendor's file: ceilings decide which times are impossible. Without one in this one.
    Raises Unavailable."""
    if process is None:
        return Ceilings(*ceilings.measured(device))
    try:
        return Ceilings(*run(process, ceilings.measured, device))
    except (Crash, Exited, Raised) as error:
        raise Unavailable(f"not measured: {error}") from None


def best(found: Sequence[Ceilings]) -> Ceilings:
    """What a device has reached in any of several measurements.

    A ceiling is what it can, not what other work has left of it; how far apart measurements lie is for
    `conformance.timing.conditions` to judge.
    """
    return Ceilings(
        max(one.flops for one in found), max(one.bandwidth for one in found), found[0].source,
        min(one.spread for one in found),
    )  # fmt: skip
