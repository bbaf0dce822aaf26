"""Gradients whose operands have two formats of 8 bits."""

from __future__ import annotations

import pytest

import conformance
from conformance import Contract
from conformance.dtypes import STORAGE
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.operators import OPERATORS, parse
from conformance.problems.table import OF_EIGHT_BITS
from conformance.resources import IMPLS

GEOMETRY = parse("n2 c8 h9 w7 k12 r3 s3 p1 b1")


@pytest.mark.parametrize("distribution", OF_EIGHT_BITS["fp8"])
@pytest.mark.parametrize(("operator", "other"), [("conv_backward_data", "w"), ("conv_backward_weight", "x")])
def test_a_gradient_is_in_e5m2_and_the_other_operand_in_e4m3(operator: str, other: str, distribution: str):
    inputs = Expectation(Recipe(OPERATORS[operator].on(GEOMETRY), "fp8_e5m2_e4m3", distribution, 0)).inputs
    assert inputs["dy"].dtype == STORAGE["fp8_e5m2"]
    assert inputs[other].dtype == STORAGE["fp8_e4m3"]
    assert inputs["dy"].any()


def test_results_are_sums_in_fp32_and_forward_has_no_gradient():
    workload = OPERATORS["conv_backward_weight"].on(GEOMETRY)
    assert {tensor.stored_as("fp8_e5m2_e4m3") for tensor in workload.outputs.values()} == {"fp32"}
    assert "fp8_e5m2_e4m3" not in OPERATORS["conv_forward"].dtypes
    assert "fp8_e5m2_e4m3" not in OPERATORS["conv_requantized"].dtypes


def test_the_arithmetic_of_two_formats_is_read():
    (reading,) = conformance.read_contract(
        IMPLS / "numpy_direct", operator="conv_backward_data", dtype="fp8_e5m2_e4m3", in_process=True
    )
    assert reading.contract == Contract()
    assert "algorithm     direct" in reading.explain()
