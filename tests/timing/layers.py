"""What tests of timing share: tiny layers, their cases, and ceilings to calculate with."""

from __future__ import annotations

from dataclasses import replace

from conformance import Implementation
from conformance.execution.case import Case
from conformance.problems import Problem, typed
from conformance.timing.roofline import Ceilings
from tests import kit

TINY = replace(typed("n2 c4 h6 w6 k4 r3 s3 p1 b1"), name="unet.4x4@6")
OTHER = replace(typed("n2 c4 h6 w6 k8 r3 s3 p1 b1"), name="unet.4x8@6")
CEILINGS = Ceilings(1e12, 1e10, "given")


def case_of(implementation: Implementation, problem: Problem = TINY, method: str = "exact") -> Case:
    return kit.case_of(implementation, problem, method=method)
