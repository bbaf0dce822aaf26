"""Transposed convolution: the reference against the definition and against torch, mistakes, refused parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.calibration.known_kernels import judged_by_probes
from conformance.diagnosis.diagnose import diagnose
from conformance.inputs import Expectation, Recipe, expectation
from conformance.inputs.distributions import sparse_places
from conformance.operators import FAMILIES, OPERATORS, TRANSPOSED, Arrays, GeometryError, parse
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.sparse import nonzero
from conformance.operators.spatial import Index
from conformance.problems import PROBLEMS

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = TRANSPOSED


@st.composite
def geometries(draw: st.DrawFn) -> TransposedGeometry:
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    pads = st.tuples(st.integers(0, 3), st.integers(0, 3))

    def on_axes(value: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(value) for _ in range(rank))

    stride, dilation = on_axes(st.integers(1, 3)), on_axes(st.integers(1, 3))
    try:
        return TransposedGeometry(
            n=draw(st.integers(1, 2)),
            c=groups * draw(st.integers(1, 2)),
            size=on_axes(st.integers(1, 6 - rank)),
            k=groups * draw(st.integers(1, 2)),
            window=on_axes(st.integers(1, 5 - rank)),
            stride=stride,
            padding=on_axes(pads),
            dilation=dilation,
            output_padding=tuple(
                draw(st.integers(0, max(pair) - 1)) for pair in zip(stride, dilation, strict=True)
            ),
            groups=groups,
            bias=draw(st.booleans()),
        )  # fmt: skip
    except GeometryError:
        return TransposedGeometry(1, 1, (1, 1), 1, (1, 1))


def products(g: TransposedGeometry):
    """Every (n, c, h, w), tap and channel of y: the indices into x, w and y, where y has such an element."""
    for n, c, *place in np.ndindex(*g.x.shape):
        first = c // (g.c // g.groups) * (g.k // g.groups)
        for k, *tap in np.ndindex(g.k // g.groups, *g.window):
            axes = zip(place, tap, g.stride, g.dilation, g.padding, strict=True)
            made = [h * u + r * d - before for h, r, u, d, (before, _) in axes]
            if all(0 <= position < size for position, size in zip(made, g.output_size, strict=True)):
                yield (n, c, *place), (c, k, *tap), (n, first + k, *made)


def by_definition(operator: str, g: TransposedGeometry, inputs: Arrays) -> Arrays:
    outputs = {name: np.zeros(tensor.shape) for name, tensor in OPERATORS[operator].outputs(g).items()}
    values = {name: array.astype(np.float64) for name, array in inputs.items()}
    for x, w, y in products(g):
        if operator == FORWARD:
            outputs["y"][y] += values["x"][x] * values["w"][w]
        elif operator == BACKWARD_DATA:
            outputs["dx"][x] += values["dy"][y] * values["w"][w]
        else:
            outputs["dw"][w] += values["x"][x] * values["dy"][y]
    if g.bias and operator == FORWARD:
        outputs["y"] += values["bias"].reshape(-1, *[1] * g.rank)
    if g.bias and operator == BACKWARD_WEIGHT:
        outputs["dbias"] += values["dy"].swapaxes(0, 1).reshape(g.k, -1).sum(axis=1)
    return outputs


@pytest.mark.parametrize("operator", TRANSPOSED)
@settings(max_examples=80, deadline=None)
@given(geometry=geometries())
def test_reference_is_the_definition(operator: str, geometry: TransposedGeometry):
    expected = expectation(Recipe(OPERATORS[operator], geometry, "fp32", "fixed", 1))
    for name, exact in by_definition(operator, geometry, expected.inputs).items():
        np.testing.assert_array_equal(expected.reference[name], exact)


@settings(max_examples=80, deadline=None)
@given(geometry=geometries())
def test_descriptor_reads_back(geometry: TransposedGeometry):
    assert parse(geometry.descriptor) == geometry


@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_no_element_sums_more_terms_than_declared(geometry: TransposedGeometry):
    for operator in map(OPERATORS.__getitem__, TRANSPOSED):
        ones = {name: np.ones(tensor.shape) for name, tensor in operator.inputs(geometry).items()}
        for name, sums in operator.reference(geometry, ones).items():
            assert sums.max() <= operator.errors(geometry).terms[name]


@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_an_output_of_another_size_is_the_same_cropped_or_longer(geometry: TransposedGeometry):
    assert geometry.reaching(geometry.output_size).output_size == geometry.output_size
    shorter = tuple(max(1, extent - 1) for extent in geometry.output_size)
    operator = OPERATORS[FORWARD]
    ones = {name: np.ones(tensor.shape) for name, tensor in operator.inputs(geometry).items()}
    whole, cropped = (operator.reference(g, ones)["y"] for g in (geometry, geometry.reaching(shorter)))
    kept: Index = (..., *map(slice, shorter))
    np.testing.assert_array_equal(whole[kept], cropped)


COMPARED = 10_000
"""Images and groups up to which torch computes it in less than a second: axes beyond 2^16 are there for kernels."""
STANDARD = [
    (problem, sorted({v.dtype for v in problem.variants if v.distribution == "fixed"}))
    for problem in PROBLEMS
    if problem.level == "standard" and problem.geometry.family == "conv_transpose"
    if max(problem.geometry.n, problem.geometry.groups) < COMPARED
]
TORCH = [(problem, dtypes[turn % len(dtypes)]) for turn, (problem, dtypes) in enumerate(STANDARD) if dtypes]
"""Every geometry, in its dtypes by turns: the reference is computed in float64, whatever they are."""


def by_torch(operator: str, g: TransposedGeometry, inputs: Arrays) -> Arrays:
    """From the whole output, without padding: cropped, or longer by zeros, at its ends."""
    torch = pytest.importorskip("torch")
    given = {name: torch.from_numpy(array.astype(np.float64)) for name, array in inputs.items()}
    x = given.get("x", torch.zeros(g.x.shape, dtype=torch.float64)).requires_grad_()
    w = given.get("w", torch.zeros(g.filter.shape, dtype=torch.float64)).requires_grad_()
    bias = given.get("bias", torch.zeros(g.k, dtype=torch.float64)).requires_grad_()
    whole = getattr(torch.nn.functional, f"conv_transpose{g.rank}d")(x, w, None, g.stride, 0, 0, g.groups, g.dilation)
    axes = zip(g.padding, g.output_padding, strict=True)
    ends = [side for (before, after), more in reversed([*axes]) for side in (-before, more - after)]
    y = torch.nn.functional.pad(whole, ends) + bias.view(-1, *[1] * g.rank)
    if operator == FORWARD:
        return {"y": y.detach().numpy()}
    dx, dw, dbias = (found.numpy() for found in torch.autograd.grad(y, (x, w, bias), given["dy"]))
    return {"dx": dx} if operator == BACKWARD_DATA else {"dw": dw, **({"dbias": dbias} if g.bias else {})}


@pytest.mark.parametrize("operator", TRANSPOSED)
@pytest.mark.parametrize(("problem", "dtype"), TORCH, ids=lambda value: getattr(value, "name", value))
def test_reference_equals_torch_float64(operator: str, problem: Any, dtype: str):
    expected = Expectation(Recipe(OPERATORS[operator], problem.geometry, dtype, "fixed", 0))
    for name, exact in by_torch(operator, problem.geometry, expected.inputs).items():
        assert np.array_equal(expected.reference[name], exact), name


def test_sizes_are_those_of_torch_modules():
    torch = pytest.importorskip("torch")
    count = 0
    for problem in PROBLEMS:
        g = problem.geometry
        if g.family != "conv_transpose" or any(a != b for a, b in g.padding):
            continue
        own = tuple(before for before, _ in g.padding)
        module = getattr(torch.nn, f"ConvTranspose{g.rank}d")(
            g.c, g.k, g.window, g.stride, own, g.output_padding, g.groups, dilation=g.dilation, device="meta"
        )
        assert tuple(module.weight.shape) == g.filter.shape
        assert tuple(module(torch.empty(g.x.shape, device="meta")).shape) == g.y.shape
        count += 1
    assert count > 40


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "convt n1 c2 h3 w3 k2 r3 s3 o1": "output padding is 1, which must be smaller than the stride, 1",
        "convt n1 c2 h3 w3 k2 r3 s3 u2 o0x2": "smaller than the stride, 2, or the dilation, 1",
        "convt n1 c2 h3 w3 k2 r3 s3 p3": "padding leaves nothing of the output on axis h",
        "convt n1 c1 h1 w3 k1 r1 s1 u2 p1x0 o1": "padding leaves nothing of the output on axis h",
        "convt n1 c3 h3 w3 k2 r3 s3 g2": "c is 3, which 2 groups do not divide",
        "convt n1 c2 h3 w3 k3 r3 s3 g2": "k is 3, which 2 groups do not divide",
        "convt n1 c2 h3 w3 k3 r3 s0": "s is 0; it must be at least 1",
        "n1 c2 h3 w3 k3 r3 s3 o1": "field 'o1' is not understood",
    }.items(),
)
def test_refused_parameters(text: str, message: str):
    with pytest.raises(GeometryError, match=message):
        parse(text)


@pytest.mark.parametrize("sizes", [(0,), (-1, 0)])
def test_output_padding_must_be_one_number_for_each_axis(sizes: tuple[int, ...]):
    with pytest.raises(GeometryError, match="output padding"):
        TransposedGeometry(1, 1, (2, 2), 1, (2, 2), output_padding=sizes)


PROBED = ("convt n2 c8 h5 w6 k8 r3 s3 u2 p1:0x2 o1 b1", "convt n2 c16 w9 k16 s4 u3 g2 o2 b1")


@pytest.mark.parametrize("operator", TRANSPOSED)
@pytest.mark.parametrize("text", PROBED)
def test_probes_pass_the_reference_and_detect_one_element(operator: str, text: str):
    for distribution in ("integer", "fixed"):
        expected = Expectation(Recipe(OPERATORS[operator], parse(text), "fp32", distribution, 3))
        exact = next(iter(expected.reference.values())).astype(np.float32)
        assert judged_by_probes(expected, exact).passed
        wrong = exact.copy()
        wrong[1, 1] += 8 * np.abs(exact).max()
        assert not judged_by_probes(expected, wrong).passed


SPARSE = ("convt n1 c2 h41 w53 k2 r3 s2 u3x2 p1:0x0:1 d1x3 o2", "convt n1 c2 w5000 k3 s3 u2 o1")


@pytest.mark.parametrize("operator", TRANSPOSED)
@pytest.mark.parametrize("text", SPARSE)
def test_sparse_results_are_those_of_the_reference(operator: str, text: str):
    recipe = Recipe(OPERATORS[operator], parse(text), "fp32", "sparse", 0)
    expected = Expectation(recipe)
    exact = recipe.operator.reference(recipe.geometry, expected.inputs)
    for name, (places, values) in nonzero(operator, recipe.geometry, expected.inputs, sparse_places(recipe)).items():
        found = np.zeros(exact[name].size)
        found[places] = values
        np.testing.assert_array_equal(found.reshape(exact[name].shape), exact[name])


NAMED = {
    "output padding ignored": "convt n2 c4 h5 w6 k6 r3 s3 u2 p1 o1 b1",
    "output padding in front": "convt n2 c4 h5 w6 k6 r3 s3 u2 p1 o1 b1",
    "output padding reversed": "convt n2 c4 h5 w6 k6 r3 s3 u2 p1 o1x0",
    "output padding with the bias alone": "convt n2 c4 h5 w6 k6 r3 s3 u2 p1 o1 b1",
    "padding added instead of cropped": "convt n2 c4 h5 w6 k6 r3 s3 u2 p1",
    "K and C of the filter exchanged": "convt n2 c4 h5 w6 k6 r3 s3 u2 p1",
    "filter flipped in H and W": "convt n2 c4 h5 w6 k6 r3 s3 u2 p1",
    "stride and dilation exchanged": "convt n2 c4 h5 w6 k6 r3 s3 u2 p1 d3 o1",
    "bias missing where no window reaches": "convt n2 c4 h5 w6 k6 r2 s2 u3 b1",
    "y filled where no window reaches": "convt n2 c4 h5 w6 k6 r2 s2 u3",
    "y overwritten instead of accumulated where windows overlap": "convt n2 c4 h5 w6 k6 r3 s3 u2",
}


@pytest.mark.parametrize("name", NAMED)
def test_mistake_is_named(name: str):
    (mistake,) = (one for one in FAMILIES["conv_transpose"].mistakes if one.name == name)
    expected = Expectation(Recipe(OPERATORS[FORWARD], parse(NAMED[name]), "fp32", "fixed", 0))
    outputs = mistake.outputs(OPERATORS[FORWARD], expected.recipe.geometry, expected.inputs)
    assert outputs is not None
    found = diagnose(OPERATORS[FORWARD], expected.recipe.geometry, expected.inputs, outputs, expected.reference)
    assert found is not None
    assert name in found.names


def test_every_mistake_exists_on_a_standard_problem():
    geometries = [p.geometry for p in PROBLEMS if p.level == "standard" and p.geometry.family == "conv_transpose"]
    small = sorted((g for g in geometries if OPERATORS[FORWARD].flops(g)), key=OPERATORS[FORWARD].flops)
    drawn: dict[tuple[str, Any], Expectation] = {}
    for mistake in FAMILIES["conv_transpose"].mistakes:
        for operator in mistake.operators or TRANSPOSED:
            for g in small:
                recipe = Recipe(OPERATORS[operator], g, "fp32", "integer", 0)
                expected = drawn.setdefault((operator, g), Expectation(recipe))
                outputs = mistake.outputs(OPERATORS[operator], g, expected.inputs)
                if outputs and not all(np.array_equal(outputs[name], expected.reference[name]) for name in outputs):
                    break
            else:
                pytest.fail(f"{mistake.name} in {operator}")


def test_mirror_has_no_remainder():
    for problem in PROBLEMS:
        if problem.geometry.family == "conv_transpose":
            g = problem.geometry
            assert g.mirror.output_size == g.size
            assert g.mirror.filter.shape == g.filter.shape
            assert replace(g, bias=not g.bias).mirror == g.mirror
