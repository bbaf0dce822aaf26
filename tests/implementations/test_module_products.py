"""Torch modules that compute matrix products: of their two inputs, or of their input and the weight of nn.Linear."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conformance import check  # noqa: E402
from conformance.engine.check import CheckResult  # noqa: E402
from conformance.implementations.implementation import Adapted, Implementation  # noqa: E402
from conformance.implementations.modules import KEEPS, KEEPS_OPERANDS, adapter  # noqa: E402
from conformance.implementations.modules.products import Form, affordable  # noqa: E402
from conformance.layouts import MATRICES as LAYOUTS  # noqa: E402
from conformance.operators import parse  # noqa: E402
from conformance.problems.drawn import NEAR_MATRIX, neighbours  # noqa: E402
from tests.kit import command, only  # noqa: E402

OPERATORS = ("matmul", "matmul_backward_a", "matmul_backward_b")
MATRICES = "64, 100", "100, 48"
BATCHES = "6, 40, 30", "6, 30, 20"
PRODUCT = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, A, B):
        return {reference}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, A, B):
        {forward}

def get_inputs():
    return [torch.rand({a}), torch.rand({b})]

def get_init_inputs():
    return []
"""
LINEAR = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias)

    def forward(self, x):
        return self.linear(x)

class ModelNew(Model):
    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand({shape})]

def get_init_inputs():
    return [{sizes}]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "solution.py"
    path.write_text(text)
    return path


def product(
    folder: Path, reference: str, forward: str = "return A @ B", shapes: tuple[str, str] = MATRICES
) -> Implementation:
    a, b = shapes
    return only(written(folder, PRODUCT.format(reference=reference, forward=forward, a=a, b=b)))


def linear(folder: Path, forward: str = "return self.linear(x)", shape: str = "64, 100", sizes: str = "100, 48") -> Any:
    return only(written(folder, LINEAR.format(forward=forward, shape=shape, sizes=sizes)))


def adapted(module: Implementation) -> Adapted:
    assert module.adapted is not None
    return module.adapted


def of(module: Implementation, problem: str, operator: str = "matmul") -> CheckResult:
    return check(module, problem, operator=operator, layout=module.kernels[0].layouts[0])


@pytest.mark.parametrize(
    ("reference", "forward", "shapes", "layout", "problem"),
    [
        ("torch.matmul(A, B)", "return torch.einsum('mk,kn->mn', A, B)", MATRICES, "nn", "mm m64 n48 k100"),
        ("A.T @ B", "return torch.mm(A.t(), B)", ("100, 64", "100, 48"), "tn", "mm m64 n48 k100"),
        ("A @ B.T", "return torch.einsum('mk,nk->mn', A, B)", ("64, 100", "48, 100"), "nt", "mm m64 n48 k100"),
        ("A.T @ B.T", "return (B @ A).T", ("100, 64", "48, 100"), "tt", "mm m64 n48 k100"),
        ("torch.bmm(A, B)", "return torch.matmul(A, B)", BATCHES, "nn", "mm b6 m40 n20 k30"),
        ("A.mT @ B", "return torch.einsum('bkm,bkn->bmn', A, B)", ("6, 30, 40", BATCHES[1]), "tn", "mm b6 m40 n20 k30"),
        ("torch.einsum('bmk,bnk->bmn', A, B)", "return A @ B.mT", (BATCHES[0], "6, 20, 30"), "nt", "mm b6 m40 n20 k30"),
    ],
)
def test_product_of_two_inputs_is_one_in_the_layout_of_its_reference(
    tmp_path: Path, reference: str, forward: str, shapes: tuple[str, str], layout: str, problem: str
):
    module = product(tmp_path, reference, forward, shapes)
    assert (adapted(module).problem, adapted(module).operator) == (problem, "matmul")
    assert [(kernel.operator, kernel.layouts) for kernel in module.kernels] == [(name, (layout,)) for name in OPERATORS]
    several = "mm b3 m5 n7 k9"
    for operator in OPERATORS:
        for text in (problem, "mm m5 n7 k9", "mm m6 n6 k6"):
            assert of(module, text, operator)
        result = of(module, several, operator)
        assert result.status == ("pass" if "b6" in problem else "unsupported"), result.reason
        assert of(module, "mm m5 n7 k9 bias1", operator).reason == "the reference adds no bias"
    for other in {*LAYOUTS} - {layout}:
        assert check(module, "mm m5 n7 k9", operator="matmul", layout=other).status == "unsupported"


