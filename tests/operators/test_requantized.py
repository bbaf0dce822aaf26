"""Requantized convolution: the definition written out in whole numbers and fractions, which results are right, what is
declared, and what a kernel of it is told."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import conformance
from conformance import Contract, Implementation
from conformance.dtypes import WHOLE, ends
from conformance.engine.export import export
from conformance.implementations.implementation import ImplementationError
from conformance.inputs import Expectation, Recipe
from conformance.judge import Exact
from conformance.judge.propagation import ContractArithmetic
from conformance.operators import OPERATORS, parse
from conformance.operators.requantized import TIES, stored
from conformance.problems import PROBLEMS, typed
from tests.calibration.known_kernels import MUTANTS

OPERATOR = OPERATORS["conv_requantized"]
KNOWN_BAD = tuple(mutant for mutant in MUTANTS if OPERATOR.name in mutant.operators and mutant.family == "formats")


def expected(text: str, dtype: str = "int8", distribution: str = "scales", seed: int = 0) -> Expectation:
    return Expectation(Recipe(OPERATOR.on(parse(text)), dtype, distribution, seed))


@pytest.mark.parametrize(("ties", "rounded"), [
    ("even", (-4, -2, -2, 0, 0, 2, 2, 4)),
    ("away", (-4, -3, -2, -1, 1, 2, 3, 4)),
    ("up", (-3, -2, -1, 0, 1, 2, 3, 4)),
])  # fmt: skip
def test_ties_go_where_they_are_declared_to(ties: str, rounded: tuple[float, ...]):
    halves = np.array([-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])
    np.testing.assert_array_equal(TIES[ties](halves), rounded)
    beside = np.nextafter(halves, 0)  # 0.49999999999999994 + 0.5 is 1 in float64
    np.testing.assert_array_equal(TIES[ties](beside), np.trunc(beside))


def test_what_overflows_fp8_saturates_or_does_not():
    values = np.array([448.0, 464.0, 464.1, 1e30, -1e30, np.inf, np.nan])
    np.testing.assert_array_equal(stored(values, "fp8_e4m3"), [448, 448, 448, 448, -448, 448, np.nan])
    loose = stored(values, "fp8_e4m3", saturates=False)
    np.testing.assert_array_equal(loose, [448, 448, *[np.nan] * 5])
    wide = stored(np.array([57344.0, 61440.0, -np.inf]), "fp8_e5m2", saturates=False)
    np.testing.assert_array_equal(wide, [57344, np.inf, -np.inf])


@pytest.mark.parametrize("ties", ["even", "away", "up"])
def test_exact_ties_have_one_right_result(ties: str):
    known = expected("q n2 c8 h9 w7 k12 r3 s3 p1 b1 zx3 zy-5", distribution="ties")
    exact = known.magnitude["sums"] * known.inputs["scale"].astype(np.float64).reshape(-1, 1, 1)
    half = (exact - np.floor(exact) == 0.5) & (np.abs(exact) < 100)
    assert np.count_nonzero(half) > 50
    right = {"y": stored(exact, "int8", -5, ties).astype(np.int8)}
    assert Exact(known).judge(right, Contract(ties=ties))[0].passed
    for other in TIES.keys() - {ties}:
        (found,) = Exact(known).judge(right, Contract(ties=other))
        assert not found.passed
        assert "rounded to nearest, ties" in found.explain()
    off = right["y"].copy()
    off[0, 0, 0, 0] += -1 if off[0, 0, 0, 0] > 0 else 1
    (found,) = Exact(known).judge({"y": off}, Contract(ties=ties))
    assert found.mismatched == 1


def test_two_results_are_right_where_fp32_cannot_tell():
    """A product within two roundings of fp32 of a boundary has two neighbours; a number further away has one."""
    total, first = 2**24 + 1, np.float32(20.5 / (2**24 + 1))  # fp32 does not hold the sum
    known = expected("q n1 c1 w1 k13 s1 b1")
    g = known.recipe.workload.geometry
    near = np.float64(first) * (1 + np.arange(-6, 7) * 2.0**-24)
    inputs = known.inputs | {
        "x": np.zeros((1, 1, 1), np.int8),
        "bias": np.full(13, total, np.int32),
        "scale": near.astype(np.float32),
    }
    enclosed = OPERATOR.errors(g).encloses
    assert enclosed is not None
    arithmetic = ContractArithmetic(Contract(), "int8")
    low, high = enclosed(g, inputs, OPERATOR.magnitude(g, inputs), arithmetic)["y"]
    u = Fraction(1, 2**24)
    seen = set()
    for k, scale in enumerate(inputs["scale"]):
        exact = Fraction(float(scale)) * total
        reach = exact * ((1 + u) ** 2 - 1)
        assert (low[0, k, 0], high[0, k, 0]) == (round(exact - reach), round(exact + reach))
        seen.add((low[0, k, 0], high[0, k, 0]))
    assert seen == {(20, 20), (20, 21), (21, 21)}
    # where fp32 holds the sum and the product there is one
    inputs["bias"][:] = 2**24
    low, high = enclosed(g, inputs, OPERATOR.magnitude(g, inputs), arithmetic)["y"]
    np.testing.assert_array_equal(low, high)


@pytest.mark.parametrize("problem", [
    p for p in PROBLEMS if p.level == "standard" and p.geometry.family == "conv_requantized"
], ids=lambda p: p.name)  # fmt: skip
def test_no_sum_leaves_32_bits_in_any_order(problem):
    """Of x less its zero point, and of x alone with the zero point's share taken off later."""
    g = problem.geometry
    for dtype, distribution in {(v.dtype, v.distribution) for v in problem.variants if v.dtype in WHOLE}:
        inputs = expected(g.descriptor, dtype, distribution).inputs
        w = np.abs(inputs["w"].astype(np.float64)).reshape(g.k, -1).sum(axis=1)
        bias = np.abs(inputs.get("bias", np.zeros(1)).astype(np.float64)).max(initial=0)
        furthest = np.abs(inputs["x"].astype(np.float64) - g.x_zero_point).max(initial=0)
        assert max(furthest, *map(abs, ends(dtype))) * w.max() + bias < 2**31


