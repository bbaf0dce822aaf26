"""One report, three renderings: the end of a run on the terminal, the summary in Markdown, and the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance.operators import OPERATORS
from conformance.reporting.page import markdown
from conformance.reporting.page.tables import Digest
from conformance.reporting.terminal import verdict_lines
from conformance.results.schema import STATUSES
from tests.page_outline import outline
from tests.report_samples import (
    CAUSES,
    H100,
    INFERRED,
    RAISED,
    Record,
    absent,
    as_read,
    benchmarks,
    broken,
    checked,
    digest,
    failed,
    reported,
    sample,
    summary,
    trained,
    waived,
)

LONG = "an-implementation-with-a-very-long-name@simulator"
REASON = "no Neuron device (/dev/neuron* is missing) and whatever else a driver says at length when it is asked"
CONV, BN = "n{} c8 h9 w9 k16 r3 s3", "bn n2 c8 h9 w9 k16 r3 s3 p1"


def counted(implementation: str, operator: str, status: str, cases: int, reason: str = "", **changes: Any) -> Record:
    """Cases of which there is no more to say than how many they are."""
    waiver = {"reason": reason, "url": "https://example.org"} if status == "waived" else None
    names = {"implementation": implementation, "operator": operator, "waiver": waiver}
    return absent(**names, status=status, cases=cases, reason=reason, **changes)


def undeclared(kind: str, what: str) -> Record:
    return {"undeclared": {"kind": kind, "what": what}}


def measured(implementation: str) -> Record:
    """A verdict with every number of a profile."""
    names = ("effective_bits", "lambda", "lambda_limit", "rms", "gain_z", "offset_z")
    inferred = INFERRED | {"precision": "bf16 inputs, fp32 accumulation toward zero", "conservative": True}
    profile = {"y": dict.fromkeys(names, 123.456) | {"inferred": inferred}}
    return sample(implementation=implementation, profile=profile, problem="measured")


def right() -> list[Record]:
    """A kernel that passes, of which some cases were not run."""
    bf16, nhwc = undeclared("dtype", "bf16"), undeclared("layout", "nhwc")
    reasons = {"not in bf16": bf16, "not in nhwc": nhwc, "outside": {}, "only 2-D": {}}
    refusals = [
        counted("acme", "conv_forward", "unsupported", 9 - place, why, **own)
        for place, (why, own) in enumerate(reasons.items())
    ]
    missing = [
        counted("acme", name, "unsupported", 7, **undeclared("operator", name))
        for name in ("avg_pool_forward", "max_pool_forward")
    ]
    called = sample(problem="called", status="unsupported", reason="no\nlines", refused=True, checks={}, profile=None)
    passing = [sample(descriptor=CONV.format(n), problem=f"p{n}", run_level="smoke") for n in range(1, 8)]
    return [*passing, sample(problem="vague", unverified=["y"]), *refusals, *missing, called]


def wrong() -> list[Record]:
    """A kernel that fails under a condition, differs from a mistake in one case, raises and crashes."""
    crash = {"status": "error", "reason": "crashed (SIGSEGV)", "failure": {"kind": "crashed", "message": "SIGSEGV"}}
    not_run = {"status": "error", "reason": "not run, crashed too often", "failure": {"kind": "not run"}}
    texts = [f"n{n} c64 h{size} w{size} k64 r3 s3" for n in (1, 2) for size in range(5, 12)]
    located: Record = {"checks": {}, "profile": None, "causes": []}
    return [
        *(sample(descriptor=text, problem=f"p{n}") for n, text in enumerate(texts)),
        *(failed(descriptor=f"{text} g{g}", problem=f"g{g}.{n}") for g in (2, 4) for n, text in enumerate(texts)),
        failed(descriptor=texts[0] + " g8", problem="where", origin="where"),
        sample(dtype="bf16", problem="b"),
        sample(**RAISED, problem="r"), sample(**crash, **located, problem="c"),
        *(sample(**not_run, **located, problem=f"n{n}", dtype="fp16" if n else "fp32") for n in range(7)),
        waived(problem="w"), absent(),
    ]  # fmt: skip


def five() -> list[Record]:
    """Implementations of all operators, two of which are wrong, with what else a run may say."""
    found = []
    for place, name in enumerate(("jax-cpu", "numba-cpu", "numpy-direct", "torch-cpu", "torch-fused-cpu")):
        for number, operator in enumerate(OPERATORS):
            if place % 2 or number % 3:
                found.append(counted(name, operator, "pass", 10 ** ((place + number) % 4) + number))
            else:
                found.append(counted(name, operator, "unsupported", 7, **undeclared("operator", operator)))
        bn = {"operator": "conv_bn_backward", "descriptor": BN, "contract": {"accumulate": "bf16"}}
        found.append(sample(implementation=name, **bn, unverified=["dgamma", "dw", "dx", "dbeta"][: place % 5]))
    return [
        *found,
        *(failed(implementation="numba-cpu", causes=["padding ignored"], problem=f"p{n}") for n in range(12)),
        *(
            sample(implementation="numba-cpu", **RAISED, operator="conv_bn_forward", descriptor=BN, problem=f"p{n}")
            for n in range(15)
        ),
        counted("torch-cpu", "conv_forward", "waived", 6, "padding of half a pixel"),
        *(counted("torch-cpu", "conv_forward", "waived", n, f"reason {n}") for n in range(1, 5)),
        checked({"accepted": ["padding -1", "a stride of 0"]}, implementation="jax-cpu", problem="asked"),
        broken(reason="SyntaxError: invalid syntax (b.py, line 3)"),
        *(counted(name, "conv_forward", "unavailable", 5, "no NVIDIA driver") for name in ("cuda-a", "cuda-b")),
        counted("nki", "conv_forward", "unavailable", 5, REASON, device="simulator"),
    ]


def several_machines() -> list[Record]:
    """One implementation on three machines, and a table of each kind."""
    row = {"variant": "fused", "buffers": 1, "activation_bytes": 4096, "parameter_bytes": 2, "vector_bytes": 3}
    step = {"variant": "fused", "batch": 64, "peak_bytes": 9, "forward_bytes": 8}
    beyond = sample()["profile"]["y"] | {"lambda": 9.0, "effective_bits": -1023.0}
    devices = [{"device": "cuda", "versions": H100 | {"device": f"NVIDIA {name}"}} for name in ("A100", "H100")]
    return [
        measured("acme"), sample(), sample(dtype="bf16", profile={"y": beyond | {"lambda": "nan"}}),
        sample(dtype="fp64", profile={"y": beyond}), waived(**devices[1], operator="conv_backward_data", problem="w"),
        *(sample(**device, problem=f"p{n}") for device in devices for n in range(2)),
        failed(**devices[0], problem="wrong"),
        checked({"saved_for_backward": [row], "training_steps": [step]}, problem="k"), trained(),
        sample(work={"least_bytes": 4, "dma_bytes": 8, "instructions": 7}, problem="moved"),
    ]  # fmt: skip


@pytest.fixture(params=[right, wrong, five, several_machines], ids=lambda make: make.__name__)
def records(request: pytest.FixtureRequest) -> list[Record]:
    """The records of a run."""
    found: list[Record] = request.param()
    return found


def with_times(folder: Path, records: list[Record]) -> Digest:
    """These records and times of two kernels, as the page has them."""
    names = ("torch-cpu", 0.5), ("acme", 0.25)
    timed = [(sample(implementation=n, problem=p, roofline_share=0.5), s) for n, s in names for p in ("u1", "u2")]
    return digest(folder, records, benchmarks(folder / "bench.json", timed))


@pytest.fixture
def shown(records: list[Record], tmp_path: Path) -> Digest:
    """These records and, of several machines, times."""
    several = any(record["device"] == "cuda" for record in records)
    return with_times(tmp_path, records) if several else digest(tmp_path, records)


def lines(records: list[Record], width: int, *listed: str) -> list[str]:
    return summary(map(as_read, records), width, listed)


@pytest.mark.parametrize("width", [80, 160])
def test_terminal(records: list[Record], width: int, snapshot: SnapshotAssertion):
    assert "\n".join(lines(records, width)) == snapshot


@pytest.mark.parametrize("records", [several_machines, right], indirect=True, ids=lambda make: make.__name__)
def test_terminal_with_all_that_can_be_asked_for(records: list[Record], snapshot: SnapshotAssertion):
    assert "\n".join(lines(records, 80, "details", "unsupported", "waived")) == snapshot


def test_markdown(shown: Digest, snapshot: SnapshotAssertion):
    assert markdown.summary(shown, shown.title, ["INCOMPLETE: 3 of 5"]) == snapshot


def test_page(shown: Digest, snapshot: SnapshotAssertion):
    pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")
    from conformance.reporting.page.render import page

    assert outline(page(shown)) == snapshot


def test_of_many_kernels_those_that_pass_are_one_line_of_summary_and_page(tmp_path: Path):
    pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")
    from conformance.reporting.page.render import page

    shown = digest(tmp_path, [sample(implementation=f"acme-{n}") for n in range(9)])
    text = markdown.summary(shown, "t")
    assert "<details><summary>9 kernels: 9 of 9 pass</summary>\n\n- acme-0 conv_forward fp32: 1 of 1 pass\n" in text
    assert "\n    summary.s-pass: 9 kernels: 9 of 9 pass\n" in outline(page(shown))


def test_of_many_implementations_of_one_operator_each_has_a_row(snapshot: SnapshotAssertion):
    wrong = [failed(implementation=f"acme-{n}", causes=["padding ignored"]) for n in range(12)]
    right = [sample(implementation=f"acme-{n}", problem=f"p{n}") for n in range(15)]
    assert "\n".join(lines([*wrong, *right], 80)) == snapshot


def test_a_kernel_says_what_is_wrong_with_it_and_not_with_another():
    other = failed(operator="conv_backward_data", causes=["padding ignored"], problem="b")
    assert lines([failed(), other], 200)[-3:] == [
        f"acme conv_forward fp32: 1 of 1 fail: {CAUSES[0]}, or {CAUSES[1]}",
        "acme conv_backward_data fp32: 1 of 1 fail: padding ignored",
        "2 of 2 kernels fail (acme conv_forward, acme conv_backward_data): 2 of 2 fail",
    ]


def crowded(name: str) -> Iterator[Record]:
    """Thousands of cases of every status of eight operators."""
    for operator, status in ((f"conv_backward_data_{n}", status) for n in range(8) for status in STATUSES):
        if status != "unavailable":
            yield counted(name, operator, status, 1234, REASON)


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("name", ["a", LONG, LONG * 2], ids=["short", "long", "longer"])
def test_lines_fit(name: str, width: int):
    path = "/a/very/long/path" * 8 + "/acme.py"
    absences = [counted(f"{name}-{number}", "conv_forward", "unavailable", 1, REASON) for number in range(9)]
    every = [*crowded(name), *crowded("b"), *absences, measured(name), broken(implementation=path, reason=REASON)]
    *found, _ = lines(every, width)
    assert [line for line in found if len(line) > max(width, 74)] == []
    assert all(f"conv_backward_data_{n}" in "\n".join(found) for n in range(8))


def test_nothing_is_said_of_nothing():
    assert lines([], 80) == []


def test_what_fails_is_red():
    report = reported(map(as_read, five()))
    red = [text.split()[0] for text, color in verdict_lines(report, 160) if color == "red"]
    assert red == ["conv_forward", "conv_bn_forward", "numba-cpu", "numba-cpu", "impls/b.py:"]
