"""Average pooling: its reference is the definition, and the judge convicts and acquits the right kernels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.data import Expectation, Recipe
from conformance.data.manifest import SEED
from conformance.harness.conduct_pool import TUTORIAL
from conformance.judge.diagnosis import diagnose
from conformance.judge.mistakes import LIBRARY
from conformance.operators import OPERATORS, POOLINGS, Arrays, GeometryError, Operator, PoolGeometry, parse
from conformance.problems import PROBLEMS, at_level
from conformance.selftest.acquittal_campaign import Row, verdicts
from conformance.selftest.acquittals import ACQUITTALS
from conformance.selftest.mutants import MUTANTS, Mutant
from conformance.selftest.mutants.base import exact, plain
from conformance.selftest.mutants.pool import GOOD
from conformance.selftest.mutants.structure import planted
from conformance.selftest.mutation import rows, score, try_all
from conformance.selftest.trial import Subject, judgements

CASES = (
    "pool n2 c2 h6 w4 r2 s2",
    "pool n1 c2 h5 w6 r3 s2 u1 p1",
    "pool n1 c1 h7 w5 r3 s2",
    "pool n1 c1 h7 w6 r3 s3 u2x3 ceil1",
    "pool n1 c1 h5 w6 r2 s3 u2 p1 ceil1",
    "pool n1 c1 h4 w5 r2 s3 u3x2 p1 ceil1",
    "pool n1 c1 h5 w5 r3 s3 u2 p1 valid1",
    "pool n1 c1 h6 w5 r3 s4 u2x3 p1 ceil1 valid1",
    "pool n1 c1 h5 w6 r3 s4 u2x1 p0:2x3:1 valid1",
    "pool n1 c1 h6 w5 r4 s3 u3x2 p1:2x0:1 ceil1",
    "pool n1 c1 h5 w5 r3 s3 u2 p1 div7",
    "pool n1 c1 h5 w6 r3 s3 u2 p1 ceil1 valid1 div5",
    "pool n1 c1 h7 w8 r2 s1 u3",
    "pool n1 c1 h2 w2 r3 s3 u1 p1",
    "pool n3 c1 h1 w1 r1 s1",
    "pool n1 c1 h4 w7 r4 s7",
)


@st.composite
def geometries(draw: st.DrawFn) -> PoolGeometry:
    r, s = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows_padded, columns_padded = (st.tuples(*[st.integers(0, window - 1)] * 2) for window in (r, s))
    try:
        return PoolGeometry(
            n=1,
            c=draw(st.integers(1, 2)),
            h=draw(st.integers(1, 8)),
            w=draw(st.integers(1, 8)),
            r=r,
            s=s,
            stride=(draw(st.integers(1, 4)), draw(st.integers(1, 4))),
            padding=(draw(rows_padded), draw(columns_padded)),
            ceil_mode=draw(st.booleans()),
            count_include_pad=draw(st.booleans()),
            divisor_override=draw(st.sampled_from([None, None, 1, 3, 8])),
        )
    except GeometryError:
        return TUTORIAL


def seen(g: PoolGeometry, axis: int) -> list[range]:
    """The windows of one axis as positions of the image, cut off at the padded image's end.

    One follows the other until a window reaches that end (in ceil mode) or would go beyond it (in floor mode).
    """
    size, window = ((g.h, g.r), (g.w, g.s))[axis]
    before, end = g.padding[axis][0], size + g.padding[axis][1]
    starts = itertools.takewhile(lambda start: start + window <= end, itertools.count(-before, g.stride[axis]))
    found = [range(start, start + window) for start in starts]
    following = -before + len(found) * g.stride[axis]
    if g.ceil_mode and following < size and found[-1].stop < end:
        found.append(range(following, end))
    return found


def shares(g: PoolGeometry) -> Iterator[tuple[tuple[int, int], tuple[int, int], Fraction]]:
    """(place in y, place in x, what y takes of x there)."""
    for (p, tall), (q, wide) in itertools.product(enumerate(seen(g, 0)), enumerate(seen(g, 1))):
        inside = [(h, w) for h, w in itertools.product(tall, wide) if 0 <= h < g.h and 0 <= w < g.w]
        counted = len(tall) * len(wide) if g.count_include_pad else len(inside)
        for place in inside:
            yield (p, q), place, Fraction(1, g.divisor_override or counted)


def by_definition(operator: str, g: PoolGeometry, data: np.ndarray) -> np.ndarray:
    """The result in exact rational arithmetic, rounded once to float64."""
    forward = operator == "avg_pool_forward"
    size = (len(seen(g, 0)), len(seen(g, 1))) if forward else (g.h, g.w)
    out = np.full((g.n, g.c, *size), Fraction(0), dtype=object)
    for y, x, share in shares(g):
        (to, source) = (y, x) if forward else (x, y)
        for n, c in np.ndindex(g.n, g.c):
            out[(n, c, *to)] += share * Fraction(float(data[(n, c, *source)]))
    return out.astype(np.float64)


def require_definition(operator: str, geometry: PoolGeometry, dtype: str) -> None:
    expected = Expectation(Recipe(OPERATORS[operator], geometry, dtype, "fixed", 1))
    (data,), (reference,) = expected.inputs.values(), expected.reference.values()
    np.testing.assert_array_equal(reference, by_definition(operator, geometry, data))


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("operator", POOLINGS)
def test_reference_is_the_definition(operator: str, text: str, dtype: str):
    require_definition(operator, PoolGeometry.parse(text), dtype)


@pytest.mark.parametrize("operator", POOLINGS)
@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_reference_is_the_definition_of_anything(operator: str, geometry: PoolGeometry):
    require_definition(operator, geometry, "fp32")


@settings(max_examples=60, deadline=None)
@given(geometry=geometries())
def test_descriptor_reads_back(geometry: PoolGeometry):
    assert parse(geometry.descriptor) == geometry


@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_no_element_sums_more_terms_than_declared(geometry: PoolGeometry):
    for operator in map(OPERATORS.__getitem__, POOLINGS):
        counted = PoolGeometry.parse(f"{geometry.descriptor.split(' div')[0]} div1")
        (ones,) = ({name: np.ones(tensor.shape)} for name, tensor in operator.inputs(counted).items())
        for name, sums in operator.reference(counted, ones).items():
            assert sums.max() <= operator.terms(geometry)[name] - 1


def symmetric(g: PoolGeometry) -> bool:
    """Whether torch's pooling has these parameters."""
    axes = zip(g.padding, (g.r, g.s), strict=True)
    return all(before == after and 2 * before <= window for (before, after), window in axes)


