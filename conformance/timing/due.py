"""Which problems of a benchmark table are due: full size on accelerators, on a CPU what ends in minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from conformance.execution.case import Absence, Case
from conformance.problems import Problem

SIMULATED = ("simulator", "emulator")
"""What they take says nothing about the device that they stand for."""
QUICK = ("unet-twin.64x64", "resnext50.conv4", "mobilenetv2.dw144", "inception.branch", "resnet50.bn.conv2.3x3")
"""At `smoke`: one of each kind."""
LARGE = ("unet.128x128@256", "unet.512x512@64", "resnet50.conv2.3x3@56")
"""At `standard`, on a CPU: the layers of full size that show what a small one cannot."""


def due(cases: Iterable[Case | Absence], problems: Sequence[Problem], level: str) -> Iterator[Case | Absence]:
    """The cases of a table that are required on their devices at a level."""
    for case in cases:
        device = case.device if isinstance(case, Absence) else case.implementation.device
        wanted = required(problems, device or "cpu", level)
        if isinstance(case, Absence) and wanted:
            yield replace(case, cases=len(wanted))
        elif isinstance(case, Case) and case.problem in wanted:
            yield case


def required(problems: Iterable[Problem], device: str, level: str) -> tuple[Problem, ...]:
    """The problems of a table for implementations on `device`."""
    return tuple(problem for problem in problems if _is_due(problem, device, level))


def _is_due(problem: Problem, device: str, level: str) -> bool:
    if device in SIMULATED:
        return False
    if level == "smoke":
        return problem.name in QUICK
    if device == "cpu":
        return level == "full" or problem.level != "full" or problem.name in LARGE
    return problem.level == "full"
