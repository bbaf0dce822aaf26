"""Inputs with all bits of a format, and at the ends of its range: references, and what kernels are let off."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from conformance.dtypes import DTYPES, FORMATS, PACKED, STORAGE
from conformance.inputs.natural import BINADES, HIGHEST, LAWS, law_of
from conformance.inputs.stream import Stream
from conformance.judge import Contract, Exact
from conformance.judge.limits import limits
from conformance.judge.residuals import measure
from conformance.operators import CONVOLUTIONS, FAMILIES, OPERATORS, ORDINARY, Arrays
from conformance.problems.parameters import SIMPLEST
from conformance.problems.parameters import geometry as geometry_of
from conformance.problems.table import applies
from tests.calibration.kernels.kernel import DEFAULT, Mutant, exact
from tests.calibration.mutation import outcomes
from tests.kit import expectation

drawn = partial(expectation, seed=3)


def made(family: str, **sizes: int) -> Any:
    """The simplest problem of a family but for these of its sizes."""
    simplest = SIMPLEST[family, FAMILIES[family].rank]
    return geometry_of(family, simplest | {name: size for name, size in sizes.items() if name in simplest})


def fractions(array: np.ndarray) -> np.ndarray:
    return np.array([Fraction(value) for value in array.astype(np.float64).flat], object).reshape(array.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_significands_use_the_first_bit_and_the_last(dtype: str):
    precision = FORMATS[dtype].precision
    values = Stream("some").significands((3, 50_000), precision, STORAGE[dtype]).astype(np.float64)
    assert (np.abs(values) >= 0.5).all()
    assert (np.abs(values) < 1).all()
    assert (np.ldexp(values, precision) % 2 == 1).all()
    assert abs(values.mean()) < 0.02
    np.testing.assert_array_equal(values[0, :9], Stream("some").significands((9,), precision, np.dtype(np.float64)))


@pytest.mark.parametrize("dtype", [*DTYPES, "fp8_e4m3", "fp8_e5m2"])
def test_natural_numbers_have_all_bits_at_all_magnitudes(dtype: str):
    """A kernel that is right where small numbers have few bits passed, and one with 24 bits and one scale an image."""
    inputs = drawn("conv_forward", "n4 c16 h24 w23 k64 r3 s3", dtype, "natural").inputs
    format = FORMATS[dtype]
    for name, array in inputs.items():
        sizes = np.abs(array.astype(np.float64))
        assert ((sizes >= 2.0 ** (HIGHEST - BINADES[dtype])) & (sizes < 2.0**HIGHEST)).all()
        significands, exponents = np.frexp(sizes)
        lasts = np.ldexp(significands, format.precision) % 2
        for exponent in range(max(exponents.min() + 1, exponents.max() - 8), exponents.max()):
            of_binade = lasts[exponents == exponent]
            if not of_binade.size:
                continue
            # within the binade of a narrow format a law falls visibly
            allowed = 2.5 / np.sqrt(of_binade.size) + 2.0 ** (1 - format.precision)
            assert abs(of_binade.mean() - 0.5) < allowed, (name, exponent)
        assert abs(np.sign(array.astype(np.float64)).mean()) < 0.1
    halves = np.sort(np.median(np.abs(inputs["x"].astype(np.float64)).reshape(4, 16, 2, -1), axis=(1, 3)), axis=1)
    assert (halves[:, 1] > 4 * halves[:, 0]).all(), "one half of each image is darker"


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_natural_numbers_follow_their_law(law: Any):
    sizes = np.abs(Stream("some").numbers((200_000,), law_of(law, "fp32")))
    least, most = (law(2.0**exponent) for exponent in (HIGHEST - BINADES["fp32"], HIGHEST))
    for size in (2.0**-12, 0.01, 0.1, 0.3, 1, 1.7, 3):
        share = (law(size) - least) / (most - least)
        # cells are an eighth of a binade wide, within which numbers are uniform
        assert abs((sizes < size).mean() - share) < 5 * np.sqrt(share * (1 - share) / sizes.size) + 0.01 * share


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_references_of_all_bits_are_exact(dtype: str):
    """Sums of products, and averages, in rational numbers; the low part leaves less than 2^-100."""
    conv = drawn("conv_forward", "n2 c3 h3 w3 k4 r3 s3 b1", dtype, "natural")
    pool = drawn("avg_pool_forward", "pool n2 c2 h3 w3 r3 s3 valid1", dtype, "natural")
    x, w, bias = (fractions(conv.inputs[name]) for name in ("x", "w", "bias"))
    wanted = {
        "conv_forward": [(x[n] * w[k]).sum() + bias[k] for n in range(2) for k in range(4)],
        "avg_pool_forward": [image.sum() / 9 for image in fractions(pool.inputs["x"]).reshape(4, 9)],
    }
    for expected in (conv, pool):
        high = expected.reference["y"].reshape(-1)
        low = expected.rest["y"].reshape(-1) if dtype == "fp64" else np.zeros_like(high)
        for value, first, second in zip(wanted[expected.recipe.workload.operator.name], high, low, strict=True):
            assert first == float(value)
            left = abs(value - Fraction(first) - Fraction(second))
            assert left <= abs(value) * Fraction(2) ** (-100 if dtype == "fp64" else -53)


def test_errors_are_measured_from_both_parts():
    exact_value, allowed = np.ones(4), limits(Contract(), "fp64", 1)
    rest = np.full(4, 2.0**-54)
    found = measure(exact_value + 2.0**-52, exact_value, exact_value, allowed, rest)
    assert found.total == 4 * (2.0**-52 - 2.0**-54)


@pytest.mark.parametrize("distribution", ["range", "subnormal"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_ends_of_the_range_are_exact_in_every_order(operator: str, dtype: str, distribution: str):
    """In the accumulator's format, with the terms of a group the other way round."""
    expected = drawn(operator, "n2 c4 h6 w7 k8 r3 s3 p1", dtype, distribution)
    format, wide = FORMATS[dtype], np.float64 if dtype == "fp64" else np.float32
    backwards = {name: array[::-1, ::-1].astype(wide) for name, array in expected.inputs.items()}
    with np.errstate(over="ignore"):
        (found,) = expected.recipe.workload.reference(backwards, wide).values()
        (reference,) = expected.reference.values()
        stored = reference.astype(wide).astype(STORAGE[dtype])
        np.testing.assert_array_equal(found[::-1, ::-1].astype(STORAGE[dtype]), stored)
    sizes = np.abs(stored.astype(np.float64))
    if distribution == "range":
        assert np.isinf(sizes).any()
        assert (np.isfinite(sizes) & (sizes > 2.0 ** (format.emax - 6))).any()
        assert not ((sizes > 0) & (sizes < format.smallest_normal)).any()
    else:
        assert ((sizes > 0) & (sizes < format.smallest_normal)).any()
        assert all(
            ((np.abs(a.astype(np.float64)) < format.smallest_normal) & (a != 0)).any() for a in expected.inputs.values()
        )


