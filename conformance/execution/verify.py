"""Verify one case: tensors to the device, the kernel, tensors back, judgement, diagnosis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.diagnosis.diagnose import affordable, diagnose, diagnose_shapes
from conformance.dtypes import STORAGE
from conformance.execution import storage
from conformance.execution.case import Case
from conformance.execution.invocation import Invocation, MismatchedError, fill_freed_memory
from conformance.execution.judge_outputs import SPARSE, by_probes, judged, prepare_reference
from conformance.execution.status import (
    BehaviourError,
    InsufficientMemoryError,
    KernelFailure,
    MissingReferenceError,
    Verdict,
    conclude,
)
from conformance.execution.weak_contracts import require_adequate
from conformance.implementations.implementation import BEHAVIOUR, Kernel, Unsupported
from conformance.inputs import Expectation, expectation
from conformance.inputs.golden import check
from conformance.operators import FAMILIES, Arrays
from conformance.problems.table import DRAWN, applies
from conformance.storage import repeats, with_repeats

IN_VAIN = 100
"""Wrong cases of a kernel in a row that no known mistake explains, after which none is tried: this made three minutes
of half a one."""
_in_vain: dict[int, tuple[Kernel, int]] = {}
"""A kernel by its id, itself (so that no other one gets that id), and how many such cases there were last."""
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
    failed_on = [case.variant.distribution]

    def made(verdict: Verdict) -> None:
        try:
            attempt(case, verdict, tensors)
        except BehaviourError:
            failed_on[:] = [BEHAVIOUR]
            raise

    # whoever writes a waiver does not know what will be drawn
    must_fail = not case.problem.name.startswith(DRAWN)
    return conclude(made, lambda: case.waiver(failed_on), must_fail=must_fail)


def attempt(case: Case, verdict: Verdict, tensors: Tensors | None = None) -> None:
    """The same without waivers, for `conclude`: raises where the case does not pass."""
    tensors = Tensors() if tensors is None else tensors
    for earlier in case.after:
        verify(earlier)
    if case.variant.storage:
        storage.attempt(case, verdict, lambda verdict, stored: _attempt(case, verdict, tensors, stored))
    else:
        _attempt(case, verdict, tensors, "")


def _attempt(case: Case, verdict: Verdict, tensors: Tensors, stored: str) -> None:
    """With operands stored as `stored` says; values repeat where the case's own storage repeats them."""
    kernel, variant, bridge = case.kernel, case.variant, case.implementation.arrays
    contract = verdict.contract = kernel.contract
    if exempt := contract.on(case.problem.geometry).exempts(variant.distribution, variant.dtype):
        raise Unsupported(exempt)
    exact = case.operator.errors(case.problem.geometry).exact_on_integers and contract.exact_on_integers(variant.dtype)
    if variant.distribution == SPARSE and not exact:
        raise Unsupported("sparse data has no one result in the declared arithmetic")
    _require_memory(case)
    try:
        with verdict.timed("reference"):
            expected = expectation(case.recipe)
            prepare_reference(expected, case.method)
    except (MemoryError, ValueError) as error:
        raise MissingReferenceError(f"no reference, is the problem too large for this machine? {error}") from error
    with verdict.timed("golden"):
        check(expected)
    if repeats(variant.storage):
        expected = expected.holding(with_repeats(expected.inputs, variant.storage))
        prepare_reference(expected, case.method)
    tensors.expected = expected
    geometry = case.problem.geometry
    invocation = Invocation(kernel, bridge, case.operator, geometry, variant.dtype, variant.layout, stored)
    with verdict.timed("transfer"):
        native, memories = invocation.laid_out(expected.inputs)
        if not geometry.n:
            fill_freed_memory(bridge, invocation.tensors.values())
    # an emulator counts exactly what a device would move and issue, which tells more than its time on a CPU
    meter = getattr(bridge, "metered", nullcontext)
    with verdict.timed("kernel"), meter() as work:
        try:
            results, changed = invocation.audited(native)
        except Unsupported as refusal:
            _require_refusal_of_all(case, invocation, refusal)
            verdict.refused = True
            raise
    verdict.work = work or {}
    try:
        with verdict.timed("transfer"):
            outputs = tensors.outputs = invocation.outputs(results)
    except MismatchedError as error:
        tensors.outputs = error.returned
        with verdict.timed("diagnosis"):
            cause = diagnose_shapes(case.operator, geometry, expected.inputs, error.returned, variant.layout)
        raise KernelFailure(str(error), cause) from None
    with verdict.timed("judge"):
        verdict.judgements = judged(expected, outputs, contract, case.method)
    failed = [judgement.explain() for judgement in verdict.judgements if not judgement.passed]
    if failed:
        _, tried = _in_vain.get(id(kernel), (kernel, 0))
        cause = None
        if tried < IN_VAIN and affordable(case.operator, geometry):
            with verdict.timed("diagnosis"):
                cause = diagnose(case.operator, geometry, expected.inputs, outputs, layout=variant.layout)
            _in_vain[id(kernel)] = kernel, 0 if cause else tried + 1
        raise KernelFailure("\n".join([*failed, *changed]), cause)
    if changed:
        raise BehaviourError("\n".join(changed))
    invocation.require_untouched(memories)
    require_adequate(case)
    if {judgement.zeros for judgement in verdict.judgements} in ({"allowed"}, {"allowed", "right"}):
        raise Unsupported(f"the declared contract allows zeros here ({contract.describe(variant.dtype)})")


_refused: dict[tuple[Any, ...], tuple[Kernel, str]] = {}
"""Case but for its distribution -> its kernel (so that no other one gets its id), and a distribution that it computes;
empty if there is none."""


def _require_refusal_of_all(case: Case, invocation: Invocation, refusal: Unsupported) -> None:
    """Raises KernelFailure where a kernel that refuses the case computes the same problem with other values."""
    kernel, geometry, variant = case.kernel, case.problem.geometry, case.variant
    key = (id(kernel), case.operator.name, geometry, replace(variant, distribution=""), case.seed)
    if key not in _refused:
        _refused[key] = kernel, next(_computed(case, invocation), "")
    if computed := _refused[key][1]:
        raise KernelFailure(f"refuses these values, and computes those of distribution {computed}: {refusal}")


def _computed(case: Case, invocation: Invocation) -> Iterator[str]:
    """The distributions that the kernel does not refuse on a problem, of those that it is held to."""
    variant, contract = case.variant, case.kernel.contract.on(case.problem.geometry)
    for name in FAMILIES[case.operator.family].distributions:
        if name == variant.distribution or not applies(name, variant.dtype) or contract.exempts(name, variant.dtype):
            continue
        with suppress(Unsupported):
            native, _ = invocation.laid_out(Expectation(replace(case.recipe, distribution=name)).inputs)
            invocation.call(native)
            yield name


def _require_memory(case: Case) -> None:
    """Raises InsufficientMemoryError for what the machine cannot hold, which would end the process and lose other
    verdicts."""
    each = PROBED if by_probes(case.recipe, case.method) else EXACT
    geometry = case.problem.geometry
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
