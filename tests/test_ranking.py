"""The ranking of cases, the levels that are prefixes of it, and what of it an implementation runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise, product
from typing import Any

import numpy as np
import pytest

from conformance import Implementation
from conformance.checks import CHECKS
from conformance.checks.behaviour_demand import BehaviourDemand
from conformance.dtypes import DTYPES, FILTERS
from conformance.execution import share
from conformance.execution.declared import Declared
from conformance.execution.required import VerificationDemand, required
from conformance.execution.selection import Selection
from conformance.execution.share import VIEWS, Budget, Ranked, Rows, budget
from conformance.execution.trial import Absence, Trial
from conformance.implementations.bridges.jax import jax_arrays
from conformance.implementations.bridges.neuron import jax_neuron_arrays, torch_neuron_arrays
from conformance.implementations.bridges.numpy import numpy_arrays
from conformance.inputs import DISTRIBUTIONS
from conformance.layouts import layouts_of, rank_of
from conformance.operators import CONVOLUTIONS, FAMILIES, MAXIMA, NORMALISED, OPERATORS, ORDINARY
from conformance.problems import LAYOUTS, PROBLEMS, Problem, Variant, at_level, ranking, typed
from conformance.storage import parse
from tests.calibration import ranking as ranked
from tests.calibration.ranking import Kill, TensorKey

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
LEVELS = ("smoke", "standard", "full")


@EVERY_FAMILY
def test_a_ranking_has_what_the_tables_have(family: str):
    """Run `python -m tests.calibration rank` after a change of a table."""
    known = {problem.name: problem for problem in PROBLEMS}
    lines = ranking.lines(family)
    named = Counter((line.name, variant) for line in lines for variant in line.variants(known[line.name]))
    own = [problem for problem in PROBLEMS if problem.geometry.family == family and problem.level == "standard"]
    assert named == Counter((problem.name, variant) for problem in own for variant in problem.variants)
    assert [line for line in lines if not line.variants(known[line.name])] == []


@EVERY_FAMILY
def test_levels_are_prefixes(family: str):
    own = [problem for problem in PROBLEMS if problem.geometry.family == family]
    each = [[(p.name, v) for p, variants in at_level(own, level) for v in variants] for level in LEVELS]
    for shorter, longer in pairwise(each):
        assert 0 < len(shorter) <= len(longer)
        assert longer[: len(shorter)] == shorter
    assert sum(variant.dtype not in FILTERS for _, variant in each[0]) <= ranking.SMOKE_CASES
    assert {problem.geometry for problem, _ in at_level(own, "standard")} == {
        problem.geometry for problem in own if problem.level == "standard"
    }


def test_what_nobody_has_ranked_comes_last_at_its_own_level():
    new = Problem("edge.new", typed("n1 c2 h3 w4 k5 r1 s1").geometry, "standard", (Variant("fp32", "nchw", "fixed"),))
    for level, found in (("smoke", False), ("standard", True), ("full", True)):
        names = [problem.name for problem, _ in at_level([*PROBLEMS, new], level)]
        assert ("edge.new" in names) == found
    own = [problem for problem in (*PROBLEMS, new) if problem.geometry.family == "conv"]
    assert [problem.name for problem, _ in at_level(own, "standard")][-1] == "edge.new"


FP32, BF16, LAST = (Variant(*words, "fixed") for words in (("fp32", "nchw"), ("bf16", "nchw"), ("bf16", "nhwc")))
ROWS = [
    (Problem(f"table.{place}", typed(f"n1 c{place + 1} h4 w4 k2 r1 s1").geometry, "standard", ()), (variant,))
    for place, variant in enumerate((FP32, BF16, FP32, LAST, BF16, FP32))
]
TABLE = [*ROWS, (ROWS[0][0], (BF16,))]


def shares(one: Implementation, given: Budget, listed: int = len(TABLE)) -> Any:
    rows = Rows.of(TABLE, listed, len(TABLE))
    found = share.share(Declared(one, "conv_forward"), rows, given)
    return [[f"{v.dtype} {v.layout}" for v in row] for row in found]


def kernel(
    dtypes: Sequence[str] = ("fp32", "bf16"),
    layouts: Sequence[str] = (),
    operator: str = "conv_forward",
    when: Any = None,
    **declared: Any,
) -> Implementation:
    implementation = Implementation("acme", **declared)
    implementation.implements(operator, dtypes=dtypes, layouts=layouts, when=when)(lambda *arrays: np.zeros(1))
    return implementation


def test_all_of_a_level_is_required_what_is_not_taken_too():
    every = [["fp32 nchw"], ["bf16 nchw"], ["fp32 nchw"], ["bf16 nhwc"], ["bf16 nchw"], ["fp32 nchw"], ["bf16 nchw"]]
    assert shares(kernel(layouts=("nchw", "nhwc")), Budget()) == every


def test_a_problem_without_a_pair_of_the_kernel_is_run_in_one_of_its_own():
    found = shares(kernel(("bf16",), ("nhwc",)), Budget())
    # of the first problem there is one in bf16 below, but not in channels last
    assert [row[-1] for row in found] == [*["bf16 nhwc"] * 6, "bf16 nchw"]  # of the last problem once
    assert found[3] == ["bf16 nhwc"]
    assert shares(kernel(("bf16",)), Budget())[0] == ["fp32 nchw"]  # which the table has in bf16 as well


def test_problems_of_8_bits_are_run_in_no_other_dtype():
    eight = (ROWS[0][0], (Variant("fp8_e4m3", "nchw", "fixed"),))
    sixteen = (ROWS[0][0], (Variant("fp16", "nchw", "fixed"),))
    declared = Declared(kernel(), "conv_forward")
    assert share.share(declared, Rows.of([eight], 0, 1), Budget()) == [[]]
    assert share.share(declared, Rows.of([sixteen], 0, 1), Budget()) == [[FP32]]


def pointwise(geometry: Any) -> bool:
    return {*geometry.window} == {1}


@pytest.mark.parametrize("level", LEVELS)
def test_a_kernel_of_few_problems_meets_all_inputs(level: str):
    """One for 1x1 windows and fp32 met no subnormal number, and passed although it flushed them."""
    one = kernel(("fp32",), when=pointwise)
    met = {variant.distribution for _, variant in run(one, "conv_forward", level)}
    assert met >= {"subnormal", "special", "mixed", "wide", "large", "small", "nonfinite", "range", "impulse"}


@pytest.mark.parametrize(
    ("dtypes", "layouts"),
    [(("fp32",), ("nchw",)), (("fp32", "fp64", "fp16"), ("nchw",)), (("bf16", "fp16"), ("nhwc", "ncw", "ndhwc"))],
)
@pytest.mark.parametrize("operator", ["conv_forward", "max_pool_forward", "conv_bn_backward"])
@pytest.mark.parametrize("when", [lambda p: True, pointwise], ids=["all", "pointwise"])
def test_what_a_level_runs_of_a_kernel_the_next_one_runs_too(
    operator: str, dtypes: tuple[str, ...], layouts: tuple[str, ...], when: Any
):
    """One failed at smoke and standard and passed at full."""
    one = kernel(dtypes, layouts, operator, when)
    every = [run(one, operator, level) for level in LEVELS]
    smoke, standard, full = ([case for case in cases if case[1].distribution != "natural"] for cases in every)
    assert {*smoke} <= {*standard}
    assert standard == full[: len(standard)]
    assert len(smoke) < len(standard) < len(full) or when is pointwise
    for lower, higher in pairwise(every):  # natural inputs are run beyond what a budget has room for
        assert {*lower} <= {*higher}
        assert len({*higher}) == len(higher)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("operator", ["conv_forward", "max_pool_forward", "conv_bn_backward", "avg_pool_backward"])
@pytest.mark.parametrize("when", [lambda p: True, pointwise], ids=["all", "pointwise"])
def test_every_dtype_and_number_of_dimensions_meets_natural_inputs(operator: str, when: Any, compiles: bool):
    """A kernel that is right on numbers of few bits alone passed; whoever compiles each shape compiles no more."""
    arrays = jax_arrays() if compiles else numpy_arrays()
    one = kernel(DTYPES, ("nchw", "nhwc", "ncw", "ncdhw"), operator, when, arrays=arrays)
    for level in ("smoke", "standard"):
        cases = run(one, operator, level)
        natural = {(v.dtype, rank_of(v.layout)) for _, v in cases if v.distribution == "natural"}
        met = {(v.dtype, rank_of(v.layout)) for _, v in cases}
        assert natural == met
        if compiles:
            assert len({(name, v.dtype, v.layout) for name, v in cases}) <= ranking.PROGRAMS[level]


MET_AT_SMOKE = {
    "shifted data (more than 1,000 elements of a channel)": (
        NORMALISED,
        lambda p, v: v.distribution == "shifted" and p.count > 1000,
    ),
    "ties (whole numbers, channels last, windows of 2x2)": (
        MAXIMA,
        lambda p, v: v.distribution == "integer" and v.layout == "nhwc" and p.window == (2, 2),
    ),
    "mixed values (several channels in a group of their own)": (
        CONVOLUTIONS,
        lambda p, v: v.distribution == "mixed" and p.n > 0 and p.groups == 1 < min(p.c, p.k, *p.output_size),
    ),
    "a tail of the batch (n > 4 and n % 4)": (ORDINARY, lambda p, v: p.n > 4 and p.n % 4),
}


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("named", MET_AT_SMOKE)
def test_smoke_meets_what_kernels_are_wrong_on(named: str, dtype: str):
    """Kernels that were wrong there alone passed: the ranking has it among the cases of standard."""
    operators, holds = MET_AT_SMOKE[named]
    for operator in operators:
        one = kernel((dtype,), layouts_of(FAMILIES[OPERATORS[operator].family].rank)[:2], operator)
        assert any(holds(problem, variant) for problem, variant in geometries(one, operator)), (
            f"{operator} meets no {named} at smoke: give its table such a problem, and rank the family anew"
        )


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "operator", [name for name in ORDINARY if "storages" not in FAMILIES[OPERATORS[name].family].lacks]
)
def test_each_operand_lies_in_each_kind_of_view_at_smoke(operator: str, dtype: str):
    """One view was met, of whichever operand: kernels that misread another passed. An image of one pixel, where strides
    say nothing, does not count."""
    one = kernel((dtype,), layouts_of(FAMILIES[OPERATORS[operator].family].rank)[:2], operator)
    at_smoke, at_standard = (
        {
            (operand, next(kinds for kinds in VIEWS if kind in kinds))
            for problem, variant in geometries(one, operator, level)
            if min((problem.n, problem.c, *problem.size)) > 1
            for operand, kind in parse(variant.storage).items()
            if kind in chain(*VIEWS)
        }
        for level in ("smoke", "standard")
    )
    assert at_smoke == at_standard
    assert {operand for operand, _ in at_smoke} >= {"x", "dy", "a", "b"} & {*OPERATORS[operator].arguments}


def geometries(one: Implementation, operator: str, level: str = "smoke") -> list[tuple[Any, Variant]]:
    known = {problem.name: problem.geometry for problem in PROBLEMS}
    return [(known[name], variant) for name, variant in run(one, operator, level)]


BEHAVES = ("output_is_written", "calls_do_not_depend_on_the_one_before", "results_are_plain", "work_is_finished")


def checked(one: Implementation, operator: str, level: str, *checks: str) -> list[Trial]:
    """The cases of some behaviour checks."""
    demands = [BehaviourDemand(ranked_at(level, operator), CHECKS[check], operator) for check in checks]
    return [case for demand in demands for case in required(one, demand)]


def test_behaviour_checks_take_turns():
    """Each was made on the same smallest problem; a path that they never saw needed one of two or three cases."""
    one = kernel(("fp32", "fp16"), ("nchw", "nhwc", "ncw"))
    at_smoke = [checked(one, "conv_forward", "smoke", check) for check in BEHAVES]
    assert [len(cases) for cases in at_smoke] == [1] * len(BEHAVES)
    assert len({cases[0].problem.geometry for cases in at_smoke}) == len(BEHAVES)
    at_standard = checked(one, "conv_forward", "standard", *BEHAVES)
    assert len({case.problem.geometry for case in at_standard}) == 3 * len(BEHAVES)
    assert {case.variant.layout for case in at_standard} >= {"nchw", "nhwc"}


def test_behaviour_checks_compile_no_further_program():
    one = kernel(("fp32", "fp16"), ("nchw", "nhwc"), compiles_per_shape=True)
    every = {case.problem.geometry for case in checked(one, "conv_forward", "standard", "calls_in_a_row_are_right")}
    assert {case.problem.geometry for case in checked(one, "conv_forward", "standard", *BEHAVES)} <= every


@pytest.mark.parametrize("operator", [name for name in ORDINARY if not name.startswith(("conv_bn", "matmul", "gemm"))])
def test_threads_meet_windows_of_many_taps_at_smoke(operator: str):
    one = kernel(("fp32",), operator=operator)
    cases = checked(one, operator, "smoke", "calls_in_a_row_are_right")
    assert any(math.prod(case.problem.geometry.window) >= 25 for case in cases)


def test_what_a_kernel_names_is_checked_at_smoke():
    """The guide says that a kernel which names `output_mask` or `into` is checked for it."""
    naming, plain = Implementation("naming"), Implementation("plain")
    naming.implements("conv_backward_weight")(lambda x, dy, *, output_mask, into: np.zeros(1))
    plain.implements("conv_backward_weight")(lambda x, dy: np.zeros(1))
    checks = ("outputs_asked_for_alone", "results_are_added_to_arrays")
    for check in checks:
        cases = checked(naming, "conv_backward_weight", "smoke", check)
        assert [(case.problem.geometry.groups, case.variant.dtype) for case in cases] == [(2, "fp32"), (9, "fp32")]
    assert checked(plain, "conv_backward_weight", "smoke", *checks) == []


@pytest.mark.parametrize(("level", "windows"), [("smoke", [(3, 3)]), ("standard", [(3, 3), (1, 1)])])
def test_batch_invariance_is_seen_in_every_dtype(level: str, windows: list[tuple[int, ...]]):
    """On paths of the longest sums, or of most features, torch's fp32 convolution was said to be invariant."""
    several = kernel(("fp32", "bf16", "fp64"), ("nchw", "nhwc"))
    cases = checked(several, "conv_forward", level, "images_do_not_depend_on_the_batch")
    by_dtype = {dtype: [c for c in cases if c.variant.dtype == dtype] for dtype in ("fp32", "bf16", "fp64")}
    assert [[c.problem.geometry.window for c in of_dtype] for of_dtype in by_dtype.values()] == [windows] * 3
    assert {c.problem.geometry.groups for c in cases} == {1}
    compiled = kernel(("fp32", "bf16"), ("nchw",), compiles_per_shape=True)
    cases = checked(compiled, "conv_forward", level, "images_do_not_depend_on_the_batch")
    assert len(cases) == 2
    usual = checked(compiled, "conv_forward", level, "calls_in_a_row_are_right")
    assert {c.problem.geometry for c in cases} <= {c.problem.geometry for c in usual}


