"""The summary at the end of a run fits the terminal and says what was not run."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conformance.reporting.evidence import RunEvidence
from conformance.reporting.groups import group
from conformance.reporting.kernel_verdicts import kernel_verdicts, total
from conformance.reporting.tally import Tally
from conformance.results.schema import STATUSES
from tests.report_samples import INFERRED, absent, as_read, broken, failed, sample, shown

OPERATORS = [f"conv_backward_data_{number}" for number in range(8)]
LONG = "an-implementation-with-a-very-long-name@simulator"
REASON = "no Neuron device (/dev/neuron* is missing) and whatever else a driver says at length when it is asked"


def record(
    implementation: str, operator: str, status: str, cases: int = 1, reason: str = "", **changes: Any
) -> dict[str, Any]:
    waiver = {"reason": reason or "known", "url": "https://example.org"} if status == "waived" else None
    names = {"implementation": implementation, "operator": operator, "waiver": waiver}
    return absent(**names, status=status, cases=cases, reason=reason, **changes)


def undeclared(kind: str, what: str) -> dict[str, Any]:
    return {"undeclared": {"kind": kind, "what": what}}


def measured(implementation: str) -> dict[str, Any]:
    """A verdict with every number of a profile."""
    names = ("effective_bits", "lambda", "lambda_limit", "rms", "gain_z", "offset_z")
    inferred = INFERRED | {"precision": "bf16 inputs, fp32 accumulation toward zero", "conservative": True}
    profile = {"y": dict.fromkeys(names, 123.456) | {"inferred": inferred}}
    return sample(implementation=implementation, profile=profile)


def lines(records: list[dict[str, Any]], width: int = 80, **options: Any) -> list[str]:
    tally = Tally()
    for entry in records:
        tally.add(as_read(entry))
    return shown(tally, width, **options)


def crowded(name: str) -> list[dict[str, Any]]:
    """An implementation with thousands of cases of every status on eight operators."""
    present = [status for status in STATUSES if status != "unavailable"]
    return [record(name, operator, status, 1234, REASON) for operator in OPERATORS for status in present]


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("name", ["a", LONG, LONG * 2], ids=["short", "long", "longer"])
def test_lines_fit(name: str, width: int):
    path = "/a/very/long/path" * 8 + "/acme.py"
    absent = [record(f"{name}-{number}", "conv_forward", "unavailable", reason=REASON) for number in range(9)]
    every = [*crowded(name), *crowded("b"), *absent, measured(name), broken(implementation=path, reason=REASON)]
    found = lines(every, width)
    assert [line for line in found if len(line) > max(width, 74)] == []
    assert all(operator in "\n".join(found) for operator in OPERATORS)


def test_a_line_for_each_kernel_counts_what_ran():
    found = lines(crowded("a"), 200)
    assert found[: len(OPERATORS)] == [
        f"a {operator}: 2,468 of 4,936 fail, 1,234 waived (1,234 errors)" for operator in OPERATORS
    ]


def test_what_did_not_run_is_in_no_count():
    crash = record("a", "f", "error", 2, "crashed (SIGSEGV)")
    after = record("a", "f", "error", 7, failure={"kind": "not run"})
    absences = record("a", "f", "unsupported", 9, "no"), record("a", "g", "unsupported", 9, "no")
    found = lines([crash, after, *absences, record("a", "f", "pass")])
    assert found[0] == "a f: 2 of 3 fail, 7 not run (2 errors)"
    assert not any(line.startswith("a g") for line in found)


@pytest.mark.parametrize(
    ("start", "entry"),
    [
        ("unavailable: acme: ", record("acme", "conv_forward", "unavailable", reason=REASON)),
        ("unsupported: acme: 1 x ", record("acme", "conv_forward", "unsupported", reason=REASON)),
        ("waived: acme: 1 x ", record("acme", "conv_forward", "waived", reason=REASON)),
    ],
)
def test_reasons_wrap_and_are_whole(start: str, entry: dict):
    assert f"{start}{REASON}" in re.sub(r"\s+", " ", " ".join(lines([entry])))


def test_who_is_not_here_is_named_once_with_the_reason():
    absent = [record(name, operator, "unavailable", 5, "no driver") for name in "ab" for operator in OPERATORS]
    found = lines([*absent, record("c", "conv_forward", "unavailable", reason="no package")])
    assert found == ["unavailable: a, b: no driver", "unavailable: c: no package"]


def test_operators_that_are_not_implemented_stand_together():
    missing = [record("a", name, "unsupported", 7, **undeclared("operator", name)) for name in ("f", "g")]
    assert "unsupported: a does not implement f, g" in lines(missing)


def test_the_commonest_reasons_are_shown_unless_all_are_asked_for():
    refusals = [record("a", "f", "unsupported", count, f"reason {count}") for count in range(1, 6)]
    found = [line for line in lines(refusals) if "unsupported: a" in line]
    assert found == [
        "unsupported: a: 5 x reason 5", "unsupported: a: 4 x reason 4", "unsupported: a: 3 x reason 3",
        "unsupported: a: 3 for 2 other reasons: --show unsupported",
    ]  # fmt: skip
    assert "unsupported: a: 1 x reason 1" in lines(refusals, listed=["unsupported"])


def test_outputs_of_which_nothing_is_known_are_named():
    found = lines([sample(unverified=["y"]), sample(unverified=["y"]), sample()], 120)
    assert "not verified: acme: 2 x conv_forward y, whose limits exceed most of its results" in found


def test_accuracy_is_shown_in_full():
    found = " ".join(" ".join(lines([measured(LONG)], listed=["details"])).split())
    assert "fp32 123.5 100% 123.46 123.5 123.5 ? bf16 inputs, fp32 accumulation toward zero (conservative)" in found


def test_nothing_is_said_of_nothing():
    assert lines([]) == []


def test_what_is_unsupported_is_one_line_where_something_ran():
    bf16, nhwc = undeclared("dtype", "bf16"), undeclared("layout", "nhwc")
    reasons = {"not in bf16": bf16, "not in nhwc": nhwc, "outside": {}, "only 2-D": {}}
    refusals = [record("a", "f", "unsupported", 9 - n, why, **own) for n, (why, own) in enumerate(reasons.items())]
    missing = [record("a", name, "unsupported", 7, **undeclared("operator", name)) for name in ("g", "h")]
    called = sample(implementation="a", operator="f", status="unsupported", reason="no\nlines", refused=True)
    found = lines([record("a", "f", "pass"), *refusals, *missing, called], 160)
    assert found == [
        "a f: 1 of 1 pass",
        "unsupported: g and 1 more operator, bf16, nhwc, 2 other reasons; --show unsupported",
        "refused when called: a: 1 case; --show unsupported",
    ]
    several = lines([record(name, "f", status, 3, "no") for name in "ab" for status in ("pass", "unsupported")])
    assert several[2:] == ["unsupported: 6 cases of 2 implementations; --show unsupported"]


def test_a_kernel_says_what_is_wrong_with_it_and_not_with_another():
    tally, records = Tally(), []
    for operator, cause in (("conv_forward", "strides swapped"), ("conv_backward_data", "padding ignored")):
        records.append(as_read(failed(operator=operator, causes=[cause])))
        tally.add(records[-1])
    every = kernel_verdicts(tally, group(records), RunEvidence(records))
    assert [*map(str, every)] == [
        "acme conv_forward fp32: 1 of 1 fail: strides swapped",
        "acme conv_backward_data fp32: 1 of 1 fail: padding ignored",
    ]


def test_the_last_line_of_several_kernels_says_how_many_fail():
    tally = Tally()
    for entry in (*(record(name, "f", "pass", 5) for name in "abc"), *(record(name, "f", "fail", 2) for name in "bc")):
        tally.add(as_read(entry))
    every = kernel_verdicts(tally, [], RunEvidence())
    assert total(every) == "2 of 3 kernels fail (b f, c f): 4 of 19 fail"
    assert total(every[:1]) == "a f: 5 of 5 pass"
    assert total([every[0], every[0]]) == "2 kernels: 10 of 10 pass"
