"""Diagnosis names the mistake that was planted, on shapes that it was not written with."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from conformance.calibration.known_kernels import MUTANTS
from conformance.diagnosis.diagnose import Diagnosis, diagnose
from conformance.inputs import Expectation, Recipe
from conformance.operators import CONVOLUTIONS, OPERATORS, Arrays, ConvGeometry
from conformance.operators.known_kernels.kernel import Mutant, plain
from conformance.operators.known_kernels.structure import planted
from conformance.operators.mistakes import fitted
from conformance.operators.table import LIBRARY, operators_of

pytestmark = pytest.mark.usefixtures("mistakes_computed_once")

HELD_OUT = (
    "n3 c10 h14 w11 k15 r3 s2 u2x3 p1:2x0:1 d1x2 g5 b1",
    "n2 c7 h9 w12 k11 r2 s4 u1x2 p2:0x1:3 b1",
    "n4 c12 h8 w8 k12 r3 s3 p1 g2",
    "n2 c5 h17 w13 k6 r3 s5 u3x1 p0:3x2:1 d2x1 b1",
    "n5 c9 h7 w10 k18 r4 s3 p3:1x0:2 g9 b1",
    "n2 c37 h6 w7 k35 r2 s3 u2 p1:0x1:2",
    "n3 c6 h12 w15 k10 r1 s1 u2 g2 b1",
    "n1 c8 h19 w16 k6 r2 s2 u3x4 d3x1",
)
SEED = 20261121
DTYPES = ("fp32", "bf16", "fp16")


@functools.cache
def case(operator: str, descriptor: str, dtype: str, distribution: str = "fixed") -> Expectation:
    return Expectation(Recipe(OPERATORS[operator], ConvGeometry.parse(descriptor), dtype, distribution, SEED))


def outcome(mutant: Mutant, expected: Expectation) -> bool | None:
    """Whether the first name is right; None where the mutant is no mutant."""
    recipe = expected.recipe
    known = (recipe.operator, recipe.geometry, expected.inputs)
    if not mutant.applies(recipe.operator.name, recipe.geometry, recipe.dtype):
        return None
    if mutant.equivalent(*known, recipe.dtype):
        return None
    outputs = mutant.run(*known, recipe.dtype)
    diagnosis = diagnose(*known, outputs)
    if diagnosis is None:
        return False
    return diagnosis.names[0] == mutant.name or same(
        named(diagnosis.names[0], recipe.operator.name).run(*known, recipe.dtype), outputs
    )


def named(name: str, operator: str) -> Mutant:
    return planted(next(mistake for mistake in LIBRARY if mistake.name == name and operator in operators_of(mistake)))


def same(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_planted_mistakes_are_named(operator: str):
    structural = [planted(mistake) for mistake in LIBRARY]
    found = [
        (outcome(mutant, case(operator, descriptor, DTYPES[place % 3])), mutant.name, descriptor)
        for place, descriptor in enumerate(HELD_OUT)
        for mutant in structural
    ]
    answers = [(right, name, shape) for right, name, shape in found if right is not None]
    share = sum(right for right, _, _ in answers) / len(answers)
    wrong = [(name, shape) for right, name, shape in answers if not right]
    print(f"{operator}: {share:.1%} of {len(answers)} planted mistakes named first; not: {wrong}")
    assert len(answers) > 250
    assert share >= 0.9, wrong


def flipped(operator: str, inputs: Arrays) -> tuple[Arrays, Arrays]:
    """Outputs of a filter that is flipped in W, and the right ones."""
    recipe = case(operator, HELD_OUT[3], "fp32").recipe
    known = (recipe.operator, recipe.geometry, inputs)
    return named("filter flipped in W", operator).run(*known, "fp32"), recipe.operator.reference(*known[1:])


def test_noise_beside_a_mistake_names_no_other():
    expected = case("conv_forward", HELD_OUT[3], "fp32")
    outputs, reference = flipped("conv_forward", expected.inputs)
    outputs["y"] *= 1 + 0.01 * np.random.default_rng(SEED).standard_normal(outputs["y"].shape).astype(np.float32)
    found = diagnose(expected.recipe.operator, expected.recipe.geometry, expected.inputs, outputs, reference)
    assert found is not None
    assert found.names == ("filter flipped in W",)
    assert found.residual > 0.002


def test_an_output_of_small_numbers_is_explained_as_well():
    """Noise in dbias, which is a million times smaller than dw, is not the flip that dw shows."""
    expected = case("conv_backward_weight", HELD_OUT[3], "fp32")
    inputs = expected.inputs | {"x": expected.inputs["x"] * np.float32(2**20)}
    outputs, reference = flipped("conv_backward_weight", inputs)
    outputs["dbias"] = np.random.default_rng(SEED).permutation(outputs["dbias"])
    assert diagnose(expected.recipe.operator, expected.recipe.geometry, inputs, outputs, reference) is None


def padding(g: ConvGeometry) -> tuple[int, int]:
    return g.padding[0][0], g.padding[1][0]


Index = tuple[int, ...]
Place = Callable[[ConvGeometry, Index, Index], tuple[Index, Index]]


def right(g: ConvGeometry, y: Index, tap: Index) -> tuple[Index, Index]:
    """The elements of x and w in one product of y[n,k,i,j]; tap is (c, r, s) within the group."""
    (n, k, i, j), (c, r, s), (top, left) = y, tap, padding(g)
    group = k // (g.k // g.groups)
    row, column = i * g.stride[0] + r * g.dilation[0] - top, j * g.stride[1] + s * g.dilation[1] - left
    return (n, group * (g.c // g.groups) + c, row, column), (k, c, r, s)


def moved(move: Callable[[ConvGeometry, Index, Index, Index, Index], tuple[Index, Index]]) -> Place:
    """`right`, then changed by something that knows everything."""
    return lambda g, y, tap: move(g, y, tap, *right(g, y, tap))


BY_HAND: dict[str, Place] = {
    "filter flipped in H and W": moved(lambda g, y, t, x, w: (x, (*w[:2], g.r - 1 - w[2], g.s - 1 - w[3]))),
    "filter flipped in W": moved(lambda g, y, t, x, w: (x, (*w[:3], g.s - 1 - w[3]))),
    "dilation ignored": moved(
        lambda g, y, t, x, w: (
            (*x[:2], x[2] - t[1] * (g.dilation[0] - 1), x[3] - t[2] * (g.dilation[1] - 1)),
            w,
        )
    ),
    "padding of H one too large before": moved(lambda g, y, t, x, w: ((*x[:2], x[2] - 1, x[3]), w)),
    "padding of W one too small before": moved(lambda g, y, t, x, w: ((*x[:3], x[3] + 1), w)),
    "group off by one the other way": moved(
        lambda g, y, t, x, w: ((x[0], (x[1] + g.c // g.groups) % g.c, *x[2:]), w),
    ),
    "input channels interleaved over groups": moved(
        lambda g, y, t, x, w: ((x[0], t[0] * g.groups + y[1] // (g.k // g.groups), *x[2:]), w),
    ),
    "image n uses image n+1": moved(lambda g, y, t, x, w: (((x[0] + 1) % g.n, *x[1:]), w)),
    "last tap of the filter left out": moved(
        lambda g, y, t, x, w: ((-1,) * 4 if t[1:] == (g.r - 1, g.s - 1) else x, w),
    ),
    "padding of H mirrored (before and after exchanged)": moved(
        lambda g, y, t, x, w: ((*x[:2], x[2] + g.padding[0][0] - g.padding[0][1], x[3]), w)
    ),
    "padding of W mirrored (before and after exchanged)": moved(
        lambda g, y, t, x, w: ((*x[:3], x[3] + g.padding[1][0] - g.padding[1][1]), w)
    ),
    "last place of y (dy) left out": moved(
        lambda g, y, t, x, w: ((-1,) * 4 if y[2:] == (g.y.shape[2] - 1, g.y.shape[3] - 1) else x, w),
    ),
    "last element of y (dy) left out": moved(
        lambda g, y, t, x, w: ((-1,) * 4 if y == tuple(size - 1 for size in g.y.shape) else x, w),
    ),
    "last element of x (dx) left out": moved(
        lambda g, y, t, x, w: ((-1,) * 4 if x == tuple(size - 1 for size in g.x.shape) else x, w),
    ),
    "padding repeats the edge instead of zero": moved(
        lambda g, y, t, x, w: ((*x[:2], min(max(x[2], 0), g.h - 1), min(max(x[3], 0), g.w - 1)), w),
    ),
}
"""Mistakes written as loops of their own, so that the library is not only asked about itself."""


def by_hand(operator: str, g: ConvGeometry, inputs: Arrays, place: Place) -> Arrays:
    """The sum over all taps; what lies outside the image is zero."""
    values = {name: array.astype(np.float64) for name, array in inputs.items()}
    (name, tensor), *_ = OPERATORS[operator].outputs(g).items()
    out = np.zeros(tensor.shape)
    for y in itertools.product(*map(range, g.y.shape)):
        for tap in itertools.product(range(g.c // g.groups), range(g.r), range(g.s)):
            x, w = place(g, y, tap)
            if 0 <= x[2] < g.h and 0 <= x[3] < g.w:
                at = {"x": x, "dx": x, "w": w, "dw": w, "y": y, "dy": y}
                first, second = (values[key][at[key]] for key in values)
                out[at[name]] += first * second
    return {name: out.astype(np.float32)}


@pytest.mark.parametrize("operator", CONVOLUTIONS)
@pytest.mark.parametrize("mistake", BY_HAND)
def test_mistakes_written_by_hand_are_named(operator: str, mistake: str):
    expected = case(operator, "n2 c6 h8 w4 k9 r2 s3 u2x1 p1:2x2:1 d1x2 g3", "fp32")
    recipe = expected.recipe
    outputs = by_hand(operator, recipe.geometry, expected.inputs, BY_HAND[mistake])
    diagnosis = diagnose(recipe.operator, recipe.geometry, expected.inputs, outputs)
    assert diagnosis is not None
    assert mistake in diagnosis.names


def test_bias_that_is_not_offset_by_the_group_is_named():
    expected = case("conv_forward", "n2 c6 h5 w4 k9 r3 s3 p1 g3 b1", "fp32")
    recipe, inputs = expected.recipe, expected.inputs
    bare = inputs | {"bias": np.zeros_like(inputs["bias"])}
    y = recipe.operator.reference(recipe.geometry, bare)["y"] + np.tile(inputs["bias"][:3], 3)[:, None, None]
    diagnosis = diagnose(recipe.operator, recipe.geometry, inputs, {"y": y.astype(np.float32)})
    assert diagnosis is not None
    assert diagnosis.names == ("bias of the first group for every group",)


def test_filters_of_another_group_are_named():
    expected = case("conv_forward", "n2 c6 h5 w4 k12 r3 s3 p1 g3 b1", "fp32")
    recipe, inputs = expected.recipe, expected.inputs
    one = ConvGeometry.parse("n2 c2 h5 w4 k1 r3 s3 p1 b1")
    y = np.concatenate(
        [
            recipe.operator.reference(
                one,
                {"x": inputs["x"][:, 2 * (k % 3) :][:, :2], "w": inputs["w"][k:][:1], "bias": inputs["bias"][k:][:1]},
            )["y"]
            for k in range(12)
        ],
        axis=1,
    )
    diagnosis = diagnose(recipe.operator, recipe.geometry, inputs, {"y": y.astype(np.float32)})
    assert diagnosis is not None
    assert diagnosis.names == ("filters dealt out to groups in turn (k % groups)",)


@pytest.mark.parametrize("what", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_what_a_kernel_of_two_dimensions_knows_is_named_in_three(operator: str, what: str):
    expected = case(operator, "n2 c3 d9 h8 w7 k4 t2 r2 s2 u1x2x3 p2:1x1:0x0:1 dil3x2x1", "fp32")
    recipe = expected.recipe
    values = getattr(recipe.geometry, what)
    seen = replace(recipe.geometry, **{what: (values[1], *values[1:])})
    shapes = {name: tensor.shape for name, tensor in recipe.operator.inputs(seen).items()}
    given = {name: fitted(array, shapes[name]) for name, array in expected.inputs.items()}
    outputs = recipe.operator.reference(seen, given)
    wanted = {name: fitted(array, expected.reference[name].shape) for name, array in outputs.items()}
    diagnosis = diagnose(recipe.operator, recipe.geometry, expected.inputs, wanted)
    assert diagnosis is not None
    assert f"{what} of H used for D" in diagnosis.names


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_loops_written_by_hand_are_right(operator: str):
    expected = case(operator, "n2 c6 h8 w4 k9 r2 s3 u2x1 p1:2x2:1 d1x2 g3", "fp32")
    outputs = by_hand(operator, expected.recipe.geometry, expected.inputs, right)
    main = next(iter(outputs))
    np.testing.assert_array_equal(outputs[main], expected.reference[main].astype(np.float32))


@pytest.mark.parametrize("family", ["precision", "scale", "memory"])
@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_no_structure_is_named_where_it_is_right(operator: str, family: str):
    """Errors of arithmetic must not be taken for a wrong index: a wrong name costs its reader a day."""
    expected = case(operator, HELD_OUT[0], "fp32")
    recipe = expected.recipe
    named = []
    for mutant in MUTANTS:
        if mutant.family == family and mutant.applies(operator, recipe.geometry, "fp32"):
            with np.errstate(all="ignore"):
                outputs = mutant.run(recipe.operator, recipe.geometry, expected.inputs, "fp32")
            if diagnose(recipe.operator, recipe.geometry, expected.inputs, outputs):
                named.append(mutant.name)
    assert not named


@pytest.mark.parametrize("operator", CONVOLUTIONS)
@pytest.mark.parametrize("distribution", ["integer", "fixed", "special"])
def test_right_outputs_have_no_diagnosis(operator: str, distribution: str):
    expected = case(operator, HELD_OUT[1], "fp32", distribution)
    recipe = expected.recipe
    with np.errstate(invalid="ignore"):
        outputs = plain(recipe.operator, recipe.geometry, expected.inputs, "fp32")
    assert diagnose(recipe.operator, recipe.geometry, expected.inputs, outputs) is None


@pytest.mark.parametrize("distribution", ["integer", "fixed", "impulse", "special", "wide"])
def test_flipped_kernel_is_named_on_every_distribution(distribution: str):
    expected = case("conv_forward", HELD_OUT[1], "fp32", distribution)
    recipe, flipped = expected.recipe, named("filter flipped in H and W", "conv_forward")
    with np.errstate(all="ignore"):
        outputs = flipped.run(recipe.operator, recipe.geometry, expected.inputs, "fp32")
    diagnosis = diagnose(recipe.operator, recipe.geometry, expected.inputs, outputs)
    assert diagnosis is not None
    assert "filter flipped in H and W" in diagnosis.names


def test_garbage_has_no_diagnosis():
    expected = case("conv_forward", HELD_OUT[0], "fp32")
    recipe = expected.recipe
    for garbage in (np.nan, 0.5, np.inf):
        outputs = {name: np.full(array.shape, garbage, np.float32) for name, array in expected.reference.items()}
        assert diagnose(recipe.operator, recipe.geometry, expected.inputs, outputs) is None


def test_phrase():
    assert str(Diagnosis(("stride ignored",), 0.0)) == "likely cause: stride ignored (explains 100%)"
    many = Diagnosis(("a", "b", "c", "d", "e"), 0.012)
    assert str(many) == "likely cause: a, or b, or c, or 2 more (explains 98.8%)"


def test_a_mistake_in_one_of_two_results_is_named():
    """dw without the last image, and dbias, which another loop makes, with it: nothing explained both."""
    known = case("conv_backward_weight", "n3 c6 h8 w4 k9 r2 s3 p1 g3 b1", "fp32")
    outputs = {name: array.astype(np.float32) for name, array in known.reference.items()}
    shorter = {name: array.copy() for name, array in known.inputs.items()}
    next(array for name, array in shorter.items() if name == "dy")[-1] = 0
    operator, geometry = known.recipe.operator, known.recipe.geometry
    outputs["dw"] = operator.reference(geometry, shorter)["dw"].astype(np.float32)
    found = diagnose(operator, geometry, known.inputs, outputs)
    assert found is not None
    assert found.names[0] == "last image left out"
    assert str(found) == "likely cause: last image left out (in dw alone)"