def test_sums_on_cancelled_need_more_than_fp32():
    for name in ("q n1 c515 h8 w9 k6 r3 s3 p1 b1 zx-3 zy7", "q n2 c1031 w19 k5 s3 p1 b1 zx2 zy-7"):
        known = expected(name, distribution="cancelled")
        assert np.abs(known.inputs["bias"]).max() > 2**24
        assert np.median(np.abs(known.magnitude["sums"])) < 2**20


def test_fp8_results_overflow_and_are_subnormal():
    for dtype, largest, smallest in (("fp8_e4m3", 448, 2.0**-6), ("fp8_e5m2", 57344, 2.0**-14)):
        known = expected("q n2 c8 h9 w7 k12 r3 s3 p1 b1", dtype)
        sizes = np.abs(known.reference["y"])
        assert (sizes == largest).any()
        assert ((sizes > 0) & (sizes < smallest)).any()


def test_zero_points_exist_in_whole_numbers_that_hold_them():
    assert {v.dtype for v in typed("q n1 c2 w5 k2 s3 zx1").variants} == {"int8", "uint8"}
    assert {v.dtype for v in typed("q n1 c2 w5 k2 s3 zx-1 zy3").variants} == {"int8"}
    assert {v.dtype for v in typed("q n1 c2 w5 k2 s3 zx3 zy128").variants} == {"uint8"}
    assert {v.dtype for v in typed("q n1 c2 w5 k2 s3").variants} == {"int8", "uint8", "fp8_e4m3", "fp8_e5m2"}
    with pytest.raises(ValueError, match=r"dtype fp8_e4m3: .* Choices: int8, uint8"):
        conformance.check(
            "numpy-direct", "q n1 c2 w5 k2 s3 zx1", operator=OPERATOR.name, dtype="fp8_e4m3", distribution="scales"
        )


def test_dtypes_that_an_operator_has_not_are_refused():
    message = "dtypes of max_pool_forward: 'int8' is not one of fp32, bf16, fp16, fp64"
    with pytest.raises(ImplementationError, match=message):
        Implementation("acme").implements("max_pool_forward", dtypes=("fp32", "int8"))
    with pytest.raises(ImplementationError, match="dtypes of conv_requantized: 'fp32' is not one of"):
        Implementation("acme").implements("conv_requantized")


def test_bytes_are_counted_in_each_tensors_format():
    g = parse("q n2 c8 h9 w7 k12 r3 s3 p1 b1")
    assert OPERATOR.on(g).traffic("int8") == g.x.size + g.filter.size + 4 * 12 + 4 * 12 + g.y.size
    plain = parse("n2 c8 h9 w7 k12 r3 s3 p1 b1")
    wide = OPERATORS["conv_forward"].on(plain).traffic("int8")
    assert wide == plain.x.size + plain.filter.size + 4 * 12 + 4 * plain.y.size


@pytest.mark.parametrize(
    ("dtype", "distribution"), [("int8", "scales"), ("fp8_e4m3", "scales"), ("fp8_e5m2", "special")]
)
def test_cases_of_8_bits_are_exported(tmp_path, dtype: str, distribution: str):
    result = conformance.check(
        "numpy-direct", "q n2 c4 h5 w4 k3 r3 s3 p1 b1", operator=OPERATOR.name, dtype=dtype, distribution=distribution
    )
    assert result.status == "pass", result.explain()
    export(result, tmp_path)
    with np.load(tmp_path / "inputs.npz") as held:
        assert held["x"].dtype == (np.int8 if dtype == "int8" else np.float32)
        np.testing.assert_array_equal(held["x"], result.inputs["x"].astype(held["x"].dtype))
    with np.load(tmp_path / "expected.npz") as held:
        np.testing.assert_array_equal(held["y"], result.expected)


def test_the_limit_is_zero_almost_everywhere():
    result = conformance.check(
        "numpy-direct", "requantized.plain", operator=OPERATOR.name, dtype="int8", distribution="scales"
    )
    assert result.limit is not None
    assert np.count_nonzero(result.limit) <= 2
    assert math.isclose(result.limit.max(), round(result.limit.max()))
