"""Storage of operands: where elements lie, which cases there are, and what a verdict says of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from mmap import PAGESIZE

import numpy as np
import pytest

from conformance.dtypes import DTYPES, STORAGE
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations.bridges.base import beside_guard_page
from conformance.layouts import NAMES, arrangement, declare, layouts_of, rank_of
from conformance.operators import FAMILIES, OPERATORS, takes
from conformance.problems import PROBLEMS
from conformance.problems.storage_cases import ALONE, LOOSE_ONES
from conformance.results import build, claims_file
from conformance.storage import (
    BATCH,
    KINDS,
    PAGES,
    REPEATING,
    StorageError,
    buffer,
    fits,
    parse,
    placement,
    repeats,
    with_repeats,
    written,
)  # fmt: skip
from tests import cheaters, kit
from tests.cheaters import Kernel
from tests.conftest import Project

pytest_plugins = ["pytester"]


declare("rows_last", "wcnh", "tests")
declare("groups_first", "khwcn", "tests")
SHAPES = {0: (4, 6), 1: (2, 6, 7), 2: (2, 6, 3, 4), 3: (2, 6, 3, 2, 4)}
ONES = {0: (4, 2), 1: (2, 6, 1), 2: (2, 6, 1, 4), 3: (2, 6, 3, 1, 4)}
"""With an axis of one element."""


@pytest.mark.parametrize("layout", [*NAMES, "rows_last", "groups_first"])
def test_elements_lie_where_the_placement_says_and_nan_around(layout: str):
    for kind, is_filter, shape in product(KINDS, (False, True), (SHAPES[rank_of(layout)], (7,))):
        if fits(kind, len(shape)):
            shape = ONES[len(shape) - 2] if kind == LOOSE_ONES and len(shape) > 1 else shape
            require_placed(kind, layout, shape[::-1] if is_filter and rank_of(layout) in (0, 2) else shape, is_filter)


def require_placed(kind: str, layout: str, shape: tuple[int, ...], is_filter: bool):
    place_of = arrangement(shape, layout, 2, "KC" if is_filter else "NC")
    canonical = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if repeats(f"a:{kind}"):
        operand = "b" if is_filter else "a"
        canonical = with_repeats({operand: canonical}, f"{operand}:{kind}", {operand: 2})[operand]
    array = np.ascontiguousarray(place_of.to_memory(canonical))
    np.testing.assert_array_equal(place_of.from_memory(array), canonical)
    assert array.shape == place_of.stored
    place = placement(kind, place_of, 4)
    memory = buffer(array, place)
    view = np.ndarray(array.shape, np.float32, memory, place.offset * 4, [4 * step for step in place.strides])
    np.testing.assert_array_equal(view, array)
    assert np.count_nonzero(~np.isnan(memory)) == len(np.unique(array))
    contiguous = array.strides == view.strides
    assert contiguous == (
        kind.startswith(("offset", "align", "page", "read-only")) or (kind in ("crop", LOOSE_ONES) and len(shape) == 1)
    )
    shift = {"align-16": 16, "offset-1": 4, "offset-2": 8, "offset-4": 16}.get(kind, 0)
    assert (place.offset * 4) % 64 == shift or kind not in ("align-16", "offset-1", "offset-2", "offset-4")


@pytest.mark.parametrize("side", ["start", "end"])
def test_guarded_memory_begins_or_ends_at_a_page(side: str):
    for dtype in STORAGE.values():
        array = np.arange(1, 6).astype(dtype)
        memory = beside_guard_page(array, side)
        np.testing.assert_array_equal(memory, array)
        end = memory.ctypes.data + memory.nbytes
        assert (memory.ctypes.data if side == "start" else end) % PAGESIZE == 0, dtype


@pytest.mark.parametrize("text", ["x", "x:", "x:none", ":crop", "x:crop,", "x:crop,x:chunk", "x crop"])
def test_text_that_is_no_storage_is_refused(text: str):
    with pytest.raises(StorageError):
        parse(text)


ORDINARY = [kind for kind in KINDS if kind not in (LOOSE_ONES, BATCH)]


@pytest.mark.parametrize(
    "operator", [name for name, operator in OPERATORS.items() if "storages" not in FAMILIES[operator.family].lacks]
)
def test_every_operand_has_every_kind_in_every_dtype_and_layout(operator: str):
    seen, alone = set(), set()
    for problem in (problem for problem in PROBLEMS if takes(operator, problem.geometry)):
        operands = OPERATORS[operator].inputs(problem.geometry)
        for v in (v for v in problem.variants if v.storage and v.suits(operator, problem.geometry)):
            seen |= {(o, kind, v.dtype, v.layout) for o, kind in parse(v.storage).items()}
            alone |= {*parse(v.storage).items()} if len(parse(v.storage)) == 1 else set()
            images = {o for o, tensor in operands.items() if len(tensor.shape) in (2, 4)}
    if not FAMILIES[OPERATORS[operator].family].storages.everywhere:
        once = {(operand, kind) for operand, kind, _, _ in seen}
        fitting = [kind for kind in ORDINARY if fits(kind, 2 + FAMILIES[OPERATORS[operator].family].rank)]
        assert once >= {(o, kind) for o, kind in product(images, fitting) if o == "dy" or kind not in ALONE[-2:]}
        return
    rank = FAMILIES[OPERATORS[operator].family].rank
    kinds = [kind for kind in ORDINARY if fits(kind, 2 + rank)] + [BATCH] * (not rank)
    for operand in images:
        everywhere = [kind for kind in kinds if kind not in ALONE]
        assert {(operand, *rest) for rest in product(everywhere, DTYPES, layouts_of(rank))} <= seen
        expected = {(operand, kind) for kind in kinds if kind not in PAGES}
        if operand != "dy":
            expected -= {(operand, "expanded-columns"), (operand, "expanded-all")}
        assert expected <= alone


def trial_of(kernel: Kernel, storage: str, distribution: str = "fixed") -> Trial:
    return kit.trial_of(kernel, storage=storage, distribution=distribution)


def verdict_of(kernel: Kernel, storage: str, distribution: str = "fixed") -> Verdict:
    return verify(trial_of(kernel, storage, distribution))


def misreads_w(x, w, bias, **parameters):
    """Right where w is contiguous."""
    w = np.lib.stride_tricks.as_strided(w, w.shape, np.empty(w.shape, w.dtype).strides)
    return cheaters.honest(x, w, bias, **parameters)


@pytest.mark.parametrize(
    ("make", "storage", "status", "reason"),
    [
        (cheaters.writes_behind_input, "x:offset-1", "fail", "memory of x (offset-1) was written to: 4 bytes changed"),
        (cheaters.reads_behind_input, "x:offset-2,w:crop", "fail", "(wrong only with x:offset-2)"),
        (cheaters.spoils_input, "bias:crop,w:chunk", "fail", "input w was written to"),
        (lambda: misreads_w, "x:crop,w:strided", "fail", "strides of w ignored (wrong only with w:strided)"),
        (lambda: misreads_w, "x:crop,bias:strided", "pass", ""),
        (cheaters.refuses_without_a_word, "x:strided", "error", "raised AssertionError"),
        (cheaters.refuses_clearly, "x:strided,w:crop", "unsupported", "refuses x:strided: ValueError: x must be"),
        (cheaters.sums_in_any_order, "x:transposed,w:other-format", "pass", ""),
    ],
)  # fmt: skip
def test_verdict_names_the_operand(make: Callable[[], Kernel], storage: str, status: str, reason: str):
    verdict = verdict_of(make(), storage)
    assert verdict.status == status
    assert reason in verdict.reason


def test_wrong_on_contiguous_operands_too_is_not_blamed_on_storage():
    verdict = verdict_of(lambda *given, **p: 2 * cheaters.honest(*given, **p), "x:crop")
    assert (verdict.status, "mismatched" in verdict.reason, "x:crop" in verdict.reason) == ("fail", True, False)


def test_refusal_of_one_operand_does_not_hide_another_that_is_wrong():
    def kernel(x, w, bias, **parameters):
        if not x.flags.c_contiguous:
            raise ValueError("x must be contiguous")
        return misreads_w(x, w, bias, **parameters)

    verdict = verdict_of(kernel, "x:crop,w:strided")
    assert (verdict.status, "wrong only with w:strided" in verdict.reason) == ("fail", True)
    assert verdict.judgements


@pytest.mark.parametrize("kind", REPEATING)
def test_expanded_values_repeat_in_the_reference(kind: str):
    assert verdict_of(cheaters.honest, f"x:{kind},w:{kind}", "integer").status == "pass"
    assert verdict_of(misreads_w, f"w:{kind}", "integer").status == "fail"


def test_waiver_of_a_storage_or_of_a_layout_excuses_nothing_else():
    only = ("w:strided",)
    for stored, storages, layouts, status in (
        ("x:crop,w:strided", only, (), "waived"), ("w:crop", only, (), "fail"), ("w:offset-1", only, (), "pass"),
        ("w:crop", (), ("nchw",), "waived"), ("w:crop", (), ("nhwc",), "fail"),
    ):  # fmt: skip
        case = trial_of(misreads_w, stored)
        case.implementation.waive("conv_forward", reason="r", url="u", storages=storages, layouts=layouts)
        assert verify(case).status == status


def test_record_claim_and_command_name_the_storage():
    case = trial_of(cheaters.honest, "x:crop,w:page-end")
    record = build.record(case, Verdict("pass"))
    assert record.storage == "x:crop,w:page-end"
    (claimed,) = claims_file.section([record], {}).keys
    assert (claimed.storage, claimed.check, claimed) == (record.storage, "", record.case)


def test_option_selects(project: Project):
    project.kernel()
    outcome = project.run("--problem", kit.SUMS, "--storage=x:crop", "--storage=contiguous", "--dtype=fp32")
    assert {record.get("storage", "") for record in outcome.records} == {"x:crop", ""}


def test_framework_without_views_is_told_once(project: Project):
    head = "from conformance.implementations.bridges.base import ArrayBridge\n"
    head += "from conformance.implementations.bridges.numpy import NumpyArrays\n"
    head += "class Values(NumpyArrays):\n    view, placed = ArrayBridge.view, ArrayBridge.placed"
    project.kernel(head=head, construct=", arrays=Values()")
    outcome = project.run("--storage=x:crop", "--storage=w:crop", "--storage=contiguous")
    told = [(r["status"], r["cases"], r["reason"]) for r in outcome.records if r["status"] != "pass"]
    assert told == [("unsupported", 2, "operands are always contiguous: numpy has no views")]
    assert outcome.statuses["pass"] == 1


def test_mathematics_of_a_repeated_operand_is_that_of_its_values():
    expected = kit.expectation("conv_backward_data", kit.SUMS, "fp64", "integer")
    other = expected.holding(with_repeats(expected.inputs, "dy:expanded"))
    np.testing.assert_array_equal(other.reference["dx"][0], expected.reference["dx"][0])
    np.testing.assert_array_equal(other.reference["dx"][1], other.reference["dx"][0])


def test_text_is_read_back():
    assert written(parse("x:crop,w:page-end")) == "x:crop,w:page-end"
    assert parse("contiguous") == parse("") == {}
