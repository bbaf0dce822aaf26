"""Verify one case: draw, call, fetch, judge, against the exact reference or by probes where that is too large; and what
guards the call, before it and after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from conformance.contract import Contract
from conformance.diagnosis.diagnose import Diagnosis, affordable, diagnose, diagnose_shapes
from conformance.dtypes import STORAGE
from conformance.execution import storage_causes
from conformance.execution.case import Case
from conformance.execution.invocation import Invocation, Laid, MismatchedError, fill_freed_memory
from conformance.execution.nondeterminism import (
    AnotherCallError,
    DifferingCalls,
    NondeterminismError,
    differing_calls,
    wrong_calls,
)
from conformance.execution.refusals import note_computed, require_refusal_of_all
from conformance.execution.status import (
    BehaviourError,
    InsufficientMemoryError,
    KernelFailure,
    MissingReferenceError,
    Verdict,
    conclude,
)
from conformance.execution.weak_contracts import require_adequate
from conformance.explaining import explaining
from conformance.failure import Failure
from conformance.implementations.implementation import BEHAVIOUR, Kernel, Unsupported, Waiver
from conformance.inputs import Expectation, Recipe, expectation
from conformance.inputs.golden import check
from conformance.inputs.probing import Probes, possible, worthwhile
from conformance.judge import Judgement, judge, outputs_of
from conformance.judge.judgement import judge_sparse, told
from conformance.judge.probes import Evidence, judge_by_probes
from conformance.operators import Arrays
from conformance.problems.table import DRAWN
from conformance.storage import repeats, with_repeats
from conformance.worker.call import Change

SPARSE = "sparse"
METHODS = ("auto", "exact", "probes")
"""How a verdict is reached: by cost, by the full reference, or by samples and a projection of it."""
IN_VAIN = 100
"""Wrong cases of a kernel in a row that no known mistake explains, after which none is tried: this made three minutes
of half a one."""
NOT_LAUNCHED = "no kernel of the file was launched: what it calls instead is right, and is not the kernel"
"""Why right results of a call are not verified."""
EXACT, PROBED = 32, 12
"""Bytes that verifying takes for each element of the tensors; measured 27 for the exact reference of fp32."""


@dataclass(slots=True)
class Tensors:
    """What a verification worked with, as far as it got. Not part of the verdict, which outlives them in a run."""

    expected: Expectation | None = None
    outputs: Arrays = field(default_factory=dict)
    """In canonical order; as the kernel returned them where they are malformed."""


def verify(case: Case, tensors: Tensors | None = None, *, again: bool = False) -> Verdict:
    """The verdict on a case. Nothing an implementation does raises from here, except KeyboardInterrupt.

    `tensors` is filled for whoever wants to look at them. With `again`, a kernel that is right is called several times.
    """

    def waiver(failure: BaseException | None) -> Waiver | None:
        return case.waiver([BEHAVIOUR if isinstance(failure, BehaviourError) else case.variant.distribution])

    # whoever writes a waiver does not know what will be drawn
    must_fail = not case.problem.name.startswith(DRAWN)
    return conclude(partial(attempt, case, tensors=tensors, again=again), waiver, must_fail=must_fail)


def attempt(case: Case, verdict: Verdict, tensors: Tensors | None = None, again: bool = False) -> None:
    """The same without waivers, for `conclude`: raises where the case does not pass."""
    tensors = Tensors() if tensors is None else tensors
    for earlier in case.after:
        verify(earlier)
    if case.variant.storage:
        storage_causes.attempt(case, verdict, lambda verdict, stored: _attempt(case, verdict, tensors, stored, again))
    else:
        _attempt(case, verdict, tensors, "", again)
    case.implementation.require_same_source()


@dataclass(slots=True)
class VerifiedCall:
    """A kernel's call on a case, with operands stored as the invocation says, and what is known of it so far."""

    case: Case
    verdict: Verdict
    tensors: Tensors
    kernel: Kernel
    invocation: Invocation
    contract: Contract
    """On the case's geometry."""
    expected: Expectation = field(init=False)
    memories: Sequence[Laid] = ()
    changed: tuple[Change, ...] = ()
    """What the call has written to besides."""
    launches: int | None = None
    """Kernels that the call has launched, where that is counted."""


