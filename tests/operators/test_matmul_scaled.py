"""Scaled products: the definition in exact arithmetic, scales that differ, torch's function, and what `when=` gets."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.execution.verify import verify
from conformance.inputs import Expectation, Recipe
from conformance.operators import OPERATORS, GeometryError, parse
from conformance.operators.matmul_scaled.geometry import ScaledGeometry
from conformance.problems.parameters import geometry, parameters
from tests.kit import trial_of

SCALED = OPERATORS["matmul_scaled"]
RAGGED = "scaled m5 n7 k9 bias1 sm2 sn3 sk4"


def drawn(g: ScaledGeometry) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(0)
    return {name: dice.integers(1, 9, tensor.shape) / 4 for name, tensor in SCALED.inputs(g).items()}


@given(sizes=st.fixed_dictionaries({
    "n": st.integers(0, 4), "k": st.integers(1, 4), "c": st.integers(1, 6), "b": st.integers(0, 1),
    "sm": st.integers(0, 3), "sn": st.integers(0, 3), "sk": st.integers(0, 7), "pow": st.integers(0, 1),
}))  # fmt: skip
def test_the_reference_is_the_definition(sizes: dict[str, int]):
    g = geometry("matmul_scaled", sizes)
    assert parameters(g) == sizes
    assert parse(g.descriptor) == g
    inputs = drawn(g)
    rows, columns, terms = (sizes[name] or 99 for name in ("sm", "sn", "sk"))

    def term(m: int, n: int, k: int) -> Fraction:
        scale = inputs["scale_a"][m // rows, k // terms], inputs["scale_b"][n // columns, k // terms]
        factors = *scale, inputs["a"][m, k], inputs["b"][n, k]
        product = Fraction(1)
        for factor in factors:
            product *= Fraction(float(factor))
        return product

    y = SCALED.reference(g, inputs)["y"]
    for m, n in np.ndindex(*y.shape):
        bias = Fraction(float(inputs["bias"][n])) if g.bias else Fraction()
        assert Fraction(float(y[m, n])) == bias + sum(term(m, n, k) for k in range(sizes["c"]))


@pytest.mark.parametrize(("text", "message"), {
    "scaled m2 n3 k0": "k is 0; it must be at least 1",
    "scaled m2 n3 k4 sk-1": "sk is -1; it must be at least 1, or 0 for all",
    "scaled m2 n3 k4 b2": "field 'b2' is not understood",
    "scaled m2 n3 k4 pow2": "field 'pow2' must be pow0 or pow1",
}.items())  # fmt: skip
def test_a_problem_without_a_result_is_refused_by_name(text: str, message: str):
    with pytest.raises(GeometryError, match=message):
        parse(text)


def test_a_predicate_gets_the_lengths_of_blocks():
    sizes = parse(RAGGED).described
    assert sizes._asdict() == {
        "m": 5, "n": 7, "k": 9, "bias": True, "sm": 2, "sn": 3, "sk": 4, "pow": False,
    }  # fmt: skip


@pytest.mark.parametrize("distribution", ["integer", "fixed", "natural", "wide", "impulse"])
@pytest.mark.parametrize("text", ["scaled m9 n8 k40 sm1 sn1 sk4", "scaled m9 n8 k40 sm2 sk16 pow1"])
def test_no_scale_is_1_or_that_of_the_block_beside_it(text: str, distribution: str):
    """With scales that are all 1 a kernel passes that reads another scale, or none."""
    inputs = Expectation(Recipe(SCALED.on(parse(text)), "fp8_e4m3", distribution, 0)).inputs
    for name in ("scale_a", "scale_b"):
        scale = inputs[name]
        assert (scale > 0).all()
        assert not (scale == 1).any()
        assert not any((np.diff(scale, axis=axis) == 0).any() for axis in (0, 1))
        if "pow1" in text or distribution in ("integer", "impulse"):
            assert set(np.frexp(scale)[0].reshape(-1)) == {0.5}


@pytest.mark.parametrize("dtype", SCALED.dtypes)
@pytest.mark.parametrize("text", [RAGGED, "scaled m3 n4 k1056 bias1 sm1 sn1 sk32"])
def test_sums_of_integers_are_exact_in_fp32_in_every_order(text: str, dtype: str):
    g = parse(text)
    inputs = Expectation(Recipe(SCALED.on(g), dtype, "integer", 0)).inputs
    sizes = SCALED.reference(g, {name: np.abs(array.astype(np.float64)) for name, array in inputs.items()})["y"]
    unit = min(float(inputs["scale_a"].min()) * float(inputs["scale_b"].min()), 1.0)
    assert sizes.max() / unit <= 2**24


def by_blocks(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, *, sm: int, sn: int, sk: int) -> Any:
    (m, k), n = a.shape, b.shape[1]
    y = np.zeros((m, n), np.float32)
    for block in range(scale_a.shape[1]):
        terms = slice(block * (sk or k), (block + 1) * (sk or k))
        rows, columns = scale_a[:, block].repeat(sm or m)[:m], scale_b[:, block].repeat(sn or n)[:n]
        y += a[:, terms].astype(np.float32) @ b[terms].astype(np.float32) * np.outer(rows, columns)
    return y if bias is None else y + bias


def without_scales(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, *, sm: int, sn: int, sk: int) -> Any:
    return by_blocks(a, b, np.ones_like(scale_a), np.ones_like(scale_b), bias, sm=sm, sn=sn, sk=sk)


@pytest.mark.parametrize("dtype", SCALED.dtypes)
@pytest.mark.parametrize(("kernel", "status"), [(by_blocks, "pass"), (without_scales, "fail")])
def test_a_kernel_gets_scales_and_lengths_of_blocks(kernel: Any, status: str, dtype: str):
    trial = trial_of(kernel, RAGGED, "matmul_scaled", dtype=dtype, distribution="integer")
    verdict = verify(trial)
    assert verdict.status == status, verdict.reason


@pytest.mark.parametrize("text", ["scaled m5 n16 k32 bias1", "scaled m5 n16 k32 sm1 sn1"])
def test_torch_scales_tensors_rows_and_columns_alike(text: str):
    torch = pytest.importorskip("torch")
    expected = Expectation(Recipe(SCALED.on(parse(text)), "fp8_e4m3", "fixed", 0))
    a, b = (torch.from_numpy(expected.inputs[name].astype(np.float32)).to(torch.float8_e4m3fn) for name in "ab")
    scale_a, scale_b = (torch.from_numpy(expected.inputs[f"scale_{name}"]) for name in "ab")
    bias = torch.from_numpy(expected.inputs["bias"]) if "bias" in expected.inputs else None
    y = torch._scaled_mm(a, b.T, scale_a, scale_b.T.contiguous(), bias=bias, out_dtype=torch.float32)
    np.testing.assert_allclose(y.numpy(), expected.reference["y"], rtol=1e-5, atol=1e-6)
