"""Which trainings are required: one per implementation and network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from conformance.execution.case import Absence, absence_reason
from conformance.execution.claims import Key
from conformance.execution.plan import Plan
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.problems import PROBLEMS
from conformance.training.tables import (
    DIRECTIONS,
    DISTRIBUTION,
    OPERATOR,
    TrainingConfiguration,
    configuration,
    networks,
)

NEEDED = {"torch": "torch", "sklearn": "scikit-learn", "PIL": "pillow"}
"""Module -> package that brings it."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """An implementation and what is trained through it."""

    implementation: Implementation
    configuration: TrainingConfiguration
    layout: str
    level: str
    seed: int
    program: tuple[str, ...]
    """The first words of a command that runs the implementation again."""

    @property
    def id(self) -> str:
        """The part of a test's name in brackets."""
        return f"{self.implementation.name}-{self.configuration.network}"

    @property
    def command(self) -> str:
        """One line that trains the same again."""
        words = [*self.program, "--distribution", DISTRIBUTION, "--layout", self.layout, "--level", self.level]
        return shlex.join([*words, "--seed", str(self.seed), "-k", f"test_{self.configuration.network}"])


def trainings(plan: Plan, network: str) -> Iterator[Training | Absence]:
    """None at a level without it, and where single problems, other operators, distributions or dtypes are asked for."""
    asked, registry = plan.selection, plan.registry
    everything = DISTRIBUTION in asked.distributions and "fp32" in asked.dtypes and asked.problems is PROBLEMS
    if not (network in networks(asked.level) and everything and set(DIRECTIONS) <= set(asked.operators)):
        return
    absent = [package for module, package in NEEDED.items() if find_spec(module) is None]

    def selected() -> list[Key]:
        return [Key(OPERATOR, network, "fp32", layout, DISTRIBUTION) for layout in asked.layouts]

    for one in plan.implementations:
        unavailable = absence_reason(one)
        try:
            layout = "" if unavailable else _layout(one, asked.layouts)
        except Unsupported as refusal:
            yield from plan.compared(Absence(one.name, OPERATOR, one.device, "unsupported", str(refusal), 1), selected)
            continue
        if unavailable:
            yield from plan.compared(Absence(one.name, OPERATOR, one.device, "unavailable", unavailable, 1), selected)
        elif absent:  # whatever is claimed of the kernels
            install = "pip install 'kernel-conformance[torch,train]'"
            reason = f"training needs {', '.join(absent)}, which is not installed ({install})"
            yield Absence(one.name, OPERATOR, one.device, "unavailable", reason, 1)
        else:
            chosen = configuration(network, asked.level, one.device)
            yield Training(one, chosen, layout, asked.level, asked.seed, plan.program(one))
    for stem, reason in registry.unavailable.items():
        yield from plan.compared(Absence(stem, OPERATOR, "", "unavailable", reason, 1), selected)


def _layout(implementation: Implementation, asked: tuple[str, ...]) -> str:
    """The first layout in which all three directions are declared for fp32. Raises Unsupported."""
    declared = []
    for direction in DIRECTIONS:
        kernels = [kernel for kernel in implementation.kernels if kernel.operator == direction]
        if not kernels:
            raise Unsupported(f"{direction} is not implemented; training needs all three directions")
        declared.append({layout for kernel in kernels if "fp32" in kernel.dtypes for layout in kernel.layouts})
    layouts = [layout for layout in asked if all(layout in known for known in declared)]
    if not layouts:
        raise Unsupported(f"no layout of {', '.join(asked)} is declared for fp32 in all three directions")
    if implementation.device == "simulator":  # seconds for what a network does in a millisecond
        raise Unsupported("the simulator is too slow to train a network on")
    return layouts[0]