def test_product_of_a_matrix_and_a_vector_has_one_column(tmp_path: Path):
    module = product(tmp_path, "torch.mv(A, B)", "return (A * B).sum(1)", ("64, 100", "100"))
    assert adapted(module).problem == "mm m64 n1 k100"
    for operator in OPERATORS:
        assert of(module, "mm m5 n1 k9", operator)
        assert "a vector" in of(module, "mm m5 n2 k9", operator).reason
    column = product(tmp_path, "torch.mv(A, B)", "return A @ B[:, None]", ("64, 100", "100"))
    assert "y has shape (5, 1); expected (5,)" in of(column, "mm m5 n1 k9").reason


@pytest.mark.parametrize(
    ("reference", "shapes", "layout"),
    [
        ("torch.matmul(A, B)", ("4, 16, 10", "10, 48"), "nn"),
        ("A @ B.T", ("4, 16, 10", "48, 10"), "nt"),
        ("torch.einsum('bijl,lk->bijk', A, B)", ("2, 4, 8, 10", "10, 48"), "nn"),
        ("torch.nn.functional.linear", ("4, 16, 10", "10, 48"), "nt"),
    ],
)
def test_rows_may_lie_in_several_axes(tmp_path: Path, reference: str, shapes: tuple[str, str], layout: str):
    is_linear = "linear" in reference

    def module(change: str) -> Implementation:
        """The reference with its result changed."""
        text = LINEAR.format(forward=f"y = self.linear(x); return {change}", shape=shapes[0], sizes=shapes[1])
        if not is_linear:
            forward = f"y = {reference}; return {change}"
            text = PRODUCT.format(reference=reference, forward=forward, a=shapes[0], b=shapes[1])
        return only(written(tmp_path, text))

    right = module("y")
    assert (adapted(right).problem, right.kernels[0].layouts) == (f"mm m64 n48 k10{' bias1' * is_linear}", (layout,))
    for operator in OPERATORS:
        for text in ("mm m64 n48 k10", "mm m80 n48 k10", "mm m7 n4 k9", "mm m1 n1 k1"):
            assert of(right, text, operator)
    flat = module("y.flatten(0, -2)")
    for operator in OPERATORS:
        assert "y has shape (7, 4); expected (1, " in of(flat, "mm m7 n4 k9", operator).reason
    first = module(
        f"y * ({'x' if is_linear else 'A'}.shape[0] == {shapes[0][0]})"
    )  # right with as many as in get_inputs
    assert of(first, "mm m64 n48 k10")
    assert not of(first, "mm m96 n48 k10")


def test_result_of_one_product_is_a_batch(tmp_path: Path):
    squeezed = product(tmp_path, "torch.bmm(A, B)", "y = A @ B; return y[0] if len(y) == 1 else y", BATCHES)
    assert of(squeezed, "mm b2 m5 n7 k9")
    assert "y has shape (5, 7); expected (1, 5, 7)" in of(squeezed, "mm m5 n7 k9").reason