def _attempt(case: Case, verdict: Verdict, tensors: Tensors, stored: str, again: bool) -> None:
    """Draw, call, fetch, judge; raises where any of it is not as it must be."""
    kernel, geometry, variant = case.kernel, case.problem.geometry, case.variant
    bridge = case.implementation.arrays
    invocation = Invocation(kernel, bridge, case.operator, geometry, variant.dtype, variant.layout, stored)
    verdict.contract = kernel.contract
    call = VerifiedCall(case, verdict, tensors, kernel, invocation, kernel.contract.on(geometry, variant.dtype))
    for guard in BEFORE_THE_CALL:
        guard(call)
    call.expected = expected = tensors.expected = _drawn(case, verdict)
    with verdict.timed("transfer"):
        native, call.memories = invocation.laid_out(expected.inputs)
        if not geometry.n:
            fill_freed_memory(bridge, invocation.tensors.values())
    with verdict.timed("kernel"):
        try:
            results, found = invocation.audited(native)
        except Unsupported as refusal:
            require_refusal_of_all(invocation, expected, call.contract, refusal)
            verdict.refused = True
            raise
    note_computed(invocation, expected.recipe)
    verdict.work, call.changed, call.launches = found.work, found.changed, found.launches
    tensors.outputs = _fetched(call, results)
    with verdict.timed("judge"):
        verdict.judgements = judged(expected, tensors.outputs, call.contract, case.method)
    for guard in (*AFTER_THE_CALL, *[require_right_every_time] * again):
        guard(call)


def _drawn(case: Case, verdict: Verdict) -> Expectation:
    """Inputs, and what a right kernel returns. Values repeat where the case's own storage repeats them."""
    try:
        with verdict.timed("reference"):
            expected = expectation(case.recipe)
            prepare_reference(expected, case.method)
    except (MemoryError, ValueError) as error:
        raise MissingReferenceError(f"no reference, is the problem too large for this machine? {error}") from error
    with verdict.timed("golden"):
        check(expected)
    if repeats(case.variant.storage):
        expected = expected.holding(with_repeats(expected.inputs, case.variant.storage))
        prepare_reference(expected, case.method)
    return expected


def _fetched(call: VerifiedCall, results: Sequence[Any]) -> Arrays:
    """Results on the host. Raises KernelFailure for malformed ones, with the mistake that gives their shapes."""
    try:
        with call.verdict.timed("transfer"):
            return call.invocation.outputs(results)
    except MismatchedError as error:
        call.tensors.outputs = returned = error.returned
        inputs, operator, geometry = call.expected.inputs, call.case.operator, call.invocation.geometry
        lines, cause = [str(error)], None
        with call.verdict.timed("diagnosis"), explaining(call.case.id, lambda line, _: lines.append(line)):
            cause = diagnose_shapes(operator, geometry, inputs, returned, call.invocation.layout)
        raise KernelFailure("\n".join(lines), error.failure, cause) from None


def by_probes(recipe: Recipe, method: str) -> bool:
    """Whether results are judged by probes; `method` is `auto` (by cost), or demands `exact` or `probes`."""
    return worthwhile(recipe) if method == "auto" else method == "probes" and possible(recipe)


def prepare_reference(expected: Expectation, method: str) -> None:
    """Compute now what the judgement will need, so that its time is not counted as the kernel's or the judge's."""
    if expected.recipe.distribution == SPARSE:
        _ = expected.nonzero
        return
    if by_probes(expected.recipe, method):
        probes = expected.probes
        _ = probes.projection, probes.samples, probes.small
    else:
        _ = expected.reference


def judged(expected: Expectation, outputs: Arrays, contract: Contract, method: str = "auto") -> tuple[Judgement, ...]:
    """One judgement per output (canonical order, on the host). With probes, of the main output; others are small."""
    recipe = expected.recipe
    contract = contract.on(recipe.geometry, recipe.dtype)
    if recipe.distribution == SPARSE:
        tensors = recipe.operator.outputs(recipe.geometry)
        return tuple(
            judge_sparse(name, tensors[name].axes, outputs[name], *known) for name, known in expected.nonzero.items()
        )
    described = recipe.operator, recipe.geometry, recipe.dtype, expected.inputs, outputs
    if not by_probes(recipe, method):
        compared = outputs_of(*described, expected.reference, lambda: expected.magnitude, expected.rest)
        return tuple(judge(output, recipe.distribution, contract) for output in compared)
    probes = expected.probes
    known = dict.fromkeys(outputs, probes.samples) | probes.small
    reference, magnitude = ({name: pair[half] for name, pair in known.items()} for half in (0, 1))
    return tuple(
        judge(output, recipe.distribution, contract)
        if output.name in probes.small
        else judge_by_probes(output, evidence(probes, output.actual), recipe.distribution, contract)
        for output in outputs_of(*described, reference, lambda: magnitude)
    )


