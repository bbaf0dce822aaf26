"""Behaviour checks: requirements on a kernel besides the right result of one call.

A check calls the kernel several times and judges the results as `verify` does. It raises BehaviourError where the
kernel misbehaves and Unsupported where that cannot be checked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from conformance.checks.sample import Check, Sample, Subject
from conformance.dtypes import STORAGE
from conformance.execution.invocation import MalformedError, fill_freed_memory
from conformance.execution.process import Crash
from conformance.execution.status import BehaviourError
from conformance.execution.trial import Trial
from conformance.implementations.implementation import Unsupported
from conformance.layouts import LayoutError
from conformance.operators import takes
from conformance.operators.base import Request
from conformance.problems import PROBLEMS, Problem, at_level, of_family, typed
from conformance.problems.drawn import neighbours
from conformance.results.schema import Facts
from conformance.storage import nan_bytes
from conformance.worker import repeating
from conformance.worker.call import differing, switched

CALLS, SECONDS = 120, 0.02
"""Number of calls of a kernel one after the other, and the seconds after which fewer are enough. An error in one call
of fifty is then seen on a path with nine chances in ten, and there are several paths."""
ALONE = 120
"""Number of calls in a row. A kernel whose bits differ by chance in a tenth of its calls shows no difference in so many
only with probability 0.9^120 = 3e-6."""
LATER = 0.05
"""Seconds until a result is read again."""
SLACK = 1e-3
"""Seconds that a device may take to start and to report, beyond the time between its own events."""


def output_is_written(subject: Subject) -> None:
    """Check that every element of a result is computed, and none is left as the allocator gave it.

    A call on other data comes first: memory that still holds the same results would hide elements that are not written.
    """
    sample, other = subject.sample(), subject.sample(1)
    inputs = sample.inputs()
    results = other.call(other.inputs())
    subject.overwrite(results, [nan_bytes(h.nbytes).view(h.dtype).reshape(h.shape) for h in other.hosts(results)])
    del results
    fill_freed_memory(subject.bridge, sample.invocation.tensors.values())
    sample.require_right(sample.call(inputs), "output buffer pre-filled with NaN")


def calls_do_not_depend_on_the_one_before(subject: Subject) -> None:
    """Check that a call on other shapes leaves the next result as it is, to the bit if the kernel is repeatable."""
    sample = subject.sample(distribution="fixed")
    other = subject.sample(distribution="fixed", problem=_other_problem(subject.trial))
    inputs = sample.inputs()
    before = [sample.hosts(sample.call(inputs)) for _ in range(2)]
    other_results = other.call(other.inputs())
    results = sample.call(inputs)
    other.require_right(other_results, "after a call on other shapes")
    sample.require_right(results, "after a call on other shapes")
    after = sample.hosts(results)
    if _same_bits(*before) and not _same_bits(before[0], after):
        # bits that change without another call in between do so by chance, as where sums have no fixed order
        alone = [after, *(sample.hosts(sample.call(inputs)) for _ in range(ALONE))]
        if sum(not _same_bits(*pair) for pair in itertools.pairwise(alone)) > 1:
            return
        raise BehaviourError("a call on other shapes changes the bits of the next result, which otherwise repeats")


def _other_problem(trial: Trial) -> Problem:
    """Return a problem of another shape that the implementation takes: one image more, or else a tables' problem."""
    geometry = trial.problem.geometry
    larger = replace(trial.problem, geometry=replace(geometry, n=geometry.n + 1))
    rows = at_level(of_family(PROBLEMS, geometry.family), "smoke")
    rest = (problem for problem, _ in rows if takes(trial.operator.name, problem.geometry))
    for problem in (larger, *rest):
        case = (trial.operator.name, problem.geometry, trial.variant.dtype, trial.variant.layout)
        if problem.geometry != geometry and trial.implementation.supports(*case):
            return problem
    raise Unsupported("supports only one shape")


