"""Partial requests: some of the outputs, gradients of some of the operands; and results that are added to an array.

What is asked for must not change because something else is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from conformance.checks.sample import BehaviourError, Sample, Subject
from conformance.execution.case import Case
from conformance.execution.invocation import fill_freed_memory
from conformance.implementations.bridges import ArrayBridge
from conformance.implementations.bridges.tape import Tape
from conformance.implementations.implementation import AutogradVariant, Implementation, Unsupported
from conformance.operators import OPERATORS, Arrays, Operator, Tensor
from conformance.operators.base import ErrorModel

GRADIENTS = {"x": "dx", "w": "dw", "bias": "dbias", "gamma": "dgamma", "beta": "dbeta"}
"""Operand -> its gradient."""


def lacks_output_mask(implementation: Implementation, operator: str) -> str:
    """Why `outputs_asked_for_alone` does not apply; empty if it does."""
    return _lacks(implementation, operator, "output_mask")


def lacks_into(implementation: Implementation, operator: str) -> str:
    """Why `results_are_added_to_arrays` does not apply; empty if it does."""
    return _lacks(implementation, operator, "into")


def _lacks(implementation: Implementation, operator: str, capability: str) -> str:
    named = (capability in one.keywords for one in implementation.kernels if one.operator == operator)
    return "" if any(named) else f"no kernel of {operator} takes {capability} (optional)"


def lacks_autograd(implementation: Implementation, operator: str) -> str:
    """Why `gradients_asked_for_alone` does not apply; empty if it does."""
    offered = any(one.operator == operator for one in implementation.autograd_variants)
    return "" if offered else f"offers no {operator} that can be differentiated (Implementation.differentiates)"


def _require(subject: Subject, capability: str) -> None:
    """Another kernel of the operator may have it."""
    if capability not in subject.kernel.keywords:
        raise Unsupported(f"the kernel for this problem takes no {capability}")


def outputs_asked_for_alone(subject: Subject) -> None:
    """Each output alone, and any two, are what they are among all: right, and to the bit where calls repeat.

    A call on other inputs comes before each, so that what a kernel kept from it shows.
    """
    _require(subject, "output_mask")
    sample, other = subject.sample(), subject.sample(1)
    inputs, other_inputs = sample.inputs(), other.inputs()
    results = sample.call(inputs)
    sample.require_right(results, "all outputs asked for")
    everything = dict(zip(sample.tensors, sample.hosts(results), strict=True))
    again = dict(zip(sample.tensors, sample.hosts(sample.call(inputs)), strict=True))
    for requested in _some(tuple(everything)):
        other.call(other_inputs)
        partial = replace(sample, invocation=replace(sample.invocation, requested=requested))
        fill_freed_memory(subject.bridge, partial.tensors.values())
        results, when = partial.call(inputs), f"asked for {' and '.join(requested)} only"
        partial.require_right(results, when)
        for name, host in zip(requested, partial.hosts(results), strict=True):
            if everything[name].tobytes() == again[name].tobytes() != host.tobytes():
                raise BehaviourError(f"{name} has other bits where it is {when}, although calls repeat")


def _some(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Each alone, then any two; not all of them."""
    for count in (1, 2):
        if count < len(names):
            yield from combinations(names, count)


def gradients_asked_for_alone(subject: Subject) -> None:
    """Autograd variants: y and the gradients are right whichever operands want one, for every gradient of y that comes,
    in whatever memory, and more than once.

    The gradients are judged under the contracts that the implementation has for them, or else the operator's own.
    """
    differentiate = getattr(subject.bridge, "differentiate", None)
    if differentiate is None:
        raise Unsupported(f"not measurable with {subject.bridge.name} (differentiate)")
    sample, other = subject.sample(), subject.sample(1)
    gradients = [_gradient(subject, name, sample) for name in subject.case.operator.gradients]
    dy = gradients[0].expected.inputs["dy"]
    inputs, other_inputs = sample.inputs(), other.inputs()
    operands = tuple(n for n, array in zip(sample.names, inputs, strict=True) if n in GRADIENTS and array is not None)
    every = subject.case.implementation.autograd_variants
    variants = [one for one in every if one.operator == subject.case.operator.name]
    # sets of operands in one variant and dtype: jax compiles anew for each
    wide = subject.case.variant.dtype == "fp32"
    for variant in variants if wide else variants[:1]:
        for wanted in (operands, *(_some(operands) if wide and variant is variants[0] else ())):
            when = f"autograd variant {variant.label}, gradient of {', '.join(wanted)}"
            tape = _taped(subject, variant, differentiate, inputs, wanted)
            sample.require_right(sample.invocation.split(tape.result), when)
            pulls = [(dy, "contiguous")]
            if wanted == operands:  # a second graph, then this one's backward several times
                _taped(subject, variant, differentiate, other_inputs, wanted)
                pulls += [(np.ones_like(dy), "expanded"), (dy, "channels-last"), (dy, "cropped"), (dy, "contiguous")]
            for values, memory in pulls:
                expected = [_holding(gradient, values) for gradient in gradients]
                given = _in_memory(subject.bridge, memory, values)
                if given is not None:
                    _require_gradients(expected, wanted, tape.pull(given), f"{when}, {memory} dy")
            if wanted == operands and given is not None:
                _require_gradients(expected, wanted, tape.pull(given), f"{when}, the same dy again")


