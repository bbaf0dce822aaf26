"""The trainings that are required: one per implementation and network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from conformance.execution.required import Demand, Keys, Lacking
from conformance.execution.selection import Selection
from conformance.execution.trial import Named
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.problems.case import Case
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
    """An implementation and the training that is run through it."""

    implementation: Implementation
    configuration: TrainingConfiguration
    layout: str
    level: str
    seed: int
    named: Named | None = None
    """How a command names the implementation; None where its name is enough."""

    @property
    def case(self) -> Case:
        """Case that identifies the training."""
        return Case(OPERATOR, self.configuration.network, "fp32", self.layout, DISTRIBUTION, seed=self.seed)

    @property
    def id(self) -> str:
        """Part of a test's name in brackets."""
        return f"{self.implementation.name}-{self.configuration.network}"

    @property
    def command(self) -> str:
        """Command line that repeats the training."""
        named = self.named or Named(self.implementation.name)
        words = ["conformance", "run", named.kernel, *named.options, "--distribution", DISTRIBUTION]
        words += ["--layout", self.layout, "--level", self.level, "--seed", str(self.seed)]
        return shlex.join([*words, "-k", self.configuration.network])


class TrainingDemand(Demand):
    """A network, trained through every implementation.

    It is not required at a level without it, nor where single problems, other operators, distributions or dtypes are
    asked for.
    """

    def __init__(self, selection: Selection, network: str) -> None:
        super().__init__(selection, OPERATOR)
        self._network = network

    @property
    def is_asked(self) -> bool:
        selection = self.selection
        everything = DISTRIBUTION in selection.distributions and "fp32" in selection.dtypes and selection.is_of_tables
        return self._network in networks(selection.level) and everything and set(DIRECTIONS) <= set(selection.operators)

    def require(self, implementation: Implementation) -> None:
        """Raise Unsupported where a network cannot be trained through the implementation."""
        _layout(implementation, self.selection.layouts)

    def everything(self, device: str) -> tuple[int, Keys]:
        """Return one training, with a key for each layout asked for."""
        key = partial(Case, OPERATOR, self._network, "fp32", distribution=DISTRIBUTION)
        return 1, lambda: [key(layout=layout) for layout in self.selection.layouts]

    def cases(self, implementation: Implementation, claimed: frozenset[Case]) -> Iterator[Training | Lacking]:
        """Yield the training, or the reason if packages are missing."""
        absent = [package for module, package in NEEDED.items() if find_spec(module) is None]
        if absent:  # claims about the kernels make no difference
            install = "pip install 'kernel-conformance[torch,train]'"
            reason = f"training needs {', '.join(absent)}, which is not installed ({install})"
            yield Lacking(reason, 1, status="unavailable")
        else:
            selection = self.selection
            chosen = configuration(self._network, selection.level, implementation.device)
            yield Training(
                implementation, chosen, _layout(implementation, selection.layouts), selection.level, selection.seed
            )


def _layout(implementation: Implementation, candidates: tuple[str, ...]) -> str:
    """Return the first layout in which all three directions are declared for fp32. Raises Unsupported."""
    declared = []
    for direction in DIRECTIONS:
        kernels = [kernel for kernel in implementation.kernels if kernel.operator == direction]
        if not kernels:
            raise Unsupported(f"{direction} is not implemented; training needs all three directions")
        declared.append({layout for kernel in kernels if "fp32" in kernel.dtypes for layout in kernel.layouts})
    layouts = [layout for layout in candidates if all(layout in of_kernel for of_kernel in declared)]
    if not layouts:
        raise Unsupported(f"no layout of {', '.join(candidates)} is declared for fp32 in all three directions")
    if implementation.device == "simulator":  # it takes seconds for a millisecond of a network's work
        raise Unsupported("the simulator is too slow to train a network on")
    return layouts[0]