@pytest.mark.parametrize(
    ("reference", "forward", "shapes", "wrong", "right", "cause"),
    [
        (
            "torch.matmul(A, B)", "k = A.shape[1] // 4 * 4; return A[:, :k] @ B[:k]", MATRICES,
            "mm m7 n9 k30", "mm m7 n9 k32", "tail of the sum",
        ),
        (
            "torch.matmul(A, B)", "return A @ (B.T if A.shape == B.shape == B.T.shape else B)", MATRICES,
            "mm m12 n12 k12", "mm m12 n13 k12", "transpose",
        ),
        (
            "torch.bmm(A, B)", "return A @ B[:1]", BATCHES, "mm b3 m5 n7 k9", "mm m5 n7 k9",
            "b of the first product for every product",
        ),
    ],
)  # fmt: skip
def test_wrong_product_fails_and_its_cause_is_named(
    tmp_path: Path, reference: str, forward: str, shapes: tuple[str, str], wrong: str, right: str, cause: str
):
    module = product(tmp_path, reference, forward, shapes)
    assert of(module, right)
    result = of(module, wrong)
    assert (result.status, cause in " ".join(result.diagnosis or ())) == ("fail", True), result.diagnosis


@pytest.mark.parametrize(
    ("reference", "shapes"),
    [
        ("torch.relu(A @ B)", MATRICES),
        ("2 * (A @ B)", MATRICES),
        ("(A @ B).half()", MATRICES),
        ("A @ B, A", MATRICES),
        ("torch.triu(A @ B)", ("64, 64", "64, 64")),
        ("(A + A.T) @ B", ("64, 64", "64, 64")),
        ("A * B", ("64, 64", "64, 64")),
        ("torch.diag(A) @ B", ("64", "64, 48")),
        ("torch.softmax(A @ B, -1)", BATCHES),
        ("A[:1] @ B", BATCHES),
    ],
)
def test_what_is_not_the_product_alone_is_refused_in_words(tmp_path: Path, reference: str, shapes: tuple[str, str]):
    module = product(tmp_path, reference, shapes=shapes)
    said = "cannot tell which operator solution is: what its reference Model returns is not the product of its two"
    assert adapted(module).unmapped.startswith(said)
    assert "without a scale, a mask or an activation" in adapted(module).unmapped
    assert module.kernels == []


def test_file_of_a_product_may_have_no_inputs_or_whole_numbers(tmp_path: Path):
    text = PRODUCT.format(reference="A.T @ B", forward="return A.T @ B", a="3, 4", b="3, 5")
    module = only(written(tmp_path, text.replace("get_inputs", "inputs")))
    assert (adapted(module).unknown, module.kernels[0].layouts) == ("the file has no get_inputs", ("tn",))
    assert of(module, "mm m5 n7 k9")
    module = only(written(tmp_path, text.replace("torch.rand(", "torch.ones(").replace("(3, 4)", "(3, 4).int()")))
    assert "get_inputs returns whole numbers" in adapted(module).unmapped
    module = only(written(tmp_path, text.replace("(3, 5)", "(4, 5)")))
    assert adapted(module).unknown == "(3, 4) and (4, 5) cannot be multiplied"


def test_product_in_another_dtype_is_verified_in_it(tmp_path: Path):
    text = PRODUCT.format(reference="A @ B", forward="return A @ B", a="8, 9", b="9, 4")
    module = only(written(tmp_path, text.replace("rand(8, 9", "rand(8, 9, dtype=torch.bfloat16")))
    assert (adapted(module).dtype, module.kernels[0].dtypes) == ("bf16", ("bf16",))
    assert check(module, "mm m5 n7 k9", operator="matmul", dtype="bf16")


def test_kernel_of_one_shape_is_right_there_and_unsupported_elsewhere(tmp_path: Path):
    refuses = "assert A.shape == (64, 100), 'made for 64 x 100'\n        return A @ B"
    product(tmp_path, "A @ B", refuses)
    words = ("--level", "smoke", "--operator", "matmul", "--programs", "1", "--distribution", "fixed", "--in-process")
    _, out = command("run", str(tmp_path / "solution.py"), *words)
    assert "solution: right at its own shape: yes (mm m64 n48 k100, fp32)" in out
    assert "solution: right at other shapes: 0 of 0 cases" in out
    assert re.search(r"refused when called: solution: \d+ cases", out)
    result = of(only(tmp_path / "solution.py"), "mm m5 n7 k9")
    assert (result.status, result.reason) == ("unsupported", "refuses: made for 64 x 100")


