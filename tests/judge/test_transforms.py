"""Contracts of kernels that multiply other numbers than their inputs: what they do passes, a step worse does not."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest

from conformance.contract import Contract
from conformance.dtypes import BF16, FORMATS
from conformance.inputs.drawing import Recipe
from conformance.judge.expected import Expected, expect
from conformance.judge.limits import FILTER_GAIN, WINOGRAD, limits, winograd_matrices
from conformance.operators import OPERATORS, Arrays, parse
from tests.calibration.conv.transforms import fft, winograd
from tests.calibration.kernels import sums
from tests.calibration.kernels.rounding import Way, overflowing

SQUARE, GROUPS = "n2 c16 h14 w15 k12 r3 s3 p1 b1", "n1 c12 h9 w9 k8 r3 s3 p1 g4"
JUDGED = [
    (SQUARE, "conv_forward", "fixed"),
    (SQUARE, "conv_forward", "impulse"),
    (GROUPS, "conv_backward_data", "natural"),
    (GROUPS, "conv_forward", "wide"),
]
TRANSFORMS = {name: partial(winograd, name) for name in WINOGRAD} | {"fft": fft}


@cache
def expected(problem: str, dtype: str, distribution: str, operator: str = "conv_forward") -> Expected:
    return expect(Recipe(OPERATORS[operator].on(parse(problem)), dtype, distribution, 0))


def stored(name: str, transformed: np.ndarray) -> np.ndarray:
    """Return transformed numbers, real or complex, as a format holds them."""
    if np.iscomplexobj(transformed):
        return stored(name, transformed.real) + 1j * stored(name, transformed.imag)
    return overflowing(transformed.astype(np.float64), FORMATS[name]).astype(np.float32)


def transformed(algorithm: str, kept: str, of: Expected) -> Arrays:
    """Return the results of a convolution that stores transformed data and filters in a format, and adds in fp32."""
    workload = of.recipe.workload
    with np.errstate(invalid="ignore", over="ignore"):
        return TRANSFORMS[algorithm](
            workload.operator, workload.geometry, of.inputs, of.recipe.dtype, partial(stored, kept)
        )


@pytest.mark.parametrize("kept", ["fp16", "bf16"])
@pytest.mark.parametrize("algorithm", TRANSFORMS)
def test_transformed_data_of_16_bits_are_right(algorithm: str, kept: str):
    """Numbers of 16 bits, transformed, are none: 95 of 131 cases of such a kernel failed."""
    contract = Contract(algorithm=algorithm, inputs=kept)
    for problem, operator, distribution in JUDGED:
        of = expected(problem, kept, distribution, operator)
        if not contract.exempts(distribution, kept):
            assert of.passes(transformed(algorithm, kept, of), contract), (operator, distribution)


@pytest.mark.parametrize("algorithm", TRANSFORMS)
@pytest.mark.parametrize(("dtype", "declared", "kept"), [("fp16", "fp16", "bf16"), ("fp32", "tf32", "bf16")])
def test_transformed_data_of_fewer_bits_are_wrong(algorithm: str, dtype: str, declared: str, kept: str):
    of = expected(SQUARE, dtype, "fixed")
    assert not of.passes(transformed(algorithm, kept, of), Contract(algorithm=algorithm, inputs=declared))


@pytest.mark.parametrize("algorithm", WINOGRAD)
def test_matrices_of_winograd_compute_correlations(algorithm: str):
    b, g, a = winograd_matrices(algorithm)
    results = np.einsum("ot,tr,ti->ori", a, g, b)  # of every tap and every element of a tile
    assert np.abs(results - [np.eye(3, len(b), place) for place in range(len(a))]).max() < 2.0**-48


@pytest.mark.parametrize("distribution", ["fixed", "natural", "impulse"])
@pytest.mark.parametrize("algorithm", WINOGRAD)
def test_fp32_winograd_is_right(algorithm: str, distribution: str):
    of = expected(SQUARE, "fp32", distribution)
    assert of.passes(transformed(algorithm, "fp32", of), Contract(algorithm=algorithm))


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_single_filter_of_large_tiles_is_rounded_for_all_results(seed: int):
    of = expect(Recipe(OPERATORS["conv_forward"].on(parse("n20001 c1 h3 w3 k1 r3 s3")), "fp32", "fixed", seed))
    results = transformed("winograd-f6", "fp32", of)
    assert of.passes(results, Contract(algorithm="winograd-f6"))
    assert not of.passes(results, Contract(algorithm="winograd-f4"))


def test_the_gain_of_a_filter_is_that_of_the_first_result_of_a_tile():
    b, g, a = winograd_matrices("winograd-f6")
    enlarged = np.abs(a[0]) * np.linalg.norm(g, axis=1) * np.linalg.norm(b[:, :3], axis=1)
    assert FILTER_GAIN["winograd-f6"] == pytest.approx(enlarged @ enlarged, rel=0.01)


LARGER = [("winograd-f2", "winograd-f4", "fp32"), ("winograd-f2", "winograd-f6", "fp32"),
          ("winograd-f4", "winograd-f6", "tf32")]  # fmt: skip


@pytest.mark.parametrize(("declared", "real", "kept"), LARGER)
def test_larger_tiles_are_wrong(declared: str, real: str, kept: str):
    """F(6x6,3x3) in fp32 is mostly within the limits of F(4x4,3x3), whose errors are two thirds of its own."""
    of = expected("n2 c1 h56 w56 k4 r3 s3 p1", "fp32", "fixed")
    contract = Contract(algorithm=declared, inputs="exact" if kept == "fp32" else kept)
    assert not of.passes(transformed(real, kept, of), contract)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_inputs_of_a_window_without_winograd_are_as_given(dtype: str):
    declared = Contract(algorithm="winograd-f4", inputs=dtype)
    assert declared.on(parse("n1 c3 h7 w5 k2 r1 s1"), dtype) == Contract()
    assert Contract(algorithm="fft", inputs=dtype).on(parse("pool n1 c2 h6 w6 r3 s3 u1"), dtype).inputs == "exact"
    assert declared.on(parse(SQUARE), dtype) == declared


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("algorithm", ["winograd-f2", "fft"])
def test_taps_that_meet_padding_only_are_rounded_with_the_others(algorithm: str, seed: int):
    """The middle tap alone takes part in the results of 1x1 images: it may be the smallest that is stored."""
    geometry = parse("n9001 c2 h1 w1 k2 r3 s3 p1 g2")
    for dtype, kept in (("fp16", "fp16"), ("fp32", "bf16")):
        of = expect(Recipe(OPERATORS["conv_forward"].on(geometry), dtype, "fixed", seed))
        assert of.passes(transformed(algorithm, kept, of), Contract(algorithm=algorithm, inputs=kept))


POINTWISE = "n8 c2 h40 w40 k8 r1 s1"
SPLITS = {"bf16x9": 9, "bf16x6": 6, "four products of three parts": 4}


def of_parts(name: str, of: Expected, way: Way = np.rint) -> Arrays:
    """Return the results of a convolution by products of parts of its inputs, added in one fp32 sum."""
    prepare = partial(sums.split_in_three, BF16, SPLITS[name], way=way) if name in SPLITS else partial(sums.split, BF16)
    workload = of.recipe.workload
    return sums.direct(sums.Sum(prepare=prepare), workload.operator, workload.geometry, of.inputs, of.recipe.dtype)


@pytest.mark.parametrize("distribution", ["fixed", "natural", "wide"])
@pytest.mark.parametrize("problem", [POINTWISE, GROUPS])
@pytest.mark.parametrize("declared", ["bf16x9", "bf16x6"])
def test_products_of_three_parts_are_right(declared: str, problem: str, distribution: str):
    of = expected(problem, "fp32", distribution)
    assert of.passes(of_parts(declared, of), Contract(inputs=declared))


@pytest.mark.parametrize("declared", ["bf16x9", "bf16x6"])
@pytest.mark.parametrize(
    ("real", "way"), [("bf16x3", np.rint), ("four products of three parts", np.rint), ("bf16x6", np.trunc)]
)
def test_fewer_products_or_parts_cut_off_are_wrong(declared: str, real: str, way: Way):
    """Six products of parts that are cut off lose a share of each result, which no limit on single elements shows."""
    of = expected(POINTWISE, "fp32", "fixed")
    assert not of.passes(of_parts(real, of, way), Contract(inputs=declared))


@pytest.mark.parametrize("declared", ["bf16x9", "bf16x6"])
def test_parts_that_are_cut_off_are_right_where_this_is_declared(declared: str):
    of = expected(POINTWISE, "fp32", "fixed")
    assert of.passes(of_parts(declared, of, np.trunc), Contract(inputs=declared, rounding="zero"))


def test_six_products_have_limits_as_narrow_as_sums_of_six_terms():
    """They had those of nine, and of a rounding of every input beside."""
    six, nine, plain = (limits(Contract(inputs=name), "fp32", 1536) for name in ("bf16x6", "bf16x9", "exact"))
    assert six == nine
    assert six.sums == pytest.approx(6**0.5 * plain.sums)
    assert (six.inputs, six.one_sided) == (2 * BF16.unit_roundoff**3, False)
