"""The case of a public tutorial: average pooling of 0, 1, 2, ... with a window of 2, which has exact results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.checks.sample import Subject
from conformance.dtypes import STORAGE
from conformance.operators import PoolGeometry
from conformance.problems import Problem

TUTORIAL = PoolGeometry.parse("pool n1 c2 h6 w6 r2 s2")
"""Numbers up to 71, whose averages are multiples of 1/2: exact in every format, bf16 among them."""


def arange_is_exact(subject: Subject) -> None:
    """Averages of consecutive numbers come out exact. Blind to a sum that is rounded: four of them need 9 bits at most,
    and lose nothing that the average has."""
    case = replace(subject.case, problem=Problem("pool.tutorial", TUTORIAL, "smoke", ()))
    x = np.arange(TUTORIAL.x.size).reshape(TUTORIAL.x.shape).astype(STORAGE[case.variant.dtype])
    sample = Subject(case, case.kernel).sample().holding({"x": x})
    sample.require_right(sample.call(sample.inputs()), "consecutive numbers")
