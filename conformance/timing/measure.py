"""One kernel on one problem: judged, and only if it passes timed, on the same device buffers."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from conformance.execution.case import Case
from conformance.execution.judging import by_probes, judged, prepare_reference
from conformance.execution.verify import MalformedError, Verdict, argument, as_tuple, blame, canonical, excused, to_host
from conformance.implementations.implementation import Kernel, Unsupported
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


@dataclass(frozen=True, slots=True)
class _Bound:
    """A kernel and its inputs on the device."""

    case: Case
    kernel: Kernel
    expected: Expectation
    native: tuple[Any, ...]

    def call(self) -> Any:
        """The results, once the device has finished."""
        keywords = self.case.operator.parameters(self.case.problem.geometry) | {"layout": self.case.variant.layout}
        result = self.kernel.function(*self.native, **self.kernel.keyword_arguments(keywords))
        self.case.implementation.arrays.synchronize(result)
        return result

    def home(self, result: Any) -> Arrays:
        """Results on the host, in canonical order. Raises MalformedError."""
        tensors = self.case.operator.outputs(self.case.problem.geometry)
        bridge = self.case.implementation.arrays
        return {
            name: canonical(self.case, name, tensors[name], to_host(bridge, array))
            for name, array in zip(tensors, as_tuple(result, tensors), strict=True)
        }

    def refuted(self, outputs: Arrays) -> str:
        """What is wrong with results; empty if they pass."""
        found = judged(self.case, self.expected, outputs, self.kernel.contract)
        return "\n".join(judgement.explain() for judgement in found if not judgement.passed)


def measure(case: Case, patience: Patience) -> Measurement:
    """Nothing an implementation does raises from here, except KeyboardInterrupt."""
    try:
        kernel = case.kernel
        found = Measurement(case, "unsupported", kernel) if isinstance(kernel, str) else _tried(case, kernel, patience)
    except Unsupported as refusal:
        found = Measurement(case, "unsupported", str(refusal))
    except MalformedError as problem:
        found = Measurement(case, "fail", str(problem))
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # SystemExit is no way out of a table either
        found = Measurement(case, "error", blame(problem))
    finally:
        _release(case)
    return _unless_waived(found)


def _unless_waived(found: Measurement) -> Measurement:
    case = found.case
    waiver = case.implementation.waiver(
        case.operator.name, case.problem.geometry, case.variant.dtype, case.variant.distribution
    )
    verdict = excused(Verdict(found.status, found.reason), waiver)
    return replace(found, status=verdict.status, reason=verdict.reason)


def _tried(case: Case, kernel: Kernel, patience: Patience) -> Measurement:
    expected = expectation(case.recipe)
    prepare_reference(case, expected)
    copy_in, bound = _clocked(_bound, case, kernel, expected)
    first, result = _clocked(bound.call)
    copy_out, outputs = _clocked(bound.home, result)
    accuracy, wrong = _accuracy(case, expected, outputs), bound.refuted(outputs)
    if wrong:
        return Measurement(case, "fail", wrong, accuracy)
    del result
    rounds, last = _rounds(bound, patience)
    wrong = _refuted_later(bound, outputs, bound.home(last))
    if wrong:
        return Measurement(case, "fail", f"right when first called, wrong when called again: {wrong}", accuracy)
    speed = Speed(rounds, first, copy_in, copy_out)
    return Measurement(case, "pass", "", accuracy, speed, known_ceilings(case.implementation.device))


def _bound(case: Case, kernel: Kernel, expected: Expectation) -> _Bound:
    bridge, names = case.implementation.arrays, case.operator.arguments
    given = [argument(expected, name, case.variant.layout) for name in names]
    native = tuple(None if array is None else bridge.from_host(array) for array in given)
    bridge.synchronize(native)  # a copy may still be under way when the framework returns
    return _Bound(case, kernel, expected, native)


def _rounds(bound: _Bound, patience: Patience) -> tuple[tuple[float, ...], Any]:
    """Seconds of warm calls and the last one's results. One more call goes before: caches and clocks settle in it."""
    found: list[float] = []
    last = bound.call()
    while len(found) < patience.rounds and (len(found) < patience.least or sum(found) < patience.seconds):
        last = None  # freeing the results of the round before is not this one's work
        seconds, last = _clocked(bound.call)
        found.append(seconds)
    return tuple(found), last


def _refuted_later(bound: _Bound, first: Arrays, last: Arrays) -> str:
    """What is wrong with the results that were timed, which need no judge where they are the first ones bit for bit."""
    if all(np.array_equal(first[name], last[name]) for name in first):
        return ""
    return bound.refuted(last)


def _accuracy(case: Case, expected: Expectation, outputs: Arrays) -> Accuracy:
    """Over all of the main output where its reference is known, else over the sampled elements."""
    name, actual = next(iter(outputs.items()))
    if by_probes(case):
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


def _release(case: Case) -> None:
    """Several frameworks share a device: torch keeps what it no longer uses, and the next one would find no room."""
    torch = sys.modules.get("torch")
    if torch is not None and case.implementation.device == "cuda":
        with suppress(RuntimeError):  # what broke the context has been reported
            torch.cuda.empty_cache()
