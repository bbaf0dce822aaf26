"""Groups of failures: which mistakes are named, what is put down to them, and which case is the smallest."""

from __future__ import annotations

import random
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance import Contract
from conformance.diagnosis.diagnose import GENERAL
from conformance.execution.nondeterminism import DIFFERS
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.groups import ALONE, amount, conditions, described, group
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


def several(count: int, *causes: str, **changes: Any) -> list[schema.Record]:
    """Return wrong records of so many problems."""
    return [wrong(*causes, problem=f"{number} {causes}", **changes) for number in range(count)]


GENERAL_MISTAKE = min(GENERAL)
EVERY = elements(9, every=True)
SMALL_IGNORED = [
    wrong("dilation ignored", "results all zero", descriptor=f"n1 c{n} w1 k1 s3 p260 d260", failure=EVERY)
    for n in range(1, 9)
]
LONG = [wrong(descriptor=f"n1 c8 w300 k16 s{s} g8") for s in (300, 277)]
STRIDES, ALIGNMENT = "strides of w ignored", "alignment of w assumed"
CROPPED, ALIGNED = wrong(STRIDES, storage="w:crop"), wrong(STRIDES, storage="w:strided")
SHIFTED = wrong(ALIGNMENT, storage="w:offset-1")
OTHER_SHIFTED = wrong("alignment of x assumed", storage="x:offset-1")
IMPULSE, IN_VAIN = wrong("A", descriptor=SMALL, distribution="impulse"), wrong(descriptor=SMALL)
TAIL = "tail of the sum beyond tiles of {} dropped"
TAILS = [TAIL.format(size) for size in (4, 8, 16)]
DIVISORS = "floor instead of ceil", "divisor of the first window", "divisor of the last window", "divisor R*S"
PADDINGS = "padding all after", "padding ignored", "padding of W ignored", "padding and dilation ignored"
NAMED: dict[str, tuple[list[schema.Record], list[str]]] = {
    "all, which others explain in part": ([wrong("A", "B"), *several(3, "B", "C")], ["B"]),
    # a tail that one small problem lost by chance was the likely cause of a hundred cases
    "explains a few": ([wrong("A"), *several(3, descriptor=LARGE)], [""]),
    # 28 of 68 were explained by an epsilon that is always 1e-5, and nothing else was; the cause was called unknown
    "alone explains many": ([*several(10, "A"), *several(15)], ["A"]),
    "explains many, as another does": ([*several(10, "A"), *several(15), wrong("B")], [""]),
    "only the shape, of many": ([*several(10, "y in the shape of x"), *several(15)], [""]),
    "too few of too many": ([*several(5, "A"), *several(4)], [""]),
    "of most of many": (
        several(3, *DIVISORS),
        ["divisor taken wrongly (divisor of the first window, or divisor of the last window, or 2 more)"],
    ),
    # a staged line was too short for a long window; "dilation ignored" explained small cases, which had dilation
    "in small cases": (SMALL_IGNORED, ["dilation ignored, or results all zero"]),
    "where it does not exist in other cases": ([*SMALL_IGNORED, *LONG], [""]),
    "where it does not exist in one, which may have another defect": (
        [*SMALL_IGNORED, LONG[0]],
        ["", "dilation ignored, or results all zero"],
    ),
    # `strides of w ignored` was said where only the start of a view is
    "strides": ([CROPPED, ALIGNED], [STRIDES]),
    "strides and alignment": ([CROPPED, SHIFTED], [ALIGNMENT, STRIDES]),
    "offset": ([CROPPED, ALIGNED, SHIFTED], ["offset of w ignored"]),
    "strides and alignment of another": ([ALIGNED, OTHER_SHIFTED], ["alignment of x assumed", STRIDES]),
    "a reading of results, where a mistake explains nearly all": (
        [*several(8, "A", GENERAL_MISTAKE), wrong(GENERAL_MISTAKE)],
        ["A"],
    ),
    "a reading of results": (
        [*several(8, "A", GENERAL_MISTAKE), *several(3, GENERAL_MISTAKE)],
        [GENERAL_MISTAKE],
    ),
    "two are too few for another one": ([*several(4, "A"), *several(2, "B")], [""]),
    "of few elements": ([IMPULSE], ["A"]),
    "of few elements, and in vain of ordinary inputs": ([IMPULSE, IN_VAIN], [""]),
    "three of one name": ([wrong(*TAILS)], ["tail of the sum beyond tiles dropped"]),
    "three of one name and another": ([wrong(*TAILS, "A")], [""]),
    "several of one parameter": (
        [wrong(*PADDINGS)],
        ["padding taken wrongly (padding all after, or padding ignored, or 1 more)"],
    ),
}
"""Failures -> the mistake that is named for each of their groups, or none."""


