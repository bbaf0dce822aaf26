"""Three directions that are adjoint pass on any shape and seed; a direction that differs from the others fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance import Implementation
from conformance.checks import check_behaviour
from conformance.checks.adjoint import directions_are_adjoint
from conformance.dtypes import STORAGE
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.implementations.implementation import BEHAVIOUR
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed

SHAPES = {
    "n2 c4 h5 w6 k6 r3 s3 u2 p1:0x1 d1x2 g2": "conv_forward",
    "n3 c5 w17 k7 s3 u2 p1": "conv_forward",
    "convt n2 c3 h4 w5 k4 r3 s3 u2 p1 o1": "conv_transpose_forward",
    "convt n9001 c2 h1 w1 k3 r2 s2 u2": "conv_transpose_forward",
}


def verdict(shape: str, dtype: str, seed: int, wrong: dict[str, float]) -> Verdict:
    """Let kernels compute the reference and round it; results of those in `wrong` are multiplied by a number."""
    acme, problem, forward = Implementation("acme"), typed(shape), SHAPES[shape]
    layout = problem.variants[0].layout

    def offer(name: str) -> None:
        operator, factor = OPERATORS[name], wrong.get(name.rpartition("_")[2], 1.0)

        def kernel(*tensors: Any, **_: Any) -> Any:
            given = dict(zip(operator.arguments, tensors, strict=True))
            inputs = {key: array for key, array in given.items() if array is not None}
            (result,) = operator.reference(problem.geometry, inputs).values()
            with np.errstate(over="ignore"):
                return (result * factor).astype(np.float32).astype(STORAGE[dtype])

        acme.implements(name, dtypes=(dtype,), layouts=(layout,))(kernel)

    family = forward.removesuffix("_forward")
    for name in (forward, f"{family}_backward_data", f"{family}_backward_weight"):
        offer(name)
    variant = Variant(dtype, layout, BEHAVIOUR)
    case = Trial(acme, OPERATORS[forward], problem, variant, seed)
    return check_behaviour(case, directions_are_adjoint, of_right_kernels=True)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_right_directions_are_adjoint(shape: str, dtype: str):
    """Roundings to bf16 add up to more than a root sum of squares of their bounds in a case of fifty."""
    for seed in range(12):
        found = verdict(shape, dtype, seed, {})
        assert found.status == "pass", (seed, found.reason)


@pytest.mark.parametrize("direction", ["data", "weight"])
def test_a_direction_that_differs_is_not_adjoint(direction: str):
    found = verdict("n3 c5 w17 k7 s3 u2 p1", "fp32", 0, {direction: 1 + 1e-4})
    assert (found.status, f"wrong result (of conv_backward_{direction})" in found.reason) == ("fail", True), (
        found.reason
    )