TABLE = {problem.name: problem.geometry for problem, _ in at_level(PROBLEMS, "standard")}
SYMMETRIC = {name: g for name, g in TABLE.items() if g.family == "pool" and symmetric(g)}


@pytest.mark.parametrize("geometry", SYMMETRIC.values(), ids=SYMMETRIC)
def test_reference_is_torchs(geometry: PoolGeometry):
    """Forward bit for bit; torch rounds every share of a gradient, and their sum as often."""
    torch = pytest.importorskip("torch")
    g = geometry
    expected = [Expectation(Recipe(OPERATORS[operator], g, "fp32", "fixed", 2)) for operator in POOLINGS]
    x, dy = (torch.from_numpy(array.astype(np.float64)) for e in expected for array in e.inputs.values())
    y = torch.nn.functional.avg_pool2d(
        x.requires_grad_(), (g.r, g.s), g.stride, (g.padding[0][0], g.padding[1][0]),
        g.ceil_mode, g.count_include_pad, g.divisor_override,
    )  # fmt: skip
    np.testing.assert_array_equal(y.detach().numpy(), expected[0].reference["y"])
    (dx,) = torch.autograd.grad(y, x, dy)
    backward = OPERATORS["avg_pool_backward"]
    roundings = 2 * backward.terms(g)["dx"] * 2.0**-53
    most = roundings * backward.reference(g, {"dy": np.abs(dy.numpy())})["dx"]
    assert np.all(np.abs(dx.numpy() - expected[1].reference["dx"]) <= most)


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def test_tutorial_is_blind_to_a_rounded_sum():
    """Its four consecutive numbers add up to even ones below 512, which bf16 holds; three by three numbers do not."""
    rounding = named("sum rounded to storage before it is divided")
    operator = OPERATORS["avg_pool_forward"]
    x = {"x": np.arange(TUTORIAL.x.size).reshape(TUTORIAL.x.shape).astype(np.float32)}
    right = operator.reference(TUTORIAL, x)["y"]
    np.testing.assert_array_equal(rounding.run(operator, TUTORIAL, x, "bf16")["y"].astype(np.float64), right)
    assert np.array_equal(right[0, 0], [[3.5, 5.5, 7.5], [15.5, 17.5, 19.5], [27.5, 29.5, 31.5]])
    (trial,) = try_all([rounding], "avg_pool_forward", rows("avg_pool_forward", "smoke", ["pool.3x3s2-padded"]))
    assert (trial.killed, trial.dtype, trial.arm) == (True, "bf16", "fixed")


