"""Convolution with batch normalisation: the reference to sixty digits, its bits, its judge."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.calibration import false_alarms as campaign
from conformance.calibration.known_kernels import MUTANTS
from conformance.calibration.mutation import outcomes, rows, score
from conformance.diagnosis import diagnose
from conformance.inputs import Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.judge import Contract, judge, outputs_of
from conformance.operators import NORMALISED, OPERATORS, Arrays, ConvBnGeometry, GeometryError, double_double, parse
from conformance.operators.conv_bn.steps import Steps
from conformance.operators.known_kernels.kernel import CampaignRow

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


def expected(operator: str, text: str, dtype: str = "fp32", distribution: str = "fixed", seed: int = 1) -> Expectation:
    return Expectation(Recipe(OPERATORS[operator], ConvBnGeometry.parse(text), dtype, distribution, seed))


def decimals(array: np.ndarray) -> np.ndarray:
    """Exactly, as an array of objects."""
    found: np.ndarray = np.vectorize(lambda value: Decimal(float(value)), otypes=[object])(array)
    return found


def taps(g: ConvBnGeometry) -> Any:
    """(places of y, places of x) of every product: k, c, r, s, p, q, row, column."""
    (top, _), (left, _) = g.padding
    for k, c, r, s in np.ndindex(g.k, g.c // g.groups, g.r, g.s):
        channel = k // (g.k // g.groups) * (g.c // g.groups) + c
        for p, q in np.ndindex(g.output_size):
            row, column = p * g.stride[0] + r * g.dilation[0] - top, q * g.stride[1] + s * g.dilation[1] - left
            if 0 <= row < g.h and 0 <= column < g.w:
                yield (slice(None), k, p, q), (slice(None), channel, row, column), (k, c, r, s)


@dataclass
class Exact:
    """Everything in Decimal, as Ioffe and Szegedy write it, gradients by their chain rule."""

    g: ConvBnGeometry
    inputs: Arrays

    def __post_init__(self) -> None:
        self.given = {name: decimals(array) for name, array in self.inputs.items()}
        self.z = np.full(self.g.y.shape, Decimal(0))
        for y, x, w in taps(self.g):
            self.z[y] += self.given["x"][x] * self.given["w"][w]
        self.terms: dict[str, Decimal] = {}
        self.eps, self.m = Decimal(self.g.eps), Decimal(self.g.count)
        self.mean = self.z.sum(axis=(0, 2, 3)) / self.m
        self.squares = ((self.z - self.of_channel(self.mean)) ** 2).sum(axis=(0, 2, 3))

    @staticmethod
    def of_channel(values: Any) -> Any:
        return values.reshape(1, -1, 1, 1)

    def parameter(self, name: str, absent: int) -> np.ndarray:
        found: np.ndarray = self.of_channel(self.given.get(name, np.full(self.g.k, Decimal(absent))))
        return found

    def normalised(self, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
        roots = np.array([v.sqrt() + self.eps if self.g.eps_outside else (v + self.eps).sqrt() for v in var])
        found: np.ndarray = (self.z - self.of_channel(mean)) / self.of_channel(roots)
        found *= self.parameter("gamma", 1)
        found += self.parameter("beta", 0)
        return found

    def conv_bn_forward(self) -> dict[str, np.ndarray]:
        var, unbiased = self.squares / (self.m - int(self.g.eps_outside)), self.squares / (self.m - 1)
        share = Decimal(self.g.momentum)
        found = {"y": self.normalised(self.mean, var), "mean": self.mean, "var": var}
        for name, new in (("running_mean", self.mean), ("running_var", unbiased)):
            if name in self.given:
                found[name] = (1 - share) * self.given[name] + share * new
        return found

    def conv_bn_inference(self) -> dict[str, np.ndarray]:
        return {"y": self.normalised(self.given["running_mean"], self.given["running_var"])}

    def conv_bn_backward(self) -> dict[str, np.ndarray]:
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
        found = {"dx": np.full(self.g.x.shape, Decimal(0)), "dw": np.full(self.g.filter.shape, Decimal(0))}
        for y, x, w in taps(self.g):
            found["dx"][x] += dz[y] * self.given["w"][w]
            found["dw"][w] += (dz[y] * self.given["x"][x]).sum()
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
        definition = Exact(case.recipe.geometry, case.inputs)
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
    found = Steps().outputs(operator, case.recipe.geometry, case.inputs)
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


DIGEST = """
import hashlib
from tests.test_conv_bn import bits_of_references
print(bits_of_references())
"""


def bits_of_references() -> str:
    """A digest of outputs that a BLAS computes by different routes when it has more threads."""
    digest = hashlib.sha256()
    for operator in NORMALISED:
        for distribution in ("fixed", "shifted"):
            outputs = expected(operator, "bn n2 c32 h12 w13 k24 r3 s3 p1", distribution=distribution).reference
            for array in outputs.values():
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def test_bits_do_not_depend_on_threads():
    def digest(threads: int) -> str:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, str(threads))
        run = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    assert len({digest(1), digest(2), bits_of_references()}) == 1


NUMBERS = st.floats(-1e30, 1e30, allow_subnormal=False).map(lambda v: v if abs(v) > 1e-30 else 0.0)
LISTS = st.lists(NUMBERS, min_size=1, max_size=40)
quick = settings(max_examples=60, deadline=None)


def fraction(double: Any) -> Fraction:
    return Fraction(float(double[0])) + Fraction(float(double[1]))


@quick
@given(NUMBERS, NUMBERS)
def test_two_sum_and_two_product_lose_nothing(a: float, b: float):
    first, second = np.array([a]), np.array([b])
    assert fraction(tuple(part[0] for part in double_double.two_sum(first, second))) == Fraction(a) + Fraction(b)
    product, error = double_double.two_product(first, second)
    assert Fraction(float(product[0])) + Fraction(float(error[0])) == Fraction(a) * Fraction(b)


@quick
@given(LISTS)
def test_sums_have_twice_the_digits(values: list[float]):
    exact, size = sum(map(Fraction, values)), sum(abs(Fraction(v)) for v in values)
    assert abs(fraction(double_double.summed(np.array(values))) - exact) <= size * len(values) * Fraction(2) ** -104


@quick
@given(LISTS, st.randoms(use_true_random=False))
def test_dot_products_have_twice_the_digits(values: list[float], random: Any):
    others = random.sample(values, len(values))
    terms = [Fraction(a) * Fraction(b) for a, b in zip(values, others, strict=True)]
    found = fraction(double_double.dot(np.array(values), np.array(others)))
    assert abs(found - sum(terms)) <= sum(map(abs, terms)) * len(values) * Fraction(2) ** -103


@quick
@given(NUMBERS, NUMBERS, st.integers(1, 10**7))
def test_quotients_have_twice_the_digits(a: float, b: float, by: int):
    high, low = double_double.two_sum(np.array([a]), np.array([b * 2.0**-53]))
    exact = (Fraction(float(high[0])) + Fraction(float(low[0]))) / by
    found = fraction(tuple(part[0] for part in double_double.divided((high, low), float(by))))
    assert abs(found - exact) <= abs(exact) * Fraction(2) ** -103


@quick
@given(LISTS, st.integers(8, 40))
def test_slices_add_up_and_are_narrow(values: list[float], bits: int):
    array = np.array(values)
    parts = list(double_double.sliced(array, bits, (0,)))
    largest = Fraction(float(np.max(np.abs(array))))
    for place, value in enumerate(values):
        left = Fraction(value) - sum(Fraction(float(part[place])) for part in parts)
        assert abs(left) <= largest * Fraction(2) ** (1 - double_double.COVERED)
    assert all(double_double.width(part) <= bits + 1 for part in parts)


WIDTHS = {"one": ([1.0], 1), "three": ([5.0, 1.0], 3), "apart": ([2.0**20, 2.0**-3], 24), "none": ([0.0, np.inf], 1)}


@pytest.mark.parametrize(("values", "bits"), WIDTHS.values(), ids=WIDTHS)
def test_width_counts_from_the_highest_bit_to_the_lowest(values: list[float], bits: int):
    assert double_double.width(np.array(values)) == bits


BAD = {
    "bn n1 c2 h3 w3 k2 r3 s3": "one element a channel",
    "bn n2 c2 h3 w3 k2 r3 s3 b1": "not understood",
    "bn n2 c2 h3 w3 k2 r3 s3 eps0": "eps1 to eps9",
    "bn n2 c2 h3 w3 k2 r3 s3 eps10": "eps1 to eps9",
    "bn n2 c2 h3 w3 k2 r3 s3 mom101": "mom0 to mom100",
    "bn n2 c2 h3 w3 k2 r3 s3 outside2": "outside0 or outside1",
    "bn n2 c2 h2 w3 k2 r3 s3": "more than the padded image",
    "bn n2 c3 h3 w3 k2 r3 s3 g2": "c is 3",
}


@pytest.mark.parametrize(("text", "says"), BAD.items(), ids=BAD)
def test_geometries_without_a_result_are_refused(text: str, says: str):
    with pytest.raises(GeometryError, match=says):
        ConvBnGeometry.parse(text)


def test_bias_is_refused():
    with pytest.raises(GeometryError, match="has no bias"):
        ConvBnGeometry(2, 2, (3, 3), 2, (3, 3), bias=True)


@pytest.mark.parametrize("operator", NORMALISED)
def test_right_outputs_have_no_diagnosis(operator: str):
    case = expected(operator, "bn n3 c10 h9 w11 k15 r3 s2 u2x3 p1:2x0:1 d1x2 g5 mom20")
    outputs = {name: array.astype(np.float32) for name, array in case.reference.items()}
    assert diagnose.diagnose(case.recipe.operator, case.recipe.geometry, case.inputs, outputs) is None


@pytest.mark.parametrize("operator", NORMALISED)
def test_mutants_are_detected(operator: str):
    of_family = [mutant for mutant in MUTANTS if mutant.family == "batchnorm" and operator in mutant.operators]
    found = outcomes(of_family, operator, rows(operator, "standard", ["bn.tutorial", "bn.groups-stride"]))
    detected, counted = score(found)
    assert counted > 90
    assert detected >= 0.97 * counted, [o.mutant for o in found if o.differs and not o.detected]


@pytest.mark.parametrize("text", ["bn n2 c4 h3 w3 k4 r3 s3", "bn n2 c4 h5 w4 k6 r3 s3 p1 g2 eps3 outside1"])
def test_honest_kernels_are_passed(text: str):
    found = list(campaign.verdicts(CampaignRow(text), SEED % 97))
    assert len(found) > 2000
    assert not [f"{verdict.kernel} {verdict.where} {verdict.text}" for verdict in found if not verdict.passed]


def test_bounds_whose_squares_leave_float32_are_numbers():
    """A limit that is no number failed every element: of a right kernel with bf16 sums, one output a channel."""
    operator, geometry = OPERATORS["conv_bn_backward"], parse("bn n3 c1 w510 k2 s511 u5 p0:1 affine0 eps9 outside1")
    expected = Expectation(Recipe(operator, geometry, "fp32", "fixed", 0))
    outputs = outputs_of(
        operator, geometry, "fp32", expected.inputs, expected.reference, expected.reference,
        lambda: expected.magnitude, expected.rest,
    )  # fmt: skip
    for output in outputs:
        _, bound = output.limits(Contract(accumulate="bf16"))
        assert np.isfinite(bound).all(), output.name


def test_a_few_large_results_are_judged_as_few():
    """Running variances of other data make some of 1,024 channels far larger: their roundings are all there is in the
    rms, and every right kernel's exceeded a limit for 3,072."""
    operator, geometry = OPERATORS["conv_bn_inference"], parse("bn n3 c24 h2 w2 k1024 r2 s2 u5x3 p1:0 g8 affine0 mom0")
    one, other = (Expectation(Recipe(operator, geometry, "fp16", "fixed", seed)) for seed in (0, 1))
    mixed = one.holding(one.inputs | {"running_var": other.inputs["running_var"]})

    def judged(change: float) -> Any:
        actual = {name: (array * change).astype(np.float16) for name, array in mixed.reference.items()}
        (output,) = outputs_of(
            operator, geometry, "fp16", mixed.inputs, actual, mixed.reference, lambda: mixed.magnitude, mixed.rest
        )
        return judge(output, "fixed", Contract())

    assert judged(1.0).passed, judged(1.0).explain()
    assert not judged(1.0003).passed


@pytest.mark.parametrize("operator", NORMALISED)
def test_filters_that_are_not_finite_end_in_slices(operator: str):
    """Wide filters are convolved slice by slice; with NaN among them there was no last one, and memory ran out."""
    geometry = parse("bn n2 c1 h3 w3 k12 r1 s1 eps3")
    expected = Expectation(Recipe(OPERATORS[operator], geometry, "fp64", "nonfinite", SEED))
    with np.errstate(all="ignore"):
        plain = Steps().outputs(operator, geometry, expected.inputs)
    assert any(np.isnan(array).any() for array in expected.reference.values())
    for name, array in expected.reference.items():
        np.testing.assert_allclose(array, plain[name], rtol=1e-9)
