"""Convolution with batch normalisation: the reference to sixty digits, its slices, and bounds that are its own."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.inputs import Expectation
from conformance.judge import Contract, Exact, passes
from conformance.judge.output import Output
from conformance.judge.propagation import ContractArithmetic
from conformance.operators import NORMALISED, OPERATORS, Arrays, ConvBnGeometry, double_double
from conformance.operators.conv_bn.steps import Steps
from tests.calibration.conv_bn.known_bad import KNOWN_BAD
from tests.calibration.kernels.emulated import Emulated
from tests.kit import expectation
from tests.operators.definitions import convolved, gradients

SMALL = {
    "inside": "bn n2 c2 h4 w3 k3 r3 s2 p1 mom30",
    "outside": "bn n2 c2 h4 w3 k3 r2 s2 eps3 outside1",
    "groups": "bn n2 c4 h4 w5 k4 r2 s3 u2x1 p0:1x1:0 d1x2 g2 eps1",
    "bare": "bn n3 c2 h3 w3 k2 r3 s3 p1 affine0 run0",
    "two elements": "bn n2 c2 h3 w3 k3 r3 s3 eps2",
    "two elements, outside": "bn n2 c2 h3 w3 k3 r3 s3 eps2 outside1",
}
DIGITS = 60
ULPS = 8
"""Of float64, at the largest element of an output, or of the terms that cancel in it."""


expected = partial(expectation, seed=1)


def decimals(array: np.ndarray) -> np.ndarray:
    """Exactly, as an array of objects."""
    found: np.ndarray = np.vectorize(lambda value: Decimal(float(value)), otypes=[object])(array)
    return found


class Definition:
    """Everything in Decimal, as Ioffe and Szegedy write it, gradients by their chain rule."""

    def __init__(self, g: ConvBnGeometry, inputs: Arrays) -> None:
        self.g, self.given = g, {name: decimals(array) for name, array in inputs.items()}
        self.z = convolved(g, self.given["x"], self.given["w"], Decimal(0))
        self.eps, self.m = Decimal(g.eps), Decimal(g.count)
        self.mean = self.z.sum(axis=(0, 2, 3)) / self.m
        self.squares = ((self.z - self.of_channel(self.mean)) ** 2).sum(axis=(0, 2, 3))
        self.terms: dict[str, Decimal] = {}

    @staticmethod
    def of_channel(values: Any) -> Any:
        return values.reshape(1, -1, 1, 1)

    def parameter(self, name: str, absent: int) -> Any:
        return self.of_channel(self.given.get(name, np.full(self.g.k, Decimal(absent))))

    def normalised(self, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
        roots = np.array([v.sqrt() + self.eps if self.g.eps_outside else (v + self.eps).sqrt() for v in var])
        found: np.ndarray = (self.z - self.of_channel(mean)) / self.of_channel(roots) * self.parameter("gamma", 1)
        found += self.parameter("beta", 0)
        return found

    def conv_bn_forward(self) -> Arrays:
        var, unbiased = self.squares / (self.m - int(self.g.eps_outside)), self.squares / (self.m - 1)
        share = Decimal(self.g.momentum)
        found = {"y": self.normalised(self.mean, var), "mean": self.mean, "var": var}
        for name, new in (("running_mean", self.mean), ("running_var", unbiased)):
            if name in self.given:
                found[name] = (1 - share) * self.given[name] + share * new
        return found

    def conv_bn_inference(self) -> Arrays:
        return {"y": self.normalised(self.given["running_mean"], self.given["running_var"])}

    def conv_bn_backward(self) -> Arrays:
        freedom, d = self.m - int(self.g.eps_outside), self.z - self.of_channel(self.mean)
        root = np.array([(q / freedom + (0 if self.g.eps_outside else self.eps)).sqrt() for q in self.squares])
        s = root + (self.eps if self.g.eps_outside else 0)
        dy = self.given["dy"]
        scaled = dy * self.parameter("gamma", 1)
        largest = max(map(abs, (scaled / self.of_channel(s)).reshape(-1)))
        for name, other in (("dx", "w"), ("dw", "x")):
            self.terms[name] = largest * max(map(abs, self.given[other].reshape(-1)))
        by_var = -(scaled * d).sum(axis=(0, 2, 3)) / (s * s) / (2 * root)
        by_mean = -scaled.sum(axis=(0, 2, 3)) / s
        dz = scaled / self.of_channel(s) + 2 * d * self.of_channel(by_var / freedom) + self.of_channel(by_mean / self.m)
        found = gradients(self.g, dz, self.given["x"], self.given["w"], Decimal(0))
        if self.g.affine:
            found |= {"dgamma": (dy * d).sum(axis=(0, 2, 3)) / s, "dbeta": dy.sum(axis=(0, 2, 3))}
        return found


@pytest.mark.parametrize("distribution", ["fixed", "scaled", "shifted"])
@pytest.mark.parametrize("text", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("operator", NORMALISED)
def test_reference_is_right_to_the_last_digits(operator: str, text: str, distribution: str):
    case = expected(operator, text, distribution=distribution)
    with localcontext() as context:
        context.prec = DIGITS
        definition = Definition(case.recipe.workload.geometry, case.inputs)
        exact = getattr(definition, operator)()
        assert list(exact) == list(case.reference)
        for name, array in case.reference.items():
            unit = max(definition.terms.get(name, 0), *map(abs, exact[name].reshape(-1))) * Decimal(2) ** -53
            worst = max(map(abs, (decimals(array) - exact[name]).reshape(-1)))
            assert worst <= ULPS * unit, f"{name}: {float(worst / unit) if unit else worst} units"


@pytest.mark.parametrize("operator", NORMALISED)
@pytest.mark.parametrize("text", SMALL.values(), ids=SMALL)
def test_steps_of_the_mistakes_are_right_where_none_is_changed(text: str, operator: str):
    case = expected(operator, text)
    found = Steps().outputs(operator, case.recipe.workload.geometry, case.inputs)
    for name, exact in case.reference.items():
        np.testing.assert_array_max_ulp(found[name].astype(np.float32), exact.astype(np.float32), 1)


def test_constant_channels_have_no_variance_and_y_is_beta():
    g = ConvBnGeometry.parse("bn n2 c4 h6 w5 k4 r3 s3 eps9")
    case = expected("conv_bn_forward", g.descriptor, distribution="shifted")
    np.testing.assert_array_equal(case.reference["var"][[0]], 0)
    np.testing.assert_array_equal(case.reference["y"][:, 0], case.inputs["beta"][0])
    assert np.all(case.reference["var"][1:] > 0)
    dy = expected("conv_bn_backward", g.descriptor, distribution="shifted").reference
    assert np.all(np.isfinite(dy["dx"]))
    assert dy["dgamma"][0] == 0


def test_a_variance_far_below_the_mean_keeps_its_digits():
    g = ConvBnGeometry.parse("bn n4 c1 h1 w1 k1 r1 s1")
    z = np.array([1 + 3 * 2.0**-40, 1 - 2.0**-41, 1, 1 + 2.0**-42])
    inputs = {"x": z.reshape(4, 1, 1, 1), "w": np.ones((1, 1, 1, 1)), "gamma": np.ones(1), "beta": np.zeros(1)}
    inputs |= {"running_mean": np.zeros(1), "running_var": np.ones(1)}
    found = OPERATORS["conv_bn_forward"].reference(g, inputs)
    mean = sum(map(Fraction, z)) / 4
    var = sum((Fraction(v) - mean) ** 2 for v in z) / 4
    assert found["var"][0] == float(var)
    assert found["mean"][0] == float(mean)


LARGE_MEANS = ("bn n8 c4 w65 k6 s3", "bn n2 c4 h8 w9 k6 r3 s3", "bn n4 c3 d5 h6 w7 k4 t2 r3 s3")


@pytest.mark.parametrize("text", LARGE_MEANS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("operator", ["conv_bn_forward", "conv_bn_backward"])
def test_limits_beside_large_means_are_far_below_the_results(operator: str, dtype: str, text: str):
    """Those of dw were thirty times dw, so that any gradient of the filters passed there."""
    for seed in range(3):
        found = expected(operator, text, dtype, "shifted", seed=seed)
        for output in outputs(found, found.reference):
            allowed, scale = output.limits(Contract())
            limit = allowed.bound(output.reference, scale)
            assert np.square(limit).mean() <= np.square(output.reference).mean() / 100, output.name


def test_a_sum_that_cancels_is_no_dgamma():
    """Of an honest sum for the mean the error in dgamma was as large as that of sums that cancel."""
    (cancels,) = (mutant for mutant in KNOWN_BAD if "dgamma as a difference" in mutant.name)
    for seed in range(3):
        found = expected("conv_bn_backward", LARGE_MEANS[0], "fp32", "shifted", seed=seed)
        for run, right in ((cancels.base, True), (cancels.run, False)):
            made = run(found.recipe.workload.operator, found.recipe.workload.geometry, found.inputs, "fp32")
            failed = [output.name for output in outputs(found, made) if not passes(output, "shifted", Contract())]
            assert failed == ([] if right else ["dgamma"]), seed


PADDED = ("bn n1 c1 w1 k16 s1 p0:63", "bn n1 c2 h2 w2 k16 r3 s3 p15", "bn n1 c2 w2 k64 s3 p1:259")
"""Most of z is padding: behind few large squares, all others are equal."""


@pytest.mark.parametrize("text", PADDED)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "fp64"])
@pytest.mark.parametrize("operator", ["conv_bn_forward", "conv_bn_backward"])
def test_equal_squares_behind_large_ones_are_rounded_alike(operator: str, dtype: str, text: str):
    """Each lost the same of a sum that was all but complete, where half of that was allowed, and an eighth to rms."""
    for seed in range(3):
        case = expected(operator, text, dtype, seed=seed)
        computed = Emulated(Contract())(
            case.recipe.workload.operator, case.recipe.workload.geometry, case.inputs, dtype
        )
        judged = Exact(case).judge(computed, Contract())
        assert [judgement.explain() for judgement in judged if not judgement.passed] == []


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_twice_the_error_of_equal_squares_is_told(dtype: str):
    """These are 257, and lose more than all other roundings are allowed."""
    for seed in range(3):
        case = expected("conv_bn_forward", PADDED[-1], dtype, seed=seed)
        computed = Emulated(Contract())(
            case.recipe.workload.operator, case.recipe.workload.geometry, case.inputs, dtype
        )
        exact = case.reference["var"]
        computed["var"] = (exact + 2 * (computed["var"] - exact)).astype(computed["var"].dtype)
        assert [output.name for output in outputs(case, computed) if not passes(output, "fixed", Contract())] == ["var"]


def equal_behind_large(count: int) -> np.ndarray:
    """Return rows [64, 1 + count]: a large number, and a small one again and again; no two rows are alike."""
    draws = np.random.default_rng(1).uniform(1, 2, (64, 2)).astype(np.float32).astype(np.float64)
    return np.hstack([draws[:, :1], np.repeat(draws[:, 1:] / 4096, count, axis=1)])


@pytest.mark.parametrize("count", [30, 400])
def test_a_sum_loses_no_more_to_equal_terms_than_is_allowed_and_half_of_that(count: int):
    """The order is that which loses most. Short sums are compared at once."""
    elements = equal_behind_large(count)
    one_by_one = np.cumsum(elements.astype(np.float32), axis=1)[:, -1].astype(np.float64)
    arithmetic = ContractArithmetic(Contract(), "fp32")
    allowed = arithmetic.sum(elements) - replace(arithmetic, alike=False).sum(elements)
    share = np.abs(one_by_one - elements.sum(axis=1)) / allowed
    assert 0.5 < share.max() <= 1


def test_zeros_add_nothing_to_what_equal_terms_lose():
    elements = np.hstack([equal_behind_large(5), np.zeros((64, 30))])
    arithmetic = ContractArithmetic(Contract(), "fp32")
    allowed = arithmetic.sum(elements) - replace(arithmetic, alike=False).sum(elements)
    np.testing.assert_allclose(allowed, 5 * arithmetic.u * elements.sum(axis=1), rtol=0.01)


def outputs(found: Expectation, made: Arrays) -> list[Output]:
    return Exact(found).outputs(made)


def test_bounds_whose_squares_leave_float32_are_numbers():
    """A limit that is no number failed every element: of a right kernel with bf16 sums, one output a channel."""
    found = expected("conv_bn_backward", "bn n3 c1 w510 k2 s511 u5 p0:1 affine0 eps9 outside1", seed=0)
    for output in outputs(found, found.reference):
        _, bound = output.limits(Contract(accumulate="bf16"))
        assert np.isfinite(bound).all(), output.name


def test_a_few_large_results_are_judged_as_few():
    """Running variances of other data make some of 1,024 channels far larger: their roundings are all there is in the
    rms, and every right kernel's exceeded a limit for 3,072."""
    problem = "bn n3 c24 h2 w2 k1024 r2 s2 u5x3 p1:0 g8 affine0 mom0"
    one, other = (expected("conv_bn_inference", problem, "fp16", seed=seed) for seed in (0, 1))
    mixed = one.holding(one.inputs | {"running_var": other.inputs["running_var"]})

    for change, right in ((1.0, True), (1.0003, False)):
        outputs = {name: (array * change).astype(np.float16) for name, array in mixed.reference.items()}
        (found,) = Exact(mixed).judge(outputs, Contract())
        assert found.passed == right, found.explain()