SOLE = {
    "special": ("NaN left out of the average", "avg_pool_forward", "pool.tutorial"),
    "wide": ("subnormal averages flushed", "avg_pool_backward", "pool.3x3s2-padded"),
    "fixed": ("pooled with an fp32 accumulator toward zero", "avg_pool_forward", "pool.3x3s2-padded"),
}
"""Arm -> a mutant that nothing else convicts, and where it does."""


@pytest.mark.parametrize("arm", SOLE)
def test_arm_is_needed(arm: str):
    name, operator, problem = SOLE[arm]
    (whole,) = try_all([named(name)], operator, rows(operator, "standard", [problem]))
    (weakened,) = try_all([named(name)], operator, rows(operator, "standard", [problem]), frozenset([arm]))
    assert (whole.killed, whole.arm) == (True, arm)
    assert (weakened.counts, weakened.killed) == (True, False)


@pytest.mark.parametrize("base", [plain, exact, GOOD], ids=["float32", "float64", "gathered"])
@pytest.mark.parametrize("operator", POOLINGS)
def test_good_kernels_pass_every_arm(operator: str, base: Callable[..., Arrays]):
    for _, recipe in rows(operator, "smoke"):
        for judged in judgements(Subject("good", "good", base, operators=POOLINGS), Expectation(recipe)):
            assert judged.passed, f"{recipe.key}: {judged.explain()}"


@pytest.mark.parametrize("operator", POOLINGS)
def test_mutants_are_convicted_at_smoke(operator: str):
    trials = try_all(MUTANTS, operator, rows(operator, "smoke"))
    killed, counted = score(trials)
    assert counted > 200
    assert killed == counted, [trial.mutant for trial in trials if trial.counts and not trial.killed]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("strides swapped", "pool n2 c3 h9 w9 r3 s3"),
        ("padding not counted", "pool n2 c3 h9 w9 r3 s3"),
        ("divisor override ignored", "pool n2 c3 h9 w9 r3 s3 div9"),
        ("reciprocals rounded to bf16", "pool n2 c3 h8 w8 r4 s2"),
        ("floor instead of ceil", "pool n2 c3 h9 w9 r3 s3 ceil1"),
    ],
)
def test_equivalent_mutants_are_not_counted(name: str, text: str):
    for operator in POOLINGS:
        recipe = Recipe(OPERATORS[operator], parse(text), "fp32", "fixed", SEED)
        (trial,) = try_all([named(name)], operator, [("here", recipe)])
        assert not trial.counts


HELD_OUT = (
    "pool n3 c5 h11 w9 r3 s2 u2x1 p1:2x0:1",
    "pool n2 c7 h9 w12 r3 s4 u2x3 p2:1x1:3 ceil1 valid1",
    "pool n4 c5 h9 w7 r2 s3 u1x2 p1:0x0:2 div5",
)
LIBRARIAN = {operator: [m for m in LIBRARY if operator in m.operators] for operator in POOLINGS}


