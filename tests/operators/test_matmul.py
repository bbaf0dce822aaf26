"""Matrix products: the definition in exact arithmetic, layouts and views in torch's words, and what `when=` gets."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.checks import check_behaviour
from conformance.checks.state import memory_is_given_back
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.implementation import Implementation, ImplementationError
from conformance.layouts import MATRICES, arranged
from conformance.operators import OPERATORS, parse
from conformance.operators.matmul.operators import by_product
from conformance.problems.parameters import geometry, parameters
from conformance.reading import problems as reading_problems
from conformance.resources import IMPLS
from tests.cheaters import Kernel
from tests.kit import expectation, trial_of

MATMUL = OPERATORS["matmul"]


@given(sizes=st.fixed_dictionaries({"n": st.integers(0, 3), "k": st.integers(1, 3), "c": st.integers(0, 4),
                                    "g": st.integers(1, 3), "b": st.just(0)}))  # fmt: skip
def test_the_reference_is_the_sum_of_products(sizes: dict[str, int]):
    g = geometry("matmul", sizes)
    assert parameters(g) == sizes
    assert parse(g.descriptor) == g
    dice = np.random.default_rng(0)
    inputs = {name: dice.integers(-9, 9, t.shape) / 4 for name, t in MATMUL.inputs(g).items()}
    y = by_product(MATMUL.reference(g, inputs)["y"], g.groups)
    a, b = by_product(inputs["a"], g.groups), inputs["b"].reshape(g.groups, sizes["k"], sizes["c"])
    for product, row, column in np.ndindex(*y.shape):
        terms = zip(a[product, row].tolist(), b[product, column].tolist(), strict=True)
        assert Fraction(float(y[product, row, column])) == sum(
            (Fraction(x) * Fraction(w) for x, w in terms), Fraction()
        )


@pytest.mark.parametrize("layout", MATRICES)
@pytest.mark.parametrize("text", ["mm m3 n5 k4", "mm b2 m3 n5 k4"])
def test_a_kernel_gets_matrices_as_torch_has_them(layout: str, text: str):
    torch = pytest.importorskip("torch")
    expected = expectation("matmul", text)
    tensors, g = expected.recipe.workload.inputs, expected.recipe.workload.geometry
    a, b = (
        torch.from_numpy(np.ascontiguousarray(arranged(tensors[name], layout, g).to_memory(expected.inputs[name])))
        for name in "ab"
    )
    assert a.dim() == b.dim() == (3 if g.groups > 1 else 2)
    y = torch.matmul(*(x.transpose(-1, -2) if letter == "t" else x for x, letter in zip((a, b), layout, strict=True)))
    place = arranged(expected.recipe.workload.outputs["y"], layout, g)
    np.testing.assert_allclose(place.from_memory(y.numpy()), expected.reference["y"], rtol=1e-5)


def multiplied(a: Any, b: Any, bias: Any) -> Any:
    y = a @ b
    return y if bias is None else y + bias


def of_contiguous(a: Any, b: Any, bias: Any) -> Any:
    """Ignore the strides of b, as a kernel does that is given a pointer and no leading dimension."""
    beside = np.lib.stride_tricks.as_strided(b, b.shape, [b.itemsize * step for step in (b.shape[1], 1)])
    return multiplied(a, beside, bias)


@pytest.mark.parametrize("storage", ["b:crop", "b:rows", "b:transposed", "a:reversed,b:far-rows", "b:strided"])
@pytest.mark.parametrize(("kernel", "status"), [(multiplied, "pass"), (of_contiguous, "fail")])
def test_leading_dimensions_are_storage(kernel: Kernel, status: str, storage: str):
    assert verify(trial_of(kernel, "mm m4 n6 k5", "matmul", storage=storage)).status == status


def of_each(a: Any, b: Any, bias: Any) -> Any:
    """Step from product to product by the size of b, whatever its stride."""
    step = b.shape[1] * b.shape[2] * b.itemsize
    return a @ np.lib.stride_tricks.as_strided(b, b.shape, [step, *b.strides[1:]])


@pytest.mark.parametrize(("kernel", "status"), [(multiplied, "pass"), (of_each, "fail")])
def test_one_matrix_may_stand_for_a_whole_batch(kernel: Kernel, status: str):
    trial = trial_of(kernel, "mm b3 m4 n6 k5", "matmul", storage="b:expanded-batch", distribution="integer")
    assert verify(trial).status == status


def test_a_predicate_gets_the_sizes_of_a_product():
    assert parse("mm b3 m4 n6 k5").described._asdict() == {"m": 4, "n": 6, "k": 5, "batch": 3, "bias": False}


@pytest.mark.parametrize("text", ["mm m3 n5 k4 bias1", "mm b2 m3 n5 k4"])
def test_gradients_are_those_of_autograd(text: str):
    torch = pytest.importorskip("torch")
    g = parse(text)
    dice = np.random.default_rng(0)
    shapes = MATMUL.inputs(g) | {"dy": MATMUL.outputs(g)["y"]}
    inputs = {name: dice.standard_normal(tensor.shape) for name, tensor in shapes.items()}
    a, dy = (torch.from_numpy(by_product(inputs[name], g.groups)) for name in ("a", "dy"))
    b = torch.from_numpy(inputs["b"]).reshape(g.groups, -1, g.c // g.groups)
    leaves = [tensor.requires_grad_() for tensor in (a, b)]
    (leaves[0] @ leaves[1].transpose(1, 2)).backward(dy)
    da, db = (OPERATORS[f"matmul_backward_{name}"].reference(g, inputs) for name in "ab")
    np.testing.assert_allclose(by_product(da["da"], g.groups), leaves[0].grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(db["db"].reshape(leaves[1].shape), leaves[1].grad.numpy(), rtol=1e-12)
    if g.bias:
        np.testing.assert_allclose(db["dbias"], dy.sum((0, 1)).numpy(), rtol=1e-12)


def test_a_predicate_that_asks_for_another_size_is_told_the_sizes():
    implementation = Implementation("acme")
    implementation.implements("matmul", when=lambda p: p.c > 3)(multiplied)
    with pytest.raises(ImplementationError, match="a problem of this operator has m, n, k, batch, bias"):
        implementation.find("matmul", parse("mm m4 n6 k5"), "fp32", "nn")


def test_a_product_without_a_bias_is_read():
    """A run of a wrong kernel that takes no bias ended with a GeometryError, when its arithmetic was read."""
    assert [g.groups for g in reading_problems.candidates(MATMUL, "bias")] == [1, 1]


def test_a_batch_is_asked_for_no_bias():
    """A right kernel had an error where only its batches were run."""
    numpy = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]
    trial = trial_of(numpy, "mm b3 m5 n7 k11", "matmul", distribution="behaviour")
    verdict = check_behaviour(trial, memory_is_given_back)
    assert verdict.status == "pass", verdict.reason
