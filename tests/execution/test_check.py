"""`conformance.check`: every status, every family, and arrays that say what the judge says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conformance
from conformance import Contract, Implementation, Unsupported, check, torch_arrays
from conformance.implementations import registry
from conformance.operators import FAMILIES, OPERATORS, parse
from conformance.problems import PROBLEMS as TABLES
from conformance.resources import IMPLS
from conformance.results import build
from tests import kernels

CONV = "n2 c4 h7 w7 k4 r3 s3 p2 d1x2"
PROBLEMS = {family: TABLES.of(family)[0].name for family in FAMILIES} | {
    "conv": CONV,
    "max_pool": "maxpool.dilation",
    "conv_transpose": "convt.plain",
}
HOW: dict[str, dict[str, Any]] = {
    "conv_requantized": {"dtype": "int8", "distribution": "scales"},
    "matmul_requantized": {"dtype": "int8", "distribution": "scales"},
    "matmul_scaled": {"dtype": "fp8_e4m3"},
}
"""Of an operator that has no fp32."""
NUMPY = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]
EVERY = pytest.mark.parametrize("operator", OPERATORS)
KERNEL = """
from conformance import Implementation
from tests import kernels
acme = Implementation("acme")
acme.implements("conv_forward")(kernels.conv_forward)
"""


def problem_of(operator: str) -> str:
    return PROBLEMS[OPERATORS[operator].family]


def wrong_in_one_element(function):
    @wraps(function)
    def kernel(*arguments, **parameters):
        results = function(*arguments, **parameters)
        first = results[0] if isinstance(results, tuple) else results
        first.flat[5] -= 1
        return results

    return kernel


def swapped(x, w, bias, *, dilation, **parameters):
    return kernels.conv_forward(x, w, bias, dilation=dilation[::-1], **parameters)


def refuses(x, w, bias):
    raise Unsupported("no dilation")


def acme(kernel: Callable[..., Any], device: str = "cpu") -> Implementation:
    implementation = Implementation("acme", device=device)
    implementation.implements("conv_forward", dtypes=("fp32",))(kernel)
    return implementation


@EVERY
def test_right_kernels_pass_with_errors_within_limits(operator: str):
    result = check(NUMPY, problem_of(operator), operator=operator, **HOW.get(operator, {}))
    assert (result.status, result.passed, result.reason) == ("pass", True, "")
    assert list(result.outputs) == list(OPERATORS[operator].outputs(result.trial.problem.geometry))
    assert list(result.inputs) == list(OPERATORS[operator].inputs(result.trial.problem.geometry))
    for output in result.outputs.values():
        assert (output.error <= output.limit).all()
        assert not output.mismatched.any()
        assert output.actual.shape == output.expected.shape == output.limit.shape


@pytest.mark.parametrize(
    ("operator", "distribution"),
    [(o.name, d) for o in OPERATORS.values() for d in FAMILIES[o.family].distributions if d in ("fixed", "integer")],
)
def test_arrays_say_what_the_judge_says(operator: str, distribution: str):
    function = next(k.function for k in NUMPY.kernels if k.operator == operator and {"nchw", "nn"} & {*k.layouts})
    layout = "nchw" if FAMILIES[OPERATORS[operator].family].rank else "nt"  # where db lies as the arrays of a result do
    kernel, problem = wrong_in_one_element(function), problem_of(operator)
    how = HOW.get(operator, {}) | {"distribution": distribution, "layout": layout}
    result = check(kernel, problem, operator=operator, **how)
    judgement = result.verdict.judgements[0]
    assert judgement.worst is not None
    first = next(iter(result.outputs.values()))
    assert result.status == "fail"
    assert np.flatnonzero(first.mismatched).tolist() == [5]
    assert (~(first.error <= first.limit) == first.mismatched).all()
    mismatched = first.mismatched
    if len(judgement.worst.index) > mismatched.ndim:  # of a group and a place in it
        mismatched = mismatched.reshape(result.trial.problem.geometry.groups, -1, mismatched.shape[1])
    assert judgement.worst.index == tuple(map(int, np.argwhere(mismatched)[0]))
    assert judgement.worst.bound == first.limit.flat[5]
    assert first.actual.flat[5] == judgement.worst.value
    assert all(getattr(result, name) is getattr(first, name) for name in ("error", "limit", "mismatched"))


FEW_BITS = (
    ("conv_backward_weight", "n3 c1 h1 w1 k970 r1 s1 b1", "fixed", 0),
    ("conv_backward_weight", "n3 c1 h1 w1 k60000 r1 s1 b1", "fixed", 0),
    ("conv_backward_data", "n3 c256 h5 w2 k1 r2 s2 u5x2 d4x1", "natural", 1),
)
"""Where a stranger saw right results fail: sums of three inputs, and single products, that are rounded to fp16."""


@pytest.mark.parametrize(("operator", "problem", "distribution", "seed"), FEW_BITS)
def test_results_that_are_rounded_once_pass_where_few_bits_are_rounded(operator, problem, distribution, seed):
    found = check("numpy-direct", problem, operator=operator, dtype="fp16", distribution=distribution, seed=seed)
    assert found.passed, found.reason


def test_filters_of_zeros_leave_the_reference_of_the_others_exact():
    """The gradient of their channel, 2^50 times that of another one, took the bits that slices have."""
    problem = "bn n1 c17 h1 w5 k4 r2 s2 u3x2 p0:2x0"
    found = check("numpy-direct", problem, operator="conv_bn_backward", dtype="fp64", distribution="range")
    assert found.passed, found.reason


def test_an_output_whose_limits_exceed_it_is_not_verified():
    """Normalised, two elements are 1 and -1, and nothing of dy is left for dx and dw but roundings."""
    small = "bn n1 c3 d300 h1 w4 k1 t300 r1 s2 u2x4x2 p1:0x0:1x0:1 run0 eps9"
    found = check(NUMPY, small, operator="conv_bn_backward", dtype="fp16")
    assert found.passed
    assert build.record(found.trial, found.verdict).unverified == ("dx", "dw")
    assert "dx is not verified: limits exceed most of its results" in found.explain()
    nothing = check(NUMPY, f"{small} affine0", operator="conv_bn_backward", dtype="fp16")
    assert nothing.status == "unsupported"


def test_special_values_are_no_errors_where_they_belong():
    result = check(kernels.conv_forward, "edge.dilation", operator="conv_forward", distribution="special")
    assert result.passed
    assert np.isnan(result.expected).any()
    assert (result.error == 0).all()


def test_a_failure_is_explained_with_its_cause():
    problem = "n2 c4 h8 w8 k4 r3 s3 u4 p1 d1x2"
    result = check(swapped, problem, operator="conv_forward")
    assert result.status == "fail"
    assert result.diagnosis == ("dilations swapped",)
    for part in (f"fail: conv_forward of swapped on '{problem}'", "elements mismatched", "worst y[", "likely cause"):
        assert part in result.explain()
    assert str(result) in repr(result)


def test_layouts_are_the_kernels_business_and_arrays_are_canonical():
    seen = []

    def nhwc(x, w, bias, **parameters):
        seen.append(x.shape)
        return kernels.conv_forward(x, w, bias, **parameters)

    result = check(nhwc, "n2 c3 h5 w6 k4 r3 s3", operator="conv_forward", layout="nhwc")
    assert result.passed
    assert set(seen) == {(2, 5, 6, 3)}
    assert result.inputs["x"].shape == (2, 3, 5, 6)
    assert result.actual.shape == result.expected.shape == (2, 4, 3, 4)


def test_another_shape_is_returned_as_it_is_beside_what_was_expected():
    result = check(lambda x, w, bias: x, CONV, operator="conv_forward")
    assert result.status == "fail"
    assert "y has shape (2, 4, 7, 7)" in result.reason
    assert (result.actual == result.inputs["x"]).all()
    assert result.expected.shape == result.limit.shape == (2, 4, 9, 7)
    assert result.error is result.mismatched is None
    two = check(lambda x, w, bias: (x, x), CONV, operator="conv_forward")
    assert "returned 2 results" in two.reason
    assert two.actual is None


def test_an_exception_is_shown_where_the_kernel_raised_it():
    def kernel(x, w, bias):
        return helper(x)

    def helper(x):
        raise IndexError("tile 7 of 4")

    result = check(kernel, CONV, operator="conv_forward")
    assert result.status == "error"
    assert isinstance(result.exception, IndexError)
    assert result.inputs["x"].shape == (2, 4, 7, 7)
    text = result.explain()
    assert "in kernel" in text
    assert "in helper" in text
    assert text.endswith("IndexError: tile 7 of 4")
    assert "conformance/execution" not in text


def test_a_verdict_is_as_true_as_the_kernel_is_right():
    """`assert conformance.check(...)` passed whatever the kernel did: an object is true."""
    assert check(kernels.conv_forward, CONV, operator="conv_forward")
    assert not check(swapped, CONV, operator="conv_forward")
    assert not check(lambda x, w, bias: 1 / 0, CONV, operator="conv_forward")


WAIVED = acme(swapped)
WAIVED.waive("conv_forward", reason="swapped", url="https://acme.example/1")
VERIFIED_NOTHING = {
    "refused": (acme(refuses), "fp32", "unsupported", "no dilation"),
    "not declared": (acme(refuses), "bf16", "unsupported", "dtype bf16 is not declared"),
    "waived": (WAIVED, "fp32", "waived", "https://acme.example/1"),
    "absent": (acme(kernels.conv_forward, "trn1"), "fp32", "unavailable", ""),
}


@pytest.mark.parametrize(("kernel", "dtype", "status", "reason"), VERIFIED_NOTHING.values(), ids=VERIFIED_NOTHING)
def test_what_verified_nothing_is_neither_true_nor_false(kernel: Implementation, dtype: str, status: str, reason: str):
    result = check(kernel, CONV, dtype=dtype)
    assert (result.status, result.passed) == (status, False)
    assert reason in result.reason
    assert reason in result.explain()
    if dtype == "bf16" or status == "unavailable":
        assert (result.inputs, result.outputs, result.error) == ({}, {}, None)
    with pytest.raises(ValueError, match=f"(?s)^{status}: .*nothing was verified.*`passed`.*{reason}"):
        bool(result)


def test_an_output_alone_is_no_verdict():
    """Statistics of whole tensors fail where no element mismatches."""
    (output,) = check(kernels.conv_forward, CONV, operator="conv_forward").outputs.values()
    with pytest.raises(TypeError, match="one output is no verdict"):
        bool(output)


def test_a_package_that_is_missing_makes_it_unavailable(tmp_path: Path):
    (tmp_path / "acme.py").write_text("import no_such_library\n" + KERNEL)
    result = check(tmp_path / "acme.py", CONV, operator="conv_forward")
    assert (result.status, result.reason) == ("unavailable", "No module named 'no_such_library'")


def test_large_problems_have_no_element_by_element_arrays():
    result = check(kernels.conv_forward, CONV, operator="conv_forward", method="probes")
    assert result.passed
    assert result.actual.shape == (2, 4, 9, 7)
    assert result.expected is result.error is result.limit is result.mismatched is None


def test_arrays_are_copies():
    buffer = []

    def kernel(x, w, bias, **parameters):
        buffer.append(kernels.conv_forward(x, w, bias, **parameters))
        return buffer[-1]

    one = check(kernel, CONV, operator="conv_forward")
    buffer[-1][...] = 7
    one.inputs["x"][...] = 7
    one.expected[...] = 7
    assert (one.actual != 7).any()
    again = check(kernel, CONV, operator="conv_forward")
    assert again.passed
    assert (again.inputs["x"] != 7).any()
    assert (again.expected != 7).any()


def test_a_contract_sets_the_limits():
    def rounded(x, w, bias, **parameters):
        import ml_dtypes

        x, w = (array.astype(ml_dtypes.bfloat16).astype(np.float32) for array in (x, w))
        return kernels.conv_forward(x, w, bias, **parameters)

    strict = check(rounded, CONV, operator="conv_forward")
    declared = check(rounded, CONV, operator="conv_forward", contract=Contract(inputs="bf16"))
    assert (strict.status, declared.status) == ("fail", "pass")
    assert (declared.limit > 100 * strict.limit).all()
    assert declared.contract == Contract(inputs="bf16")


def test_arrays_have_the_limits_of_the_problem_that_a_contract_is_narrowed_to():
    """A Winograd kernel is a direct one on 1x1: the verdict had 318 elements, the arrays 18 within wide limits."""

    def inexact(x, w, bias, **parameters):
        return kernels.conv_forward(x, w, bias, **parameters) * np.float32(1 + 2e-6)

    result = check(
        inexact, "n2 c8 h9 w9 k16 r1 s1", operator="conv_forward", contract=Contract(algorithm="winograd-f4")
    )
    wrong = re.search(r"y: ([\d,]+) of", result.reason)
    assert wrong is not None, result.reason
    assert int(wrong[1].replace(",", "")) == np.count_nonzero(result.mismatched) > 1000


def test_arguments_are_arrays_of_the_bridge():
    torch = pytest.importorskip("torch")

    def kernel(x, w, bias, *, padding, dilation):
        return torch.nn.functional.conv2d(x, w, bias, padding=padding[0][0], dilation=dilation)

    result = check(kernel, CONV, operator="conv_forward", arrays=torch_arrays("cpu"), dtype="bf16")
    assert result.passed
    assert result.actual.dtype.name == "bfloat16"


def test_callables_and_geometries_are_taken():
    result = check(partial(swapped), parse("n1 c2 h5 w5 k2 r3 s3"), operator="conv_forward")
    assert result.passed
    assert result.trial.implementation.name == "partial"


def test_a_file_is_read_anew_and_its_one_operator_is_found(tmp_path: Path):
    path = tmp_path / "my kernels é" / "acme.py"
    path.parent.mkdir()
    path.write_text(KERNEL)
    assert check(path, CONV).passed
    path.write_text(KERNEL.replace("(kernels.conv_forward)", "(lambda x, w, bias: x)"))
    assert check(str(path), CONV).status == "fail"


def test_a_package_is_read_anew_with_its_modules(tmp_path: Path):
    package = tmp_path / "acme"
    package.mkdir()
    (package / "__init__.py").write_text(KERNEL.replace("from tests", "from ."))
    (package / "kernels.py").write_text("def conv_forward(x, w, bias): return x")
    assert check(package, CONV).status == "fail"
    (package / "kernels.py").write_text("def conv_forward(x, w, bias): raise RuntimeError('the new one')")
    assert "the new one" in check(package, CONV).reason


def test_one_of_several_implementations_is_named(tmp_path: Path):
    path = tmp_path / "two.py"
    path.write_text(KERNEL + KERNEL.replace("acme", "fast"))
    with pytest.raises(ValueError, match=r"Choices: .*two.py::acme, .*two.py::fast"):
        check(path, CONV)
    assert check(f"{path}::fast", CONV).trial.implementation.name == "fast"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problem": "n2 c8 q9"}, r"problem 'n2 c8 q9': field 'q9' is not understood"),
        ({"problem": "edge.plian"}, r"did you mean edge.plain"),
        ({"problem": 7}, r"problem 7: must be a descriptor, the name of a problem, or a geometry"),
        ({"operator": None}, r"operator: needed with a plain function. Choices: conv_forward, "),
        ({"operator": "conv_fwd"}, r"operator conv_fwd: unknown; did you mean conv_forward\?"),
        ({"operator": "avg_pool_forward"}, r"operator avg_pool_forward: does not take the problem"),
        ({"dtype": "fp8"}, r"dtype fp8: unknown"),
        ({"problem": "pool.tutorial", "operator": "avg_pool_forward", "dtype": "int8"}, r"dtype int8: unknown"),
        ({"layout": "chwn"}, r"layout chwn: unknown"),
        ({"distribution": "dense"}, r"distribution dense: unknown"),
        ({"distribution": "shifted"}, r"distribution shifted: there is none for conv. Choices: integer, "),
        ({"distribution": "wide", "dtype": "fp64"}, r"distribution wide: there is none for conv in fp64"),
        ({"method": "fast"}, r"method fast: unknown"),
        ({"seed": -1}, r"seed -1: must be a whole number"),
        ({"kernel": 7}, r"kernel 7: must be an Implementation, a function, a path or a name"),
        ({"kernel": "nope.py"}, r"kernel nope.py: no such file"),
        ({"kernel": "numpy-drect"}, r"kernel numpy-drect: unknown; did you mean numpy-direct\?"),
        ({"kernel": kernels.__file__}, r"defines no conformance.Implementation"),
        ({"kernel": NUMPY, "contract": Contract()}, r"arrays, contract: only with a plain function"),
        ({"kernel": NUMPY, "operator": None}, r"operator: numpy-direct implements 3 operators"),
        ({"kernel": Implementation("none"), "operator": None}, r"operator: none implements no operator"),
        (
            {"kernel": lambda x, w, bias, *, strides: x},
            r"<lambda> has a keyword parameter 'strides'; did you mean stride",
        ),
        ({"arrays": "torch"}, r"arrays='torch': must be a bridge"),
    ],
)
def test_arguments_that_cannot_be_meant_are_named(monkeypatch: pytest.MonkeyPatch, arguments: dict, message: str):
    # a name is looked for in all that is shipped, whose frameworks take eight seconds to import
    monkeypatch.setattr("conformance.engine.check.IMPLS", IMPLS / "numpy_direct")
    given = {"kernel": kernels.conv_forward, "problem": CONV, "operator": "conv_forward"} | arguments
    with pytest.raises(ValueError, match=message):
        check(given.pop("kernel"), given.pop("problem"), **given)


def test_a_padded_image_that_no_memory_holds_is_unavailable_before_it_is_made():
    result = check(kernels.conv_forward, "n1 c1 h1 w1 k1 r1 s1 u9999999 p9999999", operator="conv_forward")
    assert result.status == "unavailable"
    assert result.reason.startswith("needs 2,980,23")


def test_a_failure_says_where_else_the_kernel_fails():
    def strided(x, w, bias, *, stride, **parameters):
        y = kernels.conv_forward(x, w, bias, stride=stride, **parameters)
        return y * 2 if max(stride) > 1 else y

    found = check(strided, "n1 c3 h9 w7 k2 r3 s3 u2", operator="conv_forward")
    assert "\nfails where stride of some axis > 1: " in found.where()
    assert "fails where" not in found.explain(), "it runs no other cases unless it is asked to"
    assert check(strided, "n1 c3 h9 w7 k2 r3 s3", operator="conv_forward").where() == ""


def test_the_public_names_are_those_that_are_listed_and_each_has_a_documentation():
    names = [name for name in dir(conformance) if not name.startswith("_")]
    assert names == sorted(conformance.__all__)
    assert [name for name in names if not inspect.getdoc(getattr(conformance, name))] == []


def test_the_help_of_check_begins_with_a_call_and_describes_every_parameter():
    documentation = inspect.getdoc(conformance.check) or ""
    assert re.search(r"^    .*\bconformance\.check\(", documentation.split("- `kernel`")[0], re.MULTILINE)
    described = re.findall(r"^- ((?:`\w+`(?:, )?)+):", documentation, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(described)) == list(inspect.signature(conformance.check).parameters)