@functools.cache
def case(operator: str, text: str, dtype: str, arm: str = "fixed") -> Expectation:
    return Expectation(Recipe(OPERATORS[operator], parse(text), dtype, arm, 20261121))


@pytest.mark.parametrize(("text", "dtype"), [*zip(HELD_OUT, ("fp32", "bf16", "fp16"), strict=True)])
@pytest.mark.parametrize("operator", POOLINGS)
def test_planted_mistakes_are_named(operator: str, text: str, dtype: str):
    expected = case(operator, text, dtype)
    known = (expected.recipe.operator, expected.recipe.geometry, expected.inputs)
    answers = {mutant.name: answer(mutant, known, dtype) for mutant in map(planted, LIBRARIAN[operator])}
    wrong = [name for name, right in answers.items() if right is False]
    assert sum(right is True for right in answers.values()) > 50
    assert not wrong


def answer(mutant: Mutant, known: tuple[Operator, PoolGeometry, Arrays], dtype: str) -> bool | None:
    """Whether the first name is right or means the same; None where the mutant is no mutant."""
    if not mutant.applies(known[0].name, known[1], dtype) or mutant.equivalent(*known, dtype):
        return None
    outputs = mutant.run(*known, dtype)
    found = diagnose(*known, outputs)
    if found is None:
        return False
    first = named(found.names[0]).run(*known, dtype)
    return all(np.array_equal(first[name], outputs[name]) for name in outputs)


Place = Callable[[PoolGeometry, int, int, int, int], tuple[int, int]]
"""(geometry, p, q, r, s) -> the element of x at a position of a window."""


def loops(operator: str, g: PoolGeometry, data: np.ndarray, place: Place) -> np.ndarray:
    """The sum over windows by the number of all their positions."""
    forward = operator == "avg_pool_forward"
    out = np.zeros(g.y.shape if forward else g.x.shape)
    for p, q, r, s in itertools.product(*map(range, (*g.output_size, g.r, g.s))):
        h, w = place(g, p, q, r, s)
        if 0 <= h < g.h and 0 <= w < g.w:
            to, source = ((p, q), (h, w)) if forward else ((h, w), (p, q))
            out[(..., *to)] += data[(..., *source)].astype(np.float64) / (g.r * g.s)
    return out


def right(g: PoolGeometry, p: int, q: int, r: int, s: int) -> tuple[int, int]:
    return p * g.stride[0] + r - g.padding[0][0], q * g.stride[1] + s - g.padding[1][0]


def moved(move: Callable[[PoolGeometry, int, int, int], tuple[int, int]]) -> Place:
    """`right`, then changed: (geometry, row, column, s) -> another element."""
    return lambda g, p, q, r, s: move(g, *right(g, p, q, r, s), s)


BY_HAND: dict[str, Place] = {
    "padding of H one too large before": moved(lambda g, h, w, s: (h - 1, w)),
    "last column of the window left out": moved(lambda g, h, w, s: (-1, -1) if s == g.s - 1 else (h, w)),
    "average over the repeated edge in place of padding": moved(
        lambda g, h, w, s: (min(max(h, 0), g.h - 1), min(max(w, 0), g.w - 1))
    ),
    "average over circular padding": moved(lambda g, h, w, s: (h % g.h, w % g.w)),
}
"""Mistakes written as loops of their own, so that the library is not only asked about itself."""


@pytest.mark.parametrize("mistake", [*BY_HAND, ""])
@pytest.mark.parametrize("operator", POOLINGS)
def test_mistakes_written_by_hand_are_named(operator: str, mistake: str):
    expected = case(operator, "pool n3 c4 h9 w11 r3 s4 u2x1 p1:2x2:1", "fp32")
    g, (data,), (name,) = expected.recipe.geometry, expected.inputs.values(), expected.reference
    outputs = {name: loops(operator, g, data, BY_HAND.get(mistake, right)).astype(np.float32)}
    found = diagnose(OPERATORS[operator], g, expected.inputs, outputs)
    assert (mistake in found.names) if found else not mistake