@pytest.mark.parametrize(("records", "causes"), NAMED.values(), ids=NAMED)
def test_which_mistakes_are_named(records: list[schema.Record], causes: list[str]):
    assert sorted(group.cause for group in group(records)) == causes


def fitting(*inputs: str) -> schema.Record:
    """Return a wrong record whose results would pass where inputs are rounded like that."""
    contracts = [Contract(inputs=name, accumulate="fp32") for name in inputs]
    fits = [(contract.arithmetic, contract.declaration) for contract in contracts]
    return wrong(failure=elements(1) | {"fits": fits})


def malformed(message: str, *causes: str, **changes: Any) -> schema.Record:
    """Return the record of a result that is no array of the right form."""
    failure = {"kind": "malformed", "message": message, **changes.pop("failure", {})}
    return wrong(*causes, **{"failure": failure, "checks": {}, "reason": message, **changes})


PREDICATE = "when=... raised AttributeError: 'ConvGeometry' object has no attribute 'kernel'"
UNDECIDED: dict[str, Any] = {
    "status": "error",
    "reason": PREDICATE,
    "failure": {"kind": "declaration", "message": PREDICATE},
}
FOUR_AND_THREE = several(4, "A") + [wrong("B", descriptor=SMALL)] * 3
MEMORY: dict[str, Any] = {
    "failure": {"kind": "memory", "message": "input x was written to"},
    "reason": "input x was written to: 8 bytes",
}
DTYPE, OTHER_DTYPE = "y has another dtype", "right values in another dtype"
IN_FP64 = [malformed(DTYPE, OTHER_DTYPE, failure={"dtype": "fp64"})] * 3
EMPTY = {"descriptor": "n0 c2 h5 w5 k2 r3 s3"}
SHAPE, NONE = "y has another shape (nchw)", "returned None; expected numpy.ndarray"
OUTDATED = "passes, although waived as 'known' (https://example.org): remove the waiver"
LOST = "claimed in acme.claims.json, but unsupported: {}; support it again"
CLAIMED: dict[str, Any] = {"failure": {"kind": "claim"}, "checks": {}}
CRASH: dict[str, Any] = {"status": "error", "failure": {"kind": "crashed", "message": "ended by SIGSEGV"}, "checks": {}}
PLACE = "/a/acme.py", 12
OPERATORS = "conv_forward", "conv_backward_data", "conv_backward_weight", "avg_pool_forward"
VARIANTS = "acme", "acme[fast]"
FAILURES: dict[str, list[schema.Record]] = {
    # a variance of a thousand elements that is biased is wrong by a thousandth: so many cases had no cause that the
    # mistake of all others was not said
    "errors too small to compare": [*several(6, "A"), *several(4)],
    "two mistakes": [*several(4, "A"), *several(4, "B")],
    # a misspelt attribute was 14 kinds of failure, one for each behaviour check
    "a predicate that raises": [
        *(as_read(sample(**UNDECIDED, checks={}, problem=str(n))) for n in range(2)),
        *(behaviour(check, **UNDECIDED) for check in ("results_are_plain", "invalid_arguments")),
    ],
    "passes and waivers": [as_read(sample()), as_read(waived()), wrong("A")],
    "unexplained on the same problem": [wrong("A", descriptor=SMALL), wrong(descriptor=SMALL, distribution="special")],
    "unexplained on other problems": [
        *several(4, "A"),
        wrong(descriptor=SMALL),
        wrong(descriptor=SMALL, operator="conv_backward_data"),
    ],
    "too large for diagnosis": [*several(9, "A"), *several(3, "B"), wrong(descriptor=HUGE)],
    "behaviour on the same problem": [*FOUR_AND_THREE, behaviour(descriptor=SMALL)],
    "behaviour on another problem": [*FOUR_AND_THREE, behaviour(descriptor=HUGE)],
    "behaviour on plain inputs": [*FOUR_AND_THREE, behaviour(failure={"kind": "contract", "on_plain": True})],
    "behaviour, the cause unknown": [
        malformed(SHAPE),
        behaviour(failure={"kind": "malformed", "message": SHAPE}),
        behaviour("calls_are_plain"),
    ],
    "memory, in two operators": [
        wrong("A"),
        *(behaviour("calls_in_a_row_are_right", **MEMORY, operator=name) for name in ("conv_forward", "unknown")),
    ],
    "few elements, explained elsewhere": [IMPULSE, IN_VAIN, *several(4, "A", descriptor=LARGE)],
    "raised": [raised("ValueError: no bias\nin detail", "C:\\kernels\\acme.py", 12)],
    **{
        f"raised alike: {message}": [raised(message, *PLACE), raised(other, *PLACE, operator="conv_backward_data")]
        for message, other in {
            "ValueError: stride 2": "ValueError: stride 3",
            "E: (1, 4, 2) at 0x7f02": "E: (12, 7) at 0x7fac",
            "E: tile 2.5e-3, 4x4\nmore 1": "E: tile 3, 8x8x2\nmore 2",
            "IndexError: index 7 of 5": "IndexError: index 12 of 9",
        }.items()
    },
    "raised otherwise or elsewhere": [
        raised("ValueError: no", *PLACE),
        raised("TypeError: no", *PLACE),
        raised("ValueError: never", *PLACE),
        raised("ValueError: no", "/a/acme.py", 13),
        wrong("A"),
    ],
    "raised in many operators": [raised("E: no", *PLACE, operator=name) for name in OPERATORS],
    "unknown, at edges": [
        *(
            wrong(failure=elements(3, edges=[("p", "last"), *edges]))
            for edges in ([], [], [("n", "first")], [("q", "both")])
        ),
        wrong(failure=EVERY, descriptor=LARGE),
    ],
    "statistics": [
        wrong(
            failure=elements(0, "dx"),
            checks={
                "dx": {"worst error / bound": [0.5, 1.0], "rms": [0.9, 0.5], "gain z": ["nan", 6.0]},
                "dw": {"rms": [0, 1]},
            },
        )
    ],
    **{
        f"{check} alone": [wrong(failure=elements(0), checks={"y": {"rms": [0.1, 0.5], check: [9.0, 6.0]}})]
        for check in ("gain z", "offset z", "rms")
    },
    # "dw alone" was read as the weight gradient that is asked for alone, while all others failed as well
    "an output of several": [wrong(checks=EXCEEDS | {"mean": {"worst error / bound": [0.1, 1.0]}})],
    "words of their own": [
        as_read(sample(status="fail", reason=OUTDATED, failure={"kind": "waiver", "message": OUTDATED})),
        as_read(broken()),
        wrong("A"),
    ],
    # a kernel without a return had three kinds: its cases, and each check that calls it on plain inputs
    "no array": [
        *[malformed(NONE)] * 3,
        *(
            behaviour(check, failure={"kind": "malformed", "message": NONE, "on_plain": True}, descriptor=HUGE)
            for check in ("results_are_plain", "output_is_written")
        ),
    ],
    # of an empty batch no mistake explains anything
    "another dtype": [*IN_FP64, malformed(DTYPE, **EMPTY, failure={"dtype": "fp64"})],
    "a third dtype": [*IN_FP64, malformed(DTYPE, **EMPTY, failure={"dtype": "int32"})],
    "another shape": [*[malformed(SHAPE, "A")] * 3, malformed(SHAPE, descriptor="n1 c2 h5 w5 k2 r3 s3 g2")],
    "lost kernels": [
        wrong(reason=LOST.format("not today"), **CLAIMED),
        behaviour(reason=LOST.format("has no kernel"), **CLAIMED),
    ],
    # the words "elements mismatched, cause unknown" hid that all of them were NaN
    **{
        f"elements: {where}": [
            *several(4, failure=elements(9, **where)),
            wrong(failure=elements(1, edges=[("p", "first")])),
        ]
        for where in (
            {"every": True, "nan": "all"},
            {"every": True, "nan": "some"},
            {"nan": "some", "edges": [("p", "last")]},
            {"nan": "some"},
            {},
        )
    },
    "fits two contracts": [fitting("tf32", "bf16")] * 2 + [wrong(distribution="integer", profile={})],
    "fits the second": [fitting("tf32", "bf16"), fitting("bf16")],
    "fits one each": [fitting("tf32"), fitting("bf16")],
    "differs from call to call": [
        wrong(
            reason=f"{DIFFERS}: wrong in 1 of 10 calls on the same inputs\ny: 1 of 9 elements mismatched",
            failure=elements(1) | {"kind": "differs"},
        ),
        *several(3, "A"),
        behaviour(),
        raised("E: no", "a.py", 1),
    ],
    "not run because of crashes": [
        as_read(sample(status="error", failure={"kind": "not run"}, checks={}, problem="2")),
        as_read(sample(**CRASH)),
        behaviour(**CRASH),
    ],
    "implementations": [wrong("A", implementation="beta", source="b" * 64), wrong("A")],
    "operators": [wrong("A"), wrong("A", operator="conv_backward_data")],
    "variants of a file": [
        *(wrong("A", descriptor=SMALL, implementation=name) for name in VARIANTS),
        wrong("A", descriptor=LARGE, implementation="acme[slow]"),
    ],
    # a kernel without output padding and one that loses taps were one cause, "also of" the other
    "variants with the smallest case alone in common": [
        *(wrong(descriptor=SMALL, implementation=name) for name in VARIANTS),
        *(wrong(descriptor=f"n{n} c2 h5 w5 k2 r3 s3", implementation="acme[fast]") for n in (2, 3)),
    ],
    "few parameters before few operations": [
        wrong("A", descriptor="n1 c1 h5 w7 k1 r3 s2 u1x2 p2x0 d3x1"),
        wrong("A", descriptor=LARGE),
    ],
    "small sizes before few operations": [
        wrong("A", descriptor="n2 c1 h70001 w1 k2 r1 s1 u261x1"),
        wrong("A", descriptor="n2 c6 h9 w11 k5 r1 s1 u2x3 b1"),
    ],
}