def evidence(probes: Probes, actual: np.ndarray) -> Evidence:
    """What the probes know of a main output, and what they find in it."""
    exact, magnitude = probes.samples
    projection = probes.projection
    return Evidence(
        index=probes.index,
        exact=exact,
        magnitude=magnitude,
        projected=probes.project(actual),
        expected=projection.expected,
        square=projection.square,
        lanes=projection.lanes,
        noise=projection.noise,
    )


def require_declared(call: VerifiedCall) -> None:
    """A kernel is not failed for what its contract leaves open. Raises Unsupported."""
    if exempt := call.contract.exempts(call.case.variant.distribution, call.case.variant.dtype):
        raise Unsupported(exempt)


def require_one_result(call: VerifiedCall) -> None:
    """Sparse data is compared for equality, which rounded sums would fail. Raises Unsupported."""
    variant, model = call.case.variant, call.case.operator.errors(call.invocation.geometry)
    exact = model.exact_on_integers and call.contract.exact_on_integers(variant.dtype)
    if variant.distribution == SPARSE and not exact:
        raise Unsupported("sparse data has no one result in the declared arithmetic")


def require_memory(call: VerifiedCall) -> None:
    """What the machine cannot hold would end the judge, and lose other verdicts. Raises InsufficientMemoryError."""
    case, geometry = call.case, call.invocation.geometry
    each = PROBED if by_probes(case.recipe, case.method) else EXACT
    extents = tuple(size + sum(pad) for size, pad in zip(geometry.size, geometry.padding, strict=True))
    # the reference pads one image at a time: with a large stride, far more than the tensors themselves
    needed = case.operator.bytes(geometry, each) + 8 * geometry.c * math.prod(extents)
    if case.variant.distribution == SPARSE:  # inputs are memory that nobody touches
        outputs = case.operator.outputs(geometry).values()
        needed = sum(STORAGE[tensor.stored_as(case.variant.dtype)].itemsize * tensor.size for tensor in outputs)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # another system than Linux
        return
    if needed > available:
        needs, has = (f"{size / 2**30:,.0f} GiB" for size in (needed, available))
        raise InsufficientMemoryError(f"needs {needs} of memory; {has} are available")


def require_right(call: VerifiedCall) -> None:
    """Wrong results, whatever else the call has done. Raises KernelFailure with the mistake that explains them, where
    they are wrong every time."""
    wrong = [judgement for judgement in call.verdict.judgements if not judgement.passed]
    if not wrong:
        return
    lines, unexplained, calls, cause = list[str](), list[str](), None, None
    failure = Failure(kind="elements")
    with explaining(call.case.id, lambda line, _: unexplained.append(line)):
        lines, failure = told("elements", wrong)
        lines += map(str, call.changed)
        if call.case.explained:
            with call.verdict.timed("diagnosis"):
                calls = _differing_calls(call, lines)
                cause = _known_mistake(call) if calls is None else None
    lines = [*(lines or [f"wrong results: {', '.join(one.output for one in wrong)}"]), *unexplained]
    if calls is not None:
        failure = structs.replace(failure.below(1), kind="differs")
        raise NondeterminismError("\n".join([str(calls), *lines]), failure)
    raise KernelFailure("\n".join(lines), failure, cause)


def _differing_calls(call: VerifiedCall, lines: list[str]) -> DifferingCalls | None:
    """More calls on the inputs of a wrong result, where they differ; what one of them ends in is added to the lines."""
    expected, method, contract = call.expected, call.case.method, call.contract

    def passes(again: Arrays) -> bool:
        return all(judgement.passed for judgement in judged(expected, again, contract, method))

    known = expected.recipe.distribution != SPARSE and not by_probes(expected.recipe, method)
    exact = expected.reference if known else None
    try:
        return differing_calls(call.invocation, expected.inputs, call.tensors.outputs, passes, exact)
    except AnotherCallError as error:
        lines.append(str(error))
        return None


