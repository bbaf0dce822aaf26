"""Which trainings a run is due: one per implementation and network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from conformance.execution.case import Absence
from conformance.execution.plan import Plan, absence_reason
from conformance.execution.selection import Selection
from conformance.implementations.implementation import Implementation
from conformance.problems import PROBLEMS
from conformance.training.tables import DIRECTIONS, DISTRIBUTION, OPERATOR, Course, course

NEEDED = {"torch": "torch", "sklearn": "scikit-learn", "PIL": "pillow"}
"""Module -> package that brings it."""
SIMULATOR = "simulator"
"""Whose kernels take seconds for what a network does in a millisecond."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """An implementation and what is trained through it."""

    implementation: Implementation
    course: Course
    layout: str
    level: str
    seed: int
    origin: str = ""
    """What `--impl` must be given to find the implementation again."""

    @property
    def id(self) -> str:
        """The part of a test's name in brackets."""
        return f"{self.implementation.name}-{self.course.network}"

    @property
    def command(self) -> str:
        """One line that trains the same again."""
        words = ["pytest", *([f"--impl={self.origin}"] if self.origin else []), "--impl", self.implementation.name]
        words += [
            "--distribution",
            DISTRIBUTION,
            "--layout",
            self.layout,
            "--level",
            self.level,
            "--seed",
            str(self.seed),
        ]
        return shlex.join([*words, "-k", f"test_{self.course.network}"])


def due(plan: Plan, network: str) -> Iterator[Training | Absence]:
    """The trainings of a network, and who cannot have one."""
    if not _asked(plan.selection):
        return
    found = plan.registry
    for implementation in found.implementations.values():
        yield _due(plan, implementation, network)
    for stem, reason in found.unavailable.items():
        yield Absence(stem, OPERATOR, "", "unavailable", reason, 1)


def _asked(selection: Selection) -> bool:
    """Not where single problems, other operators, distributions or dtypes are asked for."""
    directions = set(DIRECTIONS) <= set(selection.operators)
    return (
        directions
        and DISTRIBUTION in selection.distributions
        and "fp32" in selection.dtypes
        and selection.problems is PROBLEMS
    )


def _due(plan: Plan, implementation: Implementation, network: str) -> Training | Absence:
    chosen, device = plan.selection, implementation.device
    status, reason = "unavailable", absence_reason(implementation)
    if not reason:
        status, reason = "unsupported", _unfit(implementation, chosen.layouts)
    if not reason:
        status, reason = "unavailable", lacking()
    if reason:
        return Absence(implementation.name, OPERATOR, device, status, reason, 1)
    layout = layouts(implementation, chosen.layouts)[0]
    asked = course(network, chosen.level, device)
    origin = plan.registry.paths[implementation.name] if chosen.paths else ""
    return Training(implementation, asked, layout, chosen.level, chosen.seed, origin)


def _unfit(implementation: Implementation, asked: tuple[str, ...]) -> str:
    """Why no network can be trained through an implementation; empty if one can."""
    for direction in DIRECTIONS:
        if all(kernel.operator != direction for kernel in implementation.kernels):
            return f"{direction} is not implemented; training needs all three directions"
    if not layouts(implementation, asked):
        return f"no layout of {', '.join(asked)} is declared for fp32 in all three directions"
    if implementation.device == SIMULATOR:
        return "the simulator is too slow to train a network on"
    return ""


def layouts(implementation: Implementation, asked: tuple[str, ...]) -> list[str]:
    """The layouts in which an implementation declares all three directions for fp32."""
    declared = [
        {layout for k in implementation.kernels if k.operator == name and "fp32" in k.dtypes for layout in k.layouts}
        for name in DIRECTIONS
    ]
    return [layout for layout in asked if all(layout in known for known in declared)]


def lacking() -> str:
    """Why nothing can be trained here; empty if it can."""
    absent = [package for module, package in NEEDED.items() if find_spec(module) is None]
    needs = "pip install 'kernel-conformance[torch,train]'"
    return f"training needs {', '.join(absent)}, which is not installed ({needs})" if absent else ""