@pytest.mark.parametrize("records", FAILURES.values(), ids=FAILURES)
def test_groups_have_titles_and_counts(records: list[schema.Record], snapshot: SnapshotAssertion):
    assert (
        "\n".join(
            f"{', '.join((group.implementation, *group.also))}: {group.title}: {group.cases} cases, {group.attributed} "
            f"attributed; {described(group.smallest)}"
            for group in group(records)
        )
        == snapshot
    )


def test_long_messages_take_no_time():
    records = [raised(f"E: 1{',' * 200_000}"), wrong(reason=f"error locations: {'a' * 200_000}")]
    assert len(group(records)) == 2


def test_results_that_are_right_alone_are_those_of_the_calls_that_a_check_shows_to_be_confused():
    """Thirty wrong results that depended on the calls before stood above the one check that named the parameter."""
    wrongly = [wrong(problem=str(n), descriptor=SMALL) for n in range(3)]
    right_alone = as_read(sample(problem="alone", descriptor=SMALL, origin="where"))
    failure = {"kind": "elements", "confused": [LARGE, "stride"]}
    check = behaviour("other_parameters_are_told_apart", "wrong result (after another stride)", failure=failure)
    evidence = RunEvidence([*wrongly, right_alone, check])
    (merged,) = group([*wrongly, check], evidence)
    assert (merged.smallest, merged.cases, merged.attributed) == (check, 4, 3)
    (alone,) = group(wrongly, evidence)
    assert alone.text.endswith(ALONE)
    # plans kept without a parameter were three kinds of failure, two of which passed when they were run alone
    later = behaviour("calls_are_right_later", "wrong result (first call)", failure={"kind": "elements"})
    (merged,) = group([check, later], RunEvidence([check, later]))
    assert (merged.smallest, merged.cases, merged.attributed) == (check, 2, 1)
    plainly = behaviour("calls_are_right_later", "wrong", failure={"kind": "elements", "on_plain": True})
    assert len(group([check, plainly], RunEvidence([check, plainly]))) == 2


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


def test_the_order_of_records_changes_nothing():
    records = [wrong(*"ABC"[n % 3 :], descriptor=f"n1 c{n + 1} h5 w5 k2 r1 s1") for n in range(9)]
    records += [wrong(distribution="special", descriptor="n1 c3 h5 w5 k2 r1 s1"), wrong(descriptor=LARGE)]
    expected = group(records)
    for seed in range(5):
        assert group(random.Random(seed).sample(records, len(records))) == expected


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