def _gradient(subject: Subject, operator: str, forward: Sample) -> Sample:
    """A gradient of the subject's operator at the operator's inputs."""
    case: Case = replace(subject.case, operator=OPERATORS[operator])
    try:
        kernel = case.kernel
    except Unsupported:
        kernel = subject.kernel
    sample = Subject(case, kernel).sample()
    shared = {**sample.expected.inputs, **forward.expected.inputs}
    return sample.holding({name: shared[name] for name in sample.expected.inputs})


def _holding(gradient: Sample, dy: np.ndarray) -> Sample:
    if gradient.expected.inputs["dy"] is dy:
        return gradient
    return gradient.holding({**gradient.expected.inputs, "dy": dy})


def _taped(
    subject: Subject, variant: AutogradVariant, differentiate: Any, inputs: Sequence[Any], wanted: Sequence[str]
) -> Tape:
    invocation = replace(subject.sample().invocation, kernel=variant)
    places = [invocation.operator.arguments.index(name) for name in wanted]
    tape: Tape = differentiate(variant.function, inputs, places, invocation.parameters())
    return tape


def _in_memory(bridge: ArrayBridge, memory: str, dy: np.ndarray) -> Any | None:
    """dy (NCHW) on the device, in memory of one kind; None where the framework has no views."""
    if memory == "contiguous":
        return bridge.from_host(dy)
    n, k, p, q = dy.shape
    if memory == "expanded":
        return bridge.view(bridge.from_host(dy.reshape(-1)[:1].copy()), 0, dy.shape, (0, 0, 0, 0))
    if memory == "channels-last":
        host = np.ascontiguousarray(dy.transpose(0, 2, 3, 1)).reshape(-1)
        return bridge.view(bridge.from_host(host), 0, dy.shape, (p * q * k, 1, q * k, k))
    host = np.full((n, k, p + 1, q + 3), np.nan, dy.dtype)
    host[:, :, 1:, 2 : q + 2] = dy
    row, plane = q + 3, (p + 1) * (q + 3)
    return bridge.view(bridge.from_host(host.reshape(-1)), row + 2, dy.shape, (k * plane, plane, row, 1))


def _require_gradients(gradients: Sequence[Sample], wanted: Sequence[str], pulled: Any, when: str) -> None:
    """Judge what a backward returned, one gradient for each operand that wanted one. Raises BehaviourError."""
    found = dict(zip((GRADIENTS[name] for name in wanted), pulled, strict=True))
    for gradient in gradients:
        requested = tuple(name for name in gradient.tensors if name in found)
        if requested:
            partial = replace(gradient, invocation=replace(gradient.invocation, requested=requested))
            partial.require_right([found[name] for name in requested], when)


class Accumulating(Operator):
    """An operator whose results are added to an array: one more term in every sum, whose data are integers or have as
    many bits as the operand, so that the reference stays exact."""

    def __init__(self, base: Operator) -> None:
        vars(self).update(vars(base))
        self.base = base
        self.name, self.family, self.keywords = f"{base.name} into", base.family, base.keywords
        self.data, self.operand, self.factors = base.data, base.operand, base.factors
        self.arguments = base.arguments

    def inputs(self, geometry: Any) -> dict[str, Tensor]:
        return self.base.inputs(geometry) | {f"into {n}": t for n, t in self.base.outputs(geometry).items()}

    def outputs(self, geometry: Any) -> dict[str, Tensor]:
        return self.base.outputs(geometry)

    def parameters(self, geometry: Any) -> dict[str, Any]:
        return self.base.parameters(geometry)

    def errors(self, geometry: Any) -> ErrorModel:
        found = self.base.errors(geometry)
        return replace(found, terms={name: terms + 1 for name, terms in found.terms.items()}, span=found.span + 1)

    def reference(self, geometry: Any, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        found = self.base.reference(geometry, inputs, dtype)
        return {name: array + inputs[f"into {name}"].astype(dtype) for name, array in found.items()}

    def magnitude(self, geometry: Any, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        found = self.base.magnitude(geometry, inputs, dtype)
        return {name: np.hypot(array, inputs[f"into {name}"].astype(dtype)) for name, array in found.items()}


def results_are_added_to_arrays(subject: Subject) -> None:
    """`into`: results are added to what an array holds, once and in every call, and rounded once; a call that names
    none computes as ever."""
    _require(subject, "into")
    plain = subject.sample()
    accumulating = Subject(replace(subject.case, operator=Accumulating(subject.case.operator)), subject.kernel)
    samples = [accumulating.sample(), accumulating.sample(1), accumulating.sample(distribution="fixed")]
    for number, sample in enumerate(samples, 1):
        results = _added(sample)
        sample.require_right(results, f"added to an array (call {number})")
        if number == 1:  # and the next share to that
            held = {f"into {name}": array for name, array in sample.invocation.outputs(results).items()}
            twice = sample.holding(sample.expected.inputs | held)
            twice.require_right(_added(twice), "added to the sum before")
        plain.require_right(plain.call(plain.inputs()), "not added to anything, after such a call")


def _added(sample: Sample) -> tuple[Any, ...]:
    """The results of a call that adds to arrays of the sample."""
    invocation, inputs = sample.invocation, sample.expected.inputs
    held = tuple(invocation.bridge.from_host(inputs[f"into {name}"].copy()) for name in sample.tensors)
    result = invocation.start(sample.inputs(), into=held[0] if len(held) == 1 else held)
    invocation.bridge.synchronize(result)
    return invocation.split(result)
