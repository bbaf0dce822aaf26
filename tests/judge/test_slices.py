"""Slices that share an exponent: an honest kernel is within its limits, and a slice less, or no declaration, is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance.contract import Contract, ContractError
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.judge.expected import expect
from conformance.operators import OPERATORS, parse
from conformance.slices import Slices
from tests.calibration.kernels.emulated import Emulated
from tests.calibration.kernels.lowering import lowered

WIDE, LONG = parse("n2 c8 h9 w9 k16 r1 s1"), parse("n1 c16 h12 w12 k24 r3 s3 p1 g2")
OPERATORS_OF = {
    "conv_forward": "n2 c6 h9 w8 k8 r3 s2 u2x1 p1 g2 b1",
    "conv_backward_data": "n2 c6 h9 w8 k8 r3 s2 u2x1 p1 g2",
    "conv_backward_weight": "n2 c6 h9 w8 k8 r3 s2 u2x1 p1 g2 b1",
    "conv_transpose_forward": "convt n2 c6 h5 w6 k4 r3 s2 u2x1 p1 g2",
    "conv_transpose_backward_data": "convt n2 c6 h5 w6 k4 r3 s2 u2x1 p1 g2",
    "conv_transpose_backward_weight": "convt n2 c6 h5 w6 k4 r3 s2 u2x1 p1 g2",
}


def verdict(declared: Contract, real: Contract, distribution: str, geometry: Any = LONG, dtype: str = "fp32") -> bool:
    recipe = Recipe(OPERATORS["conv_forward"].on(geometry), dtype, distribution, 0)
    return expect(recipe).passes(outputs_of(real, recipe), declared)


def outputs_of(contract: Contract, recipe: Recipe) -> dict[str, np.ndarray]:
    workload = recipe.workload
    return Emulated(contract)(workload.operator, workload.geometry, Expectation(recipe).inputs, recipe.dtype)


@pytest.mark.parametrize(
    "contract",
    [
        Contract(inputs=Slices(4)),
        Contract(inputs=Slices(2), rounding="zero"),
        Contract(inputs=Slices(1)),
        Contract(inputs=Slices(3, bits=8, products="all"), accumulate="fp64"),
    ],
    ids=lambda contract: contract.declaration,
)
@pytest.mark.parametrize("operator", OPERATORS_OF)
def test_an_honest_kernel_is_right(operator: str, contract: Contract):
    for distribution in ("fixed", "natural", "integer", "impulse", "wide", "absorbed"):
        recipe = Recipe(OPERATORS[operator].on(parse(OPERATORS_OF[operator])), "fp32", distribution, 0)
        assert expect(recipe).passes(outputs_of(contract, recipe), contract), distribution


@pytest.mark.parametrize(("count", "dtype"), [(4, "fp32"), (3, "fp32"), (2, "fp32"), (2, "bf16"), (8, "fp64")])
def test_a_slice_less_is_wrong(count: int, dtype: str):
    declared, fewer = Contract(inputs=Slices(count)), Contract(inputs=Slices(count - 1))
    assert verdict(declared, declared, "natural", dtype=dtype)
    assert not verdict(declared, fewer, "natural", dtype=dtype)


def test_enough_slices_are_fp32_on_numbers_of_one_scale_and_not_in_wide_rows():
    """The scale of the limits was that of the products, which an error of normwise arithmetic exceeds without bound."""
    declared = Contract(inputs=Slices(4))
    assert verdict(Contract(), declared, "integer")
    assert verdict(declared, declared, "integer")
    recipe = Recipe(OPERATORS["conv_forward"].on(WIDE), "fp32", "fixed", 0)
    expected = expect(recipe)
    dark = expected.inputs["w"].copy()
    dark[:, -1] = 0
    x = expected.inputs["x"].copy()
    x[:, -1] *= np.float32(2.0**20)  # a channel that no filter takes, but every row has
    expected = expected.holding({"x": x, "w": dark})
    outputs = Emulated(declared)(recipe.workload.operator, WIDE, expected.inputs, "fp32")
    assert expected.passes(outputs, declared)
    assert not expected.passes(outputs, Contract())


@pytest.mark.parametrize("operator", OPERATORS_OF)
def test_the_scale_is_that_of_rows_and_columns(operator: str):
    workload = OPERATORS[operator].on(parse(OPERATORS_OF[operator]))
    inputs = Expectation(Recipe(workload, "fp32", "natural", 0)).inputs
    inputs = {name: array for name, array in inputs.items() if name != "bias"}
    product = lowered(workload.operator, workload.geometry, inputs)
    rows, columns = np.abs(product.b), np.abs(product.a)  # the data are the second factor

    def powers(values: np.ndarray, axis: int) -> np.ndarray:
        largest = values.max(axis=axis, keepdims=True)
        return np.where(largest > 0, np.ldexp(1.0, np.frexp(largest)[1]), 0)

    above_rows, above_columns = powers(rows, 1), powers(columns, 2)
    of_rows, of_columns = np.linalg.norm(rows, axis=1, keepdims=True), np.linalg.norm(columns, axis=2, keepdims=True)
    terms = workload.errors.terms[next(iter(workload.outputs))]
    for dropped in (0.0, 3.0):
        parts = above_rows * of_columns, above_columns * of_rows, dropped * above_rows * above_columns * terms**0.5
        scale = product.restored(np.sqrt(sum(np.square(part) for part in parts)))
        assert np.allclose(workload.operator.normwise(workload.geometry, inputs, dropped), scale, rtol=1e-12)


@pytest.mark.parametrize("distribution", ["fixed", "integer"])
def test_probes_tell_a_slice_less(distribution: str):
    recipe = Recipe(OPERATORS["conv_forward"].on(LONG), "fp32", distribution, 0)
    expected, declared = expect(recipe, "probes"), Contract(inputs=Slices(3))
    assert expected.method == "probes"
    assert expected.passes(outputs_of(declared, recipe), declared)
    assert not expected.passes(outputs_of(Contract(inputs=Slices(1)), recipe), declared)


def test_slices_are_named_written_and_read():
    contract = Contract(inputs=Slices(4, bits=8, products="all"))
    assert contract.declaration == 'contract=Contract(inputs=Slices(count=4, bits=8, products="all"))'
    assert contract.weakness == "inputs in 4 slices of 8 bits, all products"
    assert contract.describe("fp32").startswith("direct, inputs in 4 slices of 8 bits, all products, fp32")
    assert Contract.of_record(contract.as_record()) == contract
    assert contract.on(LONG, "fp32") == contract
    assert contract.on(LONG, "fp8_e4m3") == contract.on(parse("pool n1 c1 h4 w4 r2 s2"), "fp32") == Contract()
    assert contract.without_effect(["conv_bn_forward", "avg_pool_forward"]) == ["inputs"]
    assert "NaN" in contract.exempts("special", "fp32")
    assert "smallest numbers" in contract.exempts("range", "fp32")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "Slices(count=0): must be a whole number from 1 to 16"),
        ({"count": True}, "Slices(count=True): must be a whole number from 1 to 16"),
        ({"count": 4, "bits": 25}, "Slices(bits=25): must be a whole number from 1 to 24"),
        ({"count": 4, "products": "few"}, "Slices(products='few'): must be one of largest, all"),
    ],
)
def test_what_slices_cannot_be(fields: dict[str, Any], message: str):
    with pytest.raises(ContractError) as refused:
        Slices(**fields)
    assert str(refused.value) == message


def test_slices_are_of_direct_products():
    with pytest.raises(ContractError, match="slices are of direct products"):
        Contract(inputs=Slices(4), algorithm="fft")
