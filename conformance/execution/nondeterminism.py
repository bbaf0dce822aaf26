"""Check whether a wrong result is wrong every time: no formula explains one that differs from call to call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.diagnosis.diagnose import EXPLAINED, GENERAL, NEVER_WRITTEN, READ_UNWRITTEN, Diagnosis
from conformance.execution.invocation import Invocation, MismatchedError, fill_freed_memory
from conformance.execution.process import Crash
from conformance.execution.remote import blame, failure_of
from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure
from conformance.operators import Arrays
from conformance.storage import NAN_BYTE

CALLS, SECONDS = 10, 5.0
"""Calls on the same inputs, the first among them, that are made if the second gives another result, or if the first was
right and only one case is verified; seconds after which no more are made where the first was right."""
ALIKE = 5
"""Number of wrong cases of a kernel that were the same in a second call, after which no more cases are called again."""
DIFFERS = "results differ from call to call"
"""Words with which the reason of a NondeterminismError begins."""

ALIKE_IN_MEMORY = "alike in all calls on the same memory: is something kept by the address of {}?"
UNNOTICED = "other numbers of {} in the same memory are not noticed: is something kept by its address?"
MARK = 0x3F
"""Byte of which numbers of every format are near 1, so that a result to which one is added is another number."""
BLOCKS = 16
"""Blocks of NaN of each size: a kernel also frees and allocates what its result does not lie in."""
OFTEN = 3
"""Number of wrong calls from which on it is checked whether they depend on the place of inputs in memory: if a kernel
is wrong that often by chance, calls on the same memory are not all alike."""


class NondeterminismError(KernelFailure):
    """A wrong result that other calls on the same inputs do not give; the message begins with DIFFERS."""

    kind = "differs"


class AnotherCallError(Exception):
    """Another call has failed, so that a result cannot be compared with it; the message and `failure` say how."""

    def __init__(self, message: str, failure: Failure) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(slots=True)
class DifferingCalls:
    """Calls on the same inputs that gave different results, at least one of them wrong.

    `farthest` is the largest difference of an element from the first call's; infinite if only one of the two is a
    number. `why` says what a kernel seems to keep by the address of an input; it is empty if nothing shows that.
    """

    count: int = 1
    wrong: int = 1
    farthest: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        by = f", by up to {self.farthest:.3g}" if math.isfinite(self.farthest) else ""
        why = f"; {self.why}" if self.why else ""
        return f"{DIFFERS}: wrong in {self.wrong} of {self.count} calls on the same inputs{by}{why}"


def wrong_calls(invocation: Invocation, inputs: Arrays, passes: Callable[[Arrays], bool]) -> DifferingCalls | None:
    """Repeat the call on the inputs of a right result; return the calls if one is wrong, without the difference between
    results, or None if all are right. Raises AnotherCallError."""
    calls, end = DifferingCalls(wrong=0, farthest=math.inf), time.monotonic() + SECONDS
    while calls.count < CALLS and time.monotonic() < end:
        again = _called_again(invocation, inputs)
        calls.count, calls.wrong = calls.count + 1, calls.wrong + (again is None or not passes(again))
    return calls if calls.wrong else None


def differing_calls(
    invocation: Invocation, inputs: Arrays, outputs: Arrays, passes: Callable[[Arrays], bool], exact: Arrays | None
) -> DifferingCalls | None:
    """Repeat the call on the inputs of wrong `outputs`, and return the calls; None if the next one gives the same
    result.

    A difference below what a mistake leaves unexplained comes from the order of sums, and counts as the same result;
    without the `exact` outputs any difference counts. Raises AnotherCallError, for a kernel once.
    """
    memory = invocation.kernel.memory
    if memory.repeated_alike >= ALIKE:
        return None
    calls = DifferingCalls()
    while calls.count < CALLS:
        try:
            again = _called_again(invocation, inputs)
        except AnotherCallError:
            memory.repeated_alike = ALIKE  # a hang takes a minute
            raise
        if again is None:
            calls.count, calls.wrong, calls.farthest = calls.count + 1, calls.wrong + 1, math.inf
            continue
        passed = passes(again)
        if calls.count == 1 and not passed and _same(again, outputs, exact):
            memory.repeated_alike += 1
            return None
        calls.count, calls.wrong = calls.count + 1, calls.wrong + (not passed)
        calls.farthest = max(calls.farthest, *(_farthest(again[name], outputs[name]) for name in outputs))
    if OFTEN <= calls.wrong < calls.count:
        names = invocation.workload.operator.arguments
        if _alike_in_memory(invocation, inputs, range(len(names))):
            alone = (name for place, name in enumerate(names) if _alike_in_memory(invocation, inputs, (place,)))
            calls.why = ALIKE_IN_MEMORY.format(next(alone, "an input"))
    if not calls.why and (name := unnoticed(invocation, inputs)):
        calls.why = UNNOTICED.format(name)
    return calls


def unnoticed(invocation: Invocation, inputs: Arrays) -> str:
    """Return the first input of which other numbers in the same memory leave the results as they were, though in new
    memory they change them; empty if there is none. A cache by address is stale then, and right in most calls: only
    where freed memory is used again does an earlier call's number lie in it."""
    flipped = {name: np.ascontiguousarray(np.flip(array)) for name, array in inputs.items()}
    try:
        for place, (name, other) in enumerate(
            zip(invocation.workload.operator.arguments, invocation.stored(flipped), strict=True)
        ):
            if other is None:
                continue
            native, _ = invocation.laid_out(inputs)
            before = invocation.outputs(invocation.call(native))
            if not invocation.bridge.overwrite(native[place], other):
                continue
            after = invocation.outputs(invocation.call(native))
            if _alike(before, after) and _differs_in_new_memory(invocation, {**inputs, name: flipped[name]}, before):
                return name
    except (Crash, Exception):
        return ""
    return ""


