"""Checks of the state that a kernel keeps from one call to the next, or shares between calls at the same time.

They are made on each path where kernels differ (`conformance.execution.declared`), or on pairs of problems that a cache
with an incomplete key confuses.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from msgspec import structs

from conformance.checks.behaviour import CALLS, LATER, SECONDS, repeated
from conformance.checks.sample import NOTHING_JUDGED, Check, Sample, Subject, WrongResultError
from conformance.dtypes import STORAGE
from conformance.execution.declared import usual_paths
from conformance.execution.status import BehaviourError
from conformance.execution.trial import Trial
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import BEHAVIOUR, Unsupported
from conformance.layouts import arranged, layouts_of, rank_of
from conformance.operators import FAMILIES, OPERATORS, Geometry, GeometryError, Workload
from conformance.operators.descriptor import FLAG, NEGATED_FLAG, Field
from conformance.problems import Problem, Variant, typed
from conformance.results.schema import Facts
from conformance.worker import repeating
from conformance.worker.call import differing
from conformance.worker.repeating import PATIENCE

THREADS = 4
SHARED = "as if they shared a buffer"
AT_ONCE, SECONDS_AT_ONCE = 12, 0.03
"""Calls of each of several threads, and the seconds after which fewer are enough."""
PAIRED, SECONDS_PAIRED = 4, 0.01
"""Calls of each thread and seconds, as above, where two threads have another parameter than the others."""
AGE = 1.1
"""Seconds after its first call that a kernel is called again."""
MANY, SECONDS_OF_MANY = 10_000, 0.3
"""Calls of the path of fewest operations, and the seconds after which fewer are enough: compiled kernels take 10 us."""
CHILD = 10.0
"""Seconds that a call in a forked child may take."""
SHAPES = 200
"""Number of distinct shapes over which the growth of memory is measured."""
SECONDS_OF_SHAPES = (0.02, 0.1)
"""Seconds after which fewer calls are enough, on small shapes and on large ones."""
SECONDS_OF_BARE = (0.1, 0.3)
"""The same seconds where calls are made without the plans of the framework: torch without oneDNN is slower."""
OPERANDS = 1 << 17
"""Elements of the larger of two sizes of shapes."""
MIN_SHAPES = 12
"""Fewest calls that tell growth from a single allocation."""
COMPILED, UNCLEAR = 1 << 22, 1 << 20
"""Bytes that a call on a small new shape may leave, such as code and plans that are made for it: XLA's are 1.8 MB. The
number of bytes varies; with more than the second number, memory kept for operands does not show."""
LEFT = 0.25
"""Share of its operands' bytes that a call may leave. A kernel with a buffer for each shape leaves an operand's."""


def calls_in_a_row_are_right(subject: Subject) -> Facts:
    """Check calls on new content in old and in new memory, over and over, and from four threads at once: each is right,
    stays as it is and leaves its inputs alone. A path that caches, shares, writes late or is not reentrant fails."""
    first, second = subject.sample(), subject.sample(1)
    memory = first.inputs()
    calls = [("first call", first, memory, first.audited(memory))]
    inputs = second.inputs()
    calls.append(("second call, other inputs", second, inputs, second.audited(inputs)))
    for what, sample in _samples(subject, first, second):
        inputs = memory if subject.overwrite(memory, sample.stored) else sample.inputs()
        calls.append((f"after calls on the same shapes: {what}", sample, inputs, sample.audited(inputs)))
    (_, _, _, former), (_, _, _, other) = calls[:2]  # of different content
    if any(subject.bridge.overlap(*pair) for pair in itertools.product(former, other)):
        raise BehaviourError(
            "results of two calls lie in the same memory: a call overwrites what an earlier one returned"
        )
    again = subject.sample(distribution="fixed")  # sums of integers have the same bits in any order
    repeats = repeated([again], CALLS, SECONDS, "{} calls on the same inputs")
    if subject.takes_threads:
        turns = [(first, again)[thread % 2] for thread in range(THREADS)]
        what = f"{{}} calls from each of {THREADS} threads at once, {SHARED}"
        repeated(turns, AT_ONCE, SECONDS_AT_ONCE, what)
    for what, sample, _, results in calls:
        sample.require_right(results, what)
    (_, _, _, once), (_, _, _, twice) = calls[1:3]  # of the same content
    if any(subject.bridge.overlap(former, other) for former, other in itertools.product(once, twice)):
        raise BehaviourError("results of two calls on the same content lie in the same memory")
    if subject.trial.implementation.deterministic and not repeats:
        raise BehaviourError("declared as deterministic, and calls on the same inputs differ in bits")
    return Facts(repeatable=repeats)


def _samples(subject: Subject, first: Sample, second: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield samples that a cache with a careless key does not tell from earlier ones; `first` was one of these."""
    operator, old, new = subject.trial.operator, first.expected.inputs, second.expected.inputs
    yield "all inputs new", second
    for name in dict.fromkeys((operator.data, operator.operand, [*old][-1])):
        yield f"only {name} new", first.holding(old | {name: new[name]})
    yield "second halves new", first.holding({name: _spliced(old[name], new[name]) for name in old})
    yield "other order", first.holding({name: np.ascontiguousarray(np.flip(old[name])) for name in old})


