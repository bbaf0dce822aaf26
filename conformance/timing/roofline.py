"""The ceilings of a device, measured in the run that uses them: fp32 products, and bytes copied.

A kernel of F operations that moves B bytes takes at least max(F / rate, B / bandwidth) (Williams, Waterman and
Patterson 2009). Both ceilings are rates that good code reaches on this machine, not those of its data sheet: a kernel
may exceed them, and one that saves multiplications (Winograd) may by far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.execution.process import Crash, Process
from conformance.execution.remote import Exited, Raised, run
from conformance.implementations.devices import Unavailable
from conformance.worker import ceilings


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Operations and bytes a second; `source` tells how they were measured.

    `spread` is the distance of the median round from the fastest, the ceiling, as a share of it: the larger of both.
    """

    flops: float
    bandwidth: float
    source: str
    spread: float = 0.0

    def __str__(self) -> str:
        return f"{self.flops / 1e12:.3g} TFLOP/s fp32 products, {self.bandwidth / 1e9:.3g} GB/s copied ({self.source})"


def measure_ceilings(device: str, process: Process | None) -> Ceilings:
    """Measure in a process that loads no vendor's file, because ceilings decide which times are impossible; in this
    process if none is given. Raises Unavailable."""
    if process is None:
        return Ceilings(*ceilings.measured(device))
    try:
        return Ceilings(*run(process, ceilings.measured, device))
    except (Crash, Exited, Raised) as error:
        raise Unavailable(f"not measured: {error}") from None


def best(ceilings: Sequence[Ceilings]) -> Ceilings:
    """Return the best rates that a device has reached in several measurements.

    A ceiling is the device's capability, not the part of it that other work left; how far apart measurements lie is
    judged by `conformance.timing.conditions`.
    """
    return Ceilings(
        max(rates.flops for rates in ceilings), max(rates.bandwidth for rates in ceilings), ceilings[0].source,
        min(rates.spread for rates in ceilings),
    )  # fmt: skip
