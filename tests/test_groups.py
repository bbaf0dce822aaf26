"""Groups of failures: which mistakes are named, what is put down to them, and which case is the smallest."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from conformance import Contract
from conformance.diagnosis.diagnose import GENERAL
from conformance.execution.nondeterminism import DIFFERS
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.groups import ALONE, Group, amount, conditions, described, group
from conformance.results import schema
from tests.report_samples import CAUSES, as_read, broken, failed, sample, waived

SMALL, LARGE = "n1 c2 h5 w5 k2 r3 s3", "n2 c8 h9 w9 k16 r3 s3 p1 b1"
HUGE = "n8 c256 h64 w64 k256 r3 s3 p1"
"""Too large for diagnosis."""
EXCEEDS = {"y": {"worst error / bound": ["inf", 1.0]}}


def wrong(*causes: str, **changes: Any) -> schema.Record:
    """Wrong elements that these mistakes explain, each as well as the others."""
    reason = "y: 3 of 9 elements mismatched (must equal the exact result)\nerror locations: p = 8 (last), 3 of 9 q"
    given = {"reason": reason, "failure": elements(3, edges=[("p", "last")]), "causes": list(causes)}
    return as_read(failed(**{**given, "checks": EXCEEDS, "profile": {}, **changes}))


def elements(mismatched: int, output: str = "y", **changes: Any) -> dict[str, Any]:
    """So many of nine elements of an output as data."""
    return {"kind": "elements", "elements": [{"output": output, "mismatched": mismatched, "compared": 9, **changes}]}


def behaviour(check: str = "results_are_plain", reason: str = "wrong result (call 2 of the same 5)", **changes: Any):
    own = {"kind": "check", "check": check, "distribution": "behaviour", "checks": {}, "status": "fail"}
    return as_read(sample(**own | {"reason": reason, "failure": {"kind": "elements"}} | changes))


def raised(message: str, file: str = "", line: int = 0, **changes: Any) -> schema.Record:
    reason = f"raised {message}" + f" at {file}:{line}" * bool(file)
    failure = {"kind": "raised", "message": message.partition("\n")[0], "file": file, "line": line}
    return as_read(sample(**{"status": "error", "reason": reason, "failure": failure, "checks": {}, **changes}))


def shown(groups: list[Group]) -> list[tuple[str, int, int]]:
    return [(one.title, one.cases, one.attributed) for one in groups]


def test_a_mistake_that_explains_nearly_all_is_named_once_for_all_operators():
    records = [wrong("A", "B"), *(wrong("B", "C", problem=str(n)) for n in range(3))]
    (only,) = group([*records, wrong("B", operator="conv_backward_data")])
    assert (only.title, only.cases, only.operators) == ("B", 5, ("conv_forward", "conv_backward_data"))


def test_results_that_are_right_alone_are_those_of_the_calls_that_a_check_shows_to_be_confused():
    """Thirty wrong results that depended on the calls before stood above the one check that named the parameter."""
    wrongly = [wrong(problem=str(n), descriptor=SMALL) for n in range(3)]
    right_alone = as_read(sample(problem="alone", descriptor=SMALL, origin="where"))
    failure = {"kind": "elements", "confused": [LARGE, "stride"]}
    check = behaviour("other_parameters_are_told_apart", "wrong result (after another stride)", failure=failure)
    evidence = RunEvidence([*wrongly, right_alone, check])
    assert shown(group([*wrongly, check], evidence)) == [
        ("conv_forward: other_parameters_are_told_apart: wrong result (after another stride)", 4, 3)
    ]
    (alone,) = group(wrongly, evidence)
    assert alone.text.endswith(ALONE)


def test_what_explains_a_few_cases_is_not_named():
    """A tail that one small problem lost by chance was the likely cause of a hundred cases."""
    records = [wrong("A", problem="1"), *(wrong(problem=str(n), descriptor=LARGE) for n in range(3))]
    assert [one.cause for one in group(records)] == [""]


def test_errors_too_small_to_be_compared_with_a_mistake_do_not_keep_it_from_being_named():
    """A variance of a thousand elements that is biased is wrong by a thousandth; so many cases had no cause that the
    mistake of all others was not said."""
    records = [*(wrong("A", problem=str(n)) for n in range(6)), *(wrong(problem=f"{n} large") for n in range(4))]
    assert shown(group(records)) == [("A", 10, 4)]
    assert [one.cause for one in group(records[1:])] == [""]


def test_a_mistake_that_alone_explains_many_of_the_cases_is_named():
    """28 of 68 were explained by an epsilon that is always 1e-5, and nothing else was; the cause was called unknown."""
    records = [*(wrong("A", problem=str(n)) for n in range(10)), *(wrong(problem=f"{n} other") for n in range(15))]
    assert [one.cause for one in group(records)] == ["A"]
    assert [one.cause for one in group([*records, wrong("B", problem="B")])] == [""]
    shapes = [*(wrong("y in the shape of x", problem=str(n)) for n in range(10)), *records[10:]]
    assert [one.cause for one in group(shapes)] == [""]


def test_of_many_mistakes_that_explain_as_much_what_most_are_about_is_said():
    names = "floor instead of ceil", "divisor of the first window", "divisor of the last window", "divisor R*S"
    (one,) = group([wrong(*names, problem=str(n)) for n in range(3)])
    assert one.cause == "divisor taken wrongly (divisor of the first window, or divisor of the last window, or 2 more)"


def test_a_mistake_is_not_named_where_it_does_not_exist_in_other_cases():
    """A staged line was too short for a long window; "dilation ignored" explained small cases, which had dilation."""
    every = {"failure": elements(9, every=True)}
    names = "dilation ignored", "results all zero"
    small = [wrong(*names, descriptor=f"n1 c{n} w1 k1 s3 p260 d260", **every) for n in range(1, 9)]
    long = [wrong(descriptor=f"n1 c8 w300 k16 s{s} g8") for s in (300, 277)]
    assert [one.cause for one in group(small)] == ["dilation ignored, or results all zero"]
    assert [one.cause for one in group([*small, *long])] == [""]
    assert [one.cause for one in group([*small, long[0]])] != [""], "one case may have another defect"


def stored(text: str, *causes: str, **changes: Any) -> schema.Record:
    return wrong(*causes, storage=text, **changes)


def test_an_offset_that_is_ignored_is_told_from_strides_and_alignment():
    """`strides of w ignored` was said where only the start of a view is."""
    strides, alignment = "strides of w ignored", "alignment of w assumed"
    cropped, aligned = stored("w:crop", strides), stored("w:strided", strides)
    shifted = stored("w:offset-1", alignment)
    assert [one.cause for one in group([cropped, aligned])] == [strides]
    assert {one.cause for one in group([cropped, shifted])} == {strides, alignment}
    (one,) = group([cropped, aligned, shifted])
    assert (one.cause, one.cases) == ("offset of w ignored", 3)
    other = stored("x:offset-1", "alignment of x assumed")
    assert {one.cause for one in group([aligned, other])} == {strides, "alignment of x assumed"}


def test_the_case_that_is_shown_tells_the_cause_from_others():
    """A run that named one mistake printed a command that named another one and nine more."""
    small, tells = wrong("B", "A", descriptor=SMALL), wrong("A", descriptor=LARGE)
    (one,) = group([small, tells, wrong("A", "C", descriptor=LARGE, dtype="bf16")])
    assert (one.cause, one.smallest, one.plainer) == ("A", tells, small)
    assert one.command == tells.command
    assert one.shown.startswith(f"smallest case that no other mistake explains: {LARGE} ")
    assert one.shown.endswith(f"; of all: {described(small)}")
    (both,) = group([small, wrong("B", "A", descriptor=LARGE)])
    assert (both.smallest, both.plainer) == (small, None)


def test_what_is_read_from_results_is_said_only_where_no_mistake_explains_nearly_all():
    (general, *_) = sorted(GENERAL)
    mostly = [*(wrong("A", general, problem=str(n)) for n in range(8)), wrong(general, problem="8")]
    assert [one.cause for one in group(mostly)] == ["A"]
    assert [one.cause for one in group([*mostly, wrong(general, problem="9"), wrong(general, problem="10")])] == [
        general
    ]


def test_two_mistakes_that_explain_nearly_all_together_are_named_apart():
    records = [wrong(name, problem=f"{name}{n}") for name in "AB" for n in range(4)]
    assert shown(group(records)) == [("A", 4, 0), ("B", 4, 0)]
    assert [one.cause for one in group(records[:6])] == [""], "two cases are too few for another one"


def test_of_mistakes_that_explain_as_much_the_first_of_the_library_is_named():
    assert shown(group([wrong("Z", "A"), wrong("Z", "A", problem="2")])) == [("Z, or A", 2, 0)]


def test_what_a_predicate_raises_is_one_group():
    """A misspelt attribute was 14 kinds of failure, one for each behaviour check."""
    reason = "when=... raised AttributeError: 'ConvGeometry' object has no attribute 'kernel'"
    error = {"status": "error", "failure": {"kind": "declaration", "message": reason}}
    cases = [as_read(sample(**error, reason=reason, checks={}, problem=str(n))) for n in range(2)]
    checks = [behaviour(check, reason, **error) for check in ("results_are_plain", "invalid_arguments")]
    assert shown(group([*cases, *checks])) == [(f"conv_forward: {reason}", 4, 0)]


def test_the_order_of_records_changes_nothing():
    records = [wrong(*"ABC"[n % 3 :], descriptor=f"n1 c{n + 1} h5 w5 k2 r1 s1") for n in range(9)]
    records += [wrong(distribution="special", descriptor="n1 c3 h5 w5 k2 r1 s1"), wrong(descriptor=LARGE)]
    expected = group(records)
    for seed in range(5):
        assert group(random.Random(seed).sample(records, len(records))) == expected


def test_only_failures_count_and_implementations_are_apart():
    records = [as_read(sample()), as_read(waived()), wrong("A", implementation="beta", source="b" * 64), wrong("A")]
    assert [(one.implementation, one.cases) for one in group(records)] == [("acme", 1), ("beta", 1)]
    assert group([as_read(sample())]) == []


def test_the_smallest_plain_case_that_the_cause_explains_comes_first():
    same = {"descriptor": SMALL, "problem": "s"}
    records = [
        wrong("A", descriptor=LARGE),
        wrong("A", **same, dtype="bf16"),
        wrong("A", **same, layout="nhwc"),
        wrong("A", **same, distribution="integer"),
        wrong("A", **same),
        wrong("A", descriptor="of another version"),
        wrong("A", descriptor="maxpool n1 c1 h2 w2 r1 s1"),
        wrong(**same, distribution="special"),
        behaviour(**same),
    ]
    (only,) = group(records)
    assert only.smallest == records[4]
    assert only.records[-2:] == records[-2:]
    assert {id(one) for one in only.records[4:7]} == {id(records[n]) for n in (0, 5, 6)}


def test_unexplained_elements_belong_to_a_cause_of_the_same_problem():
    records = [wrong("A", descriptor=SMALL), wrong(descriptor=SMALL, distribution="special")]
    assert shown(group(records)) == [("A", 2, 1)]
    explained = [wrong("A", problem=str(n)) for n in range(4)]
    elsewhere = [*explained, wrong(descriptor=SMALL), wrong(descriptor=SMALL, operator="conv_backward_data")]
    unknown = "y: elements mismatched at p = last"
    assert shown(group(elsewhere)) == [
        ("A", 4, 0), (f"conv_backward_data: {unknown}", 1, 0), (f"conv_forward: {unknown}", 1, 0),
    ]  # fmt: skip


def test_what_was_too_large_for_diagnosis_belongs_to_the_commonest_cause_of_the_operator():
    records = [*(wrong(name, problem=f"{name}{n}") for name in "AAAB" for n in range(3)), wrong(descriptor=HUGE)]
    assert shown(group(records)) == [("A", 10, 1), ("B", 3, 0)]


def test_a_wrong_result_of_a_behaviour_check_follows_the_plain_cases():
    records = [wrong("A", problem=str(n)) for n in range(4)] + [wrong("B", descriptor=SMALL)] * 3
    assert shown(group([*records, behaviour(descriptor=SMALL)])) == [("A", 4, 0), ("B", 4, 1)]
    assert shown(group([*records, behaviour(descriptor=HUGE)])) == [("A", 5, 1), ("B", 3, 0)]
    plain = behaviour(failure={"kind": "contract", "on_plain": True})
    assert shown(group([*records, plain])) == [("A", 5, 1), ("B", 3, 0)]
    shape: dict[str, Any] = {"failure": {"kind": "malformed", "message": "y has another shape (nchw)"}}
    (unknown,) = group([wrong(**shape, checks={}), behaviour(**shape), behaviour("calls_are_plain")])
    assert (unknown.attributed, unknown.counted) == (2, "3 cases")


def test_what_else_a_behaviour_check_finds_is_a_failure_of_its_own_across_operators():
    written = "input x was written to: 8 bytes changed, first at [0]"
    memory = {"kind": "memory", "message": "input x was written to"}
    check: dict[str, Any] = {"check": "calls_in_a_row_are_right", "reason": written, "failure": memory}
    records = [wrong("A"), *(behaviour(**check, operator=operator) for operator in ("conv_forward", "b"))]
    assert shown(group(records)) == [(f"conv_forward, b: calls_in_a_row_are_right: {written}", 2, 0), ("A", 1, 0)]


def test_an_explanation_of_few_elements_needs_one_of_ordinary_inputs():
    chance, in_vain = wrong("A", descriptor=SMALL, distribution="impulse"), wrong(descriptor=SMALL)
    assert [one.cause for one in group([chance])] == ["A"]
    assert [(one.cause, one.cases) for one in group([chance, in_vain])] == [("", 2)]
    proof = [wrong("A", descriptor=LARGE, problem=str(n)) for n in range(4)]
    assert shown(group([chance, in_vain, *proof])) == [("A", 6, 1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: stride 2", "ValueError: stride 3"),
        ("E: (1, 4, 2) at 0x7f02", "E: (12, 7) at 0x7fac"),
        ("E: tile 2.5e-3, 4x4\nmore 1", "E: tile 3, 8x8x2\nmore 2"),
        ("IndexError: index 7 of 5", "IndexError: index 12 of 9"),
    ],
)
def test_sizes_and_values_do_not_tell_what_was_raised_apart(one: str, other: str):
    place = "/a/acme.py", 12
    assert len(group([raised(one, *place), raised(other, *place, problem="2", operator="conv_backward_data")])) == 1


@pytest.mark.parametrize(
    ("message", "line"), [("TypeError: no", 12), ("ValueError: never", 12), ("ValueError: no", 13)]
)
def test_type_message_and_line_tell_what_was_raised_apart(message: str, line: int):
    other = raised(message, "/a/acme.py", line)
    assert len(group([raised("ValueError: no", "/a/acme.py", 12), other, wrong("A")])) == 3


def test_what_was_raised_is_named_with_file_and_line():
    (only,) = group([raised("ValueError: no bias\nin detail", "C:\\kernels\\acme.py", 12)])
    assert only.title == "conv_forward: raised ValueError: no bias at acme.py:12"


def test_of_many_operators_the_first_are_named():
    operators = ("conv_forward", "conv_backward_data", "conv_backward_weight", "avg_pool_forward")
    (only,) = group(raised("E: no", "acme.py", 1, operator=name) for name in operators)
    assert set(only.operators) == set(operators)
    assert only.title.count(", ") == 2
    assert ", 2 more operators: raised E" in only.title


def test_one_unknown_mistake_is_one_group_named_by_what_its_cases_have_in_common():
    last, both, first = ("p", "last"), ("q", "both"), ("n", "first")
    records = [
        wrong(failure=elements(3, edges=edges), descriptor=f"n{n + 1} c1 h9 w9 k1 r1 s1")
        for n, edges in enumerate(([last], [last, both], [first, last], [last]))
    ]
    (only,) = group([*records, wrong(failure=elements(9, every=True), descriptor=LARGE)])
    assert only.title == "conv_forward: y: elements mismatched at p = last"


def test_statistics_that_are_too_large_are_named():
    checks = {
        "dx": {"worst error / bound": [0.5, 1.0], "rms": [0.9, 0.5], "gain z": ["nan", 6.0]},
        "dw": {"rms": [0, 1]},
    }
    (only,) = group([wrong(failure=elements(0, "dx"), checks=checks)])
    assert only.title == "conv_forward: dx (not dw): rms, gain z too large"


@pytest.mark.parametrize(
    ("check", "title"),
    [
        ("gain z", "y: gain z too large, as by a factor near 1 or rounding towards zero"),
        ("offset z", "y: offset z too large, as by a constant or rounding in one direction"),
        ("rms", "y: rms too large"),
    ],
)
def test_one_statistic_alone_says_what_errors_are_like(check: str, title: str):
    checks = {"y": {"rms": [0.1, 0.5], check: [9.0, 6.0]}}
    (only,) = group([wrong(failure=elements(0), checks=checks)])
    assert only.title == f"conv_forward: {title}"


TAIL = "tail of the sum beyond tiles of {} dropped"


@pytest.mark.parametrize(
    ("causes", "cause"),
    [
        ("AB", "A, or B"),
        ("ABC", ""),
        ([TAIL.format(n) for n in (4, 8, 16)], "tail of the sum beyond tiles dropped"),
        ([*(TAIL.format(n) for n in (4, 8, 16)), "A"], ""),
        (
            ("padding all after", "padding ignored", "padding of W ignored", "padding and dilation ignored"),
            "padding taken wrongly (padding all after, or padding ignored, or 1 more)",
        ),
        (("stride ignored", "stride and dilation ignored", "A"), "stride ignored, or A"),
        ((*GENERAL, "A", "B"), "A, or B"),
    ],
)
def test_of_more_than_two_causes_only_what_they_have_in_common_is_said(causes: Sequence[str], cause: str):
    (only,) = group([wrong(*causes)])
    assert (only.cause, only.attributed) == (cause, 0)


TF32, BF16 = (Contract(inputs=name, accumulate="fp32") for name in ("tf32", "bf16"))


def fitting(*contracts: Contract, **changes: Any) -> schema.Record:
    """A wrong record whose results would pass under contracts."""
    fits = [(contract.arithmetic, contract.declaration) for contract in contracts]
    return wrong(failure=elements(1) | {"fits": fits}, **changes)


@pytest.mark.parametrize(
    ("fits", "declared"),
    [
        (((TF32, BF16), (TF32, BF16)), TF32),
        (((TF32, BF16), (BF16,)), BF16),
        (((TF32,), (BF16,)), None),
        (((TF32, BF16), ()), None),
    ],
)
def test_a_contract_under_which_all_cases_would_pass_is_the_one_to_declare(
    fits: Sequence[Sequence[Contract]], declared: Contract | None
):
    records = [fitting(*some, problem=str(n)) for n, some in enumerate(fits)]
    (only,) = group([*records, wrong(distribution="integer", profile={})])
    assert only.title.endswith(
        f"if that is meant, declare {declared.declaration}" if declared else "elements mismatched"
    )


def differing(**changes: Any) -> schema.Record:
    reason = f"{DIFFERS}: wrong in 1 of 10 calls on the same inputs\ny: 1 of 9 elements mismatched"
    return wrong(reason=reason, failure=elements(1) | {"kind": "differs"}, **changes)


def test_what_differs_from_call_to_call_comes_first_and_has_all_else_that_is_wrong():
    records = [differing(), *(wrong("A", problem=str(n)) for n in range(3)), behaviour(), raised("E: no", "a.py", 1)]
    first, second = group(records)
    assert (first.text, first.cases, first.attributed) == (differing().headline, 5, 4)
    assert second.text.startswith("raised E")


def test_what_was_not_run_because_of_crashes_belongs_to_these():
    crash: dict[str, Any] = {
        "status": "error",
        "failure": {"kind": "crashed", "message": "its process was ended by SIGSEGV"},
    }
    crashed = as_read(sample(**crash, checks={}))
    left = as_read(sample(status="error", failure={"kind": "not run"}, checks={}, problem="2"))
    checked = behaviour(**crash, problem="3")
    (only,) = group([left, crashed, checked])
    assert (only.smallest, only.cases, only.attributed) == (crashed, 3, 1)


def test_variants_of_a_file_that_fail_alike_are_one_group():
    alike = [wrong("A", descriptor=SMALL, implementation=name) for name in ("acme", "acme[fast]")]
    elsewhere = wrong("A", descriptor=LARGE, implementation="acme[slow]")
    assert [(one.implementation, one.also, one.cases) for one in group([*alike, elsewhere])] == [
        ("acme", ("acme[fast]",), 2),
        ("acme[slow]", (), 1),
    ]


def test_kernels_of_a_file_that_have_the_smallest_case_alone_in_common_are_two_groups():
    """A kernel without output padding and one that loses taps were one cause, "also of" the other."""
    records = [wrong(descriptor=SMALL, implementation=name) for name in ("one", "other")]
    records += [wrong(descriptor=f"n{n} c2 h5 w5 k2 r3 s3", implementation="other") for n in (2, 3)]
    assert [(one.implementation, one.also, one.cases) for one in group(records)] == [("one", (), 1), ("other", (), 3)]


def test_an_outdated_waiver_and_a_broken_file_are_groups_by_their_own_words():
    reason = "passes, although waived as 'known' (https://example.org): remove the waiver"
    outdated = sample(status="fail", reason=reason, failure={"kind": "waiver", "message": reason})
    records = [as_read(outdated), as_read(broken()), wrong("A")]
    assert [one.title for one in group(records)] == ["A", f"conv_forward: {reason}", "SyntaxError"]


def test_missing_goldens_are_one_line_without_conditions():
    """Before goldens were written, 251 cases ended in 84 kinds of failure, some where the dtype was fp32."""
    failure = {"kind": "golden", "message": "goldens are missing: write them"}
    error = {"status": "error", "checks": {}, "failure": failure}
    records = [as_read(sample(**error, problem=str(n), reason=f"entry {n} is missing")) for n in range(9)]
    records += [as_read(sample(**error, reason="entry 0 is missing", operator="conv_backward_data"))]
    right = [as_read(sample(problem=f"{n} in bf16", dtype="bf16")) for n in range(20)]
    evidence = RunEvidence([*records, *right])
    (only,) = group(records, evidence)
    assert (only.text, only.cases, conditions(only, evidence)) == ("9 goldens are missing: write them", 10, [])


def test_causes_and_other_kinds_of_failure_are_counted_apart():
    small = wrong(*CAUSES, descriptor=SMALL)
    assert amount(group([small, wrong(CAUSES[0])])) == "1 likely cause, 2 cases"
    several = group([small, wrong(descriptor=SMALL, distribution="special"), raised("E: no", "acme.py", 1)])
    assert amount(several) == "1 likely cause, 1 other kind of failure, 3 cases"
    assert [(one.counted, one.title, described(one.smallest)) for one in several] == [
        ("2 cases", f"{CAUSES[0]}, or {CAUSES[1]}", f"{SMALL} (fp32 nchw fixed)"),
        ("1 case", "conv_forward: raised E: no at acme.py:1", f"{LARGE} (fp32 nchw fixed)"),
    ]
    assert amount(group([as_read(broken())])) == "1 kind of failure, 1 case"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"every": True, "nan": "all"}, "every element is NaN"),
        ({"every": True}, "every element mismatched"),
        ({"every": True, "nan": "some"}, "every element mismatched"),
        ({"nan": "some", "edges": [("p", "last")]}, "elements are NaN at p = last"),
        ({"nan": "some"}, "elements are NaN"),
        ({}, "elements mismatched"),
    ],
)
def test_a_group_without_a_name_says_what_its_wrong_elements_have_in_common(where: dict[str, Any], said: str):
    """The words "elements mismatched, cause unknown" hid that all of them were NaN."""
    records = [wrong(failure=elements(9, **where), problem=str(n)) for n in range(4)]
    (only,) = group([*records, wrong(failure=elements(1, edges=[("p", "first")]))])
    assert only.title == f"conv_forward: y: {said}"


def test_where_only_one_of_several_outputs_is_wrong_that_is_said():
    """ "dw alone" was read as the weight gradient that is asked for alone, while all others failed as well."""
    checks = EXCEEDS | {"mean": {"worst error / bound": [0.1, 1.0]}}
    (only,) = group([wrong(checks=checks)])
    assert only.title.startswith("conv_forward: y (not mean): elements mismatched")


def test_a_result_that_is_no_array_is_one_kind_of_failure():
    """A kernel without a return had three: its cases, and each check that calls it on plain inputs."""
    reason = "returned None; expected numpy.ndarray"
    failure = {"kind": "malformed", "message": reason}
    records = [wrong(reason=reason, failure=failure, checks={}, problem=str(n)) for n in range(3)]
    checks = [
        behaviour(name, failure=failure | {"on_plain": True}, descriptor=HUGE)
        for name in ("results_are_plain", "output_is_written")
    ]
    assert shown(group([*records, *checks])) == [(f"conv_forward: {reason}", 5, 2)]


def test_another_dtype_is_one_kind_of_failure_where_no_value_is_left_to_compare():
    """Of an empty batch no mistake explains anything."""
    failure = {"kind": "malformed", "message": "y has another dtype"}
    results = {"failure": failure | {"dtype": "fp64"}, "checks": {}}
    records = [wrong("right values in another dtype", **results, problem=str(n)) for n in range(3)]
    empty = wrong(**results, descriptor="n0 c2 h5 w5 k2 r3 s3")
    assert shown(group([*records, empty])) == [("right values in another dtype", 4, 1)]
    other = wrong(**results | {"failure": failure | {"dtype": "int32"}}, descriptor="n0 c2 h5 w5 k2 r3 s3")
    assert len(group([*records, other])) == 2
    shape = {"failure": {"kind": "malformed", "message": "y has another shape (nchw)"}, "checks": {}}
    shapes = [wrong("A", **shape, problem=str(n)) for n in range(3)]
    assert len(group([*shapes, wrong(**shape, descriptor="n1 c2 h5 w5 k2 r3 s3 g2")])) == 2


def test_long_messages_take_no_time():
    records = [raised(f"E: 1{',' * 200_000}"), wrong(reason=f"error locations: {'a' * 200_000}")]
    assert len(group(records)) == 2


def test_few_parameters_come_before_few_operations():
    awkward = "n1 c1 h5 w7 k1 r3 s2 u1x2 p2x0 d3x1"
    (only,) = group([wrong("A", descriptor=awkward), wrong("A", descriptor=LARGE)])
    assert only.smallest.descriptor == LARGE


def test_small_sizes_come_before_few_operations():
    long = "n2 c1 h70001 w1 k2 r1 s1 u261x1"
    plain = "n2 c6 h9 w11 k5 r1 s1 u2x3 b1"
    (only,) = group([wrong("A", descriptor=long), wrong("A", descriptor=plain)])
    assert only.smallest.descriptor == plain


def test_what_a_lost_kernel_was_claimed_for_is_one_group():
    reason = "claimed in acme.claims.json, but unsupported: {}; support it again, or write the claims again"
    claim: dict[str, Any] = {"failure": {"kind": "claim"}, "checks": {}}
    lost = [
        wrong(reason=reason.format("not today"), **claim),
        behaviour(reason=reason.format("has no kernel"), **claim),
    ]
    (only,) = group(lost)
    assert (only.title, only.cases) == (f"conv_forward: {reason.format('not today')}", 2)