def _spliced(head: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Return the first half of one array, followed by the second half of another."""
    half = head.size // 2
    return np.concatenate([head.reshape(-1)[:half], tail.reshape(-1)[half:]]).reshape(head.shape)


def other_parameters_are_told_apart(subject: Subject) -> None:
    """Check that a call with the same shapes of inputs, in the same memory, and one parameter changed is right, and so
    is the next one with the first parameter again. A cache whose key lacks the parameter mistakes one for the other."""
    pairs = 0
    for parameter, where, *both in _pairs(subject):
        what = f"another {parameter} ({where})"
        first, other = (case.sample(distribution="fixed") for case in both)  # 16 bits do not hold these values
        memory = first.inputs()
        try:
            first.require_right(first.call(memory), f"first call, before {what}")
        except Unsupported:
            continue
        refused = False
        for sample, order in ((other, "after"), (first, "again, after")):
            inputs = sample.inputs()
            for place, (old, new) in enumerate(zip(first.stored, sample.stored, strict=True)):
                if old is None or new is None or (old.shape, old.dtype) != (new.shape, new.dtype):
                    continue
                if subject.bridge.overwrite(memory[place], new):
                    inputs[place] = memory[place]
            try:
                sample.require_right(sample.call(inputs), f"{order} a call on the same shapes with {what}")
            except WrongResultError as wrong:
                problem = both[0].trial.problem.geometry.descriptor
                wrong.failure = structs.replace(wrong.failure, confused=(problem, parameter))
                raise
            except Unsupported:
                refused = True
            else:
                pairs += sample is other
        # no threads where a call was refused: a kernel that takes no strides had refused because of memory
        if subject.takes_threads and not refused and first.invocation.kernel is other.invocation.kernel:
            with suppress(Unsupported):
                repeated([first, other] * 2, PAIRED, SECONDS_PAIRED, f"{{}} calls at once with {what}, {SHARED}")
    if not pairs:
        raise Unsupported(NOTHING_JUDGED)


PAIRS = {"dtype": 2}
"""Parameter -> pairs of problems that are tried: one, but both orders of two dtypes."""


def _pairs(subject: Subject) -> Iterator[tuple[str, str, Subject, Subject]]:
    """Yield a parameter, the problems in words, and two cases that the implementation takes, which differ in this
    parameter and whose inputs have the same shapes. A problem that somebody names comes first, and one that is run to
    find out where a kernel fails is the only one."""
    trial, bridge = subject.trial, subject.trial.implementation
    operator, counts = trial.operator, dict[str, int]()
    problems = [typed(text) for text in FAMILIES[operator.family].equal_shapes]
    declared = [kernel for kernel in bridge.kernels if kernel.operator == operator.name]
    variants = tuple(Variant(d, la, trial.variant.distribution) for k in declared for d in k.dtypes for la in k.layouts)
    # two-dimensional problems also for a path in another rank, where no small problem tells strides apart: a window
    # of 257 x 257 took a minute
    plane = rank_of(trial.variant.layout) == 2
    plain = trial.variant if plane else replace(trial.variant, layout=layouts_of(2)[0])
    places = [(problem, plain) for problem in problems]
    places += usual_paths(bridge, operator.name)
    if trial.problem.origin != "table":
        first = [(trial.problem, trial.variant)]
        places = first if trial.problem.origin == "where" else first + places

    def at(problem: Problem, variant: Variant) -> Subject | None:
        return _subject(subject, replace(trial, problem=problem, variant=variant))

    for problem, variant in places:
        base = at(problem, variant)
        if base is None:
            continue
        tensors = base.trial.workload.inputs.values()
        for name, changed in _other_variants(variant, variants):
            before, after = (
                [arranged(t, v.layout, problem.geometry).stored for t in tensors] for v in (variant, changed)
            )
            if before != after:
                continue  # its shapes tell the layouts apart
            if counts.get(name, 0) < PAIRS.get(name, 1) and (other := at(problem, changed)):
                counts[name] = counts.get(name, 0) + 1
                pair = (base, other) if counts[name] % 2 else (other, base)  # a plan may be made for the narrower dtype
                yield name, problem.geometry.descriptor, *pair
        # a kernel may keep what it has prepared on one of its paths alone: grouped problems are tried beside dense ones
        groups = getattr(problem.geometry, "groups", 1) if not bridge.compiles_per_shape else 1
        path = " in groups" if groups > 1 else ""
        for name, geometry in _neighbours(operator.name, problem.geometry):
            if name + path not in counts and (other := at(replace(problem, geometry=geometry), variant)):
                counts[name + path] = 1
                yield name, f"{problem.geometry.descriptor} and {geometry.descriptor}", base, other


def changes(parameter: str, operator: str, geometry: Any) -> bool:
    """Return whether a parameter of a problem can change without a change of its inputs' shapes."""
    return parameter in ("dtype", "layout") or any(name == parameter for name, _ in _neighbours(operator, geometry))


def _other_variants(variant: Variant, variants: Sequence[Variant]) -> Iterator[tuple[str, Variant]]:
    """Yield the next variant of another dtype, and that of another layout of the same rank, if there are any."""
    variants = [v for v in variants if rank_of(v.layout) == rank_of(variant.layout)]
    dtype = next((v for v in variants if v.layout == variant.layout and v.dtype != variant.dtype), None)
    layout = next((v for v in variants if v.dtype == variant.dtype and v.layout != variant.layout), None)
    yield from ((name, other) for name, other in (("dtype", dtype), ("layout", layout)) if other)


def _subject(subject: Subject, trial: Trial) -> Subject | None:
    """Return the subject on another case; None where the implementation does not take it, or it is waived."""
    try:
        excused = trial.waiver((*FAMILIES[trial.operator.family].distributions, BEHAVIOUR))
        return None if excused else subject.on(trial)
    except Unsupported:
        return None


@cache
def _neighbours(name: str, geometry: Geometry) -> tuple[tuple[str, Any], ...]:
    """Return problems that differ in one field and whose inputs, as far as both have them, have the same shapes: for
    each field one with the same outputs, if there is one, or else one with others. The operator is given by its name,
    so that every implementation is asked about the same problems."""
    return tuple(_changed(OPERATORS[name].on(geometry)))


def _changed(workload: Workload) -> Iterator[tuple[str, Any]]:
    geometry = workload.geometry
    inputs = {name: tensor.shape for name, tensor in workload.inputs.items()}
    outputs = {name: tensor.shape for name, tensor in workload.outputs.items()}
    for field in geometry.fields:
        nearest = None
        for value in _values(field, field.of(geometry)):
            try:
                near = workload.operator.on(other := field.changed(geometry, value))
                same = {name: tensor.shape for name, tensor in near.inputs.items()}
                returned = {name: tensor.shape for name, tensor in near.outputs.items()}
            except GeometryError:
                continue
            if _reaches_beyond(other) and not _reaches_beyond(geometry):
                continue  # frameworks refuse such padding
            if other == geometry or any(shape != inputs.get(name, shape) for name, shape in same.items()):
                continue
            if returned != outputs:
                nearest = nearest or other
            elif _differ(workload, near):
                nearest = other
                break
        if nearest:
            yield field.meaning.split(" (")[0].split(",")[0], nearest
    for axis, (before, after) in enumerate(geometry.padding):
        # a buffer that is kept by the shape of the padded image has the other border in it
        split = (0, before + after) if before else (after, 0)
        with suppress(GeometryError):
            other = replace(geometry, padding=(*geometry.padding[:axis], split, *geometry.padding[axis + 1 :]))
            if other != geometry and not _reaches_beyond(other):
                yield "split of the padding", other


def _differ(workload: Workload, other: Workload) -> bool:
    """Return whether two problems with outputs of the same shapes have different results: a stride does nothing along
    an axis with one output."""
    dtype, dice = workload.operator.dtypes[0], np.random.default_rng(0)
    if other.inputs.keys() != workload.inputs.keys():
        return True
    inputs = {
        name: dice.integers(1, 9, tensor.shape).astype(STORAGE[tensor.stored_as(dtype)])
        for name, tensor in workload.inputs.items()
    }
    first, second = workload.reference(inputs), other.reference(inputs)
    return not all(np.array_equal(first[name], second[name], equal_nan=True) for name in first)


def _reaches_beyond(geometry: Any) -> bool:
    """Return whether a window can lie entirely in the padding."""
    axes = zip(geometry.window, geometry.dilation, geometry.padding, strict=True)
    return any(max(sides) > dilation * (window - 1) for window, dilation, sides in axes)


def _values(field: Field, value: Any) -> Iterator[Any]:
    """Yield other values of a parameter, near ones first."""
    if field.form in (FLAG, NEGATED_FLAG):
        yield not value
    elif field.form.words:
        yield from (word for word in field.form.words if word != value)
    elif field.attribute == "padding":
        yield tuple((after, before) for before, after in value)
        sides = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 2))
        yield from itertools.product(sides, repeat=len(value))
    elif isinstance(value, tuple):
        yield from itertools.product((1, 2, 3), repeat=len(value))
    elif field.axis is not None or field.letter == "g":
        yield from (value + step for step in (1, -1, 2, -2) if value + step > 0)
    elif field.letter not in "nck":
        yield from (3, 4, 7, 1, 30, 100)


