"""The judge detects known-bad kernels, and each of its distributions and statistics is needed for it."""

from __future__ import annotations

from collections import Counter

import pytest

from conformance.calibration import mutation
from conformance.calibration.known_bad import FAMILIES, MUTANTS, Mutant
from conformance.calibration.known_bad.arithmetic import EXACT
from conformance.calibration.known_bad.base import exact, plain
from conformance.calibration.mutation import PARTS, outcomes, rows, score
from conformance.calibration.subject import Subject, judgements
from conformance.inputs import Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.operators import CONVOLUTIONS, OPERATORS, ConvGeometry

BASES = {"float32": plain, "float64": exact, "lowered": EXACT}

SOLE = {
    "integer": ("last product of a long sum left out, inputs declared bf16", "conv_forward", "edge.long-contraction"),
    "fixed": ("fp32 result truncated", "conv_forward", "edge.plain"),
    "impulse": ("rows of data that begin with zeros skipped", "conv_forward", "edge.plain"),
    "special": ("NaN in the result becomes zero", "conv_forward", "edge.plain"),
    "bits": ("values: bn: last 3 bits of gamma truncated", "conv_bn_inference", "bn.values-channel1"),
    "nonfinite": ("values: NaN in w becomes zero", "conv_forward", "edge.image1x1"),
    "large": ("values: halves of a sum overflow", "conv_forward", "edge.values-opposite"),
    "small": ("values: smallest normal inputs flushed, subnormal ones declared", "conv_forward", "edge.values"),
    "close": ("values: maxima of fp64 compared in fp32", "max_pool_backward", "maxpool.values-2x3"),
    "range": ("values: finite overflow saturates", "conv_forward", "edge.values"),
    "subnormal": ("values: subnormal bias flushed", "conv_forward", "edge.values"),
    "wide": ("subnormal inputs flushed", "conv_forward", "edge.plain"),
    "mixed": ("rows of data that begin with zeros skipped", "conv_forward", "edge.values"),
    "scaled": ("bn: filters in fixed point", "conv_bn_forward", "bn.plain"),
    "shifted": ("bn: raw moments", "conv_bn_forward", "bn.tutorial"),
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
    subject = Subject(base, "good", BASES[base])
    for _, recipe in rows(operator, "smoke"):
        for judged in judgements(subject, Expectation(recipe)):
            assert judged.passed, f"{recipe.key}: {judged.explain()}"


def test_collection_is_complete():
    assert len(MUTANTS) >= 80
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    required = {"index", "groups", "bias", "gradients", "precision", "scale", "memory", "subtle", "paths", "values"}
    required |= {"sizes", "edges", "partial-requests"}
    assert required | {"batchnorm", "pooling", "divisor"} == set(FAMILIES)


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_mutants_are_detected_at_smoke(operator: str):
    found = outcomes(MUTANTS, operator, rows(operator, "smoke"))
    detected, counted = score(found)
    assert counted > 130
    assert detected >= 0.95 * counted, [o.mutant for o in found if o.differs and not o.detected]


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
    recipe = Recipe(OPERATORS["conv_forward"], ConvGeometry.parse(descriptor), dtype, "fixed", SEED)
    mutant = named(name)
    assert mutant.equivalent(recipe.operator, ConvGeometry.parse(descriptor), Expectation(recipe).inputs, dtype)
    (found,) = outcomes([mutant], "conv_forward", [("here", recipe)])
    assert not found.differs


@pytest.mark.parametrize("part", PARTS)
def test_each_part_of_the_judge_is_needed(part: str):
    name, operator, problem = SOLE[part]
    mutant, cases = named(name), rows(operator, "standard", [problem])
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
