"""Requantized matrix products: the definition in whole numbers and fractions, sums within 32 bits, what a kernel of it
is told, and wrong kernels that are named."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.dtypes import WHOLE, ends
from conformance.execution.verify import verify
from conformance.implementations.implementation import Unsupported
from conformance.implementations.registry import load
from conformance.layouts import MATRICES
from conformance.operators import OPERATORS, parse
from conformance.operators.matmul.operators import by_product
from conformance.operators.spatial import GeometryError
from conformance.problems import PROBLEMS, typed
from conformance.problems.parameters import geometry, parameters
from conformance.resources import IMPLS
from tests.kit import expectation, trial_of

NAME = "matmul_requantized"
OPERATOR = OPERATORS[NAME]
POINTS = st.sampled_from((-128, -5, 0, 1, 127))
ROWS = [problem for problem in PROBLEMS if problem.geometry.family == NAME]


@given(
    sizes=st.fixed_dictionaries(
        {"n": st.integers(0, 3), "k": st.integers(1, 3), "c": st.integers(0, 4), "g": st.integers(1, 3)}
        | {"b": st.integers(0, 1), "za": POINTS, "zb": POINTS, "zy": POINTS}
    ),
    distribution=st.sampled_from(("scales", "ties", "cancelled", "natural")),
    dtype=st.sampled_from(("int8", "uint8")),
)
def test_the_reference_is_the_definition(sizes: dict[str, int], distribution: str, dtype: str):
    low, high = ends(dtype)
    sizes = sizes | {letter: sizes[letter] + low + 128 for letter in ("za", "zy")}  # as far from the lowest as in int8
    g = geometry(NAME, sizes | ({"b": 0} if sizes["g"] > 1 else {}))
    assert parse(g.descriptor) == g
    assert parameters(g)["za"] == sizes["za"]
    case = expectation(NAME, g.descriptor, dtype, distribution)
    y, a = by_product(case.reference["y"], g.groups), by_product(case.inputs["a"], g.groups)
    b, scale = case.inputs["b"].reshape(g.groups, sizes["k"], sizes["c"]), case.inputs["scale"]
    bias = case.inputs.get("bias", np.zeros(sizes["k"], int))
    for product, row, column in np.ndindex(*y.shape):
        terms = zip(a[product, row].tolist(), b[product, column].tolist(), strict=True)
        total = int(bias[column]) + sum((x - sizes["za"]) * (w - sizes["zb"]) for x, w in terms)
        whole = round(Fraction(float(scale[column])) * total) + sizes["zy"]  # ties to even
        assert y[product, row, column] == min(high, max(low, whole))


@pytest.mark.parametrize("problem", ROWS, ids=lambda problem: problem.name)
def test_no_sum_leaves_32_bits_in_any_order(problem: Any):
    """Sums of operands less their zero points, and of operands alone with the shares of zero points taken off later."""
    g = problem.geometry
    for dtype, distribution in {(v.dtype, v.distribution) for v in problem.variants if v.dtype in WHOLE}:
        inputs = expectation(NAME, g.descriptor, dtype, distribution).inputs
        bias = np.abs(inputs.get("bias", np.zeros(1)).astype(np.float64)).max(initial=0)
        for za, zb in ((0, 0), (g.a_zero_point, g.b_zero_point)):
            a, b = (np.abs(inputs[name].astype(np.float64) - zero) for name, zero in (("a", za), ("b", zb)))
            sums = by_product(a, g.groups) @ b.reshape(g.groups, g.k // g.groups, g.c // g.groups).swapaxes(1, 2)
            assert sums.max(initial=0) + bias < 2**31


def test_sums_beyond_32_bits_exist_in_fp8_alone():
    assert OPERATOR.defined(parse("qmm m2 n3 k32768 za-128 zb-128"), "int8")
    assert not OPERATOR.defined(parse("qmm m2 n3 k33025 za-128 zb-128"), "int8")
    assert {v.dtype for v in typed("qmm m2 n3 k140000").variants} == {"fp8_e4m3", "fp8_e5m2"}
    assert {v.dtype for v in typed("qmm m2 n3 k5 zb1").variants} == {"int8", "uint8"}
    assert {v.dtype for v in typed("qmm m2 n3 k5 za128 zb-128").variants} == {"uint8"}


@pytest.mark.parametrize(("letter", "beyond", "most"), [("a", 256, 255), ("b", 128, 127), ("y", 256, 255)])
def test_a_zero_point_is_a_number_of_8_bits(letter: str, beyond: int, most: int):
    with pytest.raises(GeometryError, match=f"z{letter} is {beyond}; a zero point is from -128 to {most}"):
        parse(f"qmm m2 n3 k4 z{letter}{beyond}")


def test_a_predicate_gets_the_sizes_of_a_product_and_the_zero_points():
    assert parse("qmm b3 m4 n6 k5 za1 zb-2 zy3").described == (4, 6, 5, 3, False, 1, -2, 3)


def scaled(a: Any, b: Any, bias: Any, scale: Any, *, layout: str, zy: int) -> Any:
    """y of whole numbers less their zero points, by NumPy."""
    a, b = (x.swapaxes(-1, -2) if letter == "t" else x for x, letter in zip((a, b), layout, strict=True))
    sums = a @ b if bias is None else a @ b + bias
    return np.clip(np.rint(sums.astype(np.float32) * scale) + zy, -128, 127).astype(np.int8)


def right(
    a: Any, b: Any, bias: Any, scale: Any, *, layout: str, a_zero_point: int, b_zero_point: int, y_zero_point: int
) -> Any:
    whole = a.astype(np.int32) - a_zero_point, b.astype(np.int32) - b_zero_point
    return scaled(*whole, bias, scale, layout=layout, zy=y_zero_point)


def without_cross_term(
    a: Any, b: Any, bias: Any, scale: Any, *, layout: str, a_zero_point: int, b_zero_point: int, y_zero_point: int
) -> Any:
    """Take both zero points off by sums, which take their product off twice."""
    terms = a.shape[-1 if layout[0] == "n" else -2]
    bias = (0 if bias is None else bias) - terms * a_zero_point * b_zero_point
    whole = a.astype(np.int32) - a_zero_point, b.astype(np.int32) - b_zero_point
    return scaled(*whole, bias, scale, layout=layout, zy=y_zero_point)


@pytest.mark.parametrize("layout", MATRICES)
@pytest.mark.parametrize("text", ["qmm m4 n6 k5 bias1 za3 zb-5 zy2", "qmm b3 m4 n6 k5 za3 zb-5 zy2"])
def test_a_batch_has_a_scale_for_each_column(layout: str, text: str):
    assert verify(trial_of(right, text, NAME, dtype="int8", layout=layout, distribution="scales")).status == "pass"
    trial = trial_of(without_cross_term, text, NAME, dtype="int8", layout=layout, distribution="scales")
    assert "product of the zero points left out" in str(verify(trial).reason)


def test_zero_points_of_b_are_declined_where_a_kernel_ignores_them():
    """oneDNN's linear layer takes a zero point of weights and ignores it."""
    pytest.importorskip("torch")
    torch_cpu = load([IMPLS / "torch_native"]).implementations["torch-cpu"]
    kernel = torch_cpu.find(NAME, parse("qmm m4 n6 k5 zb1"), "int8", "nn")
    assert kernel.function.__name__ != "quantized_linear"
    with pytest.raises(Unsupported):
        torch_cpu.find(NAME, parse("qmm m4 n6 k5 zb1"), "fp8_e4m3", "nn")