def calls_are_right_later(subject: Subject) -> None:
    """Check that results of all paths have the same bytes a little later, and that a call is right a second after the
    first one and after ten thousand others.

    One wait serves all paths: a thread that writes late does so after the checks of a single path have ended.
    """
    trial, memory = subject.trial, subject.kernel.memory
    start = memory.first_called = time.monotonic() if memory.first_called is None else memory.first_called
    calls = []
    for problem, variant in usual_paths(trial.implementation, trial.operator.name):
        if (other := _subject(subject, replace(trial, problem=problem, variant=variant))) is None:
            continue
        sample = other.sample()
        inputs = sample.inputs()
        try:
            results = sample.invocation.split(sample.invocation.start(inputs))
        except Unsupported:
            continue
        place = f"{problem.geometry.descriptor} {variant.dtype} {variant.layout}"
        calls.append((place, sample, other, inputs, results, sample.hosts(results)))
    time.sleep(LATER)
    for place, sample, _, _, results, hosts in calls:
        for soon, late in zip(hosts, sample.hosts(results), strict=True):
            if difference := differing(soon, late):
                raise BehaviourError(f"a result changed after the call had returned: {difference} ({place})")
        sample.require_right(results, f"first call: {place}")
    if calls:
        _, cheapest, of_cheapest, *_ = min(calls, key=lambda call: call[1].invocation.workload.flops)
        # by turns on two contents: on one, a result that a call kept from the call before would be right
        both = [cheapest, of_cheapest.sample(1)]
        repeated(both, MANY, SECONDS_OF_MANY, "{} calls by turns on two contents", repeating.alternated)
    time.sleep(max(0.0, start + AGE - time.monotonic()))
    for place, sample, _, inputs, *_ in calls:
        sample.require_right(sample.call(inputs), f"{AGE:g} s after the first call: {place}")


