"""The summary at the end of a run fits the terminal and says what was not run."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conformance.reporting.tally import STATUSES, Tally
from conformance.reporting.terminal import LEGEND, summary

OPERATORS = [f"conv_backward_weight_{number}" for number in range(8)]
LONG = "an-implementation-with-a-very-long-name@simulator"
REASON = "no Neuron device (/dev/neuron* is missing) and whatever else a driver says at length when it is asked"


def record(implementation: str, operator: str, status: str, cases: int = 1, reason: str = "") -> dict[str, Any]:
    head = {"implementation": implementation, "operator": operator, "device": "cpu"}
    return {**head, "status": status, "cases": cases, "reason": reason}


def measured(implementation: str) -> dict[str, Any]:
    """A verdict with every number of a profile."""
    names = ("effective_bits", "lambda", "lambda_limit", "rms", "gain_z", "offset_z")
    inferred = {"contract": "bf16 inputs, fp32 accumulation toward zero", "conservative": True, "rank": 3}
    profile = {"dtype": "fp32", "profile": {"y": dict.fromkeys(names, 123.456)}, "inferred": {"y": inferred}}
    return record(implementation, "conv_forward", "pass") | profile


def lines(records: list[dict[str, Any]], width: int = 80) -> list[str]:
    tally = Tally()
    for entry in records:
        tally.add(entry)
    return list(summary(tally, width))


def crowded(name: str) -> list[dict[str, Any]]:
    """An implementation with thousands of cases of every status on eight operators."""
    return [record(name, operator, status, 1234, REASON) for operator in OPERATORS for status in STATUSES]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["a", LONG, LONG * 2], ids=["short", "long", "longer"])
def test_lines_fit(name: str, width: int):
    broken = record("/a/very/long/path" * 8 + "/acme.py", "", "error", reason=REASON)
    shown = lines([*crowded(name), *crowded("b"), measured(name), broken], width)
    assert [line for line in shown if len(line) > width] == []
    assert all(operator in "\n".join(shown) for operator in OPERATORS)


def test_every_operator_and_count_is_in_the_matrix():
    shown = lines(crowded("a") + crowded("b"), 80)
    cells = [line for line in shown if line.startswith(("a ", "b "))]
    assert " ".join(cells).count("1234F") == 2 * len(OPERATORS)
    assert f"{2 * 8 * 6 * 1234:,} cases: 19,744 pass, 19,744 fail" in " ".join(shown)


@pytest.mark.parametrize(
    ("title", "entry"),
    [
        ("broken files:", record("impls/acme.py", "", "error", reason=REASON)),
        ("unavailable:", record("acme", "conv_forward", "unavailable", reason=REASON)),
        ("unsupported:", record("acme", "conv_forward", "unsupported", reason=REASON)),
        (
            "waived:",
            record("acme", "conv_forward", "waived", reason=f"waived: {REASON}\ny: 1 of 9 elements mismatched"),
        ),
    ],
)
def test_reasons_wrap_and_are_whole(title: str, entry: dict):
    shown = lines([entry])
    section = shown[shown.index(title) + 1 : -1]
    assert len(section) > 1
    assert all(line.startswith("  ") for line in section)
    assert entry["implementation"] in section[0]
    assert REASON in re.sub(r"\s+", " ", " ".join(section))


def test_refusals_are_counted_by_reason():
    shown = lines([record("a", "f", "unsupported", 2, "x"), record("a", "g", "unsupported", 3, "x")])
    assert "  a: 5 x x" in shown


def test_accuracy_is_shown_in_full():
    shown = " ".join(" ".join(lines([measured(LONG)])).split())
    assert "fp32 123.5 100% 123.46 123.5 123.5 ? bf16 inputs, fp32 accumulation toward zero (declares less)" in shown


def test_letters_are_explained():
    shown = lines([record("a", "f", status) for status in STATUSES])
    assert next(line.split()[1:] for line in shown if line.startswith("a ")) == ["1", "1F", "1E", "1u", "1w", "1-"]
    assert LEGEND in " ".join(shown)


def test_nothing_is_said_of_nothing():
    assert lines([])[-1] == "0 cases: none"