def _known_mistake(call: VerifiedCall) -> Diagnosis | None:
    """The one that explains wrong results; None where none does, or looking for it takes too long."""
    memory, operator, geometry = call.kernel.memory, call.case.operator, call.invocation.geometry
    if memory.unexplained >= IN_VAIN or not affordable(operator, geometry):
        return None
    cause = diagnose(operator, geometry, call.expected.inputs, call.tensors.outputs, layout=call.invocation.layout)
    memory.unexplained = 0 if cause else memory.unexplained + 1
    return cause


def require_launched(call: VerifiedCall) -> None:
    """A file that has kernels and launches none has called its framework, which is right and not what is verified.
    Raises Unsupported."""
    if call.launches == 0:
        raise Unsupported(NOT_LAUNCHED)


def require_right_every_time(call: VerifiedCall) -> None:
    """A kernel that is wrong in one of three calls is right in the first one. Raises KernelFailure; results and
    judgements are those of the first wrong call."""
    verdict, expected, right = call.verdict, call.expected, call.tensors.outputs

    def passes(again: Arrays) -> bool:
        judgements = judged(expected, again, call.contract, call.case.method)
        passed = all(judgement.passed for judgement in judgements)
        if not passed and call.tensors.outputs is right:
            call.tensors.outputs, verdict.judgements = again, judgements
        return passed

    try:
        with verdict.timed("diagnosis"):
            calls = wrong_calls(call.invocation, expected.inputs, passes)
    except AnotherCallError as error:
        raise KernelFailure(str(error), error.failure) from None
    if calls is not None:
        lines, failure = list[str](), Failure(kind="differs")
        with explaining(call.case.id, lambda line, _: lines.append(line)):
            lines, failure = told("differs", [judgement for judgement in verdict.judgements if not judgement.passed])
        raise NondeterminismError("\n".join([str(calls), *lines]), failure.below(1))


def require_inputs_untouched(call: VerifiedCall) -> None:
    """A kernel that writes to its inputs, or returns their memory, is right once. Raises BehaviourError."""
    if call.changed:
        message = "\n".join(map(str, call.changed))
        raise BehaviourError(message, Failure(kind="memory", message=call.changed[0].what))


def require_memory_untouched(call: VerifiedCall) -> None:
    """Writes beyond a view reach memory that nobody fetches. Raises KernelFailure."""
    now_in_memory = call.invocation.fetch([laid.memory for laid in call.memories])
    for laid, now in zip(call.memories, now_in_memory, strict=True):
        changed = laid.before.view(np.uint8) != np.ascontiguousarray(now).view(np.uint8)
        if changed.any():
            first = int(np.argmax(changed)) // laid.before.itemsize
            count = np.count_nonzero(changed)
            where = f"memory of {laid.operand} ({laid.kind}) was written to"
            raise KernelFailure(
                f"{where}: {count:,} bytes changed, first at element {first} of {now.size:,}",
                Failure(kind="memory", message=where),
            )


def require_adequate_contract(call: VerifiedCall) -> None:
    """A contract that allows anything passes anything. Raises KernelFailure."""
    require_adequate(call.case, call.kernel)


def require_more_than_zeros(call: VerifiedCall) -> None:
    """Zeros within the limits of most results of every output would pass here: no kernel is told from one that does
    little. Raises Unsupported."""
    judged = call.verdict.judgements
    if call.verdict.unverified and all(one.says_nothing or one.zeros == "right" for one in judged):
        declared = call.kernel.contract.describe(call.case.variant.dtype)
        what = "zeros" if all(one.zeros != "mostly" for one in judged) else "zeros for most results"
        raise Unsupported(f"the declared contract allows {what} here ({declared})")


BEFORE_THE_CALL: tuple[Callable[[VerifiedCall], None], ...] = (require_declared, require_one_result, require_memory)
AFTER_THE_CALL: tuple[Callable[[VerifiedCall], None], ...] = (
    require_right,
    require_launched,
    require_inputs_untouched,
    require_memory_untouched,
    require_adequate_contract,
    require_more_than_zeros,
)
