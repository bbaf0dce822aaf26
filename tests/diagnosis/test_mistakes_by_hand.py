"""Diagnosis names mistakes that were written as loops of their own, so that the library is not only asked about itself,
and nothing where results are right, noise or garbage."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.diagnosis.diagnose import BITS_LOST, NAN_LOST, Diagnosis, diagnose
from conformance.dtypes import STORAGE
from conformance.inputs import Expectation, Recipe
from conformance.operators import CONVOLUTIONS, FAMILIES, OPERATORS, POOLINGS, Arrays, ConvGeometry, parse
from conformance.operators.conv.operators import ConvForward
from conformance.operators.spatial import fitted
from conformance.operators.table import library
from tests.calibration.kernels.structure import planted
from tests.calibration.known_kernels import MUTANTS

pytestmark = pytest.mark.usefixtures("mistakes_computed_once")

PLAIN = "n2 c5 h17 w13 k6 r3 s5 u3x1 p0:3x2:1 d2x1 b1"
SMALL = "n2 c6 h8 w4 k9 r2 s3 u2x1 p1:2x2:1 d1x2 g3"
SEED = 20261121


@functools.cache
def case(operator: str, descriptor: str, distribution: str = "fixed") -> Expectation:
    return Expectation(Recipe(OPERATORS[operator].on(parse(descriptor)), "fp32", distribution, SEED))


def diagnosed(known: Expectation, outputs: Arrays, reference: Arrays | None = None) -> Diagnosis | None:
    """Of outputs rounded to fp32."""
    stored, recipe = {name: array.astype(np.float32) for name, array in outputs.items()}, known.recipe
    return diagnose(recipe.workload, known.inputs, stored, reference, distribution=recipe.distribution)


def names(found: Diagnosis | None) -> tuple[str, ...]:
    return () if found is None else found.names


def flipped(known: Expectation, inputs: Arrays | None = None) -> Arrays:
    """Outputs of a filter that is flipped in W."""
    flip = planted(next(mistake for mistake in library() if mistake.name == "filter flipped in W"))
    return flip.run(known.recipe.workload.operator, known.recipe.workload.geometry, inputs or known.inputs, "fp32")


def test_a_number_in_the_place_of_nan_is_named():
    """A maximum that passes NaN over was called unknown: every finite result is right."""
    known = case("max_pool_forward", "maxpool n1 c2 h6 w6 r2 s2")
    exact = known.reference["y"].astype(np.float64)
    exact[0, 0, 0], exact[0, 1, 1] = np.nan, np.inf
    for actual, named in (
        (np.nan_to_num(exact, nan=1.0, posinf=np.inf), (NAN_LOST,)),
        (exact, ()),
        (np.nan_to_num(exact, nan=1.0, posinf=3.0), ()),
    ):
        assert names(diagnosed(known, {"y": actual}, {"y": exact})) == named


def test_noise_beside_a_mistake_names_no_other():
    known = case("conv_forward", PLAIN)
    outputs = flipped(known)
    outputs["y"] *= 1 + 0.01 * np.random.default_rng(SEED).standard_normal(outputs["y"].shape).astype(np.float32)
    found = diagnosed(known, outputs, known.reference)
    assert found is not None
    assert found.names == ("filter flipped in W",)
    assert found.residual > 0.002


def test_an_output_of_small_numbers_is_explained_as_well():
    """Noise in dbias, which is a million times smaller than dw, is not the flip that dw shows."""
    known = case("conv_backward_weight", PLAIN)
    larger = known.holding(known.inputs | {"x": known.inputs["x"] * np.float32(2**20)})
    outputs = flipped(larger)
    outputs["dbias"] = np.random.default_rng(SEED).permutation(outputs["dbias"])
    assert diagnosed(larger, outputs, larger.reference) is None


Index = tuple[int, ...]
Place = Callable[[ConvGeometry, Index, Index], tuple[Index, Index]]


def right(g: ConvGeometry, y: Index, tap: Index) -> tuple[Index, Index]:
    """The elements of x and w in one product of y[n,k,i,j]; tap is (c, r, s) within the group."""
    (n, k, i, j), (c, r, s), ((top, _), (left, _)) = y, tap, g.padding
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
    return {name: out}


@pytest.mark.parametrize("operator", CONVOLUTIONS)
@pytest.mark.parametrize("mistake", [*BY_HAND, ""])
def test_mistakes_of_convolutions_are_named(operator: str, mistake: str):
    known = case(operator, SMALL)
    found = names(
        diagnosed(known, by_hand(operator, known.recipe.workload.geometry, known.inputs, BY_HAND.get(mistake, right)))
    )
    assert mistake in found if mistake else not found


POOLED: dict[str, Place] = {
    "": right,
    "padding of H one too large before": BY_HAND["padding of H one too large before"],
    "last column of the window left out": moved(lambda g, y, t, x, w: ((-1,) * 4 if t[2] == g.s - 1 else x, w)),
    "average over the repeated edge in place of padding": BY_HAND["padding repeats the edge instead of zero"],
    "average over circular padding": moved(lambda g, y, t, x, w: ((*x[:2], x[2] % g.h, x[3] % g.w), w)),
}


@pytest.mark.parametrize("mistake", POOLED)
@pytest.mark.parametrize("operator", POOLINGS)
def test_mistakes_of_averages_are_named(operator: str, mistake: str):
    """An average is a depthwise convolution with one share for all positions of the window."""
    known = case(operator, "pool n3 c4 h9 w11 r3 s4 u2x1 p1:2x2:1")
    depthwise = ConvGeometry.parse("n3 c4 h9 w11 k4 r3 s4 u2x1 p1:2x2:1 g4")
    direction = "conv_forward" if operator == "avg_pool_forward" else "conv_backward_data"
    inputs = known.inputs | {"w": np.full(depthwise.filter.shape, 1 / 12)}
    found = names(diagnosed(known, by_hand(direction, depthwise, inputs, POOLED[mistake])))
    assert mistake in found if mistake else not found


def test_bias_that_is_not_offset_by_the_group_is_named():
    known = case("conv_forward", "n2 c6 h5 w4 k9 r3 s3 p1 g3 b1")
    bias = known.inputs["bias"]
    wrong = known.reference["y"] + (np.tile(bias[:3], 3) - bias)[:, None, None]
    assert names(diagnosed(known, {"y": wrong})) == ("bias of the first group for every group",)


def test_filters_of_another_group_are_named():
    known = case("conv_forward", "n2 c6 h5 w4 k12 r3 s3 p1 g3 b1")
    x, w, bias = (known.inputs[name] for name in ("x", "w", "bias"))
    one, reference = ConvGeometry.parse("n2 c2 h5 w4 k1 r3 s3 p1 b1"), known.recipe.workload.operator.reference
    dealt = [
        reference(one, {"x": x[:, 2 * (k % 3) :][:, :2], "w": w[k:][:1], "bias": bias[k:][:1]})["y"] for k in range(12)
    ]
    found = diagnosed(known, {"y": np.concatenate(dealt, axis=1)})
    assert names(found) == ("filters dealt out to groups in turn (k % groups)",)


@pytest.mark.parametrize("what", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_what_a_kernel_of_two_dimensions_knows_is_named_in_three(operator: str, what: str):
    known = case(operator, "n2 c3 d9 h8 w7 k4 t2 r2 s2 u1x2x3 p2:1x1:0x0:1 dil3x2x1")
    recipe, values = known.recipe, getattr(known.recipe.workload.geometry, what)
    seen = replace(recipe.workload.geometry, **{what: (values[1], *values[1:])})
    shapes = {name: tensor.shape for name, tensor in recipe.workload.operator.inputs(seen).items()}
    given = {name: fitted(array, shapes[name]) for name, array in known.inputs.items()}
    outputs = recipe.workload.operator.reference(seen, given)
    wanted = {name: fitted(array, known.reference[name].shape) for name, array in outputs.items()}
    assert f"{what} of H used for D" in names(diagnosed(known, wanted))


@pytest.mark.parametrize(
    ("operator", "text", "family"),
    [
        *itertools.product(
            CONVOLUTIONS, ["n3 c10 h14 w11 k15 r3 s2 u2x3 p1:2x0:1 d1x2 g5 b1"], ["precision", "scale", "memory"]
        ),
        *itertools.product(POOLINGS, ["pool n3 c5 h11 w9 r3 s2 u2x1 p1:2x0:1"], ["precision", "scale"]),
    ],
)
def test_no_structure_is_named_where_it_is_right(operator: str, text: str, family: str):
    """Errors of arithmetic must not be taken for a wrong index: a wrong name costs its reader a day."""
    known = case(operator, text)
    recipe = known.recipe
    concerned = [m for m in MUTANTS if m.family == family and m.applies(operator, recipe.workload.geometry, "fp32")]
    with np.errstate(all="ignore"):
        found = {
            m.name: diagnosed(known, m.run(recipe.workload.operator, recipe.workload.geometry, known.inputs, "fp32"))
            for m in concerned
        }
    assert len(found) > 10
    structures = {mistake.name for mistake in FAMILIES[recipe.workload.operator.family].mistakes}
    assert [name for name, diagnosis in found.items() if diagnosis and structures & {*diagnosis.names}] == []
    if family == "scale":
        assert names(found["all zero"]) == ("results all zero",)
        assert names(found["sign of the result changed"]) == ("results with their sign changed",)


@pytest.mark.parametrize("distribution", ["integer", "impulse", "special", "wide"])
def test_a_mistake_is_named_on_every_distribution(distribution: str):
    known = case("conv_forward", PLAIN, distribution)
    with np.errstate(all="ignore"):
        assert "filter flipped in W" in names(diagnosed(known, flipped(known)))


def test_no_hypothesis_takes_more_than_the_problem_is_worth():
    """Padding of 500 seen on two more axes was a reference of terabytes, which ended the run."""
    workload = OPERATORS["conv_forward"].on(parse("n1 c3 d1 h2 w300 k3 t1 r1 s1031 p0x0x500 g3"))
    everywhere = next(one for one in FAMILIES["conv"].further if one.name == "padding of W used for both axes")
    inputs = {name: np.ones(tensor.shape) for name, tensor in workload.inputs.items()}
    assert everywhere.outputs(workload, inputs) is None


def test_divisors_without_a_common_multiple_end_no_diagnosis():
    """Of a wrong gradient "Python int too large to convert to C long" was raised instead."""
    workload = OPERATORS["avg_pool_backward"].on(parse("pool n2 c6 w255 s255 u4 p254:0 ceil1"))
    inputs = {"dy": np.ones(workload.inputs["dy"].shape)}
    outputs = {"dx": 2 * workload.reference(inputs)["dx"].astype(np.float32)}
    assert names(diagnose(workload, inputs, outputs)) == ("results twice as large",)


@pytest.mark.parametrize("garbage", [np.nan, 0.5, np.inf])
def test_garbage_has_no_diagnosis(garbage: float):
    known = case("conv_forward", PLAIN)
    assert diagnosed(known, {name: np.full(array.shape, garbage) for name, array in known.reference.items()}) is None


def test_a_few_elements_explain_nothing():
    """A sixth of them is that of a flipped filter; the others are no numbers."""
    known = case("conv_forward", PLAIN)
    outputs = flipped(known)
    outputs["y"][:, 1:] = np.nan
    assert diagnosed(known, outputs) is None


def test_results_that_are_left_zero_are_said_to_be_wherever_they_are():
    known = case("conv_forward", PLAIN)
    outputs = {"y": known.reference["y"].copy()}
    outputs["y"].reshape(-1)[-37:] = 0
    assert names(diagnosed(known, outputs)) == ("some results left zero, as if never written",)


def test_a_sum_whose_small_terms_are_lost_is_not_said_to_be_never_written():
    """Results of a sum that loses all its small terms beside a large one are zero."""
    expected = case("conv_forward", "n1 c14 h4 w4 k26 r3 s3", "absorbed")
    lossy, wrong = ({"y": expected.reference["y"].copy()} for _ in range(2))
    lossy["y"][:, 5:9] = 0
    assert names(diagnosed(expected, lossy)) == (BITS_LOST.name,)
    wrong["y"][:, 5:9] += 2.0**13
    assert diagnosed(expected, wrong) is None


def test_a_bias_of_every_slice_of_a_sum_is_said_to_be():
    known = case("conv_forward", PLAIN)
    outputs = {"y": known.reference["y"] + 3 * known.inputs["bias"][:, None, None]}
    assert names(diagnosed(known, outputs)) == ("bias added more than once",)


def test_what_is_read_from_results_is_not_said_beside_a_mistake():
    known = case("conv_forward", PLAIN)
    outputs = {"y": known.reference["y"].copy()}
    outputs["y"][..., -1] = 0
    found = diagnosed(known, outputs)
    assert names(found)[0] == "last column of y (dy) left out"
    assert "left zero" not in str(found)


def _between_steps(g: ConvGeometry, known: Expectation, meets: Callable[..., bool] = lambda *_: True) -> Arrays:
    """Every row of x asks every tap for a row of y, and rounds down."""
    w, dy, dx = known.inputs["w"], known.inputs["dy"].astype(np.float64), np.zeros(g.x.shape)
    for row, column, r, s in itertools.product(*map(range, (g.h, g.w, g.r, g.s))):
        at, beside = row + g.padding[0][0] - r * g.dilation[0], column + g.padding[1][0] - s * g.dilation[1]
        p, q = at // g.stride[0], beside // g.stride[1]
        if meets(g, row - r, column - s) and at >= 0 and beside >= 0 and p < g.output_size[0] and q < g.output_size[1]:
            dx[:, :, row, column] += dy[:, :, p, q] @ w[:, :, r, s]
    return {"dx": dx}


def _without_dilation(g: ConvGeometry, known: Expectation) -> Arrays:
    def meets(g: ConvGeometry, row: int, column: int) -> bool:
        return (row + g.padding[0][0]) % g.stride[0] == 0 == (column + g.padding[1][0]) % g.stride[1]

    return _between_steps(g, known, meets)


def _split_evenly(g: ConvGeometry, known: Expectation) -> Arrays:
    totals = [sum(sides) for sides in g.padding]
    seen = replace(g, padding=tuple((total // 2, total - total // 2) for total in totals))
    return known.recipe.workload.operator.reference(seen, known.inputs)


@pytest.mark.parametrize(
    ("operator", "wrong", "name"),
    [
        ("conv_backward_data", _between_steps, "taps between the steps of the stride added to dx"),
        ("conv_backward_data", _without_dilation, "taps of dx chosen by the stride without the dilation"),
        ("conv_forward", _split_evenly, "padding split evenly, the odd one after"),
    ],
)
def test_what_strangers_kernels_did_is_named(operator: str, wrong: Callable[..., Arrays], name: str):
    known = case(operator, "n2 c3 h9 w11 k4 r3 s4 u2x3 p4:1x3:0 d1x2")
    assert names(diagnosed(known, wrong(known.recipe.workload.geometry, known))) == (name,)


def test_the_place_of_a_maximum_that_wraps_in_a_byte_is_named():
    known = case("max_pool_backward", "maxpool n2 c2 h40 w40 r17 s17 u5")
    x, dy, dx = known.inputs["x"], known.inputs["dy"], np.zeros(known.reference["dx"].shape)
    for n, c, p, q in np.ndindex(*dy.shape):
        r, s = divmod(int(x[n, c, 5 * p :, 5 * q :][:17, :17].argmax()) % 256, 17)
        dx[n, c, 5 * p + r, 5 * q + s] += dy[n, c, p, q]
    assert names(diagnosed(known, {"dx": dx})) == ("max pooling: place of the maximum kept in a byte",)


def test_a_window_that_is_moved_to_the_edge_of_the_image_is_named():
    known = case("max_pool_forward", "maxpool n2 c3 h9 w11 r3 s3 u2 p3:2x2:3 d2")
    x, y = known.inputs["x"], np.full(known.reference["y"].shape, -np.inf)
    for p, q in np.ndindex(*y.shape[2:]):
        top, left = 2 * p - 3, 2 * q - 2
        rows, columns = (range(max(0, at), min(at + 5, size), 2) for at, size in ((top, 9), (left, 11)))
        for row, column in itertools.product(rows, columns):
            y[:, :, p, q] = np.maximum(y[:, :, p, q], x[:, :, row, column])
    assert names(diagnosed(known, {"y": y})) == (
        "max pooling: windows begin at the image's edge, whatever the dilation",
    )


ROUNDED = {
    "filters rounded to their format after they took the scale": (
        "conv_bn_inference", "bn n2 c8 h9 w7 k6 r3 s3 p1",
        lambda i, g: ConvForward().reference(
            g.conv, {"x": i["x"], "w": _kept(i["w"] * _filters(_scale(i, g)), i["w"])}
        )["y"] + (i["beta"] - i["running_mean"] * _scale(i, g))[:, None, None],
    ),
    "sum rounded to the tensors' format before the bias is added": (
        "conv_forward", "n2 c8 h9 w7 k6 r3 s3 p1 b1",
        lambda i, g: _kept(ConvForward().reference(replace(g, bias=False), {"x": i["x"], "w": i["w"]})["y"], i["x"])
        + i["bias"].astype(np.float64)[:, None, None],
    ),
    "reciprocal of the divisor rounded to the tensors' format": (
        "avg_pool_forward", "pool n2 c8 h9 w7 r3 s3",
        lambda i, g: OPERATORS["avg_pool_forward"].reference(replace(g, divisor_override=1), i)["y"]
        * _kept(np.array(1 / 9), i["x"]),
    ),
}  # fmt: skip


def _kept(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    return values.astype(like.dtype).astype(np.float64)


def _scale(inputs: Arrays, g: Any) -> np.ndarray:
    variance = inputs["running_var"].astype(np.float64) + g.eps
    scale: np.ndarray = inputs["gamma"].astype(np.float64) / np.sqrt(variance)
    return scale


def _filters(values: np.ndarray) -> np.ndarray:
    return values[:, None, None, None]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", ROUNDED)
def test_one_rounding_too_many_is_told_by_the_bits(name: str, dtype: str):
    operator, descriptor, wrong = ROUNDED[name]
    known = Expectation(Recipe(OPERATORS[operator].on(parse(descriptor)), dtype, "fixed", SEED))
    y = wrong(
        {key: array.astype(np.float64) if key != "x" and key != "w" else array for key, array in known.inputs.items()},
        known.recipe.workload.geometry,
    )
    stored = known.inputs["x"].dtype
    workload = known.recipe.workload
    assert names(diagnose(workload, known.inputs, {"y": y.astype(stored)})) == (name,)
    exact = known.reference["y"].astype(stored)
    assert diagnose(workload, known.inputs, {"y": exact}) is None


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_convolution_stored_before_its_batch_norm_is_told_by_the_bits_of_y(dtype: str):
    """Mean and variance, in fp32, have other bits than any other sum of the same numbers."""
    known = Expectation(
        Recipe(OPERATORS["conv_bn_forward"].on(parse("bn n2 c8 h9 w7 k6 r3 s3 p1")), dtype, "fixed", SEED)
    )
    given, g = known.inputs, known.recipe.workload.geometry
    z = _kept(ConvForward().reference(g.conv, {"x": given["x"], "w": given["w"]})["y"], given["x"])
    mean, var = z.mean((0, 2, 3)), z.var((0, 2, 3))
    scale = (given["gamma"] / np.sqrt(var + g.eps))[:, None, None]
    y = (z - mean[:, None, None]) * scale + given["beta"][:, None, None]
    outputs = {"y": y.astype(given["x"].dtype), "mean": mean * (1 + 1e-7), "var": var * (1 + 1e-7)}
    outputs |= {name: known.reference[name] for name in known.reference if name.startswith("running")}
    outputs = {name: array if name == "y" else array.astype(np.float32) for name, array in outputs.items()}
    found = diagnose(known.recipe.workload, known.inputs, outputs)
    assert names(found) == ("z rounded to the tensors' format before batch norm",)


def test_zero_points_by_the_sums_of_the_first_groups_filters():
    recipe = Recipe(OPERATORS["conv_requantized"].on(parse("q n2 c6 h4 w4 k6 r3 s3 g3 zx5")), "int8", "scales", SEED)
    known = Expectation(recipe)
    x, w = (known.inputs[name].astype(np.float64) for name in "xw")
    sums = ConvForward().reference(parse("n2 c6 h4 w4 k6 r3 s3 g3"), {"x": x, "w": w})["y"]
    for k in range(6):
        sums[:, k] -= 5 * w[k % 2].sum()
    scaled = sums * known.inputs["scale"].astype(np.float64)[:, None, None] + recipe.workload.geometry.y_zero_point
    outputs = {"y": np.clip(np.rint(scaled), -128, 127).astype(np.int8)}
    found = diagnose(recipe.workload, known.inputs, outputs)
    assert names(found) == ("zero point of x taken off with the sums of the first group's filters",)


def test_images_that_no_worker_has():
    """Four workers have a quarter of the batch each, rounded down; dbias is made by another loop."""
    known = case("conv_backward_weight", "n7 c3 h6 w5 k4 r2 s3 b1")
    dy = known.inputs["dy"].copy()
    dy[4:] = 0
    outputs = known.reference | {"dw": known.holding(known.inputs | {"dy": dy}).reference["dw"]}
    assert names(diagnosed(known, outputs)) == ("images beyond blocks of 4 left out",)


def test_what_no_window_reaches_is_not_written():
    known = case("conv_backward_data", "n2 c3 h9 w9 k4 r2 s2 u3")
    dx = np.where(known.reference["dx"] == 0, 1.0, known.reference["dx"])
    assert names(diagnosed(known, {"dx": dx})) == ("what must be zero is not",)


def test_a_gradient_of_the_bias_that_every_block_adds():
    known = case("conv_backward_weight", "n2 c6 h7 w5 k4 r2 s3 b1")
    outputs = known.reference | {"dbias": 3 * known.reference["dbias"]}
    assert names(diagnosed(known, outputs)) == ("dbias added more than once",)


def test_a_diagnosis_is_a_phrase():
    assert str(Diagnosis(("stride ignored",), 0.0)) == "likely cause: stride ignored (explains 100%)"
    many = Diagnosis(("a", "b", "c", "d", "e"), 0.012)
    assert str(many) == "likely cause: a, or b, or c, or 2 more (explains 98.8%)"


def test_a_mistake_in_one_of_two_results_is_named():
    """dw without the last image, and dbias, which another loop makes, with it: nothing explained both."""
    known = case("conv_backward_weight", "n3 c6 h8 w4 k9 r2 s3 p1 g3 b1")
    dy = known.inputs["dy"].copy()
    dy[-1] = 0
    shorter = known.holding(known.inputs | {"dy": dy}).reference["dw"]
    found = diagnosed(known, known.reference | {"dw": shorter})
    assert str(found) == "likely cause: last image left out (in dw alone)"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_results_that_are_cut_are_no_sums_in_fewer_bits(dtype: str):
    """A kernel that sums in fp32 and cuts was told to declare a sum in bf16."""
    workload = OPERATORS["conv_forward"].on(parse("n2 c4 h6 w7 k6 r3 s3 p1"))
    inputs = Expectation(Recipe(workload, dtype, "fixed", 0)).inputs
    exact = workload.reference(inputs)["y"]
    nearest = exact.astype(STORAGE[dtype])
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(exact)
    cut = np.where(beyond, np.nextafter(nearest, STORAGE[dtype].type(0)), nearest)
    found = diagnose(workload, inputs, {"y": cut})
    assert names(found) == ("results cut to their format instead of rounded",)
    assert diagnose(workload, inputs, {"y": nearest}) is None