@pytest.mark.parametrize("operator", NORMALISED)
def test_filters_that_are_not_finite_end_in_slices(operator: str):
    """Wide filters are convolved slice by slice; with NaN among them there was no last one, and memory ran out."""
    found = expected(operator, "bn n2 c1 h3 w3 k12 r1 s1 eps3", "fp64", "nonfinite")
    with np.errstate(all="ignore"):
        plain = Steps().outputs(operator, found.recipe.workload.geometry, found.inputs)
    assert any(np.isnan(array).any() for array in found.reference.values())
    for name, array in found.reference.items():
        np.testing.assert_allclose(array, plain[name], rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e30, 1e30, allow_subnormal=False), min_size=1, max_size=40), st.integers(8, 40))
def test_slices_add_up_and_are_narrow(values: list[float], bits: int):
    array = np.array([value if abs(value) > 1e-30 else 0.0 for value in values])
    parts = list(double_double.sliced(array, bits, (0,)))
    largest = Fraction(float(np.max(np.abs(array))))
    for place, value in enumerate(array):
        left = Fraction(value) - sum(Fraction(float(part[place])) for part in parts)
        assert abs(left) <= largest * Fraction(2) ** (1 - double_double.COVERED)
    assert all(double_double.width(part) <= bits + 1 for part in parts)


WIDTHS = {"one": ([1.0], 1), "three": ([5.0, 1.0], 3), "apart": ([2.0**20, 2.0**-3], 24), "none": ([0.0, np.inf], 1)}


@pytest.mark.parametrize(("values", "bits"), WIDTHS.values(), ids=WIDTHS)
def test_width_counts_from_the_highest_bit_to_the_lowest(values: list[float], bits: int):
    assert double_double.width(np.array(values)) == bits