def forked_child_computes(subject: Subject) -> None:
    """Check that a child of a process that has called the kernel can call it too."""
    implementation = subject.trial.implementation
    if implementation.device != "cpu":
        raise Unsupported("a device is not forked")
    if "fork" in implementation.unsafe:
        raise Unsupported("declared as unsafe in a fork")
    if "fork" in subject.bridge.unsafe:
        raise Unsupported(f"threads of {subject.bridge.name} do not survive a fork")
    sample = subject.sample()
    inputs, invocation = sample.inputs(), sample.invocation
    sample.require_right(sample.call(inputs), "single call")
    asking = invocation.bridge, invocation.kernel.function, invocation.parameters(), inputs, CHILD
    try:
        result = invocation.bridge.perform(repeating.forked, *asking)
    except KernelFailure as failure:
        raise BehaviourError(str(failure), failure.failure) from None
    sample.require_right(invocation.split(result.value), "in a forked child of the process")


def _with_bias(subject: Subject) -> Subject:
    """Return the subject with a bias if the kernel takes one: a kernel kept x only in calls with a bias."""
    trial, geometry = subject.trial, subject.trial.problem.geometry
    optional = any(field.attribute == "bias" for field in geometry.fields)
    if not optional or geometry.bias:
        return subject
    try:
        problem = replace(trial.problem, geometry=replace(geometry, bias=True))
    except GeometryError:  # a batch of matrix products has none
        return subject
    return _subject(subject, replace(trial, problem=problem)) or subject


