"""Inputs of 8 bits: what their sums are stored in, which numbers are drawn, and what a kernel of them is held to."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import conformance
from conformance import Contract, Implementation
from conformance.dtypes import DECLARABLE, DTYPES, FILTERS, STORAGE, SUMS, ordinary
from conformance.execution.selection import Selection
from conformance.execution.share import VIEWS, Ranked
from conformance.inputs.stream import Stream
from conformance.layouts import LAYOUTS
from conformance.operators import CONVOLUTIONS, OPERATORS, parse
from conformance.problems import PROBLEMS, typed
from conformance.problems.table import DISTRIBUTIONS, OF_EIGHT_BITS, Variant
from conformance.storage import parse as parse_storage
from tests.calibration.kernels.kernel import DEFAULT, FP8
from tests.calibration.known_kernels import KNOWN_GOOD, judgements
from tests.kit import expectation

PLAIN = "n2 c4 h6 w7 k5 r3 s3 p1 b1"
BY_RANK = (PLAIN, "n2 c4 w9 k5 s3 p1 b1", "n2 c3 d4 h5 w4 k5 t2 r3 s2 p1 b1")


ALIKE = tuple(dtype for dtype in SUMS if dtype in STORAGE)
"""Dtypes of problems whose inputs have the format of that name; filters may have another."""


@pytest.mark.parametrize(("dtype", "text"), [*product(ALIKE, BY_RANK)])
def test_sums_and_what_is_added_to_them_are_wider_than_inputs(dtype: str, text: str):
    operator, geometry = OPERATORS["conv_forward"], parse(text)
    tensors = {**operator.inputs(geometry), **operator.outputs(geometry)}
    stored = {name: tensor.stored_as(dtype) for name, tensor in tensors.items()}
    assert stored == {"x": dtype, "w": FILTERS.get(dtype, dtype), "bias": SUMS[dtype], "y": SUMS[dtype]}
    drawn = expectation("conv_forward", text, dtype, "integer").inputs
    assert {name: array.dtype for name, array in drawn.items()} == {n: STORAGE[stored[n]] for n in drawn}


@pytest.mark.parametrize("dtype", ALIKE)
def test_codes_are_all_finite_numbers(dtype: str):
    drawn = Stream("some").codes((5000,), STORAGE[dtype])
    every = np.arange(256, dtype=np.uint8).view(STORAGE[dtype])
    finite = every[np.isfinite(every.astype(np.float64))]
    assert {*drawn.view(np.uint8).tolist()} == {*finite.view(np.uint8).tolist()}


@pytest.mark.parametrize("operator", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", FP8)
def test_a_result_of_codes_is_one_number_and_what_is_added_to_it(dtype: str, operator: str):
    """So that it is exact in fp32, however far the numbers lie from one another."""
    known = expectation(operator, PLAIN, dtype, "codes")
    for array in known.reference.values():
        np.testing.assert_array_equal(array.astype(np.float32), array)
    main = next(iter(known.reference.values()))
    assert np.unique(np.abs(main)).size > 60


@pytest.mark.parametrize(
    "problem", [p for p in PROBLEMS if p.name.startswith(("int8.", "uint8."))], ids=lambda p: p.name
)
@pytest.mark.parametrize("distribution", OF_EIGHT_BITS["whole"])
def test_sums_of_whole_numbers_fit_in_32_bits_in_every_order(problem: conformance.problems.Problem, distribution: str):
    """The sum of all magnitudes does: no partial sum leaves the range."""
    operator = OPERATORS["conv_forward"]
    inputs = expectation("conv_forward", problem.geometry, problem.name.split(".")[0], distribution).inputs
    magnitudes = {name: np.abs(array.astype(np.float64)) for name, array in inputs.items()}
    assert operator.reference(problem.geometry, magnitudes)["y"].max() <= 2**31 - 1


def test_sums_come_near_both_ends_of_32_bits():
    found = [
        expectation("conv_forward", t, "int8", "large").reference["y"] for t in (PLAIN, "n1 c131071 h2 w1 k4 r1 s1")
    ]
    for y in found:
        assert (y.min(), y.max()) < (-(2**30), 0)
        assert y.max() > 2**30
    assert found[0].max() > 2**31 - 2**20


def test_tables_mean_the_dtypes_of_one_format_by_all():
    others = [
        p
        for p in PROBLEMS
        if not p.name.startswith(("fp8.", "int8.", "uint8.", "absorbed."))
        and not p.geometry.family.endswith(("requantized", "matmul", "gemm", "matmul_scaled", "matmul_grouped"))
    ]
    assert {v.dtype for p in others for v in p.variants} == {*DTYPES}
    assert ordinary(DECLARABLE) == DTYPES
    assert ordinary(("int8",)) == ("int8",)
    assert "codes" not in {v.distribution for p in others for v in p.variants}


def test_int8_has_no_gradients():
    geometry = parse(PLAIN)
    suits = {name for name in CONVOLUTIONS if Variant("int8", "nchw", "integer").suits(name, geometry)}
    assert suits == {"conv_forward"}
    assert not Variant("fp8_e4m3", "nchw", "fixed").suits("avg_pool_forward", parse("pool n1 c2 h4 w4 r2 s2"))


def kernel(dtype: str, change=lambda y: y, contract: Contract = DEFAULT) -> Implementation:
    """The reference of a problem without a stride, as a kernel."""
    made = Implementation("made", contract=contract)
    geometry = parse(PLAIN)

    @made.implements("conv_forward", dtypes=(dtype,))
    def conv_forward(x, w, bias, *, padding):
        exact = OPERATORS["conv_forward"].reference(geometry, {"x": x, "w": w, "bias": bias})["y"]
        return change(exact).astype(STORAGE[SUMS[dtype]])

    return made


@pytest.mark.parametrize("contract", [
    Contract(), Contract(inputs="bf16"), Contract(accumulate="fp16"), Contract(algorithm="fft"), Contract(splits=4),
])  # fmt: skip
def test_no_contract_lets_a_whole_number_be_another(contract: Contract):
    def off_by_one(y: np.ndarray) -> np.ndarray:
        y = y.copy()
        y[0, 0, 0, 0] += 1
        return y

    found = conformance.check(kernel("int8", off_by_one, contract), PLAIN, dtype="int8", distribution="large")
    assert found.status == "fail"
    assert "1 of 420 elements mismatched" in found.explain()


def test_results_in_the_format_of_inputs_are_refused():
    made = Implementation("made")

    @made.implements("conv_forward", dtypes=("fp8_e4m3",))
    def conv_forward(x, w, bias):
        return np.zeros((2, 5, 6, 7), ml_dtypes.float8_e4m3fn)

    found = conformance.check(made, PLAIN, dtype="fp8_e4m3", distribution="fixed")
    assert "y has dtype fp8_e4m3; expected fp32" in found.explain()


def test_a_hand_written_problem_has_all_dtypes_of_its_family():
    assert {v.dtype for v in typed(PLAIN).variants} == {*DECLARABLE}
    assert {v.dtype for v in typed("pool n1 c2 h4 w4 r2 s2").variants} == {*DTYPES}
    assert replace(typed(PLAIN), name="").geometry == parse(PLAIN)


@pytest.mark.parametrize("operator", CONVOLUTIONS)
@pytest.mark.parametrize("text", BY_RANK)
def test_inputs_in_tf32_are_declared_in_every_rank(operator: str, text: str):
    (tf32,) = (one for one in KNOWN_GOOD if one.name == "tf32")
    known = expectation(operator, text)
    assert all(judged.passed for judged in judgements(tf32, known))
    assert not all(judged.passed for judged in judgements(tf32, known, DEFAULT))


def of_level(level: str, operator: str, *dtypes: tuple[str, ...]) -> tuple[list[tuple[str, Variant]], int]:
    """Return the cases that a level asks of an implementation, of which each kernel has some `dtypes`, and the number
    of its paths for checks of behaviour."""
    layout = "nn" if operator == "matmul" else "nchw"
    acme = Implementation("acme")
    for of_kernel in dtypes:
        acme.implements(operator, dtypes=of_kernel, layouts=(layout,))(lambda *arrays: np.zeros(1))
    chosen = (operator,), DECLARABLE, tuple(LAYOUTS), DISTRIBUTIONS
    ranked = Ranked(Selection(("acme",), (), level, PROBLEMS, *chosen, 0, ""))
    declared = ranked.declared(acme, operator)
    rows = zip(ranked.rows(operator).rows, ranked.share(declared), strict=True)
    chosen_cases = [(p.name, v) for (p, _), share in rows for v in share if declared.takes(p, v)]
    return chosen_cases, len(ranked.paths(declared))


def views(cases: list[tuple[str, Variant]]) -> set[tuple[str, int]]:
    """Return the operands with the groups of views that they lie in."""
    return {
        (operand, number)
        for _, variant in cases
        for operand, kind in (parse_storage(variant.storage) if variant.storage else {}).items()
        for number, kinds in enumerate(VIEWS)
        if kind in kinds
    }


@pytest.mark.parametrize("operator", ["matmul", "conv_forward"])
@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_a_kernel_of_8_bits_alone_meets_the_shapes_views_and_checks_of_others(operator: str, dtype: str):
    """A file of int8 products alone was asked six cases at every level: no tail, no view, no check of behaviour."""
    for level, least in (("smoke", 60), ("standard", 150)):
        cases, paths = of_level(level, operator, (dtype,))
        assert len({name for name, _ in cases}) >= (40 if level == "smoke" else 130)
        assert len(cases) >= least
        assert paths >= 2
    cases, _ = of_level("smoke", operator, (dtype,))
    of_fp32, _ = of_level("smoke", operator, ("fp32",))
    assert views(cases) >= views(of_fp32)


def test_a_kernel_of_8_bits_beside_others_meets_some_of_their_shapes():
    """It is a function of its own, which was asked what the tables have in eight bits."""
    together, _ = of_level("standard", "matmul", ("fp32",), ("int8",))
    names = {name for name, variant in together if variant.dtype == "int8"}
    assert len({name for name in names if not name.startswith("matmul.fp8")}) == 24
