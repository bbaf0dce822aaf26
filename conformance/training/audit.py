"""Verifying every call of a network's kernels while it trains.

Training data is not the fixed-point data of the suite, and the checks that assume it do not apply:

- *Equality* does not: products and sums of training data round.
- *Gain and offset* do not. They need errors of independent sign; where an image repeats a value (a background, a dead
  unit) its errors repeat too.
- *Rms* does not, for the same reason: its limit is a concentration over as many independent errors as elements.
- *The elementwise bound* does, with another magnitude. That of `conformance.judge.limits` takes the partial sums to be
  a random walk of terms of random sign. Activations are not negative, and gradients of a channel keep their sign over
  whole regions and then cancel; a right kernel that adds them up in memory's order has partial sums far above both s2
  and the result. But in no order can a partial sum leave

      (sum |x_i w_i| + |ref|) / 2,

  the larger of what the positive and the negative terms add up to. That is the magnitude here. Rounding errors still
  add up by the square-root law. With inputs that the contract rounds, the limit `4 u_in` times this magnitude is the
  worst case itself.

Measured on both networks: under s2 torch's own dw reaches 2.4 and its dbias 1.4 of the bound, false alarms both; under
this magnitude torch, jax, numba and NumPy stay below 0.4, and a sequential fp32 sum in memory's order below 0.13.
Inputs rounded to TF32 are still detected at the first step, and so is a result that is off by one part in 10,000.

The reference is the float64 one, on the very tensors that the kernel was given: its own error, below KS * 2^-53 of that
magnitude, does not count beside fp32's 2^-24. An fp64 network has no such reference and cannot be audited.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from conformance.diagnosis.diagnose import Diagnosis, diagnose
from conformance.explaining import explaining
from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure
from conformance.judge import Judgement, Output, judge
from conformance.judge.judgement import told
from conformance.operators import OPERATORS, Arrays
from conformance.training.exchange import Call, Place, RefusedError
from conformance.training.tables import DISTRIBUTION


class BrokenStepError(KernelFailure):
    """A result that exceeds the bound of its contract; the message names step, layer, direction, and what is wrong."""

    def __init__(self, place: Place, lines: Sequence[str], failure: Failure, cause: Diagnosis | None) -> None:
        super().__init__("\n".join([str(place), *lines]), replace(failure.below(1), message=place.alike), cause)
        self.diagnosis = None  # a diagnosis is of one call, and a training has many


@dataclass(slots=True)
class Audit:
    """Verifies calls and counts them. `when` tells, in a failure, where training was."""

    when: str = "before training"
    place: Place | None = None
    """Place of the latest call, finished or not, so that one that never returns can be named."""
    calls: Counter[str] = field(default_factory=Counter)
    """When -> number of calls that have returned."""
    verified: int = 0
    """Number of tensors that were compared."""
    worst: dict[str, float] = field(default_factory=dict)
    """Role -> largest error as a share of its bound."""
    seconds: float = 0.0
    """Seconds that verification took."""

    def begins(self, place: Place) -> None:
        self.place = place

    def returned(self, place: Place, call: Call) -> None:
        """Verify one call. Raises BrokenStepError at the first result that exceeds its bound."""
        start = time.perf_counter()
        reference = expected(call)
        judgements = judge_call(call, reference)
        self.seconds += time.perf_counter() - start
        self.calls[place.when] += 1
        self.verified += len(judgements)
        share = max(judgement.checks[0].value for judgement in judgements)
        self.worst[place.role] = max(self.worst.get(place.role, 0.0), share)
        failed = [judgement for judgement in judgements if not judgement.passed]
        if failed:
            lines, failure, cause = list[str](), Failure(kind="training"), None
            with explaining(str(place), lambda line, _: lines.append(line)):
                lines, failure = told("training", failed)
                cause = diagnose(OPERATORS[call.direction].on(call.geometry), call.inputs, call.outputs, reference)
            raise BrokenStepError(place, lines, failure, cause)


@contextmanager
def audited(model: Any, audit: Audit | None = None) -> Iterator[Audit]:
    """Verify every kernel call of a model's layers, each named by its path in the model, until the block ends."""
    from conformance.training.bridge import observed  # torch is needed from here on

    audit = audit or Audit()
    with observed(model, audit):
        yield audit


def expected(call: Call) -> Arrays:
    """Return the exact outputs of a call on the host. Raises RefusedError for fp64."""
    if call.dtype == "fp64":
        raise RefusedError("an fp64 network cannot be audited: its exact results would need more than float64")
    with np.errstate(invalid="ignore", over="ignore"):
        return OPERATORS[call.direction].reference(call.geometry, call.inputs)


def judge_call(call: Call, reference: Arrays) -> list[Judgement]:
    """Return one judgement per output, against the bound for data of any kind."""
    workload, magnitudes = OPERATORS[call.direction].on(call.geometry), magnitude(call, reference)
    return [
        judge(
            Output(
                name=name,
                axes=workload.outputs[name].axes,
                dtype=call.dtype,
                terms=workload.errors.terms[name],
                actual=array,
                reference=reference[name],
                magnitude=lambda: magnitudes,
            ),
            DISTRIBUTION,
            call.contract,
        )
        for name, array in call.outputs.items()
    ]


def magnitude(call: Call, reference: Arrays) -> Arrays:
    """Return (sum |x_i w_i| + |ref|) / 2 of every output element, which no partial sum exceeds in any order."""
    sizes = {name: np.abs(array) for name, array in call.inputs.items()}
    with np.errstate(invalid="ignore", over="ignore"):
        sums = OPERATORS[call.direction].reference(call.geometry, sizes)
        return {name: (array + np.abs(reference[name])) / 2 for name, array in sums.items()}
