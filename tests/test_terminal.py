"""The summary at the end of a run fits the terminal and says what was not run."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conformance.reporting.tally import Tally
from conformance.reporting.terminal import row
from conformance.results.schema import STATUSES
from tests.report_samples import INFERRED, absent, as_read, broken, sample, shown

OPERATORS = [f"conv_backward_data_{number}" for number in range(8)]
LONG = "an-implementation-with-a-very-long-name@simulator"
REASON = "no Neuron device (/dev/neuron* is missing) and whatever else a driver says at length when it is asked"


def record(implementation: str, operator: str, status: str, cases: int = 1, reason: str = "") -> dict[str, Any]:
    waiver = {"reason": reason or "known", "url": "https://example.org"} if status == "waived" else None
    names = {"implementation": implementation, "operator": operator, "waiver": waiver}
    return absent(**names, status=status, cases=cases, reason=reason)


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


def test_a_row_for_each_operator_and_one_for_all():
    found = lines(crowded("a"))
    assert found[0].split() == ["implementation", "operator", "pass", "fail", "error", "unsupported", "waived"]
    assert [line.split() for line in found if line.startswith("a  ")] == [
        *(["a", operator, *["1,234"] * 5] for operator in OPERATORS),
        ["a", "all", "operators", *["9,872"] * 5],
    ]
    assert f"{8 * 5 * 1234:,} cases: 9,872 pass, 9,872 fail" in " ".join(found)


def test_one_operator_has_no_sum():
    one = [found for found in crowded("a") if found["operator"] == "conv_forward"]
    totals = [line.split()[0] for line in lines([*one, *crowded("b")]) if "all operators" in line]
    assert totals == ["b"]


def test_statuses_have_colors_where_there_are_any():
    cells = dict(row("acme", "conv_forward", {"pass": 3, "fail": 2}, 80))
    assert {text.strip(): color for text, color in cells.items() if color} == {"3": "green", "2": "red"}


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
    assert found == ["unavailable: a, b: no driver", "unavailable: c: no package", "81 cases: 81 unavailable"]


def test_operators_that_are_not_implemented_stand_together():
    missing = [record("a", name, "unsupported", 7, f"{name} is not implemented") for name in ("f", "g")]
    assert "unsupported: a does not implement f, g (14 cases)" in lines(missing)


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
    found = " ".join(" ".join(lines([measured(LONG)])).split())
    assert "fp32 123.5 100% 123.46 123.5 123.5 ? bf16 inputs, fp32 accumulation toward zero (conservative)" in found


def test_nothing_is_said_of_nothing():
    assert lines([])[-1] == "0 cases: none"