@pytest.mark.parametrize("operator", ORDINARY)
def test_every_input_has_a_value_that_is_not_finite(operator: str):
    family = OPERATORS[operator].family
    text = made(family, n=2, c=4, h=8, w=9, k=12, r=3, s=3, p0=1, p1=1, p2=1, p3=1, b=1).descriptor
    expected = drawn(operator, text, "bf16", "nonfinite")
    if operator == "conv_bn_backward":
        assert all(np.isnan(expected.inputs[name]).any() for name in ("dy", "w", "gamma"))
    else:
        spoiled = {n for n, array in expected.inputs.items() if not np.isfinite(array.astype(np.float64)).all()}
        whole = {n for n, array in expected.inputs.items() if array.dtype == STORAGE[PACKED]}
        assert spoiled == expected.inputs.keys() - whole - ({"x"} if operator == "conv_bn_forward" else set())
    main = expected.reference[next(iter(expected.reference))]
    assert operator == "conv_bn_backward" or np.isfinite(main).any()


def test_exempted_distributions_are_not_counted():
    """A kernel that flushes everything beneath the normal range keeps a contract that says so."""

    def run(operator, geometry, inputs: Arrays, dtype: str) -> Arrays:
        return {n: np.where(np.abs(a) < 2.0**-126, 0, a) for n, a in exact(operator, geometry, inputs, dtype).items()}

    recipe = drawn("conv_forward", "n1 c2 h4 w4 k4 r1 s1", "fp32", "subnormal").recipe
    for contract, detected in ((DEFAULT, True), (Contract(subnormals="flushed"), False)):
        (found,) = outcomes([Mutant("flushing", "values", run, contract, base=exact)], "conv_forward", [("", recipe)])
        assert found.detected == found.differs == detected


@pytest.mark.parametrize("operator", ["conv_forward", "conv_backward_data", "conv_backward_weight"])
def test_large_fp16_sums_fit_and_half_of_them_do_not(operator: str) -> None:
    expected = drawn(operator, "n2 c16 h4 w5 k16 r3 s3 p1", "fp16", "large")
    (total,) = expected.reference.values()
    operand = OPERATORS[operator].operand
    positive = np.maximum(expected.inputs[operand], 0)
    half = expected.recipe.workload.reference(expected.inputs | {operand: positive})
    assert np.abs(total).max() <= 65504 < min(part.max() for part in half.values())


def test_the_maximum_of_negative_zeros_is_negative() -> None:
    expected = drawn("max_pool_forward", "maxpool n2 c5 h8 w9 r2 s3", "fp32", "mixed")
    right = {"y": expected.reference["y"].astype(np.float32)}
    assert Exact(expected).judge(right, Contract())[0].passed
    assert not Exact(expected).judge({"y": right["y"] + np.float32(0)}, Contract())[0].passed


@pytest.mark.parametrize("operator", [name for name, one in OPERATORS.items() if one.takes_empty_batch])
def test_an_empty_batch_has_every_distribution(operator: str):
    """Problems with it are drawn in all of them."""
    family = OPERATORS[operator].family
    geometry = made(family, n=0, c=4, h=5, w=5, k=4, r=3, s=3, b=1)
    every = product(OPERATORS[operator].dtypes, FAMILIES[family].distributions)
    for dtype, distribution in ((d, name) for d, name in every if applies(name, d)):
        expected = drawn(operator, geometry, dtype, distribution)
        assert all(not np.any(array) for array in expected.reference.values())


@pytest.mark.parametrize("text", ["maxpool n1 c3 h4 w4 r2 s2", "maxpool n1 c3 h4 w4 r4 s4"])
def test_a_maximum_of_minus_infinities_alone_is_asked_for(text: str):
    """Also of a window that covers the image: two engines of others began such a search with the smallest number."""
    expected = drawn("max_pool_forward", text, "fp32", "mixed").reference["y"]
    assert np.isneginf(expected[0, 2]).all()
    assert not np.isneginf(expected[0, :2]).all()


def test_natural_numbers_of_no_channels_are_none():
    """A problem of fuzz without channels raised a TypeError: an empty list of powers has no whole numbers."""
    expected = drawn("conv_forward", "n1 c0 h1 w2 k3 r1 s1 b1", "fp32", "natural")
    assert expected.inputs["x"].shape == (1, 0, 1, 2)
    assert np.isfinite(expected.reference["y"]).all()
