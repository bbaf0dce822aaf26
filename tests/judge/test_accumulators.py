"""Accumulators of matrix units: what the published ones do stays within their limits, and one bit less does not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.accumulator import UNITS, Accumulator, ContractError
from conformance.contract import Contract
from conformance.dtypes import FORMATS
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.judge.expected import expect
from conformance.operators import OPERATORS, parse
from tests.calibration.avg_pool.known_good import Summed
from tests.calibration.kernels import sums
from tests.calibration.kernels.emulated import Emulated, added
from tests.calibration.kernels.sums import Sum

PROBLEM, LONGER = parse("n1 c32 h3 w3 k42 r3 s3"), parse("n1 c64 h3 w3 k42 r3 s3")


def convolved(unit: Accumulator, recipe: Recipe) -> dict[str, np.ndarray]:
    """Return y of a convolution as a unit computes it."""
    workload, kernel = recipe.workload, Emulated(Contract(accumulate=unit))
    return kernel(workload.operator, workload.geometry, Expectation(recipe).inputs, recipe.dtype)


def verdict(
    declared: Accumulator | str, real: Accumulator, dtype: str, distribution: str, problem: Any = PROBLEM
) -> bool:
    recipe = Recipe(OPERATORS["conv_forward"].on(problem), dtype, distribution, 0)
    return expect(recipe).passes(convolved(real, recipe), Contract(accumulate=declared))


def dtype_of(name: str) -> str:
    return "fp8_e4m3" if "fp8" in name else "bf16" if "bf16" in name else "fp32" if "tf32" in name else "fp16"


@pytest.mark.parametrize("distribution", ["absorbed", "fixed", "natural", "integer", "wide"])
@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_right_under_its_name(name: str, distribution: str):
    if Contract(accumulate=name).exempts(distribution, dtype_of(name)):
        pytest.skip("not judged")
    assert verdict(name, UNITS[name], dtype_of(name), distribution)


HIDDEN = {"blackwell-fp8": "e4m3 has 15 normal binades", "blackwell-fp4": "35 bits: more than fp32 stores"}
"""Units of which one bit less does not show, and why."""


@pytest.mark.parametrize("name", [name for name in UNITS if name not in HIDDEN])
def test_one_bit_less_is_wrong(name: str):
    fewer = replace(UNITS[name], bits=UNITS[name].bits - 1)
    assert not verdict(name, fewer, dtype_of(name), "absorbed")


@pytest.mark.parametrize(("inputs", "name"), [("tf32", "ampere-tf32"), ("bf16", "hopper-tf32")])
def test_one_bit_less_is_wrong_where_inputs_are_rounded(inputs: str, name: str):
    """The allowance for rounded inputs hid it, though no input of these data is rounded."""
    recipe = Recipe(OPERATORS["conv_forward"].on(PROBLEM), "fp32", "absorbed", 0)
    contract, fewer = Contract(inputs=inputs, accumulate=name), replace(UNITS[name], bits=UNITS[name].bits - 1)
    assert expect(recipe).passes(convolved(UNITS[name], recipe), contract)
    assert not expect(recipe).passes(convolved(fewer, recipe), contract)


def test_sums_in_pieces_are_right_and_without_promotion_wrong():
    promoted, plain = UNITS["hopper-fp8-promoted"], UNITS["hopper-fp8"]
    assert verdict("hopper-fp8", promoted, "fp8_e4m3", "absorbed", LONGER)
    assert verdict("hopper-fp8-promoted", promoted, "fp8_e4m3", "absorbed", LONGER)
    assert not verdict("hopper-fp8-promoted", plain, "fp8_e4m3", "absorbed", LONGER)


@pytest.mark.parametrize(("bits", "is_right"), [(23, True), (22, False)])
def test_averages_of_absorbed_elements_tell_one_bit(bits: int, is_right: bool):
    recipe = Recipe(OPERATORS["avg_pool_forward"].on(parse("pool n2 c26 h5 w7 r5 s7")), "fp32", "absorbed", 0)
    x = Expectation(recipe).inputs["x"].astype(np.float64)
    images = x.reshape(1, -1, 35)
    sums = added(images, np.ones((1, 35, 1)), Accumulator(bits=bits, rounding="nearest"))
    y = (sums / 35).astype(np.float32).reshape(*x.shape[:2], 1, 1)
    assert expect(recipe).passes({"y": y}, Contract()) == is_right


@pytest.mark.parametrize(
    ("contract", "dtype", "is_judged"),
    [
        (Contract(splits=4, partials="fp16"), "fp32", False),
        (Contract(accumulate="fp16"), "bf16", False),
        (Contract(splits=4, partials="fp16"), "fp16", True),
        (Contract(inputs="fp16"), "fp32", True),
    ],
)
def test_absorbed_terms_are_not_for_sums_of_less_range(contract: Contract, dtype: str, is_judged: bool):
    """A right kernel failed: long sums of fp32, kept in fp16 in between, overflowed."""
    assert (contract.exempts("absorbed", dtype) == "") == is_judged


@pytest.mark.parametrize("inputs", ["tf32", "bf16"])
def test_shares_of_one_size_that_are_rounded_alike_are_right(inputs: str):
    """A right kernel failed: equal terms have equal errors, whose sum exceeds that of independent ones."""
    workload = OPERATORS["avg_pool_backward"].on(parse("pool n2 c4 h28 w28 r14 s14 u1"))
    recipe = Recipe(workload, "fp32", "absorbed", 0)
    kernel = Summed(Sum(prepare=partial(sums.narrowed, FORMATS[inputs])), first=True)
    dx = kernel(workload.operator, workload.geometry, Expectation(recipe).inputs)
    assert expect(recipe).passes({"dx": dx}, Contract(inputs=inputs))
    assert not expect(recipe).passes({"dx": dx}, Contract())


@pytest.mark.parametrize("real", ["hopper-fp8", "ada-fp8", "hopper-fp8-promoted"])
def test_fp8_sums_of_few_bits_are_no_fp32_sums(real: str):
    assert not verdict("auto", UNITS[real], "fp8_e4m3", "absorbed")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 0}, "bits=0"),
        ({"bits": True}, "bits=True"),
        ({"bits": 24, "group": 1.5}, "group=1.5"),
        ({"bits": 24, "rounding": "up"}, "must be one of zero, nearest, down"),
        ({"bits": 24, "stored": "fp8_e4m3"}, "must be one of fp64, fp32, tf32, fp16, bf16, e8m13"),
        ({"bits": 24, "group": 8, "promote": 12}, "must be a multiple of group=8"),
    ],
)
def test_what_no_unit_is(fields: dict, message: str):
    with pytest.raises(ContractError, match=message):
        Accumulator(**fields)


def test_an_accumulator_is_declared_recorded_and_read():
    contract = Contract(accumulate=Accumulator(bits=25, group=16, promote=64))
    assert contract.declaration == "contract=Contract(accumulate=Accumulator(bits=25, group=16, promote=64))"
    assert Contract.of_record(contract.as_record()) == contract
    assert contract.describe("fp16") == (
        "direct, inputs as given, fp32 sums of 16 products cut to 25 fraction bits, promoted to fp32 every 64, "
        "one rounding to fp16"
    )
    assert contract.weakness == "fp32 sums of 16 products cut to 25 fraction bits, promoted to fp32 every 64"
