"""One thing to verify, and its place in the run; cases that there are not, and whether an implementation is here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.execution.invocation import Invocation
from conformance.implementations.devices import Unavailable
from conformance.implementations.implementation import Implementation, Kernel, Waiver
from conformance.inputs import Recipe
from conformance.operators import Operator
from conformance.problems import Problem, Variant


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """An implementation on one variant of one problem."""

    implementation: Implementation
    operator: Operator
    problem: Problem
    variant: Variant
    seed: int
    method: str = "auto"
    """How the verdict is reached: `exact` (full reference), `probes`, or by cost."""
    program: tuple[str, ...] = ()
    """The first words of a command that runs the implementation again."""
    after: tuple[Case, ...] = ()
    """Cases whose calls come before, in the same process: a kernel with a state may fail only then."""
    place: int = 0
    """In the ranking of its operator; what stands in none comes behind it."""

    @property
    def recipe(self) -> Recipe:
        """What determines the inputs."""
        return Recipe(self.operator, self.problem.geometry, self.variant.dtype, self.variant.distribution, self.seed)

    @property
    def kernel(self) -> Kernel:
        """The kernel to run. Raises Unsupported with the reason where there is none."""
        variant = self.variant
        return self.implementation.find(self.operator.name, self.problem.geometry, variant.dtype, variant.layout)

    def invocation(self) -> Invocation:
        """The kernel bound to the problem. Raises Unsupported where there is none."""
        kernel, variant = self.kernel, self.variant
        bridge = self.implementation.arrays
        where = variant.dtype, variant.layout, variant.storage
        return Invocation(kernel, bridge, self.operator, self.problem.geometry, *where)

    def waiver(self, distributions: Sequence[str]) -> Waiver | None:
        """The first waiver that covers the problem on one of these distributions."""
        named = (self.operator.name, self.problem.geometry, self.variant.dtype)
        found = (self.implementation.waiver(*named, one, self.variant.storage) for one in distributions)
        return next((waiver for waiver in found if waiver is not None), None)

    @property
    def id(self) -> str:
        """The part of a test's name in brackets."""
        v = self.variant
        words = (self.implementation.name, self.problem.name, v.dtype, v.layout, v.distribution, v.storage)
        return "-".join(filter(None, words))

    @property
    def command(self) -> str:
        """One line that reproduces the case, whatever table it came from."""
        v = self.variant
        words = [*self.program, "--operator", self.operator.name]
        words += ["--problem", self.problem.geometry.descriptor]
        words += ["--method", self.method] if self.method != "auto" else []
        words += ["--dtype", v.dtype, "--layout", v.layout, "--distribution", v.distribution]
        words += ["--storage", v.storage] if v.storage else []
        words += ["--seed", str(self.seed)]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Absence:
    """Cases of one implementation and operator that cannot run here, counted together."""

    implementation: str
    operator: str
    device: str
    status: str
    reason: str
    cases: int

    @property
    def id(self) -> str:
        """The part of a test's name in brackets."""
        return f"{self.implementation}-{self.status}"


def absence_reason(implementation: Implementation) -> str | None:
    """Why an implementation cannot run here; None if it can."""
    try:
        implementation.require()
    except Unavailable as absence:
        return str(absence)
    return None
