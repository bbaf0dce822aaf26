"""Partial requests: some of the outputs, gradients of some of the operands; and results that are added to an array.

A requested result must not change because another one is not requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from conformance.checks.sample import Sample, Subject
from conformance.execution.invocation import fill_freed_memory
from conformance.execution.status import BehaviourError
from conformance.execution.trial import Trial
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.tape import Tape
from conformance.implementations.implementation import AutogradVariant, Implementation, Unsupported
from conformance.operators import OPERATORS, Arrays, Operator, Tensor, takes
from conformance.operators.base import ErrorModel

GRADIENTS = {"x": "dx", "w": "dw", "a": "da", "b": "db", "bias": "dbias", "gamma": "dgamma", "beta": "dbeta"}
"""Operand -> name of its gradient."""


def require_output_mask(implementation: Implementation, operator: str) -> None:
    """Raise Unsupported where `outputs_asked_for_alone` does not apply."""
    _require_capability(implementation, operator, "output_mask")


def require_into(implementation: Implementation, operator: str) -> None:
    """Raise Unsupported where `results_are_added_to_arrays` does not apply."""
    _require_capability(implementation, operator, "into")


def _require_capability(implementation: Implementation, operator: str, capability: str) -> None:
    if not any(capability in kernel.keywords for kernel in implementation.kernels if kernel.operator == operator):
        raise Unsupported(f"no kernel of {operator} takes {capability} (optional)")


def require_autograd(implementation: Implementation, operator: str) -> None:
    """Raise Unsupported where `gradients_asked_for_alone` does not apply."""
    if not any(variant.operator == operator for variant in implementation.autograd_variants):
        raise Unsupported(f"offers no {operator} that can be differentiated (Implementation.differentiates)")


def _require(subject: Subject, capability: str) -> None:
    """Raise Unsupported where this kernel lacks a capability; another kernel of the operator may have it."""
    if capability not in subject.kernel.keywords:
        raise Unsupported(f"the kernel for this problem takes no {capability}")


def outputs_asked_for_alone(subject: Subject) -> None:
    """Check that each output requested alone, and any two together, are right, and where calls repeat have the usual
    bits.

    A call on other inputs comes before each partial request, so that anything a kernel kept from it shows.
    """
    _require(subject, "output_mask")
    sample, other = subject.sample(), subject.sample(1)
    inputs, other_inputs = sample.inputs(), other.inputs()
    results = sample.call(inputs)
    sample.require_right(results, "all outputs asked for")
    everything = dict(zip(sample.invocation.tensors, sample.hosts(results), strict=True))
    again = dict(zip(sample.invocation.tensors, sample.hosts(sample.call(inputs)), strict=True))
    for requested in _some(tuple(everything)):
        other.call(other_inputs)
        partial = replace(sample, invocation=replace(sample.invocation, requested=requested))
        fill_freed_memory(subject.bridge, partial.invocation.tensors.values())
        results, when = partial.call(inputs), f"asked for {' and '.join(requested)} only"
        partial.require_right(results, when)
        for name, host in zip(requested, partial.hosts(results), strict=True):
            if everything[name].tobytes() == again[name].tobytes() != host.tobytes():
                raise BehaviourError(f"{name} has other bits where it is {when}, although calls repeat")


def _some(names: tuple[str, ...], most: int = 2) -> Iterator[tuple[str, ...]]:
    """Yield each name alone, then all pairs, up to `most` names together; never all of the names."""
    for count in range(1, most + 1):
        if count < len(names):
            yield from combinations(names, count)


def gradients_asked_for_alone(subject: Subject) -> None:
    """Check that autograd variants return the right y and gradients: whichever operands require one, for every gradient
    of y, in whatever memory that lies, and more than once; with channels-last operands, and with an empty batch.

    The gradients are judged under the contracts that the implementation has for them, or else the operator's own.
    """
    bridge = subject.bridge
    if not bridge.can_differentiate:
        raise Unsupported(f"not measurable with {bridge.name} (differentiate)")
    sample, other, empty = subject.sample(), subject.sample(1), _without_images(subject)
    gradients = gradients_at(subject, sample)
    dy, inputs, other_inputs = gradients[0].expected.inputs["dy"], sample.inputs(), other.inputs()
    operands = tuple(name for name in sample.invocation.workload.inputs if name in GRADIENTS)
    declared = subject.trial.implementation.autograd_variants
    variants = [variant for variant in declared if variant.operator == subject.trial.operator.name]
    # jax compiles anew for each set of operands: fewer of the variants after the first, and of 16-bit ones
    wide = subject.trial.variant.dtype == "fp32"
    for variant in variants if wide else variants[:1]:
        label = f"autograd variant {variant.label}"
        tape = recorded(sample, variant, inputs, operands, label)
        recorded(other, variant, other_inputs, operands, label)  # before the first one's backward
        pulls = [(dy, "contiguous"), (np.ones_like(dy), "expanded"), (dy, "channels-last"), (dy, "cropped")]
        for values, memory in [*pulls, (dy, "contiguous")]:
            if (stored := _in_memory(bridge, memory, values)) is not None:
                for _ in range(2):  # the same gradient again: nobody has written to it
                    require_gradients(gradients, values, operands, tape.pull(stored), f"{label}, {memory} dy")
        for subset in _some(operands, 2 if wide else len(operands) < 4) if variant is variants[0] else ():
            when = f"{label}, gradient of {' and '.join(subset)} only"
            tape = recorded(sample, variant, inputs, subset, when)
            require_gradients(gradients, dy, subset, tape.pull(bridge.from_host(dy)), when)
        images = [
            array if host is None or host.ndim < 3 else _in_memory(bridge, "channels-last", host)
            for array, host in zip(inputs, sample.stored, strict=True)
        ]
        if images[0] is not None:
            when = f"{label}, channels-last operands"
            tape = recorded(sample, variant, images, operands, when)
            require_gradients(gradients, dy, operands, tape.pull(bridge.from_host(dy)), when)
        if empty is not None and wide:
            nothing = empty.sample()
            of_nothing = gradients_at(empty, nothing)
            no_dy, when = of_nothing[0].expected.inputs["dy"], f"{label}, a batch without images"
            tape = recorded(nothing, variant, nothing.inputs(), operands, when)
            stored = bridge.from_host(no_dy)
            fill_freed_memory(
                bridge, (tensor for gradient in of_nothing for tensor in gradient.invocation.tensors.values())
            )
            require_gradients(of_nothing, no_dy, operands, tape.pull(stored), when)


def _without_images(subject: Subject) -> Subject | None:
    """Return the subject on the same problem with an empty batch; None where operator or kernel does not take one."""
    geometry = replace(subject.trial.problem.geometry, n=0)
    trial = replace(subject.trial, problem=replace(subject.trial.problem, geometry=geometry))
    variant = trial.variant
    taken = takes(trial.operator.name, geometry)
    taken = taken and trial.implementation.supports(trial.operator.name, geometry, variant.dtype, variant.layout)
    return subject.on(trial) if taken else None


def gradients_at(subject: Subject, forward: Sample) -> list[Sample]:
    """Return a sample of each gradient of the subject's operator, at the inputs of `forward` and one gradient of y."""
    samples: list[Sample] = []
    for gradient in subject.trial.operator.gradients:
        operator = OPERATORS[gradient] if isinstance(gradient, str) else gradient
        trial: Trial = replace(subject.trial, operator=operator)
        try:
            kernel = trial.kernel
        except Unsupported:
            kernel = subject.kernel
        sample = replace(subject, trial=trial, kernel=kernel).sample()
        dy = (samples or [sample])[0].expected.inputs["dy"]
        shared = {**sample.expected.inputs, **forward.expected.inputs, "dy": dy}
        samples.append(sample.holding({name: shared[name] for name in sample.expected.inputs}))
    return samples