def _same_bits(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def repeated(
    samples: list[Sample],
    calls: int,
    seconds: float,
    what: str,
    how: Callable[..., Any] = repeating.repeated,
) -> bool:
    """Call one function many times on each of several samples, at once or by turns; return whether all repeat to the
    bit. Raises BehaviourError; `what` names the calls, and braces in it stand for their number."""
    invocation = samples[0].invocation
    turns = [(sample.inputs(), sample.invocation.parameters()) for sample in samples]
    bridge = invocation.bridge
    with ExitStack() as refusing:
        for sample in samples:
            refusing.enter_context(sample.refusing_all())
        results = bridge.perform(how, bridge, invocation.kernel.function, turns, calls, seconds)
    for sample, result in zip(samples, results, strict=True):
        label = what.format(result.calls)
        sample.require_right(sample.invocation.split(result.first.value), f"the first of {label}")
        if result.other is not None:
            sample.require_right(sample.invocation.split(result.other.value), f"one of {label}")
    return all(result.other is None for result in results)


def work_is_finished(subject: Subject) -> None:
    """Check that a result that is read right after the call is complete and stays so: no thread or stream writes to it
    later.

    Where a device has streams, the time between events on the caller's stream is all the time that the device works.
    """
    sample, bridge = subject.sample(), subject.bridge
    inputs, invocation = sample.inputs(), sample.invocation
    results: list[Any] = []
    early: list[np.ndarray] = []
    for _ in range(3):  # a thread may by chance be done before the first look
        results += invocation.split(invocation.start(inputs))
        early += sample.hosts(results[len(early) :])
    bridge.synchronize(results)
    time.sleep(LATER)
    for soon, late in zip(early, sample.hosts(results), strict=True):
        if difference := differing(soon, late):
            raise BehaviourError(f"a result changed after the call had returned: {difference}")
    sample.require_right(results[: len(sample.invocation.tensors)], "single call")
    measured = [invocation.timed(inputs) for _ in range(3)]
    if pairs := [(times.events, *times.walls) for times in measured if times.events is not None]:
        events, wall = map(min, zip(*pairs, strict=True))
        if wall > 2 * events + SLACK:
            raise BehaviourError(f"the device works {wall:.2g} s, of which the caller's stream sees {events:.2g} s")


def results_are_plain(subject: Subject) -> None:
    """Check that a call returns the framework's own array, or a tuple or list of them: reading computes nothing."""
    sample = subject.sample()
    result = sample.invocation.start(sample.inputs())
    if isinstance(result, (tuple, list)) and type(result).__iter__ not in (tuple.__iter__, list.__iter__):
        raise MalformedError(f"returned {type(result).__qualname__}, which computes when it is read")
    sample.require_right(sample.invocation.split(result), "single call")


def floating_point_mode_is_unchanged(subject: Subject) -> None:
    """Check that the process rounds and keeps subnormal numbers as it did before the implementation was loaded.

    A library that is built with -ffast-math switches to flush-to-zero for every process that loads it.
    """
    sample = subject.sample()
    sample.require_right(sample.call(sample.inputs()), "single call")
    before, now = subject.bridge.floating_point_mode()
    if now != before:
        differs = "; ".join(now) or f"not any more: {'; '.join(before)}"
        raise BehaviourError(f"changes the floating-point mode of its process: {differs}")


def switches_are_unchanged(subject: Subject) -> None:
    """Check that a torch module leaves the switches of the whole process, such as `cudnn.benchmark`, as they are: when
    its file is imported, and in calls on small problems near one. Results are verified with the old switches."""
    trial, bridge, function = subject.trial, subject.bridge, subject.kernel.function
    plain = subject.sample()
    plain.require_right(plain.call(plain.inputs()), "single call")  # a kernel that computes nothing changes no switch
    for geometry in neighbours(trial.problem.geometry):
        if not trial.implementation.supports(trial.operator.name, geometry, trial.variant.dtype, trial.variant.layout):
            continue
        sample, changes = subject.sample(problem=replace(trial.problem, geometry=geometry)), list[str]()
        with suppress(Crash):  # a case of the problem reports it
            changes = bridge.perform(switched, bridge, function, sample.inputs(), sample.invocation.parameters())
        if changes:
            raise BehaviourError("\n".join(changes))


def invalid_arguments(subject: Subject) -> Facts:
    """Return which invalid arguments a kernel accepts: it returns a result instead of an error that says why.

    A parameter that the kernel does not take is not tried, and a kernel that raises on valid arguments, too, refuses
    nothing. Raises Crash, with the argument, where the kernel ends its process or hangs.
    """
    sample, workload = subject.sample(), subject.trial.workload
    sample.require_right(sample.call(sample.inputs()), "valid arguments")
    valid = Request(sample.expected.inputs, workload.parameters)
    accepted = []
    for what, spoil in workload.operator.invalid.items():
        request = spoil(workload.geometry, valid)
        if request is None:
            continue
        changed = {name for name, value in request.parameters.items() if value != valid.parameters[name]}
        if request.inputs is valid.inputs and not changed & {*subject.kernel.keywords}:
            continue
        try:
            inputs = sample.invocation.to_device(request.inputs)
        except LayoutError:
            continue  # groups that are an axis have no channels left over
        try:
            result = sample.invocation.start(inputs, **request.parameters)
            subject.bridge.synchronize(result)
        except Crash as crash:
            first, *rest = str(crash).splitlines()
            failure = msgspec.structs.replace(crash.failure, message=f"{crash.failure.message}, called with {what}")
            raise Crash("\n".join([f"{first}, called with {what}", *rest]), failure) from None
        except Exception as refusal:
            if not str(refusal).strip():
                accepted.append(f"{what} (refused without a message)")
        else:
            accepted.append(what)
    return Facts(accepted=tuple(accepted))


def worked_example_is_exact(subject: Subject) -> None:
    """Check that a case worked out in a public text, the operator's `worked_example`, is computed exactly. The check
    cannot see a sum that is rounded: such small sums need few bits, and lose none."""
    example = subject.trial.operator.worked_example
    if example is None:
        raise Unsupported(f"no public text works out a case of {subject.trial.operator.name}")
    trial = replace(subject.trial, problem=typed(example.descriptor))
    stored = {name: tensor.stored_as(trial.variant.dtype) for name, tensor in trial.workload.inputs.items()}
    inputs = {name: array.astype(STORAGE[stored[name]]) for name, array in example.inputs.items()}
    sample = subject.on(trial).sample().holding(inputs)
    sample.require_right(sample.call(sample.inputs()), example.what)


BEHAVIOUR_CHECKS: tuple[Check, ...] = (
    output_is_written,
    calls_do_not_depend_on_the_one_before,
    work_is_finished,
    results_are_plain,
    floating_point_mode_is_unchanged,
)
