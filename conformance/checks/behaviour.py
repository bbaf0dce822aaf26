"""Behaviour checks: what a kernel must do besides being right once.

A check calls the kernel several times and judges the results as `verify` does. It raises BehaviourError where the
kernel does not behave and Unsupported where that cannot be checked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.checks.sample import BehaviourError, Check, Subject
from conformance.execution.case import Case
from conformance.execution.invocation import MalformedError
from conformance.implementations.implementation import Unsupported
from conformance.operators import Arrays, takes
from conformance.problems import PROBLEMS, Problem, at_level
from conformance.results.schema import Facts
from conformance.storage import nan_bytes
from conformance.worker.audit import differing

HELD = 4
"""Results that are held before the first of them is looked at."""
REPEATS = 5
LATER = 0.05
"""Seconds until a result is looked at again."""
SLACK = 1e-3
"""Seconds that a device may take to start and to report, beyond the time between its own events."""


def output_is_written(subject: Subject) -> None:
    """Every element of a result is computed, none is left as the allocator gave it.

    Other data comes before, because memory that still holds the same results would hide what was not written.
    """
    sample, other = subject.sample(), subject.sample(1)
    inputs = sample.inputs()
    results = other.call(other.inputs())
    subject.overwrite(results, [nan_bytes(h.nbytes).view(h.dtype).reshape(h.shape) for h in other.hosts(results)])
    del results
    # hand back memory full of NaN in the sizes of outputs, and of accumulators of 4 and 8 bytes
    sizes = {tensor.size * itemsize for tensor in sample.tensors.values() for itemsize in (2, 4, 8)}
    blocks = [subject.bridge.from_host(nan_bytes(size)) for size in sizes for _ in range(3)]
    del blocks
    sample.require_right(sample.call(inputs), "output buffer pre-filled with NaN")


def inputs_are_unchanged(subject: Subject) -> None:
    """A call leaves its inputs as they were."""
    sample = subject.sample()
    sample.require_right(sample.audited(sample.inputs()), "single call")


def results_follow_the_content(subject: Subject) -> None:
    """Results belong to the content of the inputs: not to their shapes, addresses, first elements or sums."""
    first = subject.sample()
    inputs = first.inputs()
    first.require_right(first.call(inputs), "first call")
    for what, content in _contents(first.expected.inputs, subject.sample(1).expected.inputs):
        sample = first.holding(content)
        if not subject.overwrite(inputs, sample.stored):
            inputs = sample.inputs()
        sample.require_right(sample.call(inputs), f"after a call with the same shapes: {what}")


def _contents(first: Arrays, second: Arrays) -> Iterator[tuple[str, Arrays]]:
    """Contents that a careless key of a cache does not tell from the ones before."""
    yield "all inputs new", second
    yield "the inputs before those again", first
    for name in first:
        yield f"only {name} new", first | {name: second[name]}
    yield "second halves new", {name: spliced(first[name], second[name]) for name in first}
    yield "reversed order", {name: np.ascontiguousarray(np.flip(second[name])) for name in first}


def spliced(head: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """The first half of one array, the second half of another."""
    half = head.size // 2
    return np.concatenate([head.reshape(-1)[:half], tail.reshape(-1)[half:]]).reshape(head.shape)


def results_are_independent(subject: Subject) -> None:
    """Results of several calls stay as they are; no result shares memory with another or with an input."""
    samples = [*map(subject.sample, range(HELD - 1)), subject.sample()]
    inputs = [sample.inputs() for sample in samples]
    results = [sample.call(given) for given, sample in zip(inputs, samples, strict=True)]
    for number, (held, sample) in enumerate(zip(results, samples, strict=True), 1):
        sample.require_right(held, f"looked at after call {HELD}: the result of call {number}")
    outputs = [(f"a result of call {n}", array) for n, held in enumerate(results, 1) for array in held]
    arrays = [(f"an input of call {n}", a) for n, given in enumerate(inputs, 1) for a in given if a is not None]
    pairs = [*itertools.combinations(outputs, 2), *itertools.product(outputs, arrays)]
    for (name, array), (other, memory) in pairs:
        if subject.bridge.overlap(array, memory):
            raise BehaviourError(f"{name} shares memory with {other}")


def calls_do_not_depend_on_the_one_before(subject: Subject) -> None:
    """A call on other shapes changes nothing for the next one, to the bit where the kernel repeats itself at all."""
    sample = subject.sample(distribution="fixed")
    other = subject.sample(distribution="fixed", problem=_other_problem(subject.case))
    inputs = sample.inputs()
    before = [sample.hosts(sample.call(inputs)) for _ in range(2)]
    other_results = other.call(other.inputs())
    results = sample.call(inputs)
    other.require_right(other_results, "after a call on other shapes")
    sample.require_right(results, "after a call on other shapes")
    if _same_bits(*before) and not _same_bits(before[0], sample.hosts(results)):
        raise BehaviourError("a call on other shapes changes the bits of the next result, which otherwise repeats")


def _other_problem(case: Case) -> Problem:
    """A problem of another shape that the implementation takes: one image more, or else one of the tables'."""
    geometry = case.problem.geometry
    larger = replace(case.problem, geometry=replace(geometry, n=geometry.n + 1))
    others = (problem for problem, _ in at_level(PROBLEMS, "smoke") if takes(case.operator.name, problem.geometry))
    for problem in (larger, *others):
        asked = (case.operator.name, problem.geometry, case.variant.dtype, case.variant.layout)
        if problem.geometry != geometry and case.implementation.supports(*asked):
            return problem
    raise Unsupported("supports only one shape")


