"""The judge of average pooling: known-bad kernels, known mistakes, known-good kernels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from conformance.calibration.false_alarms import verdicts
from conformance.calibration.known_kernels import KNOWN_GOOD, MUTANTS, judgements
from conformance.calibration.mutation import outcomes, rows, score
from conformance.diagnosis.diagnose import diagnose
from conformance.inputs import Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.operators import OPERATORS, POOLINGS, Arrays, Operator, PoolGeometry, parse
from conformance.operators.avg_pool.known_bad import GOOD
from conformance.operators.known_kernels.kernel import CampaignRow, KnownKernel, Mutant, exact, plain
from conformance.operators.known_kernels.structure import planted
from conformance.operators.table import LIBRARY, operators_of


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def test_tutorial_is_blind_to_a_rounded_sum():
    """Its four consecutive numbers add up to even ones below 512, which bf16 holds; three by three numbers do not."""
    rounding = named("sum rounded to storage before it is divided")
    operator = OPERATORS["avg_pool_forward"]
    assert operator.worked_example is not None
    geometry, x = parse(operator.worked_example.descriptor), operator.worked_example.inputs
    right = operator.reference(geometry, x)["y"]
    np.testing.assert_array_equal(rounding.run(operator, geometry, x, "bf16")["y"].astype(np.float64), right)
    assert np.array_equal(right[0, 0], [[3.5, 5.5, 7.5], [15.5, 17.5, 19.5], [27.5, 29.5, 31.5]])
    (found,) = outcomes([rounding], "avg_pool_forward", rows("avg_pool_forward", "full", ["pool.3x3s2-padded"]))
    assert found.detected
    assert found.where.startswith("fixed bf16 ")


SOLE = {
    "special": ("NaN left out of the average", "avg_pool_forward", "pool.tutorial"),
    "wide": ("subnormal averages flushed", "avg_pool_backward", "pool.3x3s2-padded"),
    "fixed": ("reciprocals rounded to 18 bits", "avg_pool_forward", "pool.3x3s2-padded"),
    "rms": ("reciprocals rounded to 18 bits", "avg_pool_backward", "pool.3x3s2-padded"),
    "gain": ("pooled with an fp32 accumulator toward zero", "avg_pool_forward", "inception.branch"),
    "offset": ("pooled with an fp32 accumulator upward", "avg_pool_forward", "inception.branch"),
}
"""Distribution or statistic -> a mutant that nothing else detects there."""


@pytest.mark.parametrize("part", SOLE)
def test_part_of_the_judge_is_needed(part: str):
    name, operator, problem = SOLE[part]
    cases = [row for row in rows(operator, "full", [problem]) if row[1].dtype == "fp32"]
    (whole,) = outcomes([named(name)], operator, cases)
    (weakened,) = outcomes([named(name)], operator, cases, frozenset([part]))
    assert whole.detected
    assert (weakened.differs, weakened.detected) == (True, False)


@pytest.mark.parametrize("base", [plain, exact, GOOD], ids=["float32", "float64", "gathered"])
@pytest.mark.parametrize("operator", POOLINGS)
def test_good_kernels_pass_every_distribution(operator: str, base: Callable[..., Arrays]):
    for recipe in (recipe for _, recipe in rows(operator, "smoke") if recipe.dtype != "fp64" or base is exact):
        for judged in judgements(KnownKernel("good", "good", base, operators=POOLINGS), Expectation(recipe)):
            assert judged.passed, f"{recipe.key}: {judged.explain()}"


@pytest.mark.parametrize("operator", POOLINGS)
def test_mutants_are_detected_at_smoke(operator: str):
    found = outcomes(MUTANTS, operator, rows(operator, "smoke"))
    detected, counted = score(found)
    assert counted > 180
    assert detected >= 0.95 * counted, [o.mutant for o in found if o.differs and not o.detected]


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
        (found,) = outcomes([named(name)], operator, [("here", recipe)])
        assert not found.differs


HELD_OUT = (
    "pool n3 c5 h11 w9 r3 s2 u2x1 p1:2x0:1",
    "pool n2 c7 h9 w12 r3 s4 u2x3 p2:1x1:3 ceil1 valid1",
    "pool n4 c5 h9 w7 r2 s3 u1x2 p1:0x0:2 div5",
)
LIBRARIAN = {operator: [m for m in LIBRARY if operator in operators_of(m)] for operator in POOLINGS}


@functools.cache
def case(operator: str, text: str, dtype: str, distribution: str = "fixed") -> Expectation:
    return Expectation(Recipe(OPERATORS[operator], parse(text), dtype, distribution, 20261121))


@pytest.mark.usefixtures("mistakes_computed_once")
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


POOLED = [known_good for known_good in KNOWN_GOOD if known_good.family == "avg_pool"]
ROWS = (
    "pool n2 c3 h7 w7 r7 s7",
    "pool n1 c3 h5 w6 r1 s1 div7",
    "pool n2 c3 h10 w9 r4 s3 u3x2 p1:2x0:1 ceil1 valid1",
)


@pytest.mark.parametrize("text", ROWS)
def test_honest_kernels_are_passed(text: str):
    found = list(verdicts(CampaignRow(text), 0))
    assert {verdict.kernel for verdict in found} >= {a.name for a in POOLED if a.when(parse(text))}
    assert [verdict.text for verdict in found if not verdict.passed] == []


DEPENDENT = {
    "copies of a share in every place of a window": ("pool-fp64", "pool n1 c24 h28 w28 r28 s28", "fp32"),
    "few numbers over one divisor": ("pool-fp64", "pool n2 c32 h30 w30 r5 s3", "bf16"),
    "two rounded reciprocals": ("pool-scaled-by-axis", "pool n2 c512 h7 w7 r7 s7", "fp32"),
    "reciprocals of many counts": ("pool-scaled-by-axis", "pool n2 c4 h20 w20 r7 s7 u1 p3 valid1", "fp32"),
}
"""Honest gradients whose errors are no independent ones."""


@pytest.mark.parametrize("reason", DEPENDENT)
def test_errors_that_elements_share_are_no_bias(reason: str):
    name, text, dtype = DEPENDENT[reason]
    (known_good,) = (a for a in POOLED if a.name == name)
    recipe = Recipe(OPERATORS["avg_pool_backward"], parse(text), dtype, "fixed", 4)
    (judged,) = judgements(known_good, Expectation(recipe))
    assert judged.passed, judged.explain()


def test_collection_has_every_kind():
    assert len(POOLED) >= 20
    assert {operator for known_good in POOLED for operator in known_good.operators} == set(POOLINGS)


@pytest.mark.parametrize("name", ["pool-constant-matrix", "pool-prefix-sums-fp64"])
def test_what_is_exempted_the_special_distribution_would_be_detected_there(name: str):
    """They are right about numbers, and wrong about NaN: a kernel of this kind needs a waiver."""
    (known_good,) = (a for a in POOLED if a.name == name)
    expected = case("avg_pool_forward", "pool n2 c3 h9 w9 r3 s3 u2 p1", "fp32", "special")
    assert set(known_good.exempted) == {"special", "nonfinite", "mixed"}
    assert not all(judgement.passed for judgement in judgements(known_good, expected))
