"""Which problems of a benchmark table are required: full size on accelerators, on a CPU what ends in minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from conformance.execution.case import Absence, Case
from conformance.problems import Problem

SIMULATED = ("simulator", "emulator")
"""What they take says nothing about the device that they stand for."""
QUICK = ("unet-reduced.64x64", "resnext50.conv4", "mobilenetv2.dw144", "inception.branch", "resnet50.bn.conv2.3x3")
"""At `smoke`: one of each kind."""
LARGE = ("unet.128x128@256", "unet.512x512@64", "resnet50.conv2.3x3@56")
"""At `standard`, on a CPU: the layers of full size that show what a small one cannot."""


def required(problem: Problem, device: str, level: str) -> bool:
    """Whether implementations on a device are timed on a problem at a level."""
    if device in SIMULATED:
        return False
    if level == "smoke":
        return problem.name in QUICK
    if device == "cpu":
        return level == "full" or problem.level != "full" or problem.name in LARGE
    return problem.level == "full"


def required_cases(
    cases: Iterable[Case | Absence], problems: Sequence[Problem], level: str
) -> Iterator[Case | Absence]:
    """Of the cases of a table; those that cannot run are counted as often as they are required."""
    for case in cases:
        if isinstance(case, Case):
            if required(case.problem, case.implementation.device, level):
                yield case
        elif count := sum(required(problem, case.device or "cpu", level) for problem in problems):
            yield replace(case, cases=count)
