"""The reference against the definition, written as seven loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.inputs import Recipe, expectation
from conformance.operators import CONVOLUTIONS, OPERATORS, ConvGeometry, GeometryError


@st.composite
def geometries(draw: st.DrawFn) -> ConvGeometry:
    small = st.integers(1, 4)
    groups = draw(st.integers(1, 3))
    pads = st.tuples(st.integers(0, 2), st.integers(0, 2))
    try:
        return ConvGeometry(
            n=draw(st.integers(1, 2)),
            c=groups * draw(st.integers(1, 2)),
            h=draw(st.integers(1, 7)),
            w=draw(st.integers(1, 7)),
            k=groups * draw(st.integers(1, 2)),
            r=draw(small),
            s=draw(small),
            stride=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
            padding=(draw(pads), draw(pads)),
            dilation=(draw(st.integers(1, 2)), draw(st.integers(1, 2))),
            groups=groups,
            bias=draw(st.booleans()),
        )
    except GeometryError:
        return ConvGeometry(1, 1, 1, 1, 1, 1, 1)


def taps(g: ConvGeometry):
    """Every (n, k, p, q) and every product it sums: the indices into x and w."""
    p, q = g.output_size
    for n, k, i, j in itertools.product(range(g.n), range(g.k), range(p), range(q)):
        first = k // (g.k // g.groups) * (g.c // g.groups)
        for c, r, s in itertools.product(range(g.c // g.groups), range(g.r), range(g.s)):
            row = i * g.stride[0] + r * g.dilation[0] - g.padding[0][0]
            column = j * g.stride[1] + s * g.dilation[1] - g.padding[1][0]
            if 0 <= row < g.h and 0 <= column < g.w:
                yield (n, k, i, j), (n, first + c, row, column), (k, c, r, s)


def by_definition(operator: str, g: ConvGeometry, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = {name: np.zeros(tensor.shape) for name, tensor in OPERATORS[operator].outputs(g).items()}
    values = {name: array.astype(np.float64) for name, array in inputs.items()}
    for y, x, w in taps(g):
        if operator == "conv_forward":
            outputs["y"][y] += values["x"][x] * values["w"][w]
        elif operator == "conv_backward_data":
            outputs["dx"][x] += values["dy"][y] * values["w"][w]
        else:
            outputs["dw"][w] += values["x"][x] * values["dy"][y]
    if g.bias and operator == "conv_forward":
        outputs["y"] += values["bias"][:, None, None]
    if g.bias and operator == "conv_backward_weight":
        outputs["dbias"] += values["dy"].sum(axis=(0, 2, 3))
    return outputs


@pytest.mark.parametrize("operator", CONVOLUTIONS)
@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_reference_is_the_definition(operator: str, geometry: ConvGeometry):
    expected = expectation(Recipe(OPERATORS[operator], geometry, "fp32", "fixed", 1))
    for name, exact in by_definition(operator, geometry, expected.inputs).items():
        np.testing.assert_array_equal(expected.reference[name], exact)


@settings(max_examples=60, deadline=None)
@given(geometry=geometries())
def test_descriptor_reads_back(geometry: ConvGeometry):
    assert ConvGeometry.parse(geometry.descriptor) == geometry


@settings(max_examples=30, deadline=None)
@given(geometry=geometries())
def test_no_element_sums_more_terms_than_declared(geometry: ConvGeometry):
    for operator in map(OPERATORS.__getitem__, CONVOLUTIONS):
        ones = {name: np.ones(tensor.shape) for name, tensor in operator.inputs(geometry).items()}
        for name, sums in operator.reference(geometry, ones).items():
            assert sums.max() <= operator.errors(geometry).terms[name]