def ranked_at(level: str, operator: str) -> Ranked:
    every = (operator,), DTYPES, LAYOUTS, tuple(DISTRIBUTIONS)
    return Ranked(Selection((), (), level, PROBLEMS, *every, 0, "auto"))


def run(one: Implementation, operator: str, level: str) -> list[Any]:
    """Names and variants that a level has for a kernel, and can be run."""
    return [(problem.name, variant) for problem, variant in cases(one, operator, level)]


def cases(one: Implementation, operator: str, level: str) -> list[Any]:
    """Return problems and variants that a level has for a kernel, and can be run."""
    listed = ranked_at(level, operator)
    declared = listed.declared(one, operator)
    rows = zip(listed.rows(operator).rows, listed.share(declared), strict=True)
    every = [(problem, variant) for (problem, _), variants in rows for variant in variants]
    return [(p, v) for p, v in every if declared.takes(p, v) and v.suits(operator, p.geometry)]


def test_what_is_required_of_one_is_the_same_whoever_else_is_there():
    """Drawn problems of which a kernel took none were counted over those that others were offered."""
    little, much = Implementation("little"), kernel(layouts=("nchw", "ncdhw"))
    little.implements("conv_forward", dtypes=("bf16",), layouts=("nchw",), when=lambda p: p.n == 77)(
        lambda *given: None
    )
    together = VerificationDemand(ranked_at("standard", "conv_forward"), "conv_forward")
    for one in (much, little, much):
        alone = VerificationDemand(ranked_at("standard", "conv_forward"), "conv_forward")
        first, second = ([compared(each) for each in required(one, demand)] for demand in (together, alone))
        assert first == second
        assert len({*first}) == len(first) > 3


