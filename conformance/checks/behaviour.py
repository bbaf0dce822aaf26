"""Checks of behaviour: what a kernel must keep to besides being right once.

A check calls the kernel several times, or on inputs that lie in memory in an unusual way, and judges what it returned
as `verify` does. It raises BrokenPromise where the promise is broken and Unsupported where it cannot be asked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from conformance.execution.case import Case
from conformance.execution.trial import BrokenPromise, Check, Draw, Facts, Trial
from conformance.execution.verify import MalformedError
from conformance.implementations.implementation import Kernel, Unsupported
from conformance.operators import Arrays, takes
from conformance.problems import PROBLEMS, Problem, at_level

HELD = 4
REPEATS = 5
LATER = 0.05
"""Seconds until a result is looked at again."""
SLACK = 1e-3
"""Seconds that a device may take to start and to report, beyond the time between its own events."""
MARGIN = 64
"""Elements before and after a guarded input; whole cache lines in every dtype, so that alignment stays."""
MEMORY = {"nchw": (0, 2, 3, 1), "nhwc": (0, 3, 1, 2)}
"""Layout -> the axes of its arrays from slow to fast in the other layout's memory."""


def output_is_written(trial: Trial) -> None:
    """Every element of a result is computed, none is left as the allocator gave it.

    Other data comes before, because memory that still holds the same results would hide what was not written.
    """
    draw, other = trial.draw(), trial.draw(1)
    inputs = trial.inputs(draw)
    results = trial.call(trial.inputs(other), other)
    trial.overwrite(
        results, [_poison(host.nbytes).view(host.dtype).reshape(host.shape) for host in trial.hosts(results)]
    )
    del results
    _poison_allocator(trial)
    trial.require_right(trial.call(inputs, draw), draw, "in memory that held NaN before")


def _poison(size: int) -> np.ndarray:
    """Bytes that are NaN in every floating-point format."""
    return np.full(size, 0xFF, np.uint8)


def _poison_allocator(trial: Trial) -> None:
    """Hand back memory full of NaN in the sizes of outputs, and of accumulators of 4 and 8 bytes."""
    tensors = trial.case.operator.outputs(trial.case.problem.geometry).values()
    sizes = {tensor.size * itemsize for tensor in tensors for itemsize in (2, 4, 8)}
    blocks = [trial.bridge.from_host(_poison(size)) for size in sizes for _ in range(3)]
    del blocks


def inputs_are_unchanged(trial: Trial) -> None:
    """A call leaves its inputs as they were."""
    draw = trial.draw()
    inputs = trial.inputs(draw)
    trial.require_right(trial.call(inputs, draw), draw, "in a single call")
    for name, array, given in zip(draw.names, inputs, draw.given, strict=True):
        if given is not None:
            _require_same(given, _again(trial, array, name), f"input {name}")


def _again(trial: Trial, array: Any, name: str) -> np.ndarray:
    try:
        return trial.hosts([array])[0]
    except Exception as problem:  # jax says so of a buffer that was donated
        raise BrokenPromise(f"input {name} cannot be read any more: {problem}") from None


def _require_same(before: np.ndarray, after: np.ndarray, what: str) -> None:
    """The same bytes."""
    changed = _bytes(before) != _bytes(after)
    if changed.any():
        first = int(np.argmax(changed)) // before.itemsize
        raise BrokenPromise(f"{what} was written to: {np.count_nonzero(changed):,} bytes changed, first at [{first}]")


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def nothing_outside_inputs_matters(trial: Trial) -> None:
    """Memory around the inputs, NaN here, is neither written nor does it reach a result."""
    _judge_views(trial, _c_strides, "from inputs with NaN before and behind them")


def strided_inputs_are_right_or_refused(trial: Trial) -> None:
    """Views of every second element, NaN between them, are computed right or refused."""
    _right_or_refused(trial, lambda shape: tuple(2 * stride for stride in _c_strides(shape)), "strided")


def transposed_inputs_are_right_or_refused(trial: Trial) -> None:
    """Channels-last memory under an NCHW shape, and the reverse, are computed right or refused."""
    order = MEMORY[trial.case.variant.layout]
    _right_or_refused(
        trial, lambda shape: _strides(shape, order) if len(shape) == 4 else _c_strides(shape), "transposed"
    )


