"""The end of a run on the terminal: what it says of one kernel and of many, at two widths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance.operators import OPERATORS
from conformance.results.schema import STATUSES
from tests.report_samples import INFERRED, absent, as_read, broken, failed, sample, summary, waived

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


def lines(records: list[dict[str, Any]], width: int = 80, listed: tuple[str, ...] = ()) -> list[str]:
    return summary([as_read(entry) for entry in records], width, listed)


def one_right() -> list[dict[str, Any]]:
    """A kernel that passes, of which some cases were not run."""
    bf16, nhwc = undeclared("dtype", "bf16"), undeclared("layout", "nhwc")
    reasons = {"not in bf16": bf16, "not in nhwc": nhwc, "outside": {}, "only 2-D": {}}
    refusals = [record("a", "f", "unsupported", 9 - n, why, **own) for n, (why, own) in enumerate(reasons.items())]
    missing = [record("a", name, "unsupported", 7, **undeclared("operator", name)) for name in ("g", "h")]
    called = sample(implementation="a", operator="f", status="unsupported", reason="no\nlines", refused=True)
    return [record("a", "f", "pass", 131), *refusals, *missing, called]


def one_wrong() -> list[dict[str, Any]]:
    """A kernel that fails in two ways, and crashes."""
    crash = {"status": "error", "reason": "crashed (SIGSEGV)", "failure": {"kind": "crashed", "message": "SIGSEGV"}}
    not_run = {"status": "error", "reason": "not run, crashed too often", "failure": {"kind": "not run"}}
    descriptors = [f"n{n} c2 h9 w9 k4 r3 s3" for n in range(1, 8)]
    return [
        *(sample(descriptor=text, dtype=dtype) for text in descriptors for dtype in ("bf16", "fp32")),
        *(failed(descriptor=f"{text} u2", causes=["strides swapped"]) for text in descriptors),
        sample(**crash, problem="c"), *(sample(**not_run, problem=f"n{n}") for n in range(7)),
        waived(problem="w"), sample(unverified=["y"]),
    ]  # fmt: skip


def five() -> list[dict[str, Any]]:
    """Implementations of all operators, two of which are wrong, with all that a summary can say."""
    found = []
    for place, name in enumerate(("jax-cpu", "numba-cpu", "numpy-direct", "torch-cpu", "torch-fused-cpu")):
        for number, operator in enumerate(OPERATORS):
            if place % 2 or number % 3:
                found.append(record(name, operator, "pass", 10 ** ((place + number) % 4) + number))
            else:
                found.append(record(name, operator, "unsupported", 7, **undeclared("operator", operator)))
        bn = {"operator": "conv_bn_backward", "descriptor": "bn n2 c8 h9 w9 k16 r3 s3 p1"}
        found.append(sample(implementation=name, **bn, unverified=["dgamma", "dw"][: place % 3]))
    return [
        *found,
        *(failed(implementation="numba-cpu", causes=["padding ignored"], problem=f"p{n}") for n in range(12)),
        record("numba-cpu", "avg_pool_forward", "error", 3, "raised"),
        record("torch-cpu", "conv_forward", "waived", 6, "padding of half a pixel"),
        *(record("torch-cpu", "conv_forward", "waived", n, f"reason {n}") for n in range(1, 5)),
        broken(reason="SyntaxError: invalid syntax (b.py, line 3)"),
        *(record(name, "conv_forward", "unavailable", 5, "no NVIDIA driver") for name in ("cuda-a", "cuda-b")),
        record("nki", "conv_forward", "unavailable", 5, REASON),
    ]


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("records", [one_right, one_wrong, five])
def test_summary(records: Any, width: int, snapshot: SnapshotAssertion):
    assert "\n".join(lines(records(), width)) == snapshot


def test_summary_with_everything_that_can_be_asked_for(snapshot: SnapshotAssertion):
    every = [*five(), measured("torch-cpu"), *one_right()]
    assert "\n".join(lines(every, 80, ("details", "unsupported", "waived"))) == snapshot


def test_of_many_implementations_of_one_operator_each_has_a_row(snapshot: SnapshotAssertion):
    wrong = [failed(implementation=f"acme-{n}", causes=["padding ignored"]) for n in range(12)]
    right = [sample(implementation=f"acme-{n}", problem=f"p{n}") for n in range(15)]
    assert "\n".join(lines([*wrong, *right])) == snapshot


def crowded(name: str) -> Iterator[dict[str, Any]]:
    """Thousands of cases of every status of eight operators."""
    for operator, status in ((f"conv_backward_data_{n}", status) for n in range(8) for status in STATUSES):
        if status != "unavailable":
            yield record(name, operator, status, 1234, REASON)


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("name", ["a", LONG, LONG * 2], ids=["short", "long", "longer"])
def test_lines_fit(name: str, width: int):
    path = "/a/very/long/path" * 8 + "/acme.py"
    absent = [record(f"{name}-{number}", "conv_forward", "unavailable", reason=REASON) for number in range(9)]
    every = [*crowded(name), *crowded("b"), *absent, measured(name), broken(implementation=path, reason=REASON)]
    *found, _ = lines(every, width, ("details",))
    assert [line for line in found if len(line) > max(width, 74)] == []
    assert all(f"conv_backward_data_{n}" in "\n".join(found) for n in range(8))


@pytest.mark.parametrize("status", ["unavailable", "unsupported", "waived"])
def test_reasons_wrap_and_are_whole(status: str):
    entry = record("acme", "conv_forward", status, reason=REASON)
    assert REASON in re.sub(r"\s+", " ", " ".join(lines([entry])))


def test_nothing_is_said_of_nothing():
    assert lines([]) == []