def compared(one: Trial | Absence) -> Any:
    return one if isinstance(one, Absence) else (one.id, one.place)


@pytest.mark.parametrize("operator", ["conv_forward", "conv_bn_backward", "max_pool_forward"])
def test_layers_of_networks_are_met_in_every_format_of_a_kernel(operator: str):
    """37 were run in fp32 and channels first, none in fp16 and channels last, of a kernel that declares both."""
    counts = {}
    for dtypes, layouts in ((("fp32", "fp16"), ("nchw", "nhwc")), (("fp32",), ("nchw",))):
        one = kernel(dtypes, layouts, operator)
        layers = [
            (p.name, v)
            for p, v in cases(one, operator, "standard")
            if p.spread and not v.storage and v.distribution != "natural"
        ]
        counts[dtypes] = Counter((v.dtype, v.layout) for _, v in layers)
        assert len({name for name, _ in layers}) >= 4
        assert counts[dtypes].keys() == {*product(dtypes, layouts)}
    if operator == "conv_forward":  # of others some are in the tables in several formats; one was brought forward
        assert counts["fp32", "fp16"].total() - counts["fp32",].total() <= 1
        assert max(counts["fp32", "fp16"].values()) - min(counts["fp32", "fp16"].values()) <= 2


def test_whoever_takes_little_of_a_level_goes_on_behind_it():
    one = kernel(("bf16",))
    assert shares(one, Budget(cases=2), listed=2) == [["fp32 nchw"], ["bf16 nchw"], ["bf16 nchw"], [], [], [], []]
    assert shares(kernel(), Budget(cases=2), listed=2) == [["fp32 nchw"], ["bf16 nchw"], [], [], [], [], []]


