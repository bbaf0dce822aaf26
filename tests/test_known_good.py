"""Every known-good kernel passes under its contract, and is detected under a stricter one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import ml_dtypes
import numpy as np
import pytest

from conformance.dtypes import BF16, FP16, FP32, TF32, WHOLE
from conformance.inputs import Expectation, Recipe
from conformance.judge import Contract
from conformance.operators import CONVOLUTIONS, OPERATORS, ConvGeometry
from conformance.problems.table import applies
from tests.calibration import false_alarms as campaign
from tests.calibration.kernels import sums
from tests.calibration.kernels.kernel import CampaignRow, KnownGood
from tests.calibration.kernels.rounding import parts, rounded, stored
from tests.calibration.kernels.sums import Sum
from tests.calibration.known_kernels import KNOWN_GOOD, MEDIUM, judgements

SEED = 0
"""Others are for `python -m tests.calibration false-alarms`."""
PROBLEMS = tuple(
    ConvGeometry.parse(text)
    for text in (
        "n3 c1 h7 w5 k1 r1 s1",
        "n2 c6 h11 w8 k10 r3 s3 u2x1 p0:1x2:0 d1x2 g2 b1",
        "n2 c8 h9 w8 k12 r3 s3 p1x2:0 g2 b1",
        "n1 c64 h5 w6 k12 r3 s3 p1",
    )
)
NAMES = [known_good.name for known_good in KNOWN_GOOD]
ONE = 1.0
ULP = 2.0**-23
"""Spacing of fp32 at 1."""

every = pytest.mark.parametrize("known_good", KNOWN_GOOD, ids=lambda kernel: f"{kernel.family}-{kernel.name}")
every_convolution = pytest.mark.parametrize(
    "known_good", [a for a in KNOWN_GOOD if a.family == "conv"], ids=lambda known_good: known_good.name
)


@cache
def expected(operator: str, problem: ConvGeometry, dtype: str, distribution: str) -> Expectation:
    return Expectation(Recipe(OPERATORS[operator].on(problem), dtype, distribution, SEED))


def total(algorithm: Sum, *terms: float) -> float:
    return product(algorithm, terms, [1.0] * len(terms))


def product(algorithm: Sum, a: list[float] | tuple[float, ...], b: list[float]) -> float:
    found = algorithm(np.array(a).reshape(1, 1, -1), np.array(b).reshape(1, -1, 1))
    return float(found.item())


def test_collection_is_large_and_its_names_are_unique():
    assert len(set(NAMES)) == len(NAMES) >= 16


@pytest.mark.parametrize("operator", CONVOLUTIONS)
@every_convolution
def test_known_good_kernel_passes(known_good: KnownGood, operator: str):
    alarms = [
        f"{problem.descriptor} {dtype} {distribution}: {judgement.explain()}"
        for problem in PROBLEMS
        for dtype in known_good.dtypes
        if known_good.applies(operator, problem, dtype)
        for distribution in known_good.distributions
        if applies(distribution, dtype)
        for judgement in judgements(known_good, expected(operator, problem, dtype, distribution))
        if not judgement.passed
    ]
    assert not alarms, "\n".join(alarms)


@every
def test_known_good_kernel_is_detected_under_a_stricter_contract(known_good: KnownGood):
    if WHOLE.issuperset(known_good.dtypes):
        assert known_good.stricter is None, "whole numbers are right under every contract"
    elif "requantized" in known_good.family:
        assert known_good.stricter is None, "8 bits of a result hide the accumulator"
    elif known_good.stricter is None:
        assert known_good.contract == Contract(accumulate="fp64"), "only the strictest contract has none above"
    else:
        assert any(campaign.detected_when_stricter(known_good, text) for text in MEDIUM[known_good.family])


@every_convolution
def test_every_direction_and_distribution_that_is_not_run_has_a_reason(known_good: KnownGood):
    assert known_good.distributions
    assert all(known_good.exempted.values())
    one_direction = known_good.contract.algorithm != "direct" or WHOLE.issuperset(known_good.dtypes)
    assert len(known_good.operators) == 3 or one_direction


TIES = {
    "down to even": (ONE + 2**-11, ONE),
    "up to even": (ONE + 3 * 2**-11, ONE + 2**-9),
    "below the tie": (ONE + 2**-11 - 2**-30, ONE),
    "above the tie": (ONE + 2**-11 + 2**-30, ONE + 2**-10),
    "carry": (2 - 2**-12, 2.0),
    "subnormal": (2.0**-136 * 1.5, 2.0**-135),
    "zero": (0.0, 0.0),
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("value", "nearest"), TIES.values(), ids=TIES)
def test_rounding_to_eleven_bits_takes_ties_to_even(value: float, nearest: float, sign: int):
    assert rounded(np.array([sign * value]), TF32) == sign * nearest


def test_rounding_toward_zero_drops_what_does_not_fit():
    values = np.array([ONE + ULP * 0.999, -ONE - ULP * 0.999, ULP * 2.0**-126 * 0.75, np.inf, np.nan])
    np.testing.assert_array_equal(rounded(values, FP32, np.trunc), [ONE, -ONE, 0, np.inf, np.nan])


@pytest.mark.parametrize(("format", "dtype"), [(FP16, np.float16), (BF16, ml_dtypes.bfloat16), (FP32, np.float32)])
def test_rounding_is_the_formats_own(format, dtype):
    numbers = np.random.default_rng(0).standard_normal(20000) * np.exp2(np.linspace(-30, 14, 20000))
    numbers = numbers.astype(np.float32 if dtype != np.float32 else np.float64)
    np.testing.assert_array_equal(rounded(numbers.astype(np.float64), format), numbers.astype(dtype).astype(np.float64))


def test_storing_rounds_once():
    just_above_a_tie = np.array([ONE + 2**-8 + 2**-40])
    assert stored(just_above_a_tie, "bf16") == ONE + 2**-7


@pytest.mark.parametrize("format", [TF32, BF16])
def test_halves_add_up_to_twice_the_bits(format):
    values = np.random.default_rng(1).uniform(-1, 1, 1000).astype(np.float32).astype(np.float64)
    high, low = parts(values, format, 2)
    assert np.all(np.abs(values - high - low) <= format.unit_roundoff**2 * np.abs(values))
    assert np.all(rounded(low, format) == low)


BIG = 2.0**24
ORDERS = {
    "sequential": (Sum(), (BIG, 1, 1), BIG),
    "backwards": (Sum(order=sums.backwards), (BIG, 1, 1), BIG + 2),
    "pairwise": (Sum(lanes=sums.blocks(1), combine=sums.pairwise), (BIG, -BIG, 1, 1, 1), 3),
    "pairwise loses": (Sum(lanes=sums.blocks(1), combine=sums.pairwise), (BIG, 1, -BIG, 0), 0),
    "blocks": (Sum(lanes=sums.blocks(2)), (1, 1, BIG, 0, 2), BIG + 4),
    "lanes side by side": (Sum(lanes=sums.always(2), strided=True), (BIG, 1, -BIG, 1, 0), 2),
    "lanes on end": (Sum(lanes=sums.always(2)), (BIG, 1, -BIG, 1), 1),
    "more lanes than terms": (Sum(lanes=sums.always(16)), (1, 2), 3),
    "partials in bf16": (Sum(lanes=sums.always(2), kept=BF16), (257, 0, 1, 0), 257),
    "running sum in bf16": (
        Sum(lanes=sums.always(2), kept=BF16, combine=partial(sums.in_turn_stored, BF16)),
        (257, 0, 1, 0),
        256,
    ),
    "kahan": (Sum(step=sums.kahan), (ONE, *[ULP / 2] * 8), ONE + 4 * ULP),
    "not kahan": (Sum(), (ONE, *[ULP / 2] * 8), ONE),
    "nearest": (Sum(), (ONE, -(2**-30)), ONE),
    "toward zero": (Sum(step=sums.rounding_to(FP32, np.trunc), work=np.float64), (ONE, -(2**-30)), ONE - ULP / 2),
    "toward zero, negative": (
        Sum(step=sums.rounding_to(FP32, np.trunc), work=np.float64),
        (-ONE, 2**-30),
        -ONE + ULP / 2,
    ),
    "fp16 accumulator": (Sum(step=sums.rounding_to(FP16), work=np.float64), (2048, 1, 1), 2048),
    "fp64": (Sum(work=np.float64, held=np.float64), (BIG, 1, 2**-20), BIG + 1 + 2**-20),
    "matrix unit": (
        Sum(step=sums.exact_dot, lanes=sums.always(3), strided=True, work=np.float64),
        (BIG, 1, 1, 0, 0, 0.5),
        BIG + 2,
    ),
}


@pytest.mark.parametrize(("algorithm", "terms", "exact"), ORDERS.values(), ids=ORDERS)
def test_sum_is_what_it_says(algorithm: Sum, terms: tuple[float, ...], exact: float):
    assert total(algorithm, *terms) == exact


PRODUCTS = {
    "separate rounds the product": (Sum(), 0.0),
    "fused does not": (Sum(step=sums.fused_fp32, work=np.float64), 2.0**-24),
    "tf32 inputs": (Sum(prepare=partial(sums.narrowed, TF32)), -(2.0**-11)),
    "tf32x3 inputs": (Sum(prepare=partial(sums.split, TF32)), 0.0),
}


@pytest.mark.parametrize(("algorithm", "exact"), PRODUCTS.values(), ids=PRODUCTS)
def test_product_is_rounded_where_it_says(algorithm: Sum, exact: float):
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, from which 1 and 2^-11 are taken; in TF32 the factor is 1."""
    a = ONE + 2**-12
    assert product(algorithm, [-1.0, -(2.0**-11), a], [1.0, 1.0, a]) == exact


def test_orders_are_permutations():
    np.testing.assert_array_equal(sums.tap_by_tap(6, 2, 0), [0, 2, 4, 1, 3, 5])
    first, again, other = (sums.shuffled(50, 1, data) for data in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(np.sort(first), np.arange(50))
    assert not np.array_equal(first, other)


def test_campaign_lists_a_false_alarm(monkeypatch: pytest.MonkeyPatch):
    declared = KNOWN_GOOD[NAMES.index("fp16-accumulator")]
    overdeclared = replace(declared, contract=Contract())
    monkeypatch.setattr(campaign, "KNOWN_GOOD", (overdeclared,))
    margins = campaign.Margins()
    for verdict in campaign.verdicts(CampaignRow(PROBLEMS[2].descriptor, ("conv_forward",)), 0):
        margins.add(verdict)
    lines = list(campaign.report(margins))
    assert len(margins.alarms) >= 1
    assert lines[0].startswith("FALSE ALARM fp16-accumulator: ")
    asked = [name for name in declared.distributions if applies(name, "fp16")]
    assert f"{len(asked)} verdicts, {len(margins.alarms)} false alarms" in lines
    assert any(line.split()[:1] == ["rms"] for line in lines)
