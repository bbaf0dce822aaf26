"""Sums that are cut toward zero, and inputs that are rounded: their gain lies within an interval, and no other kernel's
does."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.contract import Contract
from conformance.dtypes import BF16, FP32, TF32
from conformance.inputs import Expectation, Recipe
from conformance.judge.expected import expect
from conformance.operators import OPERATORS, parse
from tests.calibration.kernels import sums
from tests.calibration.kernels.arithmetic import KernelArithmetic, to
from tests.calibration.kernels.emulated import Emulated
from tests.calibration.kernels.kernel import KnownKernel, Run
from tests.calibration.kernels.rounding import Way, bits, outward
from tests.calibration.kernels.sums import Sum, direct
from tests.calibration.known_kernels import judgements

CUT, TF32_INPUTS, BF16_CUT = (
    Contract(rounding="zero"),
    Contract(inputs="tf32"),
    Contract(inputs="bf16", rounding="zero"),
)
PROBLEMS = ("n2 c8 h9 w9 k16 r3 s3 p1", "n2 c8 h9 w9 k16 r3 s3 p1 b1", "n1 c9 h8 w8 k9 r3 s3 p1 g9")


def ties_away(spacings: np.ndarray) -> np.ndarray:
    """Round to nearest, ties away from zero, as cvt.rna of PTX does."""
    away: np.ndarray = np.copysign(np.floor(np.abs(spacings) + 0.5), spacings)
    return away


def checks(
    run: Run, contract: Contract, problem: str, operator: str = "conv_forward", seed: int = 0
) -> dict[str, bool]:
    """Return which checks a kernel passes on fixed-point data in fp32."""
    expected = Expectation(Recipe(OPERATORS[operator].on(parse(problem)), "fp32", "fixed", seed))
    main, *_ = judgements(KnownKernel("", "", run, contract, (operator,)), expected, infer=False)
    return {check.name: check.passed for check in main.checks}


def emulated(way: Way, **changes: Any) -> Run:
    """Return a convolution with fp32 sums that are rounded in a way."""
    return partial(direct, Sum(work=np.float64, step=sums.rounding_to(FP32, way), **changes))


RIGHT: dict[str, tuple[Run, Contract]] = {
    "cut": (emulated(np.trunc), CUT),
    "to nearest, declared cut": (emulated(np.rint), CUT),
    "cut, tap by tap": (emulated(np.trunc, order=sums.tap_by_tap), CUT),
    "cut in four lanes": (emulated(np.trunc, lanes=sums.always(4)), CUT),
    "tf32": (KernelArithmetic(to(TF32), to(TF32)), TF32_INPUTS),
    "tf32, ties away": (KernelArithmetic(to(TF32, ties_away), to(TF32, ties_away)), TF32_INPUTS),
    "bf16 cut": (emulated(np.trunc, prepare=partial(sums.cut_off, BF16)), BF16_CUT),
    "bf16 cut, sums to nearest": (emulated(np.rint, prepare=partial(sums.cut_off, BF16)), BF16_CUT),
}


@pytest.mark.parametrize("operator", ["conv_forward", "conv_backward_weight"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_within_the_interval(name: str, operator: str):
    for problem in PROBLEMS:
        passed = checks(*RIGHT[name], problem, operator)
        assert {"gain z", "offset z"} < passed.keys()
        assert all(passed.values()), (problem, passed)


WRONG: dict[str, tuple[Run, Contract]] = {
    "away from zero": (emulated(outward), CUT),
    "two bits less": (partial(direct, Sum(work=np.float64, step=sums.rounding_to(bits(22), np.trunc))), CUT),
    "inputs cut": (KernelArithmetic(to(TF32, np.trunc), to(TF32, np.trunc)), TF32_INPUTS),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_gain_tells_a_kernel_that_is_beyond(name: str):
    assert not checks(*WRONG[name], PROBLEMS[0])["gain z"]


def cut_in_two(a: np.ndarray, b: np.ndarray) -> sums.Factors:
    """Return three products of two parts of each factor, the low parts of what the high ones leave."""
    a_high, b_high = sums.cut_off(BF16, a, b)
    a_low, b_low = sums.cut_off(BF16, a - a_high, b - b_high)
    first = np.stack([a_low, a_high, a_high], axis=-1).reshape(*a.shape[:2], -1)
    return first, np.stack([b_high, b_low, b_high], axis=2).reshape(len(b), -1, b.shape[-1])


def test_parts_that_are_cut_may_lose_twice_as_much_each():
    """Two parts lose up to four times as much, where twice was allowed: an honest kernel of few outputs failed."""
    contract = Contract(inputs="bf16x3", rounding="zero")
    run = emulated(np.trunc, prepare=cut_in_two)
    passed = checks(run, contract, "n1 c65 h3 w4 k1 r3 s3", "conv_backward_data")
    assert all(passed.values()), passed


@pytest.mark.parametrize("seed", [0, 1])
def test_inputs_may_be_rounded_to_nearest_where_sums_are_cut(seed: int):
    """An operand of two numbers for each result, whose errors all results follow, had a gain of 41 deviations."""
    run = emulated(np.trunc, prepare=partial(sums.narrowed, TF32))
    contract = Contract(inputs="tf32", rounding="zero")
    passed = checks(run, contract, "n1 c101 h1 w60 k2 r1 s60", "conv_backward_data", seed)
    assert all(passed.values()), passed


def test_natural_data_have_no_interval():
    expected = Expectation(Recipe(OPERATORS["conv_forward"].on(parse(PROBLEMS[0])), "fp32", "natural", 0))
    (main,) = judgements(KnownKernel("", "", emulated(np.trunc), CUT), expected, infer=False)
    assert main.passed
    assert "gain z" not in {check.name for check in main.checks}
    assert "gain z" in checks(emulated(np.trunc), CUT, PROBLEMS[0])


def test_errors_of_the_one_number_of_a_filter_are_shared():
    """A right kernel of bf16 inputs that are cut off exceeded the limit on rms."""
    recipe = Recipe(OPERATORS["conv_forward"].on(parse("n1 c1 h4097 w1 k1 r1 s3 u2x4 p1:2")), "fp32", "fixed", 0)
    declared = Contract(inputs="bf16", rounding="zero")
    inputs, geometry = Expectation(recipe).inputs, recipe.workload.geometry
    y = Emulated(declared)(recipe.workload.operator, geometry, inputs, "fp32")
    assert expect(recipe).passes(y, declared)
    reference = recipe.workload.reference(inputs)["y"]
    doubled = {"y": (2 * y["y"] - reference).astype(np.float32)}
    assert not expect(recipe).passes(doubled, declared)
