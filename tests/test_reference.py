"""The reference against the definition, in one to three dimensions, written as loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.inputs import Recipe, expectation
from conformance.operators import CONVOLUTIONS, OPERATORS, ConvGeometry, GeometryError


@st.composite
def geometries(draw: st.DrawFn) -> ConvGeometry:
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    pads = st.tuples(st.integers(0, 2), st.integers(0, 2))

    def on_axes(value: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(value) for _ in range(rank))

    try:
        return ConvGeometry(
            n=draw(st.integers(1, 2)),
            c=groups * draw(st.integers(1, 2)),
            size=on_axes(st.integers(1, 9 - 2 * rank)),
            k=groups * draw(st.integers(1, 2)),
            window=on_axes(st.integers(1, 5 - rank)),
            stride=on_axes(st.integers(1, 3)),
            padding=on_axes(pads),
            dilation=on_axes(st.integers(1, 2)),
            groups=groups,
            bias=draw(st.booleans()),
        )
    except GeometryError:
        return ConvGeometry(1, 1, (1, 1), 1, (1, 1))


def taps(g: ConvGeometry):
    """Every (n, k, p, q) and every product it sums: the indices into x and w."""
    axes = [*zip(g.stride, g.dilation, g.padding, strict=True)]
    for n, k, *place in np.ndindex(*g.y.shape):
        first = k // (g.k // g.groups) * (g.c // g.groups)
        for c, *tap in np.ndindex(g.c // g.groups, *g.window):
            read = [p * u + t * d - before for p, t, (u, d, (before, _)) in zip(place, tap, axes, strict=True)]
            if all(0 <= position < size for position, size in zip(read, g.size, strict=True)):
                yield (n, k, *place), (n, first + c, *read), (k, c, *tap)


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
        outputs["y"] += values["bias"].reshape(-1, *[1] * g.rank)
    if g.bias and operator == "conv_backward_weight":
        outputs["dbias"] += values["dy"].swapaxes(0, 1).reshape(g.k, -1).sum(axis=1)
    return outputs


@pytest.mark.parametrize("operator", CONVOLUTIONS)
@settings(max_examples=60, deadline=None)
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
