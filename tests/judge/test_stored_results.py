"""Roundings of results as kernels of today do them: each contract allows its own kernel, and none that is a step worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import Contract
from conformance.inputs import Expectation, Recipe
from conformance.judge import Exact
from conformance.operators import OPERATORS, parse


def expected(operator: str, problem: str, dtype: str, distribution: str) -> Exact:
    return Exact(Expectation(Recipe(OPERATORS[operator].on(parse(problem)), dtype, distribution, 0)))


def high_product(a: int, b: int) -> int:
    """SaturatingRoundingDoublingHighMul of gemmlowp's fixedpoint.h, whose division cuts toward zero."""
    product = a * b
    nudged = product + (1 << 30 if product >= 0 else 1 - (1 << 30))
    return nudged // (1 << 31) if nudged >= 0 else -(-nudged // (1 << 31))


def divided(x: int, exponent: int) -> int:
    """RoundingDivideByPOT of gemmlowp's fixedpoint.h."""
    mask = (1 << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return (x >> exponent) + ((x & mask) > threshold)


def twice(total: int, multiplier: int, exponent: int) -> int:
    shifted = max(-(1 << 31), min((1 << 31) - 1, total << max(exponent, 0)))
    return divided(high_product(shifted, multiplier), max(-exponent, 0))


def once(total: int, multiplier: int, exponent: int) -> int:
    """The product of 64 bits is rounded by one shift, as TFLite does that is built with a single rounding."""
    return (total * multiplier + (1 << (30 - exponent))) >> (31 - exponent) if exponent < 31 else total << 31


def first_cut(total: int, multiplier: int, exponent: int) -> int:
    """The high product is cut instead of rounded."""
    shifted = max(-(1 << 31), min((1 << 31) - 1, total << max(exponent, 0)))
    return divided(shifted * multiplier >> 31, max(-exponent, 0))


def requantized(case: Exact, rounding: Callable[[int, int, int], int]) -> dict[str, np.ndarray]:
    sums, y_zero_point = case.tensors.magnitude["sums"], case.recipe.workload.geometry.y_zero_point
    y = np.empty(sums.shape, np.int8)
    for index in np.ndindex(sums.shape):
        significand, exponent = np.frexp(float(case.inputs["scale"][index[1]]))
        result = rounding(int(sums[index]), round(float(significand) * 2**31), int(exponent)) + y_zero_point
        y[index] = max(-128, min(127, result))
    return {"y": y}


@pytest.mark.parametrize("distribution", ["scales", "ties", "cancelled", "natural"])
@pytest.mark.parametrize(
    "problem", ["q n2 c8 h9 w7 k12 r3 s3 p1 b1 zx3 zy-5", "q n1 c515 h4 w5 k6 r3 s3 p1 b1 zx-3 zy7"]
)
def test_two_roundings_of_a_fixed_point_multiplier_have_one_result(problem: str, distribution: str):
    case = expected("conv_requantized", problem, "int8", distribution)
    (judgement,) = case.judge(requantized(case, twice), Contract(ties="gemmlowp"))
    assert judgement.passed, judgement.explain()


@pytest.mark.parametrize("rounding", [once, first_cut])
def test_another_rounding_is_not_that_of_gemmlowp(rounding: Any):
    case = expected("conv_requantized", "q n2 c8 h9 w7 k12 r3 s3 p1 b1 zx3 zy-5", "int8", "ties")
    right, wrong = requantized(case, twice), requantized(case, rounding)
    (judgement,) = case.judge(wrong, Contract(ties="gemmlowp"))
    assert judgement.mismatched == np.count_nonzero(right["y"] != wrong["y"]) > 50
    assert "rounded twice" in judgement.explain()
    for ties in ("even", "away", "up"):
        assert not case.passes(right, Contract(ties=ties))