Strides = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Shape -> strides in elements."""


def _strides(shape: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of an array whose axes lie in memory in `order`, slow to fast, without gaps."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return _strides(shape, range(len(shape)))


def _right_or_refused(trial: Trial, strides: Strides, kind: str) -> None:
    try:
        _judge_views(trial, strides, f"from {kind} inputs")
    except (BrokenPromise, MalformedError, Unsupported):
        raise
    except Exception as refusal:
        if not str(refusal).strip():
            raise BrokenPromise(f"refuses {kind} inputs without saying why ({type(refusal).__name__})") from None
        raise Unsupported(f"refuses {kind} inputs: {type(refusal).__name__}: {refusal}") from None


def _judge_views(trial: Trial, strides: Strides, when: str) -> None:
    """Call on views into larger buffers; the result must be right and the buffers the same to the byte."""
    draw = trial.draw()
    buffers = [None if array is None else _buffer(array, strides(array.shape)) for array in draw.given]
    native = [None if buffer is None else trial.bridge.from_host(buffer) for buffer in buffers]
    views = [
        None if array is None else trial.bridge.view(memory, MARGIN, array.shape, strides(array.shape))
        for memory, array in zip(native, draw.given, strict=True)
    ]
    if any(view is None and array is not None for view, array in zip(views, draw.given, strict=True)):
        raise Unsupported(f"{trial.bridge.name} has no views")
    trial.require_right(trial.call(views, draw), draw, when)
    for name, before, memory in zip(draw.names, buffers, native, strict=True):
        if before is not None:
            _require_same(before, trial.hosts([memory])[0], f"memory at input {name}, which starts at [{MARGIN}],")


def _buffer(array: np.ndarray, strides: tuple[int, ...]) -> np.ndarray:
    """NaN all over, but for the array at `MARGIN` with these strides."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
    buffer = _poison((extent + 2 * MARGIN) * array.itemsize).view(array.dtype)
    inside = as_strided(buffer[MARGIN:], array.shape, [s * array.itemsize for s in strides])
    inside[...] = array
    return buffer


def results_follow_the_content(trial: Trial) -> None:
    """Results belong to the content of the inputs: not to their shapes, addresses, first elements or sums."""
    first = trial.draw()
    inputs = trial.inputs(first)
    trial.require_right(trial.call(inputs, first), first, "at first")
    for what, content in _contents(first.expected.inputs, trial.draw(1).expected.inputs):
        draw = first.holding(content)
        if not trial.overwrite(inputs, draw.given):
            inputs = trial.inputs(draw)
        trial.require_right(trial.call(inputs, draw), draw, f"after a call with the same shapes: {what}")


def _contents(first: Arrays, second: Arrays) -> Iterator[tuple[str, Arrays]]:
    """Contents that a careless key of a cache does not tell from the ones before."""
    yield "all inputs new", second
    yield "the inputs before those again", first
    for name in first:
        yield f"only {name} new", first | {name: second[name]}
    yield "second halves new", {name: _spliced(first[name], second[name]) for name in first}
    yield "reversed order", {name: np.ascontiguousarray(np.flip(second[name])) for name in first}


def _spliced(head: np.ndarray, tail: np.ndarray) -> np.ndarray:
    half = head.size // 2
    return np.concatenate([head.reshape(-1)[:half], tail.reshape(-1)[half:]]).reshape(head.shape)


def results_are_independent(trial: Trial) -> None:
    """Results of several calls stay as they are; no result shares memory with another or with an input."""
    draws = [*map(trial.draw, range(HELD - 1)), trial.draw()]
    inputs = [trial.inputs(draw) for draw in draws]
    results = [trial.call(given, draw) for given, draw in zip(inputs, draws, strict=True)]
    for number, (held, draw) in enumerate(zip(results, draws, strict=True), 1):
        trial.require_right(held, draw, f"when looked at after call {HELD}: the result of call {number}")
    outputs = [(f"a result of call {n}", array) for n, held in enumerate(results, 1) for array in held]
    arrays = [(f"an input of call {n}", a) for n, given in enumerate(inputs, 1) for a in given if a is not None]
    pairs = [*itertools.combinations(outputs, 2), *itertools.product(outputs, arrays)]
    for (name, array), (other, memory) in pairs:
        if trial.bridge.overlap(array, memory):
            raise BrokenPromise(f"{name} shares memory with {other}")