def never_written(
    invocation: Invocation, inputs: Arrays, exact: Arrays | None, cause: Diagnosis | None
) -> Diagnosis | None:
    """Call the kernel again, with NaN in the memory that is free, where nothing particular explains its results, and if
    some become NaN, with a number there. Return the diagnosis that these are never written, if most are that number, or
    that they are computed from such memory, if they are not; the `cause` as it was if none become NaN."""
    if exact is None or invocation.kernel.memory.repeated_alike >= ALIKE:
        return cause
    if cause is not None and not set(cause.names) <= GENERAL:
        return cause
    geometry, tensors = invocation.workload.geometry, [*invocation.tensors.values()]
    extents = (size + sum(pad) for size, pad in zip(geometry.size, geometry.padding, strict=True))
    padded = replace(geometry.x, shape=(*geometry.x.shape[:2], *extents))  # of which results may be a part

    def called(byte: int) -> Arrays:
        native, _ = invocation.laid_out(inputs)
        fill_freed_memory(invocation.bridge, [*tensors, padded], BLOCKS, byte)
        return invocation.outputs(invocation.call(native))

    try:
        became_nan = {
            name: np.isnan(array.astype(np.float64)) & ~np.isnan(exact[name])
            for name, array in called(NAN_BYTE).items()
        }
        marked = called(MARK) if any(map(np.any, became_nan.values())) else {}
    except (Crash, Exception):
        return cause
    for name, array in marked.items():  # what is NaN whatever lies in free memory says nothing about it
        became_nan[name] &= ~np.isnan(array.astype(np.float64))
    if not any(map(np.any, became_nan.values())):
        return cause
    marks = [
        array[became_nan[name]] == np.full(array.itemsize, MARK, np.uint8).view(array.dtype)
        for name, array in marked.items()
    ]
    name = NEVER_WRITTEN if np.concatenate(marks).mean() > 0.5 else READ_UNWRITTEN
    return Diagnosis((name,), 0.0, "they are NaN where NaN lay in free memory before the call")


def _alike_in_memory(invocation: Invocation, inputs: Arrays, kept: Collection[int]) -> bool:
    """Return whether calls on the same inputs all give the same bits if the `kept` ones stay in the same memory and the
    others lie in what is free just then: if each call had new memory, no address would occur twice."""
    results, fixed = list[Arrays](), dict[int, Any]()
    try:
        for _ in range(CALLS):
            native, _ = invocation.laid_out(inputs)
            fixed = fixed or {place: native[place] for place in kept}
            operands = [fixed.get(place, array) for place, array in enumerate(native)]
            results.append(invocation.outputs(invocation.call(operands)))
            del native, operands
    except (Crash, Exception):
        return False
    return all(_alike(results[0], again) for again in results[1:])


def _differs_in_new_memory(invocation: Invocation, inputs: Arrays, before: Arrays) -> bool:
    """Return whether a call gives other results than `before`. All inputs are kept: what is freed and allocated again
    has an address that the kernel may know from an earlier call."""
    kept = list[Any]()
    for _ in range(CALLS):
        native, _ = invocation.laid_out(inputs)
        kept.append(native)
        if not _alike(before, invocation.outputs(invocation.call(native))):
            return True
    return False


def _called_again(invocation: Invocation, inputs: Arrays) -> Arrays | None:
    """Call the kernel again, and return the outputs; None if they cannot be compared. Raises AnotherCallError."""
    try:
        native, _ = invocation.laid_out(inputs)
        return invocation.outputs(invocation.call(native))
    except MismatchedError:
        return None
    except (Crash, Exception) as error:
        what = str(error).partition("\n")[0] if isinstance(error, Crash) else blame(error)
        message, place = f"called again on the same inputs: {what}", failure_of(error)
        first = message.partition("\n")[0]
        raise AnotherCallError(
            message, Failure(kind="behaviour", message=first, file=place.file, line=place.line)
        ) from None


def _same(again: Arrays, outputs: Arrays, exact: Arrays | None) -> bool:
    return all(
        _farthest(again[name], array) <= (0.0 if exact is None else EXPLAINED * _farthest(array, exact[name]))
        for name, array in outputs.items()
    )


def _alike(first: Arrays, second: Arrays) -> bool:
    return all(_farthest(second[name], array) == 0 for name, array in first.items())


def _farthest(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest difference of an element; infinite if only one of the two is a number."""
    former, other = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(former - other)
    apart[(former == other) | (np.isnan(former) & np.isnan(other))] = 0
    return float(np.max(np.nan_to_num(apart, nan=np.inf, posinf=np.inf), initial=0.0))
