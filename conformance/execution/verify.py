"""Verify one case: tensors to the device, the kernel, tensors back, judgement, diagnosis."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path

from conformance.diagnosis.diagnose import diagnose
from conformance.execution.case import Case
from conformance.execution.invocation import Invocation
from conformance.execution.judging import by_probes, judged, prepare_reference
from conformance.execution.status import KernelFailure, MissingReferenceError, Verdict, conclude
from conformance.implementations.implementation import Unsupported
from conformance.inputs import expectation
from conformance.inputs.golden import check

EXACT, PROBED = 32, 12
"""Bytes that verifying takes for each element of the tensors; measured 27 for the exact reference of fp32."""


def verify(case: Case) -> Verdict:
    """The verdict on a case. Nothing an implementation does raises from here, except KeyboardInterrupt."""
    return conclude(partial(_verify, case), lambda: case.waiver((case.variant.distribution,)), must_fail=True)


def _verify(case: Case, verdict: Verdict) -> None:
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
    geometry = case.problem.geometry
    invocation = Invocation(kernel, bridge, case.operator, geometry, variant.dtype, variant.layout)
    with verdict.timed("transfer"):
        native = invocation.to_device(expected.inputs)
    # an emulator counts exactly what a device would move and issue, which tells more than its time on a CPU
    meter = getattr(bridge, "metered", nullcontext)
    with verdict.timed("kernel"), meter() as work:
        results = invocation.call(native)
    with verdict.timed("transfer"):
        outputs = invocation.outputs(results)
    verdict.work = work or {}
    with verdict.timed("judge"):
        verdict.judgements = judged(expected, outputs, contract, case.method)
    failed = [judgement.explain() for judgement in verdict.judgements if not judgement.passed]
    if failed:
        with verdict.timed("diagnosis"):
            cause = diagnose(case.operator, geometry, expected.inputs, outputs)
        raise KernelFailure("\n".join([*failed, *([str(cause)] if cause else [])]), cause)


def _require_memory(case: Case) -> None:
    """Raises MemoryError for what the machine cannot hold, which would end the process and lose other verdicts."""
    each = PROBED if by_probes(case.recipe, case.method) else EXACT
    needed = case.operator.bytes(case.problem.geometry, each)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # another system than Linux
        return
    if needed > available:
        raise MemoryError(f"needs about {needed / 2**30:,.0f} GiB, and {available / 2**30:,.0f} GiB are available")
