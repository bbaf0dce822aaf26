"""The reference against an independent one: torch's float64 convolutions, bit for bit, on every standard problem."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.inputs import Expectation, Recipe
from conformance.operators import CONVOLUTIONS, OPERATORS, Arrays, ConvGeometry
from conformance.problems import PROBLEMS, Problem

torch = pytest.importorskip("torch")

CONVOLVED = [
    (problem, sorted({v.dtype for v in problem.variants if v.distribution == "fixed"}))
    for problem in PROBLEMS
    if problem.level == "standard" and problem.geometry.family == "conv"
]
CASES = [(problem, dtypes[place % len(dtypes)]) for place, (problem, dtypes) in enumerate(CONVOLVED) if dtypes]
"""Every geometry, in its dtypes by turns: the reference is computed in float64, whatever they are."""


def by_torch(operator: str, g: ConvGeometry, inputs: Arrays) -> Arrays:
    given = {name: torch.from_numpy(array.astype(np.float64)) for name, array in inputs.items()}
    border = [side for sides in reversed(g.padding) for side in sides]
    convolve = getattr(torch.nn.functional, f"conv{g.rank}d")
    x = given.get("x", torch.zeros(g.x.shape, dtype=torch.float64))
    w = given.get("w", torch.zeros(g.filter.shape, dtype=torch.float64)).requires_grad_()
    padded = torch.nn.functional.pad(x, border).requires_grad_()
    y = convolve(padded, w, given.get("bias"), g.stride, 0, g.dilation, g.groups)
    if operator == "conv_forward":
        return {"y": y.detach().numpy()}
    dx, dw = torch.autograd.grad(y, (padded, w), given["dy"])
    if operator == "conv_backward_data":
        return {"dx": torch.nn.functional.pad(dx, [-side for side in border]).numpy()}
    dbias = {"dbias": given["dy"].transpose(0, 1).flatten(1).sum(1).numpy()} if g.bias else {}
    return {"dw": dw.numpy(), **dbias}


@pytest.mark.parametrize(("problem", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_reference_equals_torch_float64(problem: Problem, dtype: str):
    for operator in CONVOLUTIONS:
        expected = Expectation(Recipe(OPERATORS[operator], problem.geometry, dtype, "fixed", 0))
        for name, exact in by_torch(operator, problem.geometry, expected.inputs).items():
            assert np.array_equal(expected.reference[name], exact), f"{name} of {operator}"
