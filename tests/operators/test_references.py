"""The reference of every family is its definition, on any small problem."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.inputs import Expectation, Recipe
from conformance.inputs.distributions import sparse_places
from conformance.operators import FAMILIES, OPERATORS, TRANSPOSED, parse
from conformance.operators.sparse import nonzero
from conformance.operators.spatial import Index
from tests.operators.definitions import by_definition, geometries

INPUTS = {
    "conv": [("fp32", "fixed")],
    "conv_transpose": [("fp32", "fixed")],
    "conv_requantized": [("int8", "scales"), ("int8", "ties"), ("int8", "cancelled")],
    "avg_pool": [("fp32", "fixed"), ("fp64", "fixed")],
    "max_pool": [("bf16", "fixed"), ("bf16", "integer"), ("bf16", "impulse"), ("fp32", "integer")],
}
"""Of which the definition is exact in float64; the few values of bf16 tie."""


def require_definition(recipe: Recipe) -> None:
    expected = Expectation(recipe)
    exact = by_definition(recipe.workload.operator.name, recipe.workload.geometry, expected.inputs)
    assert exact.keys() == expected.reference.keys()
    for name, array in exact.items():
        np.testing.assert_array_equal(expected.reference[name], array)


@pytest.mark.parametrize("family", INPUTS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_reference_is_the_definition(family: str, data: st.DataObject):
    geometry, (dtype, distribution) = data.draw(geometries(family)), data.draw(st.sampled_from(INPUTS[family]))
    for operator in FAMILIES[family].operators:
        require_definition(Recipe(operator.on(geometry), dtype, distribution, 1))


EDGES = (
    "pool n1 c1 h7 w6 r3 s3 u2x3 ceil1",
    "pool n1 c1 h4 w5 r2 s3 u3x2 p1 ceil1",
    "pool n1 c1 h6 w5 r3 s4 u2x3 p1 ceil1 valid1",
    "pool n1 c1 h5 w6 r3 s4 u2x1 p0:2x3:1 valid1",
    "pool n1 c1 h6 w5 r4 s3 u3x2 p1:2x0:1 ceil1",
    "pool n1 c1 h7 w8 r2 s1 u3",
    "pool n1 c1 h5 w6 r3 s3 u2 p1 ceil1 valid1 div5",
    "pool n1 c1 h2 w2 r3 s3 u1 p1",
    "maxpool n1 c1 h7 w8 r2 s1 u3",
    "maxpool n1 c1 h9 w8 r3 s2 u2x1 p1:2x0:1 d2x3 ceil1",
    "maxpool n1 c2 h5 w6 r3 s4 u2x1 p0:2x3:1",
)


@pytest.mark.parametrize("text", EDGES)
def test_reference_of_a_pooling_is_the_definition_at_its_edges(text: str):
    """Windows that are dropped, cut off, or lie apart; divisors of one edge alone."""
    geometry = parse(text)
    for operator, known in itertools.product(FAMILIES[geometry.family].operators, INPUTS[geometry.family]):
        require_definition(Recipe(operator.on(geometry), *known, 1))


@pytest.mark.parametrize("family", ["conv", "conv_transpose", "avg_pool"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_element_sums_more_terms_than_declared(family: str, data: st.DataObject):
    """Of ones, and for an average without its division, which is a term more."""
    geometry = data.draw(geometries(family))
    counted = parse(f"{geometry.descriptor.split(' div')[0]} div1") if family == "avg_pool" else geometry
    for operator in FAMILIES[family].operators:
        ones = {name: np.ones(tensor.shape) for name, tensor in operator.inputs(counted).items()}
        for name, sums in operator.reference(counted, ones).items():
            assert sums.max() <= operator.errors(geometry).terms[name] - (family == "avg_pool")


@settings(max_examples=40, deadline=None)
@given(geometry=geometries("max_pool"))
def test_no_maximum_is_of_more_windows_than_declared(geometry: Any):
    """Constant images: all windows of an element choose it, where it is their first."""
    backward = OPERATORS["max_pool_backward"]
    for x in (np.zeros(geometry.x.shape), -np.arange(geometry.x.size).reshape(geometry.x.shape)):
        dx = backward.reference(geometry, {"x": x, "dy": np.ones(geometry.y.shape)})["dx"]
        assert dx.max() <= backward.errors(geometry).terms["dx"]


@settings(max_examples=40, deadline=None)
@given(geometry=geometries("conv_transpose"))
def test_an_output_of_another_size_is_the_same_cropped_or_longer(geometry: Any):
    assert geometry.reaching(geometry.output_size).output_size == geometry.output_size
    shorter = tuple(max(1, extent - 1) for extent in geometry.output_size)
    operator = OPERATORS["conv_transpose_forward"]
    ones = {name: np.ones(tensor.shape) for name, tensor in operator.inputs(geometry).items()}
    whole, cropped = (operator.reference(g, ones)["y"] for g in (geometry, geometry.reaching(shorter)))
    kept: Index = (..., *map(slice, shorter))
    np.testing.assert_array_equal(whole[kept], cropped)


@pytest.mark.parametrize("operator", TRANSPOSED)
@pytest.mark.parametrize("text", [
    "convt n1 c2 h41 w53 k2 r3 s2 u3x2 p1:0x0:1 d1x3 o2", "convt n1 c2 w5000 k3 s3 u2 o1",
])  # fmt: skip
def test_sparse_results_are_those_of_the_reference(operator: str, text: str):
    recipe = Recipe(OPERATORS[operator].on(parse(text)), "fp32", "sparse", 0)
    expected = Expectation(recipe)
    exact = recipe.workload.reference(expected.inputs)
    for name, (places, values) in nonzero(recipe.workload, expected.inputs, sparse_places(recipe)).items():
        found = np.zeros(exact[name].size)
        found[places] = values
        np.testing.assert_array_equal(found.reshape(exact[name].shape), exact[name])


@pytest.mark.parametrize(("operator", "right"), {
    "avg_pool_forward": [[3.5, 5.5, 7.5], [15.5, 17.5, 19.5], [27.5, 29.5, 31.5]],
    "max_pool_forward": [[13, 14, 15, 15, 15], [18, 19, 20, 20, 20], *[[23, 24, 25, 25, 25]] * 3],  # as ONNX has it
}.items())  # fmt: skip
def test_worked_examples_are_right(operator: str, right: list[list[float]]):
    example = OPERATORS[operator].worked_example
    assert example is not None
    y = OPERATORS[operator].reference(parse(example.descriptor), example.inputs)["y"]
    np.testing.assert_array_equal(y[0, 0], right)


def test_padding_is_never_the_maximum_and_nan_is():
    g, forward, backward = parse("maxpool n1 c1 h3 w3 r3 s3 u2 p1"), *FAMILIES["max_pool"].operators
    x = np.full(g.x.shape, -np.inf)
    assert np.all(forward.reference(g, {"x": x})["y"] == -np.inf)
    dx = backward.reference(g, {"x": x, "dy": np.ones(g.y.shape)})["dx"]
    np.testing.assert_array_equal(dx[0, 0], [[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    x[0, 0, 1, 1] = np.nan
    assert np.isnan(forward.reference(g, {"x": x})["y"]).all()


def test_no_images_have_no_maxima():
    """A window that reaches beyond a plane takes the path of few windows, which divided by the number of images."""
    g = parse("maxpool n0 c5 d1 h6 w6 t2 r3 s3 u2x5x2 p1")
    outputs = OPERATORS["max_pool_backward"].reference(g, {"x": np.zeros(g.x.shape), "dy": np.zeros(g.y.shape)})
    assert outputs["dx"].shape == g.x.shape