def memory_is_given_back(subject: Subject) -> None:
    """Check that the memory which a call on a new shape leaves behind is small and does not grow with its operands. It
    is measured with small and with large operands: a little that both leave, such as compiled code, is not counted.

    A kernel is not to blame for memory that its framework keeps: a result that is too large is measured again, on other
    shapes, without the plans of oneDNN. A call of torch.conv2d left 0.7 MB of them.
    """
    if subject.bridge.stands_for:  # a simulator takes minutes over large operands
        raise Unsupported("the memory of a simulator says nothing about a device's")
    if subject.trial.implementation.compiles_per_shape:  # two dozen compilations always gave the same answer
        raise Unsupported("not measurable: a call on a new shape compiles a program, which stays in memory")
    subject = _with_bias(subject)
    sample = subject.sample()
    sample.require_right(sample.call(sample.inputs()), "single call")  # a kernel that computes nothing leaves nothing
    growth = _left(subject, sample, range(SHAPES // 2))
    try:
        _require_little(*growth)
    except (BehaviourError, Unsupported):
        _require_little(*_left(subject, sample, range(SHAPES // 2, SHAPES), bare=True))


def _left(subject: Subject, sample: Sample, more: range, *, bare: bool = False) -> list[tuple[int, int]]:
    """Return the bytes that a call leaves, and those of its operands, on small shapes and, unless small ones leave too
    much, on large ones; the batch of each shape grows by a number of `more`. `bare` drops plans that the framework
    keeps for a shape, where it can be told to. Raises Unsupported where calls take too long."""
    invocation, workload = sample.invocation, sample.invocation.workload
    operator, images = workload.operator, workload.geometry.n
    per_image = max(tensor.size for tensor in workload.inputs.values()) // images
    firsts = images + 1, images + SHAPES + max(1, OPERANDS // per_image)
    growth: list[tuple[int, int]] = []
    for first, seconds in zip(firsts, SECONDS_OF_BARE if bare else SECONDS_OF_SHAPES, strict=True):
        cases = []
        for number in more:
            larger, shapes = operator.on(replace(workload.geometry, n=first + number)), []
            for tensor in map(larger.inputs.get, operator.arguments):
                stored = tensor and STORAGE[tensor.stored_as(invocation.dtype)]
                shapes.append(tensor and (stored, arranged(tensor, invocation.layout, larger.geometry).stored))
            cases.append((shapes, replace(invocation, workload=larger).parameters()))
        bridge, function = invocation.bridge, invocation.kernel.function
        calls, *measured = bridge.perform(repeating.growth_by_shape, bridge, function, cases, MIN_SHAPES, seconds, bare)
        if calls < MIN_SHAPES:
            raise Unsupported(
                f"not measurable: calls on {MIN_SHAPES} new shapes take more than {PATIENCE * seconds:g} s"
            )
        growth.append((measured[0], measured[1]))
        if growth[0][0] > UNCLEAR:
            break
    return growth


def _require_little(small: tuple[int, int], large: tuple[int, int] = (0, 0)) -> None:
    """Raise BehaviourError where calls leave too much memory, and Unsupported where that cannot be told."""
    if small[0] > COMPILED:
        raise BehaviourError(f"a call on a small new shape leaves {small[0]:,} bytes in memory")
    if small[0] > UNCLEAR:
        raise Unsupported(f"not measurable: a call on a small new shape leaves {small[0]:,} bytes, as its code may be")
    kept, operands = large
    if kept - small[0] > LEFT * operands:
        raise BehaviourError(f"a call on a new shape leaves {kept:,} bytes in memory; its operands have {operands:,}")


STATE: tuple[Check, ...] = (
    other_parameters_are_told_apart,
    calls_are_right_later,
    forked_child_computes,
    memory_is_given_back,
)
