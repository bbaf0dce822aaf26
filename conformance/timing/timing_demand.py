"""The required problems of a benchmark table: full size on accelerators; on a CPU those that end in minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from conformance.execution.required import Demand, Keys
from conformance.execution.selection import Selection
from conformance.execution.trial import Trial
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.layouts import layouts_of
from conformance.operators import takes
from conformance.problems import Problem, Variant
from conformance.problems.case import Case

SIMULATED = ("simulator", "emulator")
"""Devices whose times say nothing about the device that they stand for."""
QUICK = ("unet-reduced.64x64", "resnext50.conv4", "mobilenetv2.dw144", "inception.branch", "resnet50.bn.conv2.3x3")
"""Problems at `smoke`: one of each kind."""
LARGE = ("unet.128x128@256", "unet.512x512@64", "resnet50.conv2.3x3@56")
"""Problems at `standard`, on a CPU: the layers of full size that show what a small one cannot."""


def required(problem: Problem, device: str, level: str) -> bool:
    """Return whether implementations on a device are timed on a problem at a level."""
    if device in SIMULATED:
        return False
    if level == "smoke":
        return problem.name in QUICK
    if device == "cpu":
        return level == "full" or problem.level != "full" or problem.name in LARGE
    return problem.level == "full"


class TimingDemand(Demand):
    """An operator on problems of a benchmark table: dense fp32 data in the canonical layout.

    Problems that are given `by_hand` are timed on every device and at every level.
    """

    def __init__(self, selection: Selection, operator: str, problems: Iterable[Problem], by_hand: bool = False) -> None:
        super().__init__(selection, operator)
        self._by_hand = by_hand
        self._problems = [problem for problem in problems if takes(operator, problem.geometry)]

    def require(self, implementation: Implementation) -> None:
        """Raise Unsupported where there is no kernel, or the bridge says why a call is not the kernel's time."""
        super().require(implementation)
        if reason := implementation.arrays.untimed:
            raise Unsupported(f"no time: {reason}")

    def _on(self, device: str) -> list[tuple[int, Problem]]:
        """Return the problems that a device is timed on, with their places in the table."""
        level, problems = self.selection.level, enumerate(self._problems)
        return [(place, p) for place, p in problems if self._by_hand or required(p, device or "cpu", level)]

    def everything(self, device: str) -> tuple[int, Keys]:
        """Return the number of the device's problems; their keys are empty, because no claim covers a time."""
        return len(self._on(device)), list

    def cases(self, implementation: Implementation, claimed: frozenset[Case]) -> Iterator[Trial]:
        """Yield a trial for each of the device's problems."""
        for place, problem in self._on(implementation.device):
            yield self.trial(
                implementation, problem, Variant("fp32", layouts_of(problem.geometry.rank)[0], "fixed"), place
            )