@pytest.mark.parametrize(
    "forward",
    [
        "self.kept = B.clone() if self.kept is None else self.kept; return A @ self.kept",
        "self.kept = B.clone() if self.kept is None or self.kept.shape != B.shape else self.kept; return A @ self.kept",
    ],
)
def test_operand_that_is_kept_from_an_earlier_call_fails(tmp_path: Path, forward: str):
    result = of(product(tmp_path, "A @ B", forward), "mm m5 n7 k9")
    assert (result.status, KEEPS_OPERANDS in result.reason) == ("fail", True), result.reason


def test_graph_that_is_missing_is_unsupported_or_wrong(tmp_path: Path):
    module = product(tmp_path, "A @ B", "return A.detach() @ B.detach()")
    assert of(module, "mm m5 n7 k9")
    for operator in OPERATORS[1:]:
        result = of(module, "mm m5 n7 k9", operator)
        assert (result.status, "has no backward" in result.reason) == ("unsupported", True), result.reason
    module = product(tmp_path, "A @ B", "return (A @ B).detach() if len(A) == 5 else A @ B")
    assert "has no graph here" in of(module, "mm m5 n7 k9", "matmul_backward_a").reason
    module = product(tmp_path, "A @ B", "return A @ B.detach()")
    assert "no gradient reaches b" in of(module, "mm m5 n7 k9", "matmul_backward_b").reason


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("mm m64 n48 k100", "mm m64 n48 k100"),
        ("mm m4096 n4096 k4096", "mm m1024 n4096 k4096"),
        ("mm b128 m512 n2048 k1024", "mm b2 m512 n2048 k1024"),
        ("mm b3 m4000 n500 k1000", "mm b2 m2000 n500 k1000"),
        ("mm m2 n128256 k256", "mm m2 n128256 k256"),
    ],
)
def test_large_product_is_verified_in_part(whole: str, part: str):
    assert affordable(parse(whole), adapter.MAX_OWN, adapter.MAX_OWN).descriptor == part


@pytest.mark.parametrize(
    ("shapes", "layout", "part", "said"),
    [
        (("4, 64", "4, 8"), "tn", "mm m32 n8 k4", "of 64 rows"),
        (("16, 3, 8", "16, 8, 3"), "nn", "mm b4 m3 n3 k8", "of a batch of 16"),
    ],
)
def test_part_of_a_large_product_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: tuple[str, str], layout: str, part: str, said: str
):
    monkeypatch.setattr(adapter, "MAX_OWN", 400)
    reference = "A.T @ B" if layout == "tn" else "torch.bmm(A, B)"
    module = product(tmp_path, reference, f"return {reference}", shapes)
    assert (adapted(module).problem, adapted(module).whole != "") == (part, True)
    kernel, of_reference, (a, b) = vars(module.arrays)["own"]()
    assert torch.equal(kernel(a, b), of_reference(a, b))
    assert Form(layout, (a.dim(), b.dim())).geometry(a.shape, b.shape) == parse(part)
    words = ("--level", "smoke", "--operator", "matmul", "--programs", "1", "-k", "own.", "--in-process")
    assert (
        f"right at its own shape: yes ({part}, fp32, {said})"
        in command("run", str(tmp_path / "solution.py"), *words)[1]
    )


def test_second_operand_that_is_too_large_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adapter, "MAX_OWN_WEIGHT", 4800)
    assert adapted(product(tmp_path, "A @ B")).unknown == ""
    monkeypatch.setattr(adapter, "MAX_OWN_WEIGHT", 4799)
    said = "its second operand has 4,800 elements; at most 4,799 are judged"
    assert adapted(product(tmp_path, "A @ B")).unknown == adapted(linear(tmp_path)).unknown == said


