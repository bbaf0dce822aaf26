"""The case of a public tutorial: average pooling of 0, 1, 2, ... with a window of 2, which has exact results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.dtypes import STORAGE
from conformance.execution.trial import Trial
from conformance.implementations.implementation import Unsupported
from conformance.operators import PoolGeometry
from conformance.problems import Problem

TUTORIAL = PoolGeometry.parse("pool n1 c2 h6 w6 r2 s2")
"""Numbers up to 71, whose averages are multiples of 1/2: exact in every format, bf16 among them."""


def arange_is_exact(trial: Trial) -> None:
    """Averages of consecutive numbers come out exact. Blind to a sum that is rounded: four of them need 9 bits at most,
    and lose nothing that the average has."""
    problem = Problem("pool.tutorial", TUTORIAL, "smoke", ())
    case = replace(trial.case, problem=problem)
    if isinstance(case.kernel, str):
        raise Unsupported(case.kernel)
    dtype = STORAGE[case.variant.dtype]
    x = np.arange(TUTORIAL.x.size).reshape(TUTORIAL.x.shape).astype(dtype)
    tutorial = Trial(case, case.kernel)
    draw = tutorial.draw(problem=problem).holding({"x": x})
    tutorial.require_right(tutorial.call(tutorial.inputs(draw), draw), draw, "on consecutive numbers")
