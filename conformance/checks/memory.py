"""Checks of memory: the tensors that a differentiable operator keeps for its backward, and a network's memory in
training.

The count is exact and the same on every machine: the buffers that the framework's autodiff holds between forward and
backward, each storage once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from conformance.checks.partial import GRADIENTS, gradients_at, recorded, require_gradients
from conformance.checks.sample import Subject
from conformance.execution.status import BehaviourError
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.tape import Saved, Tape
from conformance.implementations.implementation import AutogradVariant, Unsupported
from conformance.results.schema import Facts, SavedForBackward, TrainingStep

VECTORS = 8
"""Most numbers a channel in a buffer of per-channel vectors: fewer than any image has."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Buffers that one autograd variant keeps for the backward of one call, by kind."""

    activations: tuple[Saved, ...]
    parameters: tuple[Saved, ...]
    vectors: tuple[Saved, ...]

    @classmethod
    def of(cls, saved: Iterable[Saved], geometry: Any) -> Kept:
        """Sort buffers by size: up to a few numbers a channel, as many as the filters have, or more."""
        activations, parameters, vectors = [], [], []
        for buffer in saved:
            if buffer.elements <= VECTORS * geometry.k:
                vectors.append(buffer)
            elif buffer.elements == geometry.filter.size:
                parameters.append(buffer)
            else:
                activations.append(buffer)
        return cls(tuple(activations), tuple(parameters), tuple(vectors))

    def defects(self, variant: AutogradVariant, geometry: Any) -> Iterator[str]:
        """Yield the differences from the declaration."""
        kept, listed = self.activations, ", ".join(map(str, self.activations)) or "none"
        if len(kept) != variant.saves:
            yield f"{variant.label}: keeps {len(kept)} activations, declared {variant.saves}: {listed}"
        elif kept:
            # one is the operator's input, the others are as large as input or output in fp32
            itemsize = min(buffer.itemsize for buffer in kept)
            largest = max(geometry.x.size, geometry.y.size) * max(itemsize, 4)
            allowed = int(geometry.x.size * itemsize + (len(kept) - 1) * largest)
            if _bytes(kept) > allowed:
                yield f"{variant.label}: activations take {_bytes(kept):,} B, at most {allowed:,} B: {listed}"

    def row(self, variant: AutogradVariant) -> SavedForBackward:
        """Return the sizes for the record."""
        return SavedForBackward(
            variant=variant.label,
            buffers=len(self.activations),
            activation_bytes=_bytes(self.activations),
            parameter_bytes=_bytes(self.parameters),
            vector_bytes=_bytes(self.vectors),
        )


def _bytes(buffers: Iterable[Saved]) -> int:
    return sum(buffer.nbytes for buffer in buffers)


def backward_keeps_what_is_declared(subject: Subject) -> Facts:
    """Check that every autograd variant is right, has the right gradients and keeps as much as it declares."""
    geometry = subject.trial.problem.geometry
    defects: list[str] = []
    rows = []
    for variant in _variants(subject):
        kept = Kept.of(_taped(subject, variant).saved, geometry)
        rows.append(kept.row(variant))
        defects += kept.defects(variant, geometry)
    if defects:
        raise BehaviourError("\n".join(defects))
    return Facts(saved_for_backward=tuple(rows))


def _variants(subject: Subject) -> list[AutogradVariant]:
    operator = subject.trial.operator.name
    declared = subject.trial.implementation.autograd_variants
    variants = [variant for variant in declared if variant.operator == operator and variant.saves is not None]
    if not variants:
        raise Unsupported(f"offers no {operator} that can be differentiated (Implementation.differentiates)")
    return variants


def _taped(subject: Subject, variant: AutogradVariant) -> Tape:
    """Record a call. Its results and gradients are judged: a variant that keeps too little computes something else."""
    _require(subject.bridge, "differentiate", subject.bridge.can_differentiate)
    sample = subject.sample()
    gradients, inputs, label = gradients_at(subject, sample), sample.inputs(), f"autograd variant {variant.label}"
    operands = [name for name in sample.invocation.workload.inputs if name in GRADIENTS]
    tape = recorded(sample, variant, inputs, operands, label)
    dy = gradients[0].expected.inputs["dy"]
    require_gradients(gradients, dy, operands, tape.pull(subject.bridge.from_host(dy)), f"backward of the {label}")
    return tape


def _require(bridge: ArrayBridge, method: str, has: bool) -> None:
    """Raise Unsupported where a bridge lacks a method."""
    if not has:
        raise Unsupported(f"not measurable with {bridge.name} ({method})")


def training_holds_what_autograd_shows(subject: Subject) -> Facts:
    """Check one training step of the tutorial's network: after forward, no memory is live beyond the graph's."""
    bridge, geometry = subject.bridge, subject.trial.problem.geometry
    _require(bridge, "footprint", bridge.measures_training)
    few = replace(subject.trial.problem, geometry=replace(geometry, n=2))
    sample = subject.on(replace(subject.trial, problem=few)).sample()
    rows, hidden = [], []
    for variant in _variants(subject):
        parameters = replace(subject.trial.invocation(), kernel=variant).parameters()
        step = bridge.footprint(variant.function, len(subject.trial.operator.arguments), parameters, geometry.n)
        sizes = {"peak_bytes": step.peak, "forward_bytes": step.forward}
        rows.append(TrainingStep(variant=variant.label, batch=geometry.n, **sizes))
        if step.hidden > step.scratch:
            hidden.append(f"{variant.label}: {step.hidden:,} B live after forward that the graph does not show")
        results = replace(sample.invocation, kernel=variant).call(sample.inputs())
        sample.require_right(results, f"autograd variant {variant.label}, two images")
    if hidden:
        raise BehaviourError("\n".join(hidden))
    return Facts(training_steps=tuple(rows))
