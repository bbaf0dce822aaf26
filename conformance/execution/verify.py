"""Verify one case: tensors to the device, the kernel, tensors back, judgement, diagnosis."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from conformance.diagnosis.diagnose import diagnose, diagnose_shapes
from conformance.execution.case import Case
from conformance.execution.invocation import TO_LAYOUT, Invocation, MismatchedError, fill_freed_memory
from conformance.execution.judging import by_probes, judged, prepare_reference
from conformance.execution.status import KernelFailure, MissingReferenceError, Verdict, conclude
from conformance.implementations.implementation import Unsupported
from conformance.inputs import Expectation, expectation
from conformance.inputs.golden import check
from conformance.operators import Arrays

EXACT, PROBED = 32, 12
"""Bytes that verifying takes for each element of the tensors; measured 27 for the exact reference of fp32."""


@dataclass(slots=True)
class Tensors:
    """What a verification worked with, as far as it got. Not part of the verdict, which outlives them in a run."""

    expected: Expectation | None = None
    outputs: Arrays = field(default_factory=dict)
    """In canonical order; as the kernel returned them where they are malformed."""


def verify(case: Case, tensors: Tensors | None = None) -> Verdict:
    """The verdict on a case. Nothing an implementation does raises from here, except KeyboardInterrupt.

    `tensors` is filled for whoever wants to look at them.
    """
    made = partial(attempt, case, tensors=tensors)
    return conclude(made, lambda: case.waiver((case.variant.distribution,)), must_fail=True)


def attempt(case: Case, verdict: Verdict, tensors: Tensors | None = None) -> None:
    """The same without waivers, for `conclude`: raises where the case does not pass."""
    tensors = Tensors() if tensors is None else tensors
    kernel, variant, bridge = case.kernel, case.variant, case.implementation.arrays
    contract = verdict.contract = kernel.contract
    if exempt := contract.exempts(variant.distribution, variant.dtype):
        raise Unsupported(exempt)
    try:
        with verdict.timed("reference"):
            _require_memory(case)
            expected = expectation(case.recipe)
            prepare_reference(expected, case.method)
    except (MemoryError, ValueError) as error:
        raise MissingReferenceError(f"no reference, is the problem too large for this machine? {error}") from error
    with verdict.timed("golden"):
        check(expected)
    tensors.expected = expected
    geometry = case.problem.geometry
    invocation = Invocation(kernel, bridge, case.operator, geometry, variant.dtype, variant.layout)
    with verdict.timed("transfer"):
        native = invocation.to_device(expected.inputs)
        if not geometry.n:
            fill_freed_memory(bridge, invocation.tensors.values())
    # an emulator counts exactly what a device would move and issue, which tells more than its time on a CPU
    meter = getattr(bridge, "metered", nullcontext)
    with verdict.timed("kernel"), meter() as work:
        results = invocation.call(native)
    verdict.work = work or {}
    try:
        with verdict.timed("transfer"):
            outputs = tensors.outputs = invocation.outputs(results)
    except MismatchedError as error:
        tensors.outputs = error.returned
        with verdict.timed("diagnosis"):
            order = TO_LAYOUT[variant.layout]
            cause = diagnose_shapes(case.operator, geometry, expected.inputs, error.returned, order)
        raise KernelFailure(str(error), cause) from None
    with verdict.timed("judge"):
        verdict.judgements = judged(expected, outputs, contract, case.method)
    failed = [judgement.explain() for judgement in verdict.judgements if not judgement.passed]
    if failed:
        with verdict.timed("diagnosis"):
            cause = diagnose(case.operator, geometry, expected.inputs, outputs)
        raise KernelFailure("\n".join(failed), cause)


def _require_memory(case: Case) -> None:
    """Raises MemoryError for what the machine cannot hold, which would end the process and lose other verdicts."""
    each = PROBED if by_probes(case.recipe, case.method) else EXACT
    geometry = case.problem.geometry
    height, width = (size + sum(pad) for size, pad in zip((geometry.h, geometry.w), geometry.padding, strict=True))
    # the reference pads one image at a time: with a large stride, far more than the tensors themselves
    needed = case.operator.bytes(geometry, each) + 8 * geometry.c * height * width
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # another system than Linux
        return
    if needed > available:
        raise MemoryError(f"needs about {needed / 2**30:,.0f} GiB, and {available / 2**30:,.0f} GiB are available")
