"""One kernel on one problem: judged, and only if it passes timed, on the same device buffers."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from conformance.execution.case import Case
from conformance.execution.judging import by_probes, judged, prepare_reference
from conformance.execution.status import KernelFailure, conclude
from conformance.inputs import Expectation, expectation
from conformance.operators import Arrays
from conformance.timing.relative import Timing
from conformance.timing.roofline import Ceilings, ceilings

Result = TypeVar("Result")

_BLOCK = 1 << 20
"""Elements compared at a time: 8 MiB a temporary."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a kernel is timed: `rounds` times, but no more than `least` once `seconds` are over."""

    rounds: int = 7
    least: int = 3
    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Largest and mean |result - exact| of the main output, over how many of its elements."""

    largest: float
    mean: float
    compared: int
    size: int


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds, wall clock until the device is idle.

    `first` is the first call, in which kernels are compiled or loaded from a cache; `rounds` are warm calls; `copy_in`
    and `copy_out` are the inputs' way to the device and the results' way back, through the suite's own copies.
    """

    rounds: tuple[float, ...]
    first: float
    copy_in: float
    copy_out: float

    @property
    def median(self) -> float:
        """Of the warm calls."""
        return statistics.median(self.rounds)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One cell of a table. `speed` is None unless `status` is `pass`."""

    case: Case
    status: str
    reason: str = ""
    accuracy: Accuracy | None = None
    speed: Speed | None = None
    ceilings: Ceilings | None = None

    @property
    def flops(self) -> float | None:
        """Operations a second."""
        if self.speed is None:
            return None
        return self.case.operator.flops(self.case.problem.geometry) / self.speed.median

    @property
    def timing(self) -> Timing | None:
        """The same, for comparisons."""
        if self.speed is None:
            return None
        case = self.case
        names = case.implementation.device, case.operator.name, case.problem.name, case.implementation.name
        return Timing(*names, self.speed.median, share(case, self.speed.median, self.ceilings))


def share(case: Case, seconds: float, known: Ceilings | None) -> float | None:
    """The roofline's time over a kernel's; None where the device's ceilings are not known."""
    if known is None:
        return None
    return known.floor(case.operator, case.problem.geometry, case.variant.dtype) / seconds


def known_ceilings(device: str) -> Ceilings | None:
    """The ceilings of a device, where there are any."""
    found = ceilings(device)
    return None if isinstance(found, str) else found


def measure(case: Case, patience: Patience) -> Measurement:
    """Verify, then time. Nothing an implementation does raises from here, except KeyboardInterrupt."""
    parts: dict[str, Any] = {}
    try:
        verdict = conclude(
            lambda verdict: _measure(case, patience, parts), lambda: case.waiver((case.variant.distribution,))
        )
    finally:
        # several frameworks share a device: torch keeps what it no longer uses, and the next would find no room
        torch = sys.modules.get("torch")
        if torch is not None and case.implementation.device == "cuda":
            with suppress(RuntimeError):  # what broke the context has been reported
                torch.cuda.empty_cache()
    if verdict.status != "pass":
        parts.pop("speed", None)
    return Measurement(case, verdict.status, verdict.explanation, **parts)


def _measure(case: Case, patience: Patience, parts: dict[str, Any]) -> None:
    """Fills `parts` of the measurement as they become known. Raises KernelFailure where results are wrong."""
    invocation, contract, bridge = case.invocation(), case.kernel.contract, case.implementation.arrays
    expected = expectation(case.recipe)
    prepare_reference(expected, case.method)

    def prepare() -> list[Any]:
        native = invocation.to_device(expected.inputs)
        bridge.synchronize(native)  # a copy may still be under way when the framework returns
        return native

    def require_right(outputs: Arrays, when: str) -> None:
        judgements = judged(expected, outputs, contract, case.method)
        if wrong := [judgement.explain() for judgement in judgements if not judgement.passed]:
            raise KernelFailure(when + "\n".join(wrong))

    copy_in, native = _clocked(prepare)
    first, results = _clocked(invocation.call, native)
    copy_out, outputs = _clocked(invocation.outputs, results)
    parts["accuracy"] = _accuracy(case, expected, outputs)
    require_right(outputs, "")
    # one more call goes before: caches and clocks settle in it
    times: list[float] = []
    results = invocation.call(native)
    while len(times) < patience.rounds and (len(times) < patience.least or sum(times) < patience.seconds):
        results = ()  # freeing the results of the round before is not this one's work
        seconds, results = _clocked(invocation.call, native)
        times.append(seconds)
    last = invocation.outputs(results)
    if not all(np.array_equal(outputs[name], last[name]) for name in outputs):
        require_right(last, "right when first called, wrong when called again: ")
    parts["speed"] = Speed(tuple(times), first, copy_in, copy_out)
    parts["ceilings"] = known_ceilings(case.implementation.device)


def _accuracy(case: Case, expected: Expectation, outputs: Arrays) -> Accuracy:
    """Over all of the main output where its reference is known, else over the sampled elements."""
    name, actual = next(iter(outputs.items()))
    if by_probes(case.recipe, case.method):
        exact, values = expected.probes.samples[0], actual[tuple(expected.probes.index.T)]
    else:
        exact, values = expected.reference[name].reshape(-1), actual.reshape(-1)
    largest, total = 0.0, 0.0
    for start in range(0, exact.size, _BLOCK):
        error = np.abs(values[start : start + _BLOCK] - exact[start : start + _BLOCK])
        largest, total = float(np.maximum(largest, error.max())), total + float(error.sum())
    return Accuracy(largest, total / exact.size, exact.size, actual.size)


def _clocked(call: Callable[..., Result], *given: Any) -> tuple[float, Result]:
    start = time.perf_counter()
    result = call(*given)
    return time.perf_counter() - start, result
