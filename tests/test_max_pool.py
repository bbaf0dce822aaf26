"""Max pooling: the reference is the definition, and torch's; the judge, diagnosis and what is refused by name."""

from __future__ import annotations

import itertools
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.calibration import mutation
from conformance.calibration.false_alarms import verdicts
from conformance.calibration.known_kernels import KNOWN_GOOD, MUTANTS
from conformance.diagnosis.diagnose import diagnose
from conformance.execution.case import Case
from conformance.execution.verify import verify
from conformance.implementations.registry import load
from conformance.inputs import Expectation, Recipe
from conformance.judge import Contract, judge, outputs_of
from conformance.operators import FAMILIES, OPERATORS, Arrays, GeometryError, parse
from conformance.operators.known_kernels.kernel import CampaignRow
from conformance.operators.max_pool.geometry import MaxPoolGeometry
from conformance.operators.max_pool.known_good import BACKWARD, FORWARD
from conformance.problems import PROBLEMS, Variant, at_level, of_section, typed
from conformance.resources import IMPLS

CASES = (
    "maxpool n2 c2 h6 w4 r2 s2",
    "maxpool n1 c2 h5 w6 r3 s2 u1 p1",
    "maxpool n1 c1 h7 w6 r3 s3 u2x3 ceil1",
    "maxpool n1 c1 h4 w5 r2 s3 u3x2 p1 ceil1",
    "maxpool n1 c2 h5 w6 r3 s4 u2x1 p0:2x3:1",
    "maxpool n1 c1 h9 w8 r3 s2 u2x1 p1:2x0:1 d2x3 ceil1",
    "maxpool n1 c1 h7 w8 r2 s1 u3",
    "maxpool n3 c1 h1 w1 r1 s1",
)


@st.composite
def geometries(draw: st.DrawFn) -> MaxPoolGeometry:
    rank = draw(st.integers(1, 3))
    small, pads = st.integers(1, 5 - rank), st.tuples(st.integers(0, 2), st.integers(0, 2))

    def on_axes(value: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(value) for _ in range(rank))

    try:
        return MaxPoolGeometry(
            n=1,
            c=draw(st.integers(1, 2)),
            size=on_axes(st.integers(1, 10 - 2 * rank)),
            window=on_axes(small),
            stride=on_axes(small),
            padding=on_axes(pads),
            dilation=on_axes(st.integers(1, 3)),
            ceil_mode=draw(st.booleans()),
        )
    except GeometryError:
        return MaxPoolGeometry.parse(CASES[0])


def by_definition(g: MaxPoolGeometry, x: np.ndarray, dy: np.ndarray | None) -> np.ndarray:
    """One window after the other: its elements in row-major order, the first of those that no other exceeds."""
    y, dx = np.empty(g.y.shape), np.zeros(g.x.shape)
    axes = [*zip(g.stride, g.padding, g.window, g.dilation, g.size, strict=True)]
    for n, c, *place in np.ndindex(*g.y.shape):
        seen = (
            [at for t in range(taps) if 0 <= (at := p * u - sides[0] + t * d) < size]
            for p, (u, sides, taps, d, size) in zip(place, axes, strict=True)
        )
        at = max(itertools.product(*seen), key=lambda at: float(x[(n, c, *at)]))  # max takes the first
        y[(n, c, *place)] = x[(n, c, *at)]
        if dy is not None:
            dx[(n, c, *at)] += dy[(n, c, *place)]
    return y if dy is None else dx


def require_definition(geometry: MaxPoolGeometry, dtype: str, distribution: str) -> None:
    for operator in (FORWARD, BACKWARD):
        expected = Expectation(Recipe(OPERATORS[operator], geometry, dtype, distribution, 1))
        exact = by_definition(geometry, expected.inputs["x"].astype(float), expected.inputs.get("dy"))
        np.testing.assert_array_equal(next(iter(expected.reference.values())), exact)


@pytest.mark.parametrize("distribution", ["fixed", "integer", "impulse"])
@pytest.mark.parametrize("text", CASES)
def test_reference_is_the_definition(text: str, distribution: str):
    """In bf16, whose few values tie."""
    require_definition(MaxPoolGeometry.parse(text), "bf16", distribution)


@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_reference_is_the_definition_of_anything(geometry: MaxPoolGeometry):
    require_definition(geometry, "fp32", "integer")


@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_descriptor_reads_back(geometry: MaxPoolGeometry):
    assert parse(geometry.descriptor) == geometry


@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_no_element_sums_more_terms_than_declared(geometry: MaxPoolGeometry):
    """Constant images: all windows of an element choose it, where it is their first."""
    backward = OPERATORS[BACKWARD]
    for x in (np.zeros(geometry.x.shape), -np.arange(geometry.x.size).reshape(geometry.x.shape)):
        dx = backward.reference(geometry, {"x": x, "dy": np.ones(geometry.y.shape)})["dx"]
        assert dx.max() <= backward.errors(geometry).terms["dx"]


TABLE = {p.name: p.geometry for p, _ in at_level(PROBLEMS, "standard") if p.geometry.family == "max_pool"}
TORCHS = {
    name: g
    for name, g in TABLE.items()
    if all(a == b and 2 * a <= window for (a, b), window in zip(g.padding, g.window, strict=True))
}


