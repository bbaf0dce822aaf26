"""One kernel on one problem: verified, and only if it passes timed, on the same device buffers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from conformance.execution.case import Case
from conformance.execution.invocation import instruments
from conformance.execution.judging import by_probes, judged, prepare_reference
from conformance.execution.process import Crash
from conformance.execution.remote import Exited, Raised
from conformance.execution.status import KernelFailure, Verdict, conclude
from conformance.execution.workers import Workers
from conformance.inputs import Expectation, expectation
from conformance.operators import Arrays
from conformance.timing.clock import Clock
from conformance.timing.measurement import Measurement
from conformance.timing.roofline import Ceilings

MIN_ROUNDS, DEFAULT_ROUNDS = 3, 7
BUDGET = 20.0
"""Seconds of warm calls after which `MIN_ROUNDS` are enough."""
BLOCK = 1 << 20
"""Elements compared at a time: 8 MiB a temporary."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Largest and mean |result - exact| of the main output, over how many of its elements."""

    largest: float
    mean: float
    compared: int
    size: int


@dataclass(slots=True)
class Cell:
    """One cell of the U-Net table. `time` is None unless `status` is `pass`."""

    case: Case
    status: str = ""
    reason: str = ""
    accuracy: Accuracy | None = None
    time: Measurement | None = None


def measure(case: Case, rounds: int, ceilings: Ceilings | None, workers: Workers | None = None) -> Cell:
    """Verify, then time `rounds` warm calls. Nothing an implementation does raises from here, except
    KeyboardInterrupt."""
    cell = Cell(case)
    verdict = conclude(partial(_measure, cell, rounds, ceilings), lambda: case.waiver((case.variant.distribution,)))
    if case.implementation.device == "cuda" and not verdict.crashed:
        with suppress(Crash, Exited, Raised):  # what broke the context has been reported
            instruments(case.implementation.arrays).release()
    if workers is not None:
        workers.conclude(case.implementation, verdict)
    cell.status, cell.reason = verdict.status, verdict.explanation
    return cell


def _measure(cell: Cell, rounds: int, ceilings: Ceilings | None, verdict: Verdict) -> None:
    """Fills the cell as its parts become known. Raises KernelFailure where results are wrong."""
    case = cell.case
    invocation, contract, bridge = case.invocation(), case.kernel.contract, case.implementation.arrays
    clock = Clock(invocation)
    expected = expectation(case.recipe)
    prepare_reference(expected, case.method)

    def require_right(outputs: Arrays, when: str) -> None:
        judgements = judged(expected, outputs, contract, case.method)
        if wrong := [judgement.explain() for judgement in judgements if not judgement.passed]:
            raise KernelFailure(when + "\n".join(wrong))

    native = invocation.to_device(expected.inputs)
    bridge.synchronize(native)  # a copy may still be under way when the framework returns
    call = clock.call(native)
    first, results = call.wall, invocation.split(call.result)
    outputs = invocation.outputs(results)
    cell.accuracy = _accuracy(case, expected, outputs)
    require_right(outputs, "")
    copy_in, copy_out = invocation.instruments.copies(native, results)
    times: list[float] = []
    while len(times) <= rounds and (len(times) <= MIN_ROUNDS or sum(times[1:]) < BUDGET):
        del call, results  # freeing the results of the round before is not this one's work
        call = clock.call(native)
        results = invocation.split(call.result)
        times.append(call.wall)
    clock.require_agreement(native)
    last = invocation.outputs(results)
    if not all(np.array_equal(outputs[name], last[name]) for name in outputs):
        require_right(last, "right when first called, wrong when called again: ")
    # in the first of these calls caches and clocks settle
    cell.time = Measurement(case, tuple(times[1:]), first, copy_in, copy_out, ceilings)


def _accuracy(case: Case, expected: Expectation, outputs: Arrays) -> Accuracy:
    """Over all of the main output where its reference is known, else over the sampled elements."""
    name, actual = next(iter(outputs.items()))
    if by_probes(case.recipe, case.method):
        exact, values = expected.probes.samples[0], actual[tuple(expected.probes.index.T)]
    else:
        exact, values = expected.reference[name].reshape(-1), actual.reshape(-1)
    largest, total = 0.0, 0.0
    for start in range(0, exact.size, BLOCK):
        error = np.abs(values[start : start + BLOCK] - exact[start : start + BLOCK])
        largest, total = float(np.maximum(largest, error.max())), total + float(error.sum())
    return Accuracy(largest, total / exact.size, exact.size, actual.size)
