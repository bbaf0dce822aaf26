"""Bytes without a sign beside signed filters: formats of tensors, the data that tell them from int8, wrong kernels that
are named, and cases of other dtypes, which are those that they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance.dtypes import FILTERS, drawn_together, ends, middle
from conformance.execution.verify import verify
from conformance.operators import OPERATORS, parse
from conformance.operators.requantized_steps import pairs_saturated
from conformance.problems import PROBLEMS
from conformance.problems.ranking import lines
from tests.kit import expectation, trial_of

CASES = {
    "conv_requantized": ("q n2 c8 h9 w7 k12 r3 s3 p1 b1 zx128 zy119", "scales"),
    "conv_forward": ("n2 c8 h9 w7 k12 r3 s3 p1 b1", "integer"),
    "matmul_requantized": ("qmm m7 n9 k34 bias1 za128 zb-5 zy119", "scales"),
    "matmul": ("mm m9 n10 k24", "integer"),
}
"""Operator -> a problem in uint8 and its distribution."""


@pytest.mark.parametrize("name", CASES)
def test_filters_have_a_sign_and_activations_have_none(name: str):
    operator, (text, _) = OPERATORS[name], CASES[name]
    g = parse(text)
    stored = {n: t.stored_as("uint8") for n, t in (operator.inputs(g) | operator.outputs(g)).items()}
    assert (stored[operator.data], stored[operator.operand]) == ("uint8", "int8")
    assert stored["y"] == ("uint8" if "requantized" in name else "int32")
    assert stored.get("bias", "int32") == "int32"


@pytest.mark.parametrize("name", CASES)
def test_bytes_fill_their_range_and_two_products_exceed_16_bits(name: str):
    operator, (text, distribution) = OPERATORS[name], CASES[name]
    inputs = expectation(name, text, "uint8", distribution).inputs
    data, weights = inputs[operator.data], inputs[operator.operand]
    assert data.max() > 240
    assert data.min() < 16
    assert (data > 127).mean() > 0.4
    assert weights.min() < -112
    flat = weights.reshape(len(weights), -1).astype(np.float64)
    rows = np.resize(data.astype(np.float64), (64, flat.shape[1]))
    exact = rows @ flat.T
    assert (pairs_saturated(rows[None], flat.T[None])[0] != exact).any()


def test_pairs_saturate_as_vpmaddubsw_adds_them():
    a, b = np.array([[[255.0, 255.0, 1.0]]]), np.array([[[127.0], [127.0], [-3.0]]])
    assert pairs_saturated(a, b).item() == 2**15 - 1 - 3
    assert pairs_saturated(a, -b - 1).item() == -(2**15) + 2


def test_a_format_without_a_sign_lies_around_128():
    assert (ends("uint8"), middle("uint8"), ends("int8"), middle("int8")) == ((0, 255), 128, (-128, 127), 0)


def test_other_dtypes_are_drawn_as_if_there_were_no_uint8():
    assert drawn_together(("fp8_e4m3", "int8", "uint8")) == (("fp8_e4m3", "int8"), ("uint8",))
    assert drawn_together(("fp32", "int8", "uint8")) == (("fp32",),)


@pytest.mark.parametrize("family", ["conv", "conv_requantized", "matmul", "matmul_requantized"])
def test_the_beginning_of_each_ranking_has_uint8(family: str):
    smoke = [line for line in lines(family) if line.level == "smoke"]
    assert any(line.dtype in FILTERS for line in smoke)
    assert sum(p.geometry.family == family and any(v.dtype in FILTERS for v in p.variants) for p in PROBLEMS) >= 8


def requantized(a: Any, b: Any, bias: Any, scale: Any, *, points: tuple[int, int, int], pairs: bool = False) -> Any:
    """Multiply a and b as they are, and take zero points off by sums."""
    wide, weights, (za, zb, zy) = a.astype(np.float64), b.astype(np.float64), points
    sums = pairs_saturated(wide[None], weights[None])[0] if pairs else wide @ weights
    sums = sums - za * weights.sum(0) - zb * wide.sum(1)[:, None] + len(b) * za * zb
    sums = sums if bias is None else sums + bias
    return np.clip(np.rint(sums.astype(np.float32) * scale) + zy, 0, 255).astype(np.uint8)


def right(a: Any, b: Any, bias: Any, scale: Any, **points: Any) -> Any:
    """Return y; the layout is nn."""
    return requantized(a, b, bias, scale, points=tuple(points[f"{name}_zero_point"] for name in "aby"))


def in_pairs(a: Any, b: Any, bias: Any, scale: Any, **points: Any) -> Any:
    return requantized(a, b, bias, scale, points=tuple(points[f"{name}_zero_point"] for name in "aby"), pairs=True)


def signed(a: Any, *rest: Any, **points: Any) -> Any:
    return right(a.view(np.int8), *rest, **points)


def beyond_127(*operands: Any, **points: Any) -> Any:
    return np.minimum(right(*operands, **points), 127)


@pytest.mark.parametrize(
    ("kernel", "cause"),
    [
        (in_pairs, "sums of two products saturate at 16 bits"),
        (signed, "a read as signed"),
        (beyond_127, "saturates at 0 and 127"),
    ],
)
def test_mistakes_about_bytes_are_named(kernel: Any, cause: str):
    text, distribution = CASES["matmul_requantized"]
    good = trial_of(right, text, "matmul_requantized", dtype="uint8", layout="nn", distribution=distribution)
    assert verify(good).status == "pass"
    bad = trial_of(kernel, text, "matmul_requantized", dtype="uint8", layout="nn", distribution=distribution)
    verdict = verify(bad)
    assert verdict.status == "fail"
    assert cause in str(verdict.reason)
