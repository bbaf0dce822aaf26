"""Checks of memory: what a differentiable operator keeps for its backward, and what a network of it takes to train.

The count is exact and the same on every machine: the buffers that the framework's autodiff holds between forward and
backward, each storage once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.execution.trial import BrokenPromise, Draw, Facts, Trial
from conformance.implementations.bridges.tape import Saved, Tape
from conformance.implementations.implementation import Form, Kernel, Unsupported
from conformance.operators import OPERATORS

VECTORS = 8
"""Numbers a channel that a buffer of per-channel vectors holds at most: fewer than any image has."""
DIFFERENTIATED = ("x", "w", "gamma", "beta")


@dataclass(frozen=True, slots=True)
class Kept:
    """What one form keeps for the backward of one call, by what it is."""

    activations: tuple[Saved, ...]
    parameters: tuple[Saved, ...]
    vectors: tuple[Saved, ...]

    @classmethod
    def of(cls, saved: Iterable[Saved], geometry: Any) -> Kept:
        """By size: up to a few numbers a channel, as many as the filters have, or more."""
        found: dict[str, list[Saved]] = {"activations": [], "parameters": [], "vectors": []}
        for buffer in saved:
            found[_kind(buffer, geometry)].append(buffer)
        return cls(*map(tuple, found.values()))

    def complaint(self, form: Form, geometry: Any) -> str:
        """What is not as declared; empty if all is."""
        listed = ", ".join(map(str, self.activations)) or "none"
        if len(self.activations) != form.saves:
            return f"{form.label}: keeps {len(self.activations)} activations, declared {form.saves}: {listed}"
        allowed = _room(form.saves, geometry, self.activations)
        if _bytes(self.activations) > allowed:
            return f"{form.label}: activations take {_bytes(self.activations):,} B, at most {allowed:,} B: {listed}"
        return ""

    def row(self, form: Form) -> dict[str, Any]:
        """For the record."""
        return {
            "form": form.label,
            "buffers": len(self.activations),
            "activation_bytes": _bytes(self.activations),
            "parameter_bytes": _bytes(self.parameters),
            "vector_bytes": _bytes(self.vectors),
        }


def _kind(buffer: Saved, geometry: Any) -> str:
    if buffer.elements <= VECTORS * geometry.k:
        return "vectors"
    return "parameters" if buffer.elements == geometry.filter.size else "activations"


def _bytes(buffers: Iterable[Saved]) -> int:
    return sum(buffer.nbytes for buffer in buffers)


def _room(buffers: int, geometry: Any, activations: Sequence[Saved]) -> int:
    """Bytes of so many activations: one is the operator's input, the others are as large as input or output in fp32."""
    if not buffers:
        return 0
    itemsize = min(buffer.itemsize for buffer in activations)
    largest = max(geometry.x.size, geometry.y.size) * max(itemsize, 4)
    return int(geometry.x.size * itemsize + (buffers - 1) * largest)


def backward_keeps_what_is_declared(trial: Trial) -> Facts:
    """Every differentiable form of the operator is right, has the right gradients and keeps what it declares to."""
    geometry = trial.case.problem.geometry
    complaints, rows = [], []
    for form in _forms(trial):
        kept = Kept.of(_taped(trial, form).saved, geometry)
        rows.append(kept.row(form))
        complaints.append(kept.complaint(form, geometry))
    if any(complaints):
        raise BrokenPromise("\n".join(filter(None, complaints)))
    return {"kept": rows}


def _forms(trial: Trial) -> list[Form]:
    operator = trial.case.operator.name
    forms = [form for form in trial.case.implementation.forms if form.operator == operator]
    if not forms:
        raise Unsupported(f"offers no {operator} that can be differentiated (Implementation.differentiates)")
    return forms


def _taped(trial: Trial, form: Form) -> Tape:
    """A recorded call. Its results and its gradients are judged: who keeps too little computes something else."""
    draw, given = _drawn(trial)
    inputs = trial.inputs(draw)
    wanted = [i for i, name in enumerate(draw.names) if name in DIFFERENTIATED and inputs[i] is not None]
    call = _call(trial, form, inputs, wanted)
    tape: Tape = _method(trial, "differentiate")(call, [inputs[index] for index in wanted])
    trial.require_right(trial.parts(tape.result, draw), draw, f"as the form {form.label}")
    gradient = _gradient_trial(trial)
    against = gradient.draw().holding(given)
    found = tape.pull(gradient.inputs(against)[against.names.index("dy")])
    gradient.require_right(gradient.parts(found, against), against, f"in the backward of the form {form.label}")
    return tape


def _drawn(trial: Trial) -> tuple[Draw, dict[str, Any]]:
    """Inputs of the operator, and those of its gradient: the same and dy."""
    draw, against = trial.draw(), _gradient_trial(trial).draw()
    shared = {**against.expected.inputs, **draw.expected.inputs}
    return draw, {name: shared[name] for name in against.expected.inputs}


def _gradient_trial(trial: Trial) -> Trial:
    """A trial of the gradient, under the contract that the implementation has for it, or else the operator's own."""
    case = replace(trial.case, operator=OPERATORS[trial.case.operator.gradient])
    return Trial(case, case.kernel if isinstance(case.kernel, Kernel) else trial.kernel)


def _call(trial: Trial, form: Form, inputs: list[Any], wanted: list[int]) -> Callable[..., Any]:
    """The form as a function of the inputs that are differentiated."""
    parameters = trial.case.operator.parameters(trial.case.problem.geometry)
    keywords = form.keyword_arguments({**parameters, "layout": trial.case.variant.layout})

    def call(*arrays: Any) -> Any:
        full = list(inputs)
        for index, array in zip(wanted, arrays, strict=True):
            full[index] = array
        return form.function(*full, **keywords)

    return call


def _method(trial: Trial, name: str) -> Callable[..., Any]:
    """A bridge's way to see memory, which not every framework has."""
    method: Callable[..., Any] | None = getattr(trial.bridge, name, None)
    if method is None:
        raise Unsupported(f"{trial.bridge.name} has no way to see this ({name})")
    return method


def training_holds_what_autograd_shows(trial: Trial) -> Facts:
    """One training step of the tutorial's network: after forward, nothing lives that the graph does not account for."""
    train, geometry = _method(trial, "footprint"), trial.case.problem.geometry
    rows, hidden = [], []
    for form in _forms(trial):
        found = train(_pair(trial, form), geometry.n)
        rows.append({"form": form.label, "batch": geometry.n, "peak_bytes": found.peak, "forward_bytes": found.forward})
        if found.hidden > found.scratch:
            hidden.append(f"{form.label}: {found.hidden:,} B live after forward that the graph does not show")
    if hidden:
        raise BrokenPromise("\n".join(hidden))
    return {"trained": rows}


def _pair(trial: Trial, form: Form) -> Callable[[Any, Any], Any]:
    """(x, w) -> y, with the problem's parameters and nothing that is optional."""
    optional = [None] * (len(OPERATORS[form.operator].arguments) - 2)
    call = _call(trial, form, [None, None, *optional], [0, 1])
    return lambda x, w: call(x, w)[0]