def test_programs_are_counted_for_whoever_compiles_them():
    twice = kernel(layouts=("nchw", "nhwc"))
    found = shares(twice, Budget(programs=3))
    assert [bool(row) for row in found] == [True, True, True, False, False, False, False]
    for arrays in (jax_arrays("cpu"), torch_neuron_arrays(), jax_neuron_arrays()):
        small = budget(Implementation("compiled", arrays=arrays), "standard", None)
        assert (small.cases, small.programs) == (None, ranking.PROGRAMS["standard"]), arrays
    assert budget(kernel(), "standard", None) == Budget()
    assert budget(kernel(), "smoke", None).cases == ranking.SMOKE_CASES
    assert budget(kernel(compiles_per_shape=True), "full", None) == Budget()
    assert budget(kernel(), "standard", 7).programs == 7
    compiled = kernel()
    compiled.variant("compiled", wrap=lambda function: function, compiles_per_shape=True)
    compiled.become("compiled")
    assert budget(compiled, "standard", None).programs == ranking.PROGRAMS["standard"]


def candidate(text: str, detects: Sequence[int] = (), dtype: str = "fp32", pairs: Sequence[str] = ()) -> Any:
    given = typed(text)
    kills = frozenset(Kill("conv_forward", number) for number in detects)
    return ranked.Candidate(given, Variant(dtype, "nchw", "fixed"), 1, kills, frozenset((pair,) for pair in pairs))


