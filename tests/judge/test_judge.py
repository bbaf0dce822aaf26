"""The judge by itself: equality, bound, statistics, limits, contracts, and error locations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from conformance.dtypes import DTYPES, STORAGE
from conformance.failure import in_brief
from conformance.judge import Check, Contract, ContractError, Judgement, Output, Worst, judge
from conformance.judge.accuracy import ladder
from conformance.judge.judgement import locate, told
from conformance.judge.limits import limits
from conformance.judge.residuals import BLOCK
from conformance.operators import parse
from tests.calibration.kernels.kernel import KnownKernel, plain
from tests.calibration.known_kernels import judgements
from tests.kit import expectation

TERMS, COUNT = 4608, 1024
LOOSEST = Contract(inputs="bf16", accumulate="bf16", rounding="zero", algorithm="fft", subnormals="flushed")


def output(actual: np.ndarray, reference: np.ndarray, s2: np.ndarray, dtype: str = "fp32", terms: int = 9) -> Output:
    return Output("y", "NCHW"[: actual.ndim], dtype, terms, actual.astype(STORAGE[dtype]), reference, lambda: {"y": s2})


def worst(judgement: Judgement) -> Worst:
    assert judgement.worst is not None
    return judgement.worst


def failed(judgement: Judgement) -> set[str]:
    return {check.name for check in judgement.checks if not check.passed}


VALUES = {
    "same": (3.0, 3.0, True),
    "next": (np.nextafter(np.float32(3), np.float32(4)), 3.0, False),
    "sign": (-3.0, 3.0, False),
    "NaN where NaN is due": (np.nan, np.nan, True),
    "NaN where a number is due": (np.nan, 3.0, False),
    "number where NaN is due": (0.0, np.nan, False),
    "infinity where it is due": (np.inf, np.inf, True),
    "the other infinity": (-np.inf, np.inf, False),
    "infinity where NaN is due": (np.inf, np.nan, False),
    "largest where infinity is due": (np.finfo(np.float32).max, np.inf, False),
    "negative zero": (-0.0, 0.0, True),
    "zero": (0.0, -0.0, True),
    "smallest subnormal": (np.float32(1e-45), 0.0, False),
}


@pytest.mark.parametrize(
    ("value", "exact", "words", "share"),
    [
        (1.25, 0.0, "1.25, must be zero", "more than 1e+12, limit 1"),
        (np.nan, 2.0, "nan, expected 2.0", "not finite"),
        (2.5, 2.0, "2.5, expected 2.0, error 0.5, limit 2.14e-06", "2.334e+05 exceeds limit 1"),
    ],
)
def test_what_no_number_says_is_said_in_words(value: float, exact: float, words: str, share: str):
    """It was 7.351e+43 of a bound of 1.73e-44."""
    reference = np.array([1.0, exact]).reshape(2, 1, 1, 1)
    actual = np.array([1.0, value]).reshape(2, 1, 1, 1)
    said = judge(output(actual, reference, np.abs(reference)), "fixed", Contract()).explain().splitlines()
    assert said[1] == f"worst y[1, 0, 0, 0] = {words}"
    assert said[2].startswith(f"worst error / bound {share}; rms ")


def test_whole_numbers_are_printed_as_such():
    """A sum of 32 bits was 27746444.0."""
    reference = np.array([[27746443.0]])
    judgement = judge(output(reference + 1, reference, reference, "int32"), "integer", Contract())
    assert str(worst(judgement)) == "27746444, expected 27746443, error 1, limit 0"


@pytest.mark.parametrize("distribution", ["integer", "impulse", "special"])
@pytest.mark.parametrize(("value", "exact", "passes"), VALUES.values(), ids=VALUES)
def test_equality(value: float, exact: float, passes: bool, distribution: str):
    actual, reference = np.array([1.0, value]), np.array([1.0, exact])
    judgement = judge(output(actual, reference, np.ones(2)), distribution, Contract())
    assert (judgement.passed, judgement.mismatched) == (passes, 0 if passes else 1)
    assert passes or worst(judgement).index == (1,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equality_is_with_the_result_rounded_to_the_dtype(dtype: str):
    exact = np.array([1 + 2.0**-30, 1 / 3])
    rounded = exact.astype(STORAGE[dtype])
    assert judge(output(rounded, exact, np.ones(2), dtype), "integer", Contract()).passed
    assert not judge(output(rounded[::-1], exact, np.ones(2), dtype), "integer", Contract()).passed


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 8), ("fp16", 11)])
def test_a_wide_result_may_be_rounded_to_fp32_on_the_way_to_16_bits(dtype: str, bits: int):
    """Nothing converts fp64 to 16 bits directly: what lies just above the middle becomes the middle."""
    exact = np.array([1 + 2.0**-bits + 2.0**-30])
    by_fp32 = exact.astype(np.float32).astype(STORAGE[dtype])
    assert by_fp32.astype(np.float64) == 1.0
    contract = Contract(accumulate="fp64")
    assert judge(output(by_fp32, exact, np.full(1, 1e-12), dtype), "wide", contract).passed
    below = np.array([1 - 2.0**-bits]).astype(STORAGE[dtype])
    assert not judge(output(below, exact, np.full(1, 1e-12), dtype), "wide", contract).passed


CONTRACTS = {
    "exact": Contract(),
    "tf32": Contract(inputs="tf32"),
    "zero": Contract(rounding="zero"),
    "fft": Contract(algorithm="fft"),
}


@pytest.mark.parametrize("distribution", ["fixed", "wide"])
@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_bound_is_sharp(contract: Contract, sign: int, distribution: str):
    rng = np.random.default_rng(1)
    reference, s2 = rng.normal(size=200), np.ones(200)
    promised = replace(contract, accumulate="fp32")
    bound = limits(promised, "fp64", 9, 200).bound(reference[:1], s2[:1])[0]
    just_within, just_beyond = reference.copy(), reference.copy()
    just_within[0] += sign * bound * (1 - 1e-6)
    just_beyond[0] += sign * bound * (1 + 1e-6)
    verdicts = [
        judge(output(actual, reference, s2, "fp64"), distribution, promised) for actual in (just_within, just_beyond)
    ]
    assert ["worst error / bound" in failed(verdict) for verdict in verdicts] == [False, True]
    assert (verdicts[1].mismatched, worst(verdicts[1]).index) == (1, (0,))
    assert worst(verdicts[1]).bound == pytest.approx(bound)


@pytest.mark.parametrize("contract", [Contract(), LOOSEST], ids=["default", "loosest"])
@pytest.mark.parametrize("distribution", ["integer", "impulse", "special", "fixed", "wide"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_passes(bad: float, distribution: str, contract: Contract):
    actual, reference = np.ones(50), np.ones(50)
    actual[17] = bad
    judgement = judge(output(actual, reference, np.full(50, 1e30)), distribution, contract)
    assert not judgement.passed
    assert (judgement.mismatched, worst(judgement).index) == (1, (17,))


def test_nan_has_no_accuracy():
    actual = np.ones(50)
    actual[3] = np.nan
    judgement = judge(output(actual, np.ones(50), np.ones(50)), "fixed", Contract())
    assert judgement.inferred is None
    assert (judgement.profile["lambda"], judgement.profile["effective_bits"]) == (np.inf, -np.inf)


def test_results_that_round_to_infinity_may_be_infinite():
    reference = np.array([1e6, -1e6, 1.0])
    for values, mismatched in (
        ([np.inf, -np.inf, 1.0], 0),
        ([-np.inf, np.inf, 1.0], 2),
        ([np.inf, -np.inf, np.inf], 1),
    ):
        judgement = judge(output(np.array(values), reference, np.ones(3), "fp16"), "wide", Contract())
        assert judgement.mismatched == mismatched


def test_a_bound_that_is_not_finite_lets_nothing_pass():
    judgement = judge(output(np.full(9, 2.0), np.ones(9), np.full(9, np.inf)), "wide", Contract(inputs="tf32"))
    assert judgement.mismatched == 9


def test_check_of_nan_fails():
    assert not Check("x", float("nan"), float("inf")).passed


def test_every_block_of_a_large_output_is_compared():
    reference = np.ones((3, 5, BLOCK // 8, 2))
    actual = reference.copy()
    actual[0, 0, 0, 1], actual[1, 2, 3, 1], actual[2, 4, -1, 0] = 2, -1, 3
    judgement = judge(output(actual, reference, np.ones(actual.shape)), "fixed", Contract())
    assert (judgement.compared, judgement.mismatched) == (actual.size, 3)
    assert (worst(judgement).index, worst(judgement).value) == ((1, 2, 3, 1), -1)
    assert "3 of 30,720 elements mismatched" in judgement.explain()
    assert str(judgement.where) == "every 2nd c from 0 to 4, 3 of 1024 h"


@cache
def sums(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of products: sequential in fp32, exact, and their magnitudes."""
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-(2**18), 2**18, (COUNT, TERMS)).astype(np.float32) * np.float32(2.0**-18) for _ in range(2))
    exact = np.einsum("ts,ts->t", x, w, dtype=np.float64)
    s2 = np.sqrt(np.einsum("ts,ts->t", np.square(x), np.square(w), dtype=np.float64))
    return np.cumsum(x * w, axis=1, dtype=np.float32)[:, -1], exact, s2


SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_honest_sums_pass(seed: int):
    actual, exact, s2 = sums(seed)
    assert failed(judge(output(actual, exact, s2, terms=TERMS), "fixed", Contract())) == set()


def noise(exact: np.ndarray, s2: np.ndarray) -> np.ndarray:
    """Errors of random sign, each of them far within the bound."""
    sign = np.random.default_rng(9).choice([-1, 1], exact.shape)
    noisy: np.ndarray = exact + 0.9 * sign * 2.0**-24 * np.sqrt(TERMS) * s2
    return noisy


PLANTED: dict[str, tuple[Callable, str]] = {
    "gain of 2e-6": (lambda y, exact, s2: y * np.float64(1 + 2e-6), "gain z"),
    "gain of -2e-6": (lambda y, exact, s2: y * np.float64(1 - 2e-6), "gain z"),
    "offset of 1e-4": (lambda y, exact, s2: y + np.float64(1e-4), "offset z"),
    "offset of -1e-4": (lambda y, exact, s2: y - np.float64(1e-4), "offset z"),
    "twice the noise": (lambda y, exact, s2: noise(exact, s2), "rms"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("plant", "check"), PLANTED.values(), ids=PLANTED)
def test_statistics_see_what_the_bound_cannot(plant: Callable, check: str, seed: int):
    subject = output(plant(*sums(seed)), *sums(seed)[1:], terms=TERMS)
    judgement = judge(subject, "fixed", Contract())
    assert check in failed(judgement)
    assert judgement.mismatched == 0
    assert f"{check} " in judgement.explain()
    # a gain is not an arithmetic of lower precision, whose errors it may resemble
    assert judgement.inferred is None or ", if the errors are rounding" in judgement.explain()
    assert judge(subject, "wide", Contract()).passed


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_exact_results_pass_all_statistics(value: float):
    exact = np.full(100, value)
    assert judge(output(exact, exact, np.ones(100)), "fixed", Contract()).passed


class Anything(str):
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


FIELDS: dict[str, tuple[Any, str]] = {
    "inputs": ("fp8", "Contract(inputs='fp8'): must be one of exact, "),
    "accumulate": ("float32", "Contract(accumulate='float32'): must be one of auto, fp64, fp32, "),
    "rounding": (None, "Contract(rounding=None): must be one of nearest, zero"),
    "algorithm": ("gemm", "Contract(algorithm='gemm'): must be one of direct, "),
    "subnormals": (True, "Contract(subnormals=True): must be one of kept, flushed"),
    "partials": ("int8", "Contract(partials='int8'): must be one of fp32, "),
    "splits": (0, "Contract(splits=0): must be a whole number, at least 1"),
    "ties": ("some", "Contract(ties='some'): must be one of even, "),
    "overflow": ("some", "Contract(overflow='some'): must be one of "),
    "between": (Anything("storage"), "Contract(between='storage'): must be one of accumulator, storage"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_contract_names_field_and_choices(field: str):
    value, message = FIELDS[field]
    with pytest.raises(ContractError) as caught:
        Contract(**{field: value})
    assert str(caught.value).startswith(message)


def test_contract_has_no_subclasses():
    with pytest.raises(ContractError, match="Lax: Contract has no subclasses"):
        type("Lax", (Contract,), {})


@pytest.mark.parametrize(
    "text", ["n1 c3 h7 w5 k1 r1 s1", "n1 c3 h7 w7 k2 r3 s3 u2", "n1 c3 h7 w7 k2 r3 s3 d2", "pool n1 c2 h6 w6 r3 s3 u1"]
)
def test_winograd_is_judged_as_direct_where_it_does_not_exist(text: str):
    assert Contract(algorithm="winograd-f4").on(parse(text), "fp32") == Contract()


def test_winograd_is_judged_as_declared_where_it_exists():
    declared = Contract(algorithm="winograd-f4")
    for text in ("n1 c3 h7 w7 k2 r3 s3 p1", "bn n2 c3 h7 w7 k2 r3 s3"):
        assert declared.on(parse(text), "fp32") == declared


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", ["tf32", "fp16", "bf16", "tf32x3", "bf16x3"])
def test_inputs_that_a_format_holds_are_not_rounded(inputs: str, dtype: str):
    """Declared TF32 inputs widened the limits of fp16 by up to 7,700 times, and no bit of an input is lost."""
    lossless = dtype in {"tf32": ("fp16", "bf16"), "fp16": ("fp16",), "bf16": ("bf16",)}[inputs.partition("x")[0]]
    problem, declared = parse("n1 c3 h7 w7 k2 r3 s3"), Contract(inputs=inputs)
    assert declared.on(problem, dtype) == (Contract() if lossless else declared)
    assert (
        lossless
        or limits(declared, dtype, TERMS).relative > limits(Contract(), dtype, TERMS).relative
        or (
            (inputs, dtype) == ("fp16", "bf16")  # of bf16, fp16 has all bits and not the range
        )
    )


def test_filters_that_are_scaled_before_are_rounded():
    declared = Contract(inputs="fp16")
    assert declared.on(parse("bn n2 c3 h7 w7 k2 r3 s3"), "fp16") == declared


def test_no_precision_is_named_that_loses_no_bits():
    named = {dtype: {contract.inputs for contract in ladder(dtype, TERMS)} for dtype in ("fp16", "bf16")}
    assert named == {"fp16": {"exact", "bf16"}, "bf16": {"exact"}}


def test_there_are_no_more_splits_than_products():
    assert limits(Contract(splits=10**6, partials="bf16"), "fp32", 9) == limits(
        Contract(splits=9, partials="bf16"), "fp32", 9
    )


WEAK = Contract(accumulate="bf16", rounding="zero")
WHAT_ZEROS_DO = {
    "the bound shows them": (Contract(), "wide", np.ones(9), "fail"),
    "equality shows them": (Contract(), "integer", np.ones(9), "fail"),
    "the bound allows them": (WEAK, "wide", np.ones(9), "allowed"),
    "the statistics show them": (WEAK, "fixed", np.full(9, 5.0), "fail"),
    "the bound allows most": (WEAK, "wide", np.where(np.arange(9) < 5, 1.0, 1e6), "mostly"),
    "the bound allows a few": (WEAK, "wide", np.where(np.arange(9) < 4, 1.0, 1e6), "fail"),
    "of those that are not right anyway": (WEAK, "wide", np.where(np.arange(9) < 6, 0, [1.0, 1.0, 1e6] * 3), "mostly"),
    "the statistics show most": (WEAK, "fixed", np.full(9, 5.0) + 1e3 * (np.arange(9) > 6), "fail"),
    "they are right": (WEAK, "fixed", np.zeros(9), "right"),
    "they are exactly right": (Contract(), "integer", np.zeros(9), "right"),
    "NaN shows them": (WEAK, "special", np.full(9, np.nan), "fail"),
}


@pytest.mark.parametrize(("contract", "distribution", "exact", "zeros"), WHAT_ZEROS_DO.values(), ids=WHAT_ZEROS_DO)
def test_what_zeros_would_do(contract: Contract, distribution: str, exact: np.ndarray, zeros: str):
    one = output(exact, exact, np.ones(9), terms=100)
    assert judge(one, distribution, contract).zeros == zeros
    if zeros == "allowed":
        assert judge(output(0 * exact, exact, np.ones(9), terms=100), distribution, contract).passed


def test_errors_of_16_bit_accumulators_are_counted_by_channel():
    """One error for each of 64 channels, of 1,000 elements each: independent by channel, and no offset."""
    shared = np.repeat(np.where(np.arange(64) % 8 < 5, 1, -1), 1000).reshape(1, 64, 1000, 1)
    exact = np.random.default_rng(1).uniform(-1, 1, shared.shape)
    actual, ones = (exact + shared * 2.0**-9).astype(np.float32), np.ones(shared.shape)
    channels = np.arange(64)[:, None, None]
    one = Output("y", "NKPQ", "fp32", 9, actual, exact, lambda: {"y": ones}, channels=channels)
    assert failed(judge(one, "fixed", Contract(accumulate="bf16"))) == set()
    assert failed(judge(replace(one, channels=None), "fixed", Contract(accumulate="bf16"))) == {"offset z"}
    every = replace(one, actual=(exact + 2.0**-9).astype(np.float32))
    assert failed(judge(every, "fixed", Contract(accumulate="bf16"))) == {"offset z"}


def test_a_result_of_one_product_has_no_gain():
    """Beside a border an image of two elements leaves one product, and all channels had the gain of its number."""
    alone = (1 - 2.0**-8) * np.random.default_rng(1).integers(128, 256, 2001) * 2.0**-8
    exact = np.stack([alone, np.random.default_rng(2).uniform(0.5, 1, 2001)])

    def gained(exact: np.ndarray, change: float, dtype: str = "bf16") -> set[str]:
        actual = (exact * (1 + change)).astype(STORAGE[dtype])
        s2 = exact * np.array([[1], [0.8]])[: len(exact)]
        return failed(judge(Output("y", "NK", dtype, 2, actual, exact, lambda: {"y": s2}), "fixed", Contract()))

    assert gained(exact, 0) == set()
    assert "gain z" in gained(exact[::-1], 0), "of several products it would be one"
    assert "gain z" in gained(exact, 2.0**-9)
    assert "gain z" in gained(exact[:1], 2.0**-22, "fp32"), "of 24 bits it is one of the kernel's"


def test_a_gain_that_all_channels_have_from_one_operand_of_few_numbers_is_none():
    """Split-K partials of fp16 of an image of two elements had a gain of 7.1, of 6.2 allowed, over 70,001 channels."""
    weights = np.random.default_rng(1).uniform(-1, 1, (1, 70_001, 1, 1))
    own = np.array([2.0**-12, 2.0**-13, -(2.0**-14)])
    channels = np.arange(70_001)[:, None, None]

    def gained(relative: np.ndarray, terms: int = 2, taps: int = 1) -> set[str]:
        exact = weights * np.linspace(0.5, 1, relative.size)
        actual = (exact * (1 + relative)).astype(np.float32)
        ones = np.ones(exact.shape)
        one = Output("y", "NKPQ", "fp32", terms, actual, exact, lambda: {"y": ones}, channels=channels, taps=taps)
        return failed(judge(one, "fixed", Contract(accumulate="fp16")))

    hundred = np.full(100, 2.0**-12)
    assert gained(own) == set()
    assert gained(own, terms=9) == {"gain z"}, "of longer sums it is the kernel's"
    assert gained(hundred) == {"gain z"}, "with a hundred numbers it is one"
    assert gained(hundred, taps=9) == set(), "with eleven that a window sees nine times each it is none"


@pytest.mark.parametrize("text", ["n1 c1 h16 w1000 k1 r3 s1 b1", "n1 c4 h16 w1000 k1 r3 s3 b1"])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_bias_of_all_bits_is_no_gain(text: str, seed: int):
    """Ties of the sums before it leave even numbers: where the same bias is added to all, one direction is commoner."""
    expected = expectation("conv_forward", text, "fp32", "natural", seed)
    (judgement,) = judgements(KnownKernel("right", "good", plain), expected)
    assert failed(judgement) == set()
    truncated = KnownKernel("truncated", "bad", lambda *case: {"y": plain(*case)["y"] * np.float32(1 - 2e-6)})
    assert "rms" in failed(*judgements(truncated, expected))


LADDERS = {
    "tf32 inputs": [Contract(inputs=name) for name in ("exact", "tf32x3", "tf32")],
    "bf16 inputs": [Contract(inputs=name) for name in ("exact", "bf16x3", "bf16")],
    "bf16 in three parts": [Contract(inputs=name) for name in ("exact", "bf16x6", "bf16x9")],
    "fp16 inputs": [Contract(inputs=name) for name in ("exact", "tf32", "fp16")],
    "fp16 sums": [Contract(accumulate=name) for name in ("fp64", "fp32", "fp16")],
    "bf16 sums": [Contract(accumulate=name) for name in ("fp64", "fp32", "bf16")],
    "rounding": [Contract(rounding=name) for name in ("nearest", "zero")],
    "subnormals": [Contract(subnormals=name) for name in ("kept", "flushed")],
    "winograd": [Contract(algorithm=name) for name in ("winograd-f2", "winograd-f4", "winograd-f6")],
    "fft": [Contract(algorithm=name) for name in ("direct", "fft")],
    "splits": [Contract(splits=number) for number in (1, 2, 8)],
    "fp16 partials": [Contract(splits=4, partials=name) for name in ("fp32", "fp16")],
    "bf16 partials": [Contract(splits=4, partials=name) for name in ("fp32", "bf16")],
}
"""From the stronger promise to the weaker."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_weaker_promise_never_has_a_smaller_limit(ladder: list[Contract], dtype: str):
    s2 = np.repeat(np.geomspace(1e-40, 1e4, 30), 21)
    reference = s2 * np.tile(np.linspace(-5, 5, 21), 30)
    problem = parse("n1 c3 h7 w7 k2 r3 s3")
    there = [contract for contract in ladder if contract.on(problem, dtype) == contract]
    for terms in (1, 2, 3, 9, 576, 4608, 1 << 20):
        rungs = [limits(contract, dtype, terms, 1000) for contract in there]
        for strong, weak in pairwise(rungs):
            assert (strong.bound(reference, s2) <= weak.bound(reference, s2)).all()
            assert strong.unit <= weak.unit
            assert strong.one_sided <= weak.one_sided


MASKS: dict[str, Any] = {
    "every element": np.s_[:],
    "p = 5 (last)": np.s_[:, :, -1],
    "p = 0 (first)": np.s_[:, :, 0],
    "k = 2": np.s_[:, 2],
    "n = 1 (last), k = 0 (first), p = 3, q = 4": np.s_[1, 0, 3, 4],
    "every 2nd q from 1 to 7": np.s_[..., 1::2],
    "p = 0 and 3": np.s_[:, :, ::3],
    "q at both edges": np.s_[..., [0, -1]],
    "q 2..7 of 0..7": np.s_[..., 2:],
    "3 of 8 q, from 0 to 5": np.s_[..., [0, 1, 5]],
}


@pytest.mark.parametrize("phrase", MASKS)
def test_location_is_told_in_a_phrase(phrase: str):
    mask = np.zeros((2, 5, 6, 8), bool)
    mask[MASKS[phrase]] = True
    assert str(locate(mask, "NKPQ")) == phrase


def test_errors_everywhere_and_nowhere_in_particular_are_spread():
    n, k, p, q = np.indices((2, 5, 6, 8))
    assert str(locate((n + k + p + q) % 2 == 0, "NKPQ")) == "spread over every axis (50.0% of the elements)"


@pytest.mark.parametrize(
    ("scale", "said"),
    [(1000, {"every element", "worst y["}), (1 + 1e-3, {"every element", "worst y[", "gain z", "inferred precision"})],
)
def test_in_brief_only_errors_that_an_arithmetic_could_have_are_told_in_statistics(scale: float, said: set[str]):
    reference = np.linspace(-2, 3, 512).reshape(1, 1, 8, 64)
    text = brief(judge(output(reference * scale, reference, reference**2), "fixed", Contract()))
    assert {word for word in ("every element", "worst y[", "gain z", "inferred precision") if word in text} == said
    assert text.endswith("every element")


def test_in_brief_statistics_stay_where_no_element_is_wrong():
    checks = Check("worst error / bound", 0.4, 1), Check("gain z", 9, 6)
    right, wrong = (Judgement("y", 9, count, "c", checks, profile={"rms": 1.0}) for count in (0, 3))
    numbers = "worst error / bound 0.4 OK (limit 1); gain z 9 exceeds limit 6"
    assert numbers in brief(right)
    assert brief(right, wrong).count(numbers) == 1
    assert brief(right, wrong).endswith("unknown\ny: 3 of 9 elements mismatched (c)")


def test_in_brief_elements_are_counted_once():
    reference = np.ones((1, 1, 2, 2))
    found = judge(output(reference + 1, reference, reference), "integer", Contract())
    assert "elements 4" in found.explain()
    assert "elements 4" not in brief(found)


def test_what_stands_below_other_lines_is_left_out_as_well():
    reference = np.ones((1, 1, 2, 2))
    lines, failure = told("elements", [judge(output(reference + 1, reference, reference), "integer", Contract())])
    above = ["results differ", "in two lines", *lines]
    assert in_brief("\n".join(above), failure.below(2)).split("\n") == [one for one in above if "exceeds" not in one]


def brief(*wrong: Judgement) -> str:
    """Return what is said of wrong outputs in brief."""
    lines, failure = told("elements", wrong)
    return in_brief("\n".join(lines), failure)


def test_location_in_a_vector():
    assert str(locate(np.array([False, True, False]), "K")) == "k = 1"
