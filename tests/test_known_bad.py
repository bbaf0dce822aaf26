"""The judge detects known-bad kernels, and each of its distributions and statistics is needed for it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import product

import numpy as np
import pytest

from conformance.dtypes import DECLARABLE, WHOLE
from conformance.inputs import Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.operators import CONVOLUTIONS, OPERATORS, ConvGeometry, GeometryError, takes
from conformance.operators.mistakes import InapplicableError, Misread
from conformance.operators.table import library, operators_of
from conformance.problems import PROBLEMS
from tests.calibration import mutation
from tests.calibration.kernels import sizes
from tests.calibration.kernels.arithmetic import EXACT
from tests.calibration.kernels.kernel import KnownKernel, Mutant, exact, plain
from tests.calibration.known_kernels import KINDS, MUTANTS, judgements
from tests.calibration.mutation import PARTS, outcomes, rows, score

BASES = {"float32": plain, "float64": exact, "lowered": EXACT}

SOLE = {
    "bent": ("activation of the last column left out", "matmul_activation", "mact.bert-intermediate"),
    "absorbed": ("accumulator with a bit less than fp32", "conv_forward", "absorbed.window"),
    "integer": ("last product of a long sum left out, inputs declared bf16", "conv_forward", "edge.long-contraction"),
    "fixed": ("fp32 result truncated", "conv_forward", "edge.plain"),
    "impulse": ("rows of data that begin with zeros skipped", "conv_forward", "edge.plain"),
    "special": ("NaN in the result becomes zero", "conv_forward", "edge.plain"),
    "natural": ("values: data on one scale for each image and channel", "conv_forward", "edge.values"),
    "nonfinite": ("values: NaN in w becomes zero", "conv_forward", "edge.image1x1"),
    "large": ("values: halves of a sum overflow", "conv_forward", "edge.values-opposite"),
    "small": ("values: smallest normal inputs flushed, subnormal ones declared", "conv_forward", "edge.values"),
    "codes": ("e4m3: subnormal data flushed", "conv_forward", "fp8.plain"),
    "close": ("values: maxima of fp64 compared in fp32", "max_pool_backward", "maxpool.values-2x3"),
    "range": ("values: finite overflow saturates", "conv_forward", "edge.values"),
    "subnormal": ("values: subnormal bias flushed", "conv_forward", "edge.values"),
    "wide": ("subnormal inputs flushed", "conv_forward", "edge.plain"),
    "mixed": ("rows of data that begin with zeros skipped", "conv_forward", "edge.values"),
    "scaled": ("bn: filters in fixed point", "conv_bn_forward", "bn.plain"),
    "shifted": ("bn: raw moments", "conv_bn_forward", "bn.tutorial"),
    "scales": ("scale rounded to bf16", "conv_requantized", "requantized.no-zero-points"),
    "ties": ("ties rounded away from zero", "conv_requantized", "requantized.groups"),
    "cancelled": ("requantized int8: sums in fp32", "conv_requantized", "requantized.deep"),
    "bound": ("one element summed in 19 bits", "conv_forward", "edge.plain"),
    "rms": ("fp32 result packed in 22 bits", "conv_forward", "sizes.n2_c1_h257_w273_k1_r1_s1"),
    "gain": ("fp32 result truncated", "conv_backward_weight", "edge.c129-k128"),
    "offset": ("fp32 result rounded up", "conv_backward_weight", "edge.c129-k128"),
}
"""Distribution or statistic -> a mutant that nothing else detects on a problem: its name, the operator, the problem."""


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_good_kernels_pass_every_distribution(operator: str, base: str):
    # whole numbers are right to the last unit or wrong: sums of fp32 are no good kernel of them, nor of fp64
    wider = {*WHOLE, *(["fp64"] if base == "float32" else [])}
    subject = KnownKernel(base, "good", BASES[base], dtypes=tuple(name for name in DECLARABLE if name not in wider))
    for recipe in (recipe for _, recipe in rows(operator, "smoke") if recipe.dtype in subject.dtypes):
        for judged in judgements(subject, Expectation(recipe)):
            assert judged.passed, f"{recipe.key}: {judged.explain()}"


def test_collection_is_complete():
    assert len(MUTANTS) >= 80
    assert max(Counter((mutant.name, operator) for mutant in MUTANTS for operator in mutant.operators).values()) == 1
    required = {"index", "groups", "bias", "gradients", "precision", "scale", "memory", "subtle", "paths", "values"}
    required |= {"sizes", "edges", "partial-requests", "formats", "factors", "scales", "activation"}
    assert required | {"batchnorm", "pooling", "divisor"} == set(KINDS)


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_mutants_are_detected_at_smoke(operator: str):
    found = outcomes(MUTANTS, operator, rows(operator, "smoke"))
    detected, counted = score(found)
    assert counted > 130
    assert detected >= 0.95 * counted, [o.mutant for o in found if o.differs and not o.detected]


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(
    ("kind", "operator"),
    [("memory", "conv_forward"), ("edges", "max_pool_forward"), ("precision", "avg_pool_forward")],
)
def test_mutants_are_detected_in_every_rank(kind: str, operator: str, rank: int):
    mutants = [mutant for mutant in MUTANTS if mutant.family == kind and rank in mutant.ranks]
    found = outcomes(mutants, operator, rows(operator, "standard", rank=rank))
    assert found
    assert [o.mutant for o in found if not o.detected] == []


@pytest.mark.parametrize("shape", [*sizes.SHAPES, next(iter(sizes.CEIL))])
def test_shapes_of_reports_are_in_the_tables_in_every_rank(shape: str):
    """66 of these 90 kernels were reached by no case."""
    for mutant in (one for one in MUTANTS if shape in one.name):
        for operator, rank in product(mutant.operators, mutant.ranks):
            own = (p for p in PROBLEMS if takes(operator, p.geometry) and p.geometry.rank == rank)
            names = [p.name for p in own if mutant.applies(operator, p.geometry, "fp32")]
            (found,) = outcomes([mutant], operator, rows(operator, "standard", names))
            assert found.detected, (mutant.name, operator, rank)


@pytest.mark.parametrize("operator", OPERATORS)
def test_mistakes_change_nothing_where_their_axes_are_not(operator: str):
    """`Mistake.ranks` is read from names: a name that speaks of an axis by chance would hide a mistake."""
    for problem in (p for p in PROBLEMS if p.geometry.rank == 1 and takes(operator, p.geometry) and p.geometry.n):
        if "plain" in problem.name or "ceil" in problem.name or problem.name.endswith("rank1-groups"):
            expected = Expectation(Recipe(OPERATORS[operator].on(problem.geometry), "fp32", "fixed", SEED))
            for mistake in (m for m in library() if operator in operators_of(m) and 1 not in m.ranks):
                assert mistake.outputs(expected.recipe.workload, expected.inputs) is None
                if not isinstance(mistake.compute, Misread) and mistake.when(problem.geometry):
                    with suppress(GeometryError, InapplicableError), np.errstate(all="ignore"):
                        made = mistake.compute(OPERATORS[operator], problem.geometry, expected.inputs, np.float64)
                        for name, exact_values in expected.reference.items():
                            # of the float64 reference summed in another order, far from what a mistake does
                            np.testing.assert_allclose(made[name], exact_values, err_msg=mistake.name)


@pytest.mark.parametrize(
    ("name", "descriptor"),
    [
        ("filter flipped in H and W", "n2 c3 h5 w5 k4 r1 s1"),
        ("group off by one", "n2 c3 h5 w5 k4 r3 s3"),
        ("dilation ignored", "n2 c3 h5 w5 k4 r3 s3 p1"),
        ("inputs rounded to tf32", "n2 c3 h5 w5 k4 r3 s3"),
    ],
)
def test_equivalent_mutants_are_not_counted(name: str, descriptor: str):
    dtype = "fp16" if "tf32" in name else "fp32"
    recipe = Recipe(OPERATORS["conv_forward"].on(ConvGeometry.parse(descriptor)), dtype, "fixed", SEED)
    mutant = named(name)
    assert mutant.equivalent(
        recipe.workload.operator, ConvGeometry.parse(descriptor), Expectation(recipe).inputs, dtype
    )
    (found,) = outcomes([mutant], "conv_forward", [("here", recipe)])
    assert not found.differs


@pytest.mark.parametrize("part", PARTS)
def test_each_part_of_the_judge_is_needed(part: str):
    name, operator, problem = SOLE[part]
    mutant, cases = named(name), rows(operator, "full", [problem])
    (whole,) = outcomes([mutant], operator, cases)
    (weakened,) = outcomes([mutant], operator, cases, frozenset([part]))
    assert whole.detected
    assert weakened.differs
    assert not weakened.detected


def test_table_names_survivors_and_score():
    flushing, cases = [named("subnormal inputs flushed")], rows("conv_forward", "smoke")
    found = outcomes(flushing, "conv_forward", cases)
    weakened = outcomes(flushing, "conv_forward", cases, frozenset(["wide", "subnormal"]))
    assert "mutation score 1/1 = 100.0%" in mutation.lines(found)
    assert "SURVIVED: subnormal inputs flushed (precision) in conv_forward" in mutation.lines(weakened)
