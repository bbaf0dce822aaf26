"""Verify one case: draw, call, fetch, judge, explain.

A case that does not pass raises, and `conclude` makes a status of it, with waivers: the search for the operand whose
storage is to blame, the behaviour checks and the fuzzer catch some of these exceptions themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from msgspec import structs

from conformance.contract import Contract
from conformance.diagnosis.diagnose import affordable, diagnose, diagnose_shapes
from conformance.execution import storage_causes, usage
from conformance.execution.invocation import Invocation, MismatchedError, fill_freed_memory
from conformance.execution.nondeterminism import (
    UNNOTICED,
    AnotherCallError,
    NondeterminismError,
    differing_calls,
    never_written,
    unnoticed,
    wrong_calls,
)
from conformance.execution.refusals import note_computed, require_refusal_of_all
from conformance.execution.status import (
    BehaviourError,
    InsufficientMemoryError,
    MissingReferenceError,
    Verdict,
    conclude,
)
from conformance.execution.trial import Trial
from conformance.execution.weak_contracts import require_adequate
from conformance.explaining import explaining
from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import BEHAVIOUR, Kernel, Unsupported, Waiver
from conformance.inputs.golden import check
from conformance.judge.expected import Exact, Expected, expect_once
from conformance.judge.judgement import told
from conformance.layouts import groups_of
from conformance.operators import Arrays
from conformance.storage import repeats, with_repeats
from conformance.worker.call import Change

IN_VAIN = 100
"""Number of a kernel's wrong cases in a row that no known mistake explains, after which none is tried: trying turned
half a minute into three."""
WORK, LITTLE = 1 << 27, 1 << 22
"""Multiply-adds, times operands and results, of all wrong cases of a kernel on which known mistakes are tried, and of a
case on which they still are when that is spent. A wrong gradient of batch norm spent three of its three and a half
minutes on them."""
NOT_LAUNCHED = "no kernel of the file was launched: what it calls instead is right, and is not the kernel"
"""Reason why right results of a call are not verified."""


@dataclass(slots=True)
class Tensors:
    """Tensors of a verification, as far as it got. They are not part of the verdict, which outlives them in a run."""

    expected: Expected | None = None
    outputs: Arrays = field(default_factory=dict)
    """Outputs in canonical order; as the kernel returned them if they are malformed."""


def verify(trial: Trial, tensors: Tensors | None = None, *, again: bool = False) -> Verdict:
    """Return the verdict on a case. Nothing an implementation does raises from here, except KeyboardInterrupt.

    `tensors` is filled for callers that look at them. With `again`, a kernel that is right is called several times.
    """

    def waiver(failure: BaseException | None) -> Waiver | None:
        return trial.waiver([BEHAVIOUR if isinstance(failure, BehaviourError) else trial.variant.distribution])

    # whoever writes a waiver does not know what will be drawn
    must_fail = trial.problem.origin in ("table", "own")
    return conclude(partial(attempt, trial, tensors=tensors, again=again), waiver, must_fail=must_fail)


def attempt(trial: Trial, verdict: Verdict, tensors: Tensors | None = None, again: bool = False) -> None:
    """Raise if the case does not pass, whatever is waived; for `conclude`."""
    for earlier in trial.after:
        verify(earlier)
    kernel = trial.kernel
    run = partial(verify_once, kernel, trial, tensors or Tensors(), again)
    storage_causes.attempt(trial.variant.storage, kernel.memory, verdict, run)
    trial.implementation.require_same_source()


def verify_once(kernel: Kernel, trial: Trial, tensors: Tensors, again: bool, verdict: Verdict, stored: str) -> None:
    """Verify a case with operands in memory as `stored` says, from the contract on; raise if it does not pass."""
    geometry, variant, bridge = trial.problem.geometry, trial.variant, trial.implementation.arrays
    invocation = Invocation(kernel, bridge, trial.workload, variant.dtype, variant.layout, stored)
    verdict.contract, contract = kernel.contract, kernel.contract.on(geometry, variant.dtype)
    if exempt := contract.exempts(variant.distribution, variant.dtype):  # no failure, as the contract leaves it open
        raise Unsupported(exempt)
    expected = expect_once(trial.recipe, trial.method)
    if not expected.has_one_result(contract):
        raise Unsupported("sparse data has no one result in the declared arithmetic")
    available = usage.of_the_machine("available", math.inf)
    if expected.bytes_needed > available:  # it would end the judge, and lose other verdicts
        needs, has = (f"{size / 2**30:,.0f} GiB" for size in (expected.bytes_needed, available))
        raise InsufficientMemoryError(f"needs {needs} of memory; {has} are available")
    try:
        with verdict.timed("reference"):
            expected.compute()
    except (MemoryError, ValueError) as error:
        raise MissingReferenceError(f"no reference, is the problem too large for this machine? {error}") from error
    with verdict.timed("golden"):
        check(expected.tensors)
    if repeats(variant.storage):  # not `stored`: values are the same with fewer operands stored so
        batch = {name: groups_of(tensor, geometry) for name, tensor in trial.workload.inputs.items()}
        expected = expected.holding(with_repeats(expected.inputs, variant.storage, batch))
        expected.compute()
    tensors.expected = expected

    with verdict.timed("transfer"):
        native, memories = invocation.laid_out(expected.inputs)
        if not geometry.n:
            fill_freed_memory(bridge, invocation.tensors.values())
    with verdict.timed("kernel"):
        try:
            results, call = invocation.audited(native)
        except Unsupported as refusal:
            require_refusal_of_all(invocation, expected, contract, refusal)
            verdict.refused = True
            raise
    note_computed(invocation, trial.recipe)
    verdict.work = call.work
    try:
        with verdict.timed("transfer"):
            tensors.outputs = invocation.outputs(results)
    except MismatchedError as error:
        tensors.outputs, lines, cause = error.returned, [str(error)], None
        with verdict.timed("diagnosis"), explaining(trial.id, lambda line, _: lines.append(line)):
            cause = diagnose_shapes(trial.workload, expected.inputs, error.returned, variant.layout)
        raise KernelFailure("\n".join(lines), error.failure, cause) from None

    with verdict.timed("judge"):
        verdict.judgements = expected.judge(tensors.outputs, contract)
    if not all(judgement.passed for judgement in verdict.judgements):  # whatever else the call has done
        raise explained(trial, verdict, invocation, expected, tensors.outputs, contract, call.changed)
    if call.launches == 0:  # a file with kernels has called its framework
        raise Unsupported(NOT_LAUNCHED)
    if call.changed:  # a kernel that writes to its inputs, or returns their memory, is right once
        message = "\n".join(map(str, call.changed))
        raise BehaviourError(message, Failure(kind="memory", message=call.changed[0].what))
    for laid, now in zip(memories, invocation.fetch([laid.memory for laid in memories]), strict=True):
        changed = laid.before.view(np.uint8) != np.ascontiguousarray(now).view(np.uint8)
        if changed.any():  # beyond the view, in memory that nobody fetches
            place = int(np.argmax(changed)) // laid.before.itemsize
            where = f"memory of {laid.operand} ({laid.kind}) was written to"
            what = f"{where}: {np.count_nonzero(changed):,} bytes changed, first at element {place} of {now.size:,}"
            raise KernelFailure(what, Failure(kind="memory", message=where))
    require_adequate(trial, kernel)
    judgements = verdict.judgements
    if verdict.unverified and all(judgement.says_nothing or judgement.zeros == "right" for judgement in judgements):
        most = any(judgement.zeros == "mostly" for judgement in judgements)
        allows = f"the declared contract allows zeros{' for most results' if most else ''} here"
        raise Unsupported(f"{allows} ({kernel.contract.describe(variant.dtype)})")
    if again:
        require_right_every_time(trial, verdict, invocation, expected, tensors, contract)


def explained(
    trial: Trial, verdict: Verdict, invocation: Invocation, expected: Expected, outputs: Arrays, contract: Contract,
    changed: Sequence[Change],
) -> KernelFailure:  # fmt: skip
    """Return the failure of wrong results: that they differ from call to call, or the mistake that explains them."""
    operator, workload, memory = trial.operator, trial.workload, invocation.kernel.memory
    wrong = [judgement for judgement in verdict.judgements if not judgement.passed]
    lines, unexplained, failure, calls, cause = list[str](), list[str](), Failure(kind="elements"), None, None

    def passes(again: Arrays) -> bool:
        return expected.passes(again, contract)

    with explaining(trial.id, lambda line, _: unexplained.append(line)):
        fits = expected.fitting(outputs, wrong, trial.kernel.contract) if trial.explained else None
        lines, failure = told("elements", wrong, fits)
        lines += map(str, changed)
        if trial.explained:
            with verdict.timed("diagnosis"):
                exact = expected.tensors.reference if isinstance(expected, Exact) else None
                try:
                    calls = differing_calls(invocation, expected.inputs, outputs, passes, exact)
                except AnotherCallError as error:
                    lines.append(str(error))
                if calls is not None and calls.wrong == calls.count and contract.stored == "stochastic":
                    calls = None  # no race: results that are rounded at random differ as they are declared to
                work = workload.flops // 2 * len(operator.arguments) * len(operator.returns)
                has_patience = memory.unexplained < IN_VAIN and (memory.diagnosed < WORK or work < LITTLE)
                if calls is None and has_patience and affordable(workload):
                    memory.diagnosed += work
                    distribution = trial.variant.distribution
                    cause = diagnose(
                        workload, expected.inputs, outputs, layout=invocation.layout, distribution=distribution
                    )
                    memory.unexplained = 0 if cause else memory.unexplained + 1
                if has_patience and (calls is None or calls.wrong == calls.count):
                    cause = never_written(invocation, expected.inputs, exact, cause)
                    calls = None if cause else calls
    lines = [*(lines or [f"wrong results: {', '.join(judgement.output for judgement in wrong)}"]), *unexplained]
    if calls is not None:
        return NondeterminismError("\n".join([str(calls), *lines]), structs.replace(failure.below(1), kind="differs"))
    return KernelFailure("\n".join(lines), failure, cause)


def require_right_every_time(
    trial: Trial, verdict: Verdict, invocation: Invocation, expected: Expected, tensors: Tensors, contract: Contract
) -> None:
    """Raise KernelFailure if more calls are wrong, or would be on other numbers in the same memory: a kernel that is
    wrong in one call of three may be right in the first. Then results and judgements become those of the first wrong
    call."""
    right = tensors.outputs

    def passes(again: Arrays) -> bool:
        passed = expected.passes(again, contract)
        if not passed and tensors.outputs is right:
            tensors.outputs, verdict.judgements = again, expected.judge(again, contract)
        return passed

    try:
        with verdict.timed("diagnosis"):
            calls = wrong_calls(invocation, expected.inputs, passes)
            kept = "" if calls else unnoticed(invocation, expected.inputs)
    except AnotherCallError as error:
        raise KernelFailure(str(error), error.failure) from None
    if calls is not None:
        lines, failure = list[str](), Failure(kind="differs")
        with explaining(trial.id, lambda line, _: lines.append(line)):
            lines, failure = told("differs", [judgement for judgement in verdict.judgements if not judgement.passed])
        raise NondeterminismError("\n".join([str(calls), *lines]), failure.below(1))
    if kept:
        what = UNNOTICED.format(kept)
        raise BehaviourError(what, Failure(kind="differs", message=what))