@pytest.mark.parametrize("operator", POOLINGS)
def test_no_structure_is_named_where_it_is_right(operator: str):
    """Errors of arithmetic must not be taken for a wrong index or divisor."""
    expected = case(operator, HELD_OUT[0], "fp32")
    known = (expected.recipe.operator, expected.recipe.geometry, expected.inputs)
    concerned = [m for m in MUTANTS if m.family in ("precision", "scale") and m.applies(operator, known[1], "fp32")]
    with np.errstate(all="ignore"):
        found = {mutant.name: diagnose(*known, mutant.run(*known, "fp32")) for mutant in concerned}
    assert len(found) > 40
    assert [name for name, diagnosis in found.items() if diagnosis] == []


POOLED = [acquittal for acquittal in ACQUITTALS if acquittal.family == "pool"]
ROWS = (
    "pool n2 c3 h7 w7 r7 s7",
    "pool n1 c3 h5 w6 r1 s1 div7",
    "pool n2 c3 h10 w9 r4 s3 u3x2 p1:2x0:1 ceil1 valid1",
)


@pytest.mark.parametrize("text", ROWS)
def test_honest_kernels_are_acquitted(text: str):
    found = list(verdicts(Row(text), 0))
    assert {verdict.subject for verdict in found} >= {a.subject.name for a in POOLED if a.subject.when(parse(text))}
    assert [verdict.text for verdict in found if not verdict.passed] == []


def test_collection_has_every_kind():
    assert len(POOLED) >= 20
    assert {operator for acquittal in POOLED for operator in acquittal.subject.operators} == set(POOLINGS)


@pytest.mark.parametrize("name", ["pool-constant-matrix", "pool-prefix-sums-fp64"])
def test_what_is_spared_the_special_arm_would_be_convicted_there(name: str):
    """They are right about numbers, and wrong about NaN: a kernel of this kind needs a waiver."""
    (acquittal,) = (a for a in POOLED if a.subject.name == name)
    expected = case("avg_pool_forward", "pool n2 c3 h9 w9 r3 s3 u2 p1", "fp32", "special")
    assert set(acquittal.spared) == {"special"}
    assert not all(judgement.passed for judgement in judgements(acquittal.subject, expected))


BAD = {
    "pool n1 c1 h8 w8 r3 s3 p3": "padding is 3; it must be less than the window, r3",
    "pool n1 c1 h8 w8 r5 s2 p0:0x0:2": "padding is 2; it must be less than the window, s2",
    "pool n1 c1 h8 w3 r3 s6 p1": "the window spans 6 on axis w, more than the padded image's 5",
    "pool n1 c1 h2 w8 r3 s3": "the window spans 3 on axis h, more than the padded image's 2",
    "pool n1 c1 h8 w8 r2 s2 div0": "divisor is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r2 s2 div-4": "divisor is -4; it must be at least 1",
    "pool n1 c1 h8 w8 r2 s2 u0": "stride is 0; it must be at least 1",
    "pool n1 c0 h8 w8 r2 s2": "c is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r0 s2": "r is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r2": "field 's' is missing",
    "pool n1 c1 h8 w8 r2 s2 d2": "field 'd2' is not understood",
    "pool n1 c1 h8 w8 r2 s2 ceil2": "field 'ceil2' must be ceil0 or ceil1",
    "pool n1 c1 h8 w8 r2 s2 valid3": "field 'valid3' must be valid0 or valid1",
    "pool n1 c1 h8 w8 r2 s2 div2x3": "field 'div2x3' must be one whole number",
}


@pytest.mark.parametrize("text", BAD)
def test_geometry_that_no_pooling_has_is_refused_by_name(text: str):
    with pytest.raises(GeometryError) as refusal:
        parse(text)
    assert BAD[text] in str(refusal.value)