def recorded(sample: Sample, variant: AutogradVariant, inputs: Sequence[Any], names: Sequence[str], when: str) -> Tape:
    """Record a call that is differentiated in some operands, and judge its results. Raises BehaviourError."""
    invocation = replace(sample.invocation, kernel=variant)
    arguments = invocation.workload.operator.arguments
    places = [arguments.index(name) for name in names]
    tape = invocation.bridge.differentiate(variant.function, inputs, places, invocation.parameters())
    sample.require_right(invocation.split(tape.result), when)
    return tape


def _in_memory(bridge: ArrayBridge, memory: str, host: np.ndarray) -> Any | None:
    """Return images (NCHW) on the device, in memory of one kind; None where the framework has no views."""
    if memory == "contiguous":
        return bridge.from_host(host)
    if memory == "expanded":
        return bridge.view(bridge.from_host(host.reshape(-1)[:1].copy()), 0, host.shape, (0,) * host.ndim)
    if memory == "channels-last":
        last = np.ascontiguousarray(np.moveaxis(host, 1, -1))
        strides = np.moveaxis(last, -1, 1).strides
        return bridge.view(
            bridge.from_host(last.reshape(-1)), 0, host.shape, tuple(step // host.itemsize for step in strides)
        )
    larger = np.pad(host, [(0, 0), (0, 0), *[(1, 0)] * (host.ndim - 3), (2, 1)], constant_values=np.nan)
    strides = tuple(step // host.itemsize for step in larger.strides)
    return bridge.view(bridge.from_host(larger.reshape(-1)), sum(strides[2:-1]) + 2, host.shape, strides)


def require_gradients(
    gradients: Sequence[Sample], dy: np.ndarray, operands: Sequence[str], pulled: Sequence[Any], when: str
) -> None:
    """Judge the gradients that a backward returned for dy, one for each of the `operands`. Raises BehaviourError."""
    by_name = dict(zip((GRADIENTS[name] for name in operands), pulled, strict=True))
    for gradient in gradients:
        if requested := tuple(name for name in gradient.invocation.tensors if name in by_name):
            inputs = gradient.expected.inputs
            sample = gradient if inputs["dy"] is dy else gradient.holding(inputs | {"dy": dy})
            partial = replace(sample, invocation=replace(gradient.invocation, requested=requested))
            partial.require_right([by_name[name] for name in requested], when)


class Accumulating(Operator):
    """An operator whose results are added to an array: one more term in every sum. The array's values are integers or
    have as many bits as the operand's, so that the reference stays exact."""

    def __init__(self, base: Operator) -> None:
        vars(self).update(vars(base))
        self.base = base
        self.name, self.family, self.keywords = f"{base.name} into", base.family, base.keywords
        self.data, self.operand, self.factors = base.data, base.operand, base.factors
        self.arguments, self.returns = base.arguments, base.returns

    def inputs(self, geometry: Any) -> dict[str, Tensor]:
        return self.base.inputs(geometry) | {f"into {n}": t for n, t in self.base.outputs(geometry).items()}

    def tensor(self, geometry: Any, name: str) -> Tensor | None:
        return self.base.tensor(geometry, name)

    def errors(self, geometry: Any) -> ErrorModel:
        model = self.base.errors(geometry)
        return replace(model, terms={name: terms + 1 for name, terms in model.terms.items()}, span=model.span + 1)

    def reference(self, geometry: Any, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        outputs = self.base.reference(geometry, inputs, dtype)
        return {name: array + inputs[f"into {name}"].astype(dtype) for name, array in outputs.items()}

    def magnitude(self, geometry: Any, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        magnitudes = self.base.magnitude(geometry, inputs, dtype)
        return {name: np.hypot(array, inputs[f"into {name}"].astype(dtype)) for name, array in magnitudes.items()}


def results_are_added_to_arrays(subject: Subject) -> None:
    """Check `into`: results are added to the values that an array holds, once and in every call, and rounded once; a
    call without `into` computes as before."""
    _require(subject, "into")
    plain = subject.sample()
    accumulating = replace(subject, trial=replace(subject.trial, operator=Accumulating(subject.trial.operator)))
    samples = [accumulating.sample(), accumulating.sample(1), accumulating.sample(distribution="fixed")]
    for number, sample in enumerate(samples, 1):
        results = _added(sample)
        sample.require_right(results, f"added to an array (call {number})")
        if number == 1:  # add once more, to the first sum
            into = {f"into {name}": array for name, array in sample.invocation.outputs(results).items()}
            twice = sample.holding(sample.expected.inputs | into)
            twice.require_right(_added(twice), "added to the sum before")
        plain.require_right(plain.call(plain.inputs()), "not added to anything, after such a call")


def _added(sample: Sample) -> tuple[Any, ...]:
    """Return the results of a call that adds to arrays of the sample."""
    invocation, inputs = sample.invocation, sample.expected.inputs
    into = tuple(invocation.bridge.from_host(inputs[f"into {name}"].copy()) for name in sample.invocation.tensors)
    result = invocation.start(sample.inputs(), into=into[0] if len(into) == 1 else into)
    invocation.bridge.synchronize(result)
    return invocation.split(result)
