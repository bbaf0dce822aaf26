"""Roundings of results as kernels of today do them: a contract allows its own kernel, and none that is a step worse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import Contract, check
from conformance.dtypes import FORMATS, STORAGE, neighbours
from conformance.inputs import Expectation, Recipe
from conformance.judge import Exact
from conformance.operators import OPERATORS, parse
from tests.documents import contract_examples


def expected(operator: str, problem: str, dtype: str, distribution: str) -> Exact:
    return Exact(Expectation(Recipe(OPERATORS[operator].on(parse(problem)), dtype, distribution, 0)))


def rounded(values: np.ndarray, dtype: str, up: Any, noise: int = 0) -> np.ndarray:
    """fp32 values, rounded up where the fraction beyond a number of the format is larger than `up`, a random number in
    stochastic rounding; `noise`: the most spacings that a result is off at random besides."""
    form = FORMATS[dtype]
    exponent = np.maximum(np.frexp(values.astype(np.float32))[1] - 1, form.emin)
    spacing = np.ldexp(1.0, exponent - form.precision + 1)
    steps = np.floor(values / spacing + 1 - up)
    off = np.random.default_rng(1).integers(-noise, noise, values.shape, endpoint=True) if noise else 0
    with np.errstate(over="ignore"):
        results: np.ndarray = ((steps + np.where(np.isfinite(values), off, 0)) * spacing).astype(np.float32)
    return results.astype(STORAGE[dtype])


def randomly(values: np.ndarray, dtype: str) -> np.ndarray:
    return rounded(values, dtype, 1 - np.random.default_rng(0).random(values.shape))


STOCHASTIC = Contract(stored="stochastic")
PLAIN = {
    "conv_forward": "n2 c8 h9 w7 k12 r3 s3 p1 b1",
    "conv_backward_weight": "n2 c8 h9 w7 k12 r3 s3 p1",
    "avg_pool_forward": "pool n2 c5 h11 w12 r3 s3 u2 p1",
    "conv_bn_forward": "bn n2 c8 h9 w9 k8 r3 s3 p1",
}


def of_fp32(case: Exact) -> dict[str, np.ndarray]:
    """Exact results as sums in fp32, whose errors are far below a spacing of 16 bits, have them."""
    return {name: exact.astype(np.float32) for name, exact in case.tensors.reference.items()}


def stored(case: Exact, store: Callable[[np.ndarray, str], np.ndarray]) -> dict[str, np.ndarray]:
    outputs, dtype = case.recipe.workload.outputs, case.recipe.dtype
    results = of_fp32(case)
    return {
        name: store(results[name], as_stored) if as_stored in ("bf16", "fp16") else results[name]
        for name, as_stored in ((name, tensor.stored_as(dtype)) for name, tensor in outputs.items())
    }


@pytest.mark.parametrize("distribution", ["fixed", "natural", "integer", "wide", "range", "subnormal", "large"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("operator", PLAIN)
def test_results_rounded_at_random_are_right(operator: str, dtype: str, distribution: str):
    if operator.startswith("conv_bn") and distribution != "fixed":
        pytest.skip("drawn by no row")
    case = expected(operator, PLAIN[operator], dtype, distribution)
    outputs = stored(case, randomly)
    for judgement in case.judge(outputs, STOCHASTIC):
        assert judgement.passed, judgement.explain()
    if distribution == "fixed":
        assert not case.passes(outputs, Contract())


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("operator", PLAIN)
@pytest.mark.parametrize(
    ("store", "check"),
    [
        (lambda values, dtype: np.copysign(rounded(np.abs(values), dtype, 1.0), values), "rounding z"),
        (lambda values, dtype: rounded(values, dtype, 1.0), "rounding z"),
        (lambda values, dtype: rounded(values, dtype, 0.0), "rounding z"),
        (lambda values, dtype: rounded(values, dtype, 0.5, noise=2), "worst error / bound"),
    ],
    ids=["cut", "down", "up", "noise of two spacings"],
)
def test_results_that_are_cut_or_noisy_are_wrong(store: Any, check: str, operator: str, dtype: str):
    case = expected(operator, PLAIN[operator], dtype, "fixed")
    judgement = case.judge(stored(case, store), STOCHASTIC)[0]
    assert check in [failed.name for failed in judgement.checks if not failed.passed], judgement.explain()


def test_probabilities_follow_the_distance():
    case = expected("conv_forward", PLAIN["conv_forward"], "bf16", "fixed")
    tossed = stored(
        case, lambda values, dtype: rounded(values, dtype, np.random.default_rng(5).integers(2, size=values.shape))
    )
    assert not case.passes(tossed, STOCHASTIC)


def test_wrong_results_that_are_rounded_at_random_are_no_race(tmp_path: Path):
    text = dict(contract_examples())["stochastic"].replace(
        "& 0xFFFF", "+ (generator.integers(3, 6, y.shape, np.uint32) << 16) & 0xFFFF"
    )
    (tmp_path / "noisy.py").write_text(text)
    result = check(tmp_path / "noisy.py", "n2 c8 h9 w9 k16 r1 s1", dtype="bf16", distribution="fixed", in_process=True)
    assert result.status == "fail"
    assert "differ from call to call" not in result.explain()


@pytest.mark.parametrize("distribution", ["scales", "ties", "natural", "special"])
@pytest.mark.parametrize(("dtype", "largest"), [("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_results_of_8_bits_are_rounded_at_random(dtype: str, largest: float, distribution: str):
    case = expected("conv_requantized", "q n2 c8 h9 w7 k12 r3 s3 p1 b1", dtype, distribution)
    scale = case.inputs["scale"].astype(np.float64).reshape(-1, 1, 1)
    exact = np.clip(case.tensors.magnitude["sums"] * scale, -largest, largest)
    (judgement,) = case.judge({"y": randomly(exact, dtype)}, STOCHASTIC)
    assert judgement.passed, judgement.explain()
    assert not case.passes({"y": rounded(exact, dtype, 1.0)}, STOCHASTIC)
    assert not case.passes({"y": rounded(exact, dtype, 0.5, noise=2)}, STOCHASTIC)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_neighbours_are_those_of_the_format(dtype: str):
    codes = np.arange(1 << 8 * STORAGE[dtype].itemsize).astype(f"u{STORAGE[dtype].itemsize}").view(STORAGE[dtype])
    numbers = np.unique(codes[np.isfinite(codes)].astype(np.float64))
    below, above = neighbours(numbers, dtype)
    np.testing.assert_array_equal(below, numbers)
    np.testing.assert_array_equal(above, numbers)
    for share in (0.25, 0.5, 0.75):
        below, above = neighbours(numbers[:-1] + share * np.diff(numbers), dtype)
        np.testing.assert_array_equal(below, numbers[:-1])
        np.testing.assert_array_equal(above, numbers[1:])
    spacing, beyond = np.diff(numbers)[-1], np.nan if dtype == "fp8_e4m3" else np.inf
    edge = numbers[-1] + np.array([0.25, 0.75, 1.25]) * spacing
    np.testing.assert_array_equal(neighbours(edge, dtype)[0], [numbers[-1], numbers[-1], beyond])
    np.testing.assert_array_equal(neighbours(edge, dtype)[1], [beyond] * 3)
    np.testing.assert_array_equal(neighbours(-edge, dtype)[1], [-numbers[-1], -numbers[-1], -beyond])


def atomic(case: Exact, additions: int, format: str) -> dict[str, np.ndarray]:
    """Stretches of channels, whose sums are rounded and added to the result in its format, in a random order."""
    x, w = (case.inputs[name].astype(np.float32) for name in ("x", "w"))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    y = np.zeros((len(x), len(w), *windows.shape[2:4]), STORAGE[format])
    parts = np.array_split(np.arange(x.shape[1]), additions)
    for part in np.random.default_rng(0).permutation(additions):
        sums = np.einsum("kcrs,nchwrs->nkhw", w[:, parts[part]], windows[:, parts[part]], optimize=True)
        y += sums.astype(STORAGE[format])
    return {"y": y}


@pytest.mark.parametrize("distribution", ["fixed", "natural", "absorbed", "integer"])
@pytest.mark.parametrize("additions", [4, 16, 64])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_partial_sums_cover_atomic_additions(dtype: str, additions: int, distribution: str):
    # sums of more terms that absorb each other leave the range of fp16
    problem = "n2 c96 h4 w5 k40 r1 s1" if distribution == "absorbed" else "n2 c128 h6 w6 k32 r3 s3"
    case = expected("conv_forward", problem, dtype, distribution)
    (judgement,) = case.judge(atomic(case, additions, dtype), Contract(splits=additions, partials=dtype))
    assert judgement.passed, judgement.explain()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_eight_times_the_atomic_additions_are_wrong(dtype: str):
    case = expected("conv_forward", "n2 c128 h6 w6 k32 r3 s3", dtype, "fixed")
    for additions in (8, 16):
        assert not case.passes(atomic(case, 8 * additions, dtype), Contract(splits=additions, partials=dtype))


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