@pytest.mark.parametrize("geometry", TORCHS.values(), ids=TORCHS)
def test_reference_is_torchs(geometry: MaxPoolGeometry):
    """To the bit, ties among them: bf16 data."""
    torch = pytest.importorskip("torch")
    g, operator = geometry, OPERATORS[BACKWARD]
    inputs = Expectation(Recipe(operator, g, "bf16", "fixed", 2)).inputs
    x, dy = (torch.from_numpy(inputs[name].astype(np.float64)) for name in ("x", "dy"))
    own = tuple(before for before, _ in g.padding)
    pool = getattr(torch.nn.functional, f"max_pool{g.rank}d")
    y = pool(x.requires_grad_(), g.window, g.stride, own, g.dilation, g.ceil_mode)
    np.testing.assert_array_equal(y.detach().numpy(), OPERATORS[FORWARD].reference(g, inputs)["y"])
    (dx,) = torch.autograd.grad(y, x, dy)
    np.testing.assert_array_equal(dx.numpy(), operator.reference(g, inputs)["dx"])


def test_padding_is_never_chosen_and_nan_is_the_maximum():
    g = MaxPoolGeometry.parse("maxpool n1 c1 h3 w3 r3 s3 u2 p1")
    x = np.full(g.x.shape, -np.inf)
    assert np.all(OPERATORS[FORWARD].reference(g, {"x": x})["y"] == -np.inf)
    dx = OPERATORS[BACKWARD].reference(g, {"x": x, "dy": np.ones(g.y.shape)})["dx"]
    np.testing.assert_array_equal(dx[0, 0], [[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    x[0, 0, 1, 1] = np.nan
    assert np.isnan(OPERATORS[FORWARD].reference(g, {"x": x})["y"]).all()


def test_worked_example_is_that_of_onnx():
    example = OPERATORS[FORWARD].worked_example
    assert example is not None
    y = OPERATORS[FORWARD].reference(parse(example.descriptor), example.inputs)["y"][0, 0]
    rows = [[13, 14, 15, 15, 15], [18, 19, 20, 20, 20], *[[23, 24, 25, 25, 25]] * 3]
    np.testing.assert_array_equal(y, rows)


def judged(change: float, contract: Contract, distribution: str) -> bool:
    """Whether a kernel passes whose results are off by this factor."""
    recipe = Recipe(OPERATORS[FORWARD], parse(CASES[1]), "fp32", distribution, 0)
    expected = Expectation(recipe)
    actual = {"y": (expected.reference["y"] * change).astype(np.float32)}
    known = recipe.operator, recipe.geometry, "fp32", expected.inputs
    (output,) = outputs_of(*known, actual, expected.reference, lambda: expected.magnitude)
    return judge(output, distribution, contract).passed


@pytest.mark.parametrize("distribution", ["fixed", "wide"])
def test_a_maximum_must_be_equal(distribution: str):
    """Whatever its accumulator, of which it has none; unless it is declared that inputs or subnormals are not kept."""
    ulp = 1 + 2.0**-23
    assert judged(1, Contract(), distribution)
    assert not judged(ulp, Contract(), distribution)
    assert not judged(ulp, Contract(accumulate="bf16"), distribution)
    assert judged(ulp, Contract(inputs="tf32"), distribution)


@pytest.mark.parametrize("operator", [FORWARD, BACKWARD])
def test_known_bad_kernels_are_detected_at_smoke(operator: str):
    outcomes = mutation.outcomes(MUTANTS, operator, mutation.rows(operator, "smoke"))
    detected, counted = mutation.score(outcomes)
    assert counted > 100
    assert detected >= 0.95 * counted, [outcome.mutant for outcome in outcomes if not outcome.detected]


def test_known_good_kernels_pass():
    for text in ("maxpool n2 c5 h9 w10 r3 s3 u2 p1 ceil1", "maxpool n2 c3 h9 w9 r3 s3 u1 p1:2x0:1 d2x1"):
        found = list(verdicts(CampaignRow(text), 20261122))
        assert {verdict.kernel for verdict in found} == {k.name for k in KNOWN_GOOD if k.family == "max_pool"}
        assert not [verdict.text for verdict in found if not verdict.passed]


HELD_OUT = "maxpool n3 c7 h11 w14 r3 s2 u2x1 p1:0x0:1 d1x2 ceil1"


@pytest.mark.parametrize("operator", [FORWARD, BACKWARD])
def test_planted_mistakes_are_named(operator: str):
    """On integers, which tie: mistakes that differ there only in ties are found by name."""
    expected = Expectation(Recipe(OPERATORS[operator], parse(HELD_OUT), "bf16", "integer", 20261122))
    known = (expected.recipe.operator, expected.recipe.geometry, expected.inputs)

    def same(first: Arrays, second: Arrays) -> bool:
        return all(np.array_equal(first[name], second[name]) for name in first)

    tried, wrong = 0, []
    for mistake in FAMILIES["max_pool"].mistakes:
        outputs = mistake.outputs(*known)
        if outputs is not None and not same(outputs, expected.reference):
            answer = diagnose(*known, outputs, expected.reference)
            tried += 1
            if answer is None or mistake.name not in answer.names:
                wrong.append(mistake.name)
    assert tried > 50
    assert len(wrong) <= 0.05 * tried, wrong


FACTORS: dict[str, tuple[Any, ...]] = {
    "n": (1, 2, 3),
    "size": ((6, 7), (9, 5), (8, 8), (5, 11)),
    "window": ((1, 1), (2, 2), (3, 3), (3, 1), (2, 4)),
    "stride": ((1, 1), (2, 2), (3, 3), (1, 2), (2, 1)),
    "padding": (((0, 0), (0, 0)), ((1, 1), (1, 1)), ((0, 1), (1, 0)), ((1, 1), (0, 0))),
    "dilation": ((1, 1), (2, 2), (1, 2)),
    "ceil_mode": (False, True),
}


def factor(g: MaxPoolGeometry, name: str) -> Any:
    return {"size": (g.h, g.w), "window": (g.r, g.s)}[name] if name in ("size", "window") else getattr(g, name)


@pytest.mark.parametrize("pair", list(combinations(FACTORS, 2)), ids=" and ".join)
def test_pairwise_have_every_pair_of_values(pair: tuple[str, str]):
    """All but padding on an axis where the window has one position, which no pooling has."""
    found = {tuple(factor(problem.geometry, name) for name in pair) for problem in of_section("max_pool", "pairwise")}
    wanted = set(product(*(FACTORS[name] for name in pair)))
    if set(pair) == {"window", "padding"}:
        wanted = {(w, p) for w, p in wanted if all(size > 1 or not any(p[axis]) for axis, size in enumerate(w))}
    assert wanted <= found


BAD = {
    "maxpool n1 c1 h8 w8 r3 s3 p3": "a window holds nothing but padding on axis h",
    "maxpool n1 c1 h8 w8 r5 s2 p0:0x0:2 u1": "a window holds nothing but padding on axis w",
    "maxpool n1 c1 h2 w8 r2 s2 p1:2x0 d3x1 u1": "a window holds nothing but padding on axis h",
    "maxpool n1 c1 h8 w3 r3 s6 p1": "the window spans 6 on axis w, more than the padded image's 5",
    "maxpool n1 c1 h8 w8 r2 s2 d0": "dilation is 0; it must be at least 1",
    "maxpool n1 c1 h8 w8 r2 s2 u0": "stride is 0; it must be at least 1",
    "maxpool n1 c1 h8 w8 r2": "field 's' is missing",
    "maxpool n1 c1 h8 w8 r2 s2 div2": "field 'div2' is not understood",
    "maxpool n1 c1 h8 w8 r2 s2 ceil2": "field 'ceil2' must be ceil0 or ceil1",
}


@pytest.mark.parametrize("text", BAD)
def test_geometry_that_no_pooling_has_is_refused_by_name(text: str):
    with pytest.raises(GeometryError) as refusal:
        parse(text)
    assert BAD[text] in str(refusal.value)


def test_no_images_have_no_maxima():
    """A window that reaches beyond a plane takes the path of few windows, which divided by the number of images."""
    geometry = MaxPoolGeometry.parse("maxpool n0 c5 d1 h6 w6 t2 r3 s3 u2x5x2 p1")
    dy = np.zeros(geometry.y.shape)
    operator = OPERATORS["max_pool_backward"]
    outputs = operator.reference(geometry, {"x": np.zeros(geometry.x.shape), "dy": dy})
    assert outputs["dx"].shape == geometry.x.shape


def test_jax_drops_a_window_that_begins_behind_the_image():
    """It took the padding after an image of one column for a window more, and refused it."""
    pytest.importorskip("jax")
    jax = load([IMPLS / "jax_native"]).implementations["jax-cpu"]
    problem, variant = typed("maxpool n2 c3 w1 s1 u2 p0:2 d2 ceil1"), Variant("fp32", "ncw", "fixed")
    case = Case(jax, OPERATORS["max_pool_forward"], problem, variant, 0)
    verdict = verify(case)
    assert verdict.status == "pass", verdict.reason


@pytest.mark.parametrize(("zeros", "free"), [((-0.0, -0.0), False), ((0.0, 0.0), False), ((-0.0, 0.0), True)])
def test_the_maximum_of_zeros_of_one_sign_has_it(zeros: tuple[float, float], free: bool):
    """IEEE 754-2019, 9.6. A comparison of bits, or of fp32 after an addition, loses the sign."""
    operator, geometry = OPERATORS["max_pool_forward"], parse("maxpool n1 c1 h1 w2 r1 s2")
    x = np.array(zeros, np.float32).reshape(1, 1, 1, 2)
    reference = operator.reference(geometry, {"x": x.astype(np.float64)})
    (given,) = reference.values()
    for actual, right in ((given, True), (-given, free)):
        known = operator, geometry, "fp32", {"x": x}, {"y": actual.astype(np.float32)}, reference
        (output,) = outputs_of(*known, lambda: reference)
        assert judge(output, "mixed", Contract()).passed == right