def _same_bits(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def calls_repeat(subject: Subject) -> Facts:
    """The same call over and over is right every time; whether to the bit is reported, not judged."""
    sample = subject.sample(distribution="fixed")
    inputs = sample.inputs()
    hosts = []
    for number in range(1, REPEATS + 1):
        results = sample.call(inputs)
        sample.require_right(results, f"call {number} of the same {REPEATS}")
        hosts.append(sample.hosts(results))
    return Facts(repeatable=all(_same_bits(hosts[0], other) for other in hosts[1:]))


def work_is_finished(subject: Subject) -> None:
    """A result that is read right after the call is whole and stays so: no thread and no other stream writes to it.

    Where a device has streams, the time between events on the caller's is all the time that the device works.
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
    sample.require_right(results[: len(sample.tensors)], "single call")
    measured = [invocation.timed(inputs) for _ in range(3)]
    if known := [(seconds, *walls) for _, walls, seconds in measured if seconds is not None]:
        events, wall = map(min, zip(*known, strict=True))
        if wall > 2 * events + SLACK:
            raise BehaviourError(f"the device works {wall:.2g} s, of which the caller's stream sees {events:.2g} s")


def results_are_plain(subject: Subject) -> None:
    """What is returned is the framework's own array, or a tuple or list of them: nothing computes when it is read."""
    sample = subject.sample()
    result = sample.invocation.start(sample.inputs())
    if isinstance(result, (tuple, list)) and type(result).__iter__ not in (tuple.__iter__, list.__iter__):
        raise MalformedError(f"returned {type(result).__qualname__}, which computes when it is read")
    sample.require_right(sample.invocation.split(result), "single call")


def floating_point_mode_is_unchanged(subject: Subject) -> None:
    """The process rounds and keeps subnormal numbers as it did before the implementation was loaded.

    A library that is built with -ffast-math switches to flush-to-zero for whoever loads it.
    """
    sample = subject.sample()
    sample.require_right(sample.call(sample.inputs()), "single call")
    before, now = subject.bridge.floating_point_mode()
    if now != before:
        differs = "; ".join(now) or f"not any more: {'; '.join(before)}"
        raise BehaviourError(f"changes the floating-point mode of its process: {differs}")


BEHAVIOUR: tuple[Check, ...] = (
    output_is_written,
    inputs_are_unchanged,
    results_follow_the_content,
    results_are_independent,
    calls_do_not_depend_on_the_one_before,
    calls_repeat,
    work_is_finished,
    results_are_plain,
    floating_point_mode_is_unchanged,
)