def test_problems_near_a_large_product_are_small():
    for text in ("mm m1024 n4096 k4096", "mm b64 m8 n2048 k4096", "mm m4 n128256 k256"):
        near = [*neighbours(parse(text))]
        assert all(geometry.filter.size <= 8 * 3 * NEAR_MATRIX and geometry.n <= 16 for geometry in near)
        assert {geometry.described.k % 2 for geometry in near} == {0, 1}
    assert "mm m8 n48 k101" in {geometry.descriptor for geometry in neighbours(parse("mm m64 n48 k100"))}


@pytest.mark.parametrize("bias", ["", " bias1"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_linear_layer_is_a_product_with_its_weight(tmp_path: Path, operator: str, bias: str):
    right = "y = x @ self.linear.weight.T\n        return y if self.linear.bias is None else y + self.linear.bias"
    module = linear(tmp_path, right, sizes=f"100, 48, {bool(bias)}")
    assert adapted(module).problem == f"mm m64 n48 k100{bias}"
    assert [(kernel.operator, kernel.layouts) for kernel in module.kernels] == [(name, ("nt",)) for name in OPERATORS]
    for with_bias in ("", " bias1"):
        assert of(module, f"mm m5 n7 k9{with_bias}", operator)
    assert of(module, "mm b3 m5 n7 k9", operator).reason == "a linear layer has one weight, no batch of them"


@pytest.mark.parametrize(
    ("forward", "wrong", "right", "cause"),
    [
        ("return self.linear(x) + (0 if self.linear.bias is None else self.linear.bias)", "mm m5 n7 k9 bias1",
         "mm m5 n7 k9", "bias added twice"),
        ("k = x.shape[1] // 4 * 4; return nn.functional.linear(x[:, :k], self.linear.weight[:, :k], self.linear.bias)",
         "mm m7 n9 k30", "mm m7 n9 k32", "tail of the sum"),
        ("w = self.linear.weight; w = w if w.shape != w.T.shape else w.T; return nn.functional.linear(x, w, "
         "self.linear.bias)", "mm m9 n12 k12", "mm m9 n13 k12", "transpose"),
    ],
)  # fmt: skip
def test_wrong_linear_layer_fails_and_its_cause_is_named(
    tmp_path: Path, forward: str, wrong: str, right: str, cause: str
):
    module = linear(tmp_path, forward)
    assert of(module, right)
    result = of(module, wrong)
    assert (result.status, cause in " ".join(result.diagnosis or ())) == ("fail", True), result.diagnosis


def test_linear_layer_that_packs_its_weight_once_fails(tmp_path: Path):
    packs = "self.packed = vars(self).get('packed', self.linear.weight.T.clone()); return x @ self.packed"
    result = of(linear(tmp_path, packs, sizes="100, 48, False"), "mm m5 n7 k9")
    assert (result.status, KEEPS in result.reason) == ("fail", True), result.reason


def test_linear_layer_may_be_declared_and_takes_no_vector(tmp_path: Path):
    text = LINEAR.format(forward="return self.linear(x)", shape="64, 100", sizes="100, 48")
    kernel = text.replace("class Model(nn", "class Base(nn").replace("ModelNew(Model)", "ModelNew(Base)")
    module = only(written(tmp_path, f"{kernel}\nModel = nn.Linear\n"))
    assert adapted(module).problem == "mm m64 n48 k100 bias1"
    assert of(module, "mm m5 n7 k9")
    assert check(torch.nn.Linear, "mm m5 n7 k9 bias1", operator="matmul", layout="nt")
    assert adapted(linear(tmp_path, shape="100")).unknown == "get_inputs returns a vector, no matrix"