def test_what_brings_most_comes_first_and_what_brings_nothing_is_apart():
    much, little = candidate("n1 c1 h3 w3 k1 r1 s1", (1, 2, 3)), candidate("n1 c2 h3 w3 k1 r1 s1", (3, 4))
    pairs = candidate("n1 c3 h3 w3 k1 r1 s1", pairs="abc")
    again = [candidate("n1 c1 h3 w3 k1 r1 s1", (1,)) for _ in range(4)]
    other = candidate("n1 c1 h3 w3 k1 r1 s1", (1,), "bf16")
    chosen, rest = ranked.ordered([*again, pairs, little, other, much])
    assert chosen[:2] == [much, little]
    assert {pairs, other} <= {*chosen}
    assert rest == again[: len(rest)]  # a kernel is worth something three times, and once in each dtype
    assert len(rest) >= 2


def test_kernels_detected_by_a_case_are_found_by_its_tensors():
    (case,) = ranked.candidates(
        "conv",
        [(problem := typed("n1 c2 h5 w4 k3 r3 s3"), FP32)],
        {TensorKey(problem.geometry.descriptor, "fp32", "fixed"): {Kill("conv_forward", 7)}},
    )
    assert case.kills == {Kill("conv_forward", 7)}
    assert ("C not a multiple of 4", "window 3 on every axis") in case.pairs
    assert ("fp32", "window 3 on every axis") in case.pairs
    assert len([*case.cells()]) == 1


def test_cases_with_a_storage_come_behind_smoke_and_all_are_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranked, "SMOKE_CASES", 1)
    stored = Variant("fp32", "nchw", "fixed", "x:crop")
    elsewhere = Variant("fp16", "nchw", "fixed", "x:crop")
    first, other, alone = (
        Problem(f"table.{name}", typed(f"n1 c2 h5 w{width} k3 r3 s3").geometry, "standard", (FP32, variant))
        for name, width, variant in (("first", 4, stored), ("other", 5, BF16), ("alone", 6, elsewhere))
    )
    cases = [ranked.Candidate(problem, FP32, 1, frozenset(), frozenset()) for problem in (first, other, alone)]
    rest = [ranked.Candidate(other, BF16, 1, frozenset(), frozenset())]
    lines = [*ranked.lines(cases, rest)]
    assert lines == [
        *("table.first fp32 nchw fixed", "table.first fp32 nchw stored", "table.other fp32 nchw fixed"),
        *("table.alone fp32 nchw fixed", "table.alone fp16 nchw stored", "full", "table.other bf16 nchw fixed"),
    ]
