"""Grouped matrix products: the definition in exact arithmetic, how rows are divided, what kernels get, and mistakes
about groups."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.checks import check_behaviour
from conformance.checks.state import other_parameters_are_told_apart
from conformance.diagnosis.traits import of_geometry
from conformance.execution.verify import verify
from conformance.layouts import MATRICES, arranged
from conformance.operators import OPERATORS, GeometryError, parse
from conformance.operators.matmul_grouped.geometry import divided
from conformance.operators.matmul_grouped.mistakes import groups_of_rows
from conformance.problems import features
from conformance.problems.parameters import geometry, parameters
from tests.cheaters import Kernel
from tests.kit import expectation, trial_of

GROUPED = OPERATORS["matmul_grouped"]
RAGGED = "grouped g5 m19 n6 k8 uneven1 empty1"


@given(
    sizes=st.fixed_dictionaries(
        {name: st.integers(least, most) for name, least, most in
         (("g", 2, 5), ("n", 0, 7), ("k", 1, 3), ("c", 0, 4), ("uneven", 0, 1), ("empty", 0, 0))}
    )
)  # fmt: skip
def test_results_are_the_sums_of_products_with_the_b_of_the_row(sizes: dict[str, int]):
    g = geometry("matmul_grouped", sizes)
    assert parameters(g) == sizes
    assert parse(g.descriptor) == g
    dice = np.random.default_rng(0)
    tensors = GROUPED.inputs(g) | GROUPED.outputs(g)
    a, b, dy = (dice.integers(-9, 9, tensors[name].shape) / 4 for name in "aby")
    y = GROUPED.reference(g, {"a": a, "b": b})["y"]
    da = OPERATORS["matmul_grouped_backward_a"].reference(g, {"dy": dy, "b": b})["da"]
    db = OPERATORS["matmul_grouped_backward_b"].reference(g, {"a": a, "dy": dy})["db"]
    exact_db = np.full(db.shape, Fraction(0), object)
    for row, group in enumerate(groups_of_rows(g).tolist()):
        columns = range(group * sizes["k"], (group + 1) * sizes["k"])
        for column, of_b in enumerate(columns):
            terms = [Fraction(x) * Fraction(w) for x, w in zip(a[row].tolist(), b[of_b].tolist(), strict=True)]
            assert Fraction(float(y[row, column])) == sum(terms, Fraction())
            exact_db[of_b] += np.array(
                [Fraction(x) * Fraction(float(dy[row, column])) for x in a[row].tolist()], object
            )
        for term in range(sizes["c"]):
            products = (Fraction(float(dy[row, n])) * Fraction(float(b[of_b, term])) for n, of_b in enumerate(columns))
            assert Fraction(float(da[row, term])) == sum(products, Fraction())
    assert (db == exact_db.astype(float)).all()


@given(st.integers(0, 300), st.integers(3, 70), st.booleans(), st.booleans())
def test_groups_have_all_rows_and_empty_ones_none(rows: int, groups: int, uneven: bool, empty: bool):
    sizes = divided(rows, groups, uneven, empty)
    assert len(sizes) == groups
    assert sum(sizes) == rows
    assert min(sizes) >= 0
    if empty:
        assert sizes[-1] == 0 == max(sizes[::3])
    elif not uneven:
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("grouped g1 m4 n2 k3", "g is 1; it must be at least 2: the product of one group is a matmul"),
        ("grouped g2 m4 n2 k3 empty1", "none would have rows"),
        ("grouped g2 m4 n0 k3", "n is 0; it must be at least 1"),
        ("grouped g2 m4 n2 k3 bias1", "field 'bias1' is not understood"),
    ],
)
def test_sizes_that_no_product_has_are_refused(text: str, reason: str):
    with pytest.raises(GeometryError, match=reason):
        parse(text)


@pytest.mark.parametrize("layout", MATRICES)
def test_rows_lie_once_and_b_by_groups(layout: str):
    expected = expectation("matmul_grouped", RAGGED)
    tensors, g = expected.recipe.workload.inputs, expected.recipe.workload.geometry
    a, b = (arranged(tensors[name], layout, g).to_memory(expected.inputs[name]) for name in "ab")
    assert a.shape == ((8, 19) if layout[0] == "t" else (19, 8))
    assert b.shape == ((5, 6, 8) if layout[1] == "t" else (5, 8, 6))
    a, b = (x.swapaxes(-1, -2) if letter == "t" else x for x, letter in zip((a, b), layout, strict=True))
    y = np.stack([row.astype(np.float64) @ b[group] for row, group in zip(a, groups_of_rows(g), strict=True)])
    np.testing.assert_allclose(y, expected.reference["y"], rtol=1e-12)


def test_a_predicate_gets_the_sizes_of_the_groups():
    expected = {"m": 19, "n": 6, "k": 8, "groups": 5, "sizes": (0, 3, 16, 0, 0)}
    assert parse(RAGGED).described._asdict() == expected


def test_gradients_are_those_of_autograd():
    torch = pytest.importorskip("torch")
    g, dice = parse(RAGGED), np.random.default_rng(0)
    tensors = GROUPED.inputs(g) | GROUPED.outputs(g)
    inputs = {"a": dice.standard_normal(tensors["a"].shape), "b": dice.standard_normal(tensors["b"].shape)}
    inputs["dy"] = dice.standard_normal(tensors["y"].shape)
    a, b, dy = (torch.from_numpy(inputs[name]) for name in ("a", "b", "dy"))
    leaves = [a.requires_grad_(), b.reshape(5, 6, 8).requires_grad_()]
    parts = [rows @ matrix.T for rows, matrix in zip(leaves[0].split(g.sizes), leaves[1], strict=True)]
    torch.cat(parts).backward(dy)
    for name, operator, leaf in (("da", "backward_a", leaves[0]), ("db", "backward_b", leaves[1])):
        gradient = OPERATORS[f"matmul_grouped_{operator}"].reference(g, inputs)[name]
        np.testing.assert_allclose(gradient.reshape(leaf.shape), leaf.grad.numpy(), rtol=1e-12)


def grouped(a: Any, b: Any, *, sizes: tuple[int, ...]) -> Any:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return np.stack([row @ b[group] for row, group in zip(a, groups, strict=True)])


def of_contiguous(a: Any, b: Any, *, sizes: tuple[int, ...]) -> Any:
    """Step from group to group by the size of b, whatever its stride."""
    step = b.shape[1] * b.shape[2] * b.itemsize
    return grouped(a, np.lib.stride_tricks.as_strided(b, b.shape, [step, *b.strides[1:]]), sizes=sizes)


@pytest.mark.parametrize(("kernel", "status"), [(grouped, "pass"), (of_contiguous, "fail")])
def test_one_matrix_may_stand_for_those_of_all_groups(kernel: Kernel, status: str):
    trial = trial_of(kernel, RAGGED, "matmul_grouped", storage="b:expanded-batch", distribution="integer")
    assert verify(trial).status == status


def test_rows_have_no_groups_that_could_be_one():
    """The storage of a batch repeated a share of the terms of a, which has no batch."""
    trial = trial_of(grouped, RAGGED, "matmul_grouped", storage="a:expanded-batch", distribution="integer")
    assert verify(trial).status == "pass"


def with_zeros(a: Any, b: Any, *, sizes: tuple[int, ...]) -> Any:
    groups = np.repeat(np.arange(len(sizes)), sizes)[:, None]
    return sum(np.where(groups == group, a, 0) @ matrix for group, matrix in enumerate(b))


def test_nan_in_the_b_of_a_group_stays_there():
    trial = trial_of(with_zeros, RAGGED, "matmul_grouped", distribution="nonfinite")
    verdict = verify(trial)
    assert verdict.status == "fail"
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.names == ("rows of other groups multiplied by zeros",)
    assert verify(trial_of(with_zeros, RAGGED, "matmul_grouped")).status == "pass"


def test_a_kernel_that_keeps_the_sizes_of_a_shape_is_detected():
    plans: dict[Any, tuple[int, ...]] = {}

    def planned(a: Any, b: Any, *, sizes: tuple[int, ...]) -> Any:
        return grouped(a, b, sizes=plans.setdefault((a.shape, b.shape), sizes))

    verdict = check_behaviour(trial_of(planned, "grouped g3 m16 n6 k6 uneven1", "matmul_grouped"),
                              other_parameters_are_told_apart)  # fmt: skip
    assert verdict.status == "fail"


def test_conditions_name_the_groups():
    traits = of_geometry(parse(RAGGED))
    assert {"a group without rows", "rows of some group not a multiple of 2"} <= traits.features
    assert traits.sizes["rows of the largest group"] == 16
    assert features.of_geometry(parse(RAGGED)) > {"batch > 1", "uneven division of the rows"}