def calls_do_not_depend_on_the_one_before(trial: Trial) -> None:
    """A call on other shapes changes nothing for the next one, to the bit where the kernel repeats itself at all."""
    draw, other = trial.draw(distribution="fixed"), trial.draw(distribution="fixed", problem=_other_problem(trial.case))
    inputs = trial.inputs(draw)
    before = [trial.hosts(trial.call(inputs, draw)) for _ in range(2)]
    other_results = trial.call(trial.inputs(other), other)
    results = trial.call(inputs, draw)
    trial.require_right(other_results, other, "after a call on other shapes")
    trial.require_right(results, draw, "after a call on other shapes")
    if _same_bits(*before) and not _same_bits(before[0], trial.hosts(results)):
        raise BrokenPromise("a call on other shapes changes the bits of the next result, which otherwise repeats")


def _other_problem(case: Case) -> Problem:
    """A problem of another shape that the implementation takes: one image more, or else one of the tables'."""
    geometry = case.problem.geometry
    larger = replace(case.problem, geometry=replace(geometry, n=geometry.n + 1))
    others = (problem for problem, _ in at_level(PROBLEMS, "smoke") if takes(case.operator.name, problem.geometry))
    for problem in (larger, *others):
        found = case.implementation.find(case.operator.name, problem.geometry, case.variant.dtype, case.variant.layout)
        if isinstance(found, Kernel) and problem.geometry != geometry:
            return problem
    raise Unsupported("takes no second shape")


def _same_bits(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def calls_repeat(trial: Trial) -> Facts:
    """The same call over and over is right every time; whether to the bit is reported, not judged."""
    draw = trial.draw(distribution="fixed")
    inputs = trial.inputs(draw)
    hosts = []
    for number in range(1, REPEATS + 1):
        results = trial.call(inputs, draw)
        trial.require_right(results, draw, f"in call {number} of the same {REPEATS}")
        hosts.append(trial.hosts(results))
    return {"repeatable": all(_same_bits(hosts[0], other) for other in hosts[1:])}


def work_is_finished(trial: Trial) -> None:
    """A result that is read right after the call is whole and stays so: no thread and no other stream writes to it."""
    draw = trial.draw()
    inputs = trial.inputs(draw)
    results: list[Any] = []
    early: list[np.ndarray] = []
    for _ in range(3):  # a thread may by chance be done before the first look
        results += trial.parts(trial.start(inputs, draw), draw)
        early += trial.hosts(results[len(early) :])
    trial.bridge.synchronize(results)
    time.sleep(LATER)
    for soon, late in zip(early, trial.hosts(results), strict=True):
        changed = np.count_nonzero(_bytes(soon) != _bytes(late))
        if changed:
            raise BrokenPromise(f"a result changed after the call had returned: {changed:,} bytes")
    trial.require_right(results[: len(draw.outputs)], draw, "in a single call")
    _require_timed_whole(trial, inputs, draw)


def _require_timed_whole(trial: Trial, inputs: Sequence[Any], draw: Draw) -> None:
    """Where a device has streams: the time between events on the caller's is all the time that the device works."""
    measured = [trial.bridge.stopwatch(lambda: trial.start(inputs, draw)) for _ in range(3)]
    known = [seconds for seconds in measured if seconds is not None]
    if known:
        events, wall = map(min, zip(*known, strict=True))
        if wall > 2 * events + SLACK:
            raise BrokenPromise(f"the device works {wall:.2g} s, of which the caller's stream sees {events:.2g} s")


def results_are_plain(trial: Trial) -> None:
    """What is returned is the framework's own array, or a tuple or list of them: nothing computes when it is read."""
    draw = trial.draw()
    result = trial.start(trial.inputs(draw), draw)
    if isinstance(result, (tuple, list)) and type(result).__iter__ not in (tuple.__iter__, list.__iter__):
        raise MalformedError(f"returned {type(result).__qualname__}, which computes when it is read")
    results = trial.parts(result, draw)
    trial.require_right(results, draw, "in a single call")


CHECKS: tuple[Check, ...] = (
    output_is_written,
    inputs_are_unchanged,
    nothing_outside_inputs_matters,
    results_follow_the_content,
    results_are_independent,
    calls_do_not_depend_on_the_one_before,
    calls_repeat,
    strided_inputs_are_right_or_refused,
    transposed_inputs_are_right_or_refused,
    work_is_finished,
    results_are_plain,
)
"""Every promise; `suites/test_contract.py` has a test for each."""
