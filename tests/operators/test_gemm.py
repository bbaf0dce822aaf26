"""Products that are scaled and added to a matrix: the definition, a c that is not read, and which factors there are."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from conformance.execution.verify import verify
from conformance.operators import OPERATORS, GeometryError, parse
from conformance.operators.matmul.operators import by_product
from conformance.problems.parameters import geometry, parameters
from tests.kit import expectation, trial_of

GEMM = OPERATORS["gemm"]


@pytest.mark.parametrize(
    "text", ["gemm m3 n2 k4 alpha0.5 beta-2", "gemm b2 m2 n3 k1 alpha-1.25 beta0.75", "gemm m2 n2 k0 beta3"]
)
def test_the_reference_is_the_scaled_sum_and_c(text: str):
    g = parse(text)
    assert geometry("gemm", parameters(g)) == g == parse(g.descriptor)
    dice = np.random.default_rng(0)
    inputs = {name: dice.integers(-9, 9, tensor.shape) / 4 for name, tensor in GEMM.inputs(g).items()}
    y, c = (by_product(array, g.groups) for array in (GEMM.reference(g, inputs)["y"], inputs["c"]))
    a, b = by_product(inputs["a"], g.groups), inputs["b"].reshape(g.groups, g.k // g.groups, g.c // g.groups)
    for place in np.ndindex(*y.shape):
        product, row, column = place
        terms = zip(a[product, row].tolist(), b[product, column].tolist(), strict=True)
        total = sum((Fraction(first) * Fraction(second) for first, second in terms), Fraction())
        assert Fraction(float(y[place])) == Fraction(g.alpha) * total + Fraction(g.beta) * Fraction(float(c[place]))


@pytest.mark.parametrize("distribution", ["integer", "fixed", "natural", "nonfinite", "wide"])
def test_c_is_nan_where_beta_is_zero_and_reaches_no_result(distribution: str):
    expected = expectation("gemm", "gemm m5 n6 k7 alpha0.5 beta0", "fp32", distribution)
    assert np.isnan(expected.inputs["c"]).all()
    assert not np.isnan(expected.magnitude["y"]).all()
    assert not np.isnan(expected.reference["y"]).all()


def scaled(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    y = np.float32(alpha) * (a @ b)
    return y + np.float32(beta) * c if beta else y


def scaled_in_any_case(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    return np.float32(alpha) * (a @ b) + np.float32(beta) * c


def of_bf16(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    """Keep eight bits of alpha."""
    return scaled(a, b, c, round(alpha * 128) / 128, beta)


@pytest.mark.parametrize(
    ("kernel", "text", "status"),
    [
        (scaled, "gemm m5 n6 k7 alpha0.5 beta0", "pass"),
        (scaled_in_any_case, "gemm m5 n6 k7 alpha0.5 beta0", "fail"),
        (scaled_in_any_case, "gemm m5 n6 k7 alpha0.5 beta-3", "pass"),
        (scaled, "gemm m5 n6 k7 alpha1.00390625", "pass"),
        (of_bf16, "gemm m5 n6 k7 alpha1.00390625", "fail"),
    ],
)
def test_kernels_are_told_apart_by_their_factors(kernel: Any, text: str, status: str):
    assert verify(trial_of(kernel, text, "gemm")).status == status


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gemm m2 n2 k2 alpha0.3", "alpha is 0.3; it must be a multiple of 1/256 from -16 to 16"),
        ("gemm m2 n2 k2 beta17", "beta is 17; it must be a multiple of 1/256 from -16 to 16"),
        ("gemm m2 n2 k2 alpha0", "alpha is 0; libraries differ in whether a and b are then read"),
        ("gemm m2 n2 k2 alpha1.", "field 'alpha1.' must be a number such as alpha2 or alpha-0.5"),
    ],
)
def test_factors_that_results_are_not_exact_with_are_refused(text: str, said: str):
    with pytest.raises(GeometryError, match=said.replace(".", r"\.")):
        parse(text)


@pytest.mark.parametrize("text", ["gemm m3 n5 k4 alpha0.5 beta-2", "gemm b2 m3 n5 k4 alpha-1.5"])
def test_it_is_what_torch_computes(text: str):
    torch = pytest.importorskip("torch")
    expected = expectation("gemm", text)
    g = parse(text)
    a, c = (torch.from_numpy(by_product(expected.inputs[name], g.groups).copy()) for name in "ac")
    b = torch.from_numpy(expected.inputs["b"]).reshape(g.groups, -1, g.c // g.groups).transpose(1, 2)
    y = torch.baddbmm(c, a, b, alpha=g.alpha, beta=g.beta).numpy()
    np.testing.assert_allclose(by_product(expected.reference["y"], g.groups), y, rtol=1e-4, atol=1e-6)
