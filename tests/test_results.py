"""Records: what is written is read back, and what is not exactly a record is refused with its defect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance import Implementation
from conformance.execution.status import Verdict
from conformance.execution.trial import Absence, Trial
from conformance.execution.verify import verify
from conformance.implementations.implementation import Waiver
from conformance.implementations.registry import unusable
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from conformance.results import build, schema
from conformance.results.reading import (
    ChangedError,
    Earlier,
    RecordError,
    SchemaError,
    UnfinishedError,
    decode,
    earlier,
    runs,
)
from conformance.results.schema import AnyRecord, number
from conformance.results.writing import Records, encode
from tests import kernels
from tests.report_samples import sealed

ACME = Implementation("acme")
ACME.implements("conv_forward", dtypes=("fp32",))(kernels.conv_forward)
ACME.source = "a" * 64


def case(distribution: str = "fixed") -> Trial:
    problem = typed("n1 c3 h5 w5 k4 r3 s3 p1")
    return Trial(ACME, OPERATORS["conv_forward"], problem, Variant("fp32", "nchw", distribution), seed=3)


def trained() -> schema.TrainingRecord:
    run = schema.TrainingRun(network="digits", steps=12, verified=92, losses=(2.3, "nan"), configuration={"rate": 5e-4})
    return schema.TrainingRecord(
        schema=schema.SCHEMA, implementation="acme", operator="training", device="cpu", status="pass", cases=1,
        versions={}, reason="", source="a" * 64, problem="digits", dtype="fp32", layout="nchw",
        distribution="training", seed=0,
        checks={"forward": {"worst error / bound": (0.3, 1.0)}}, seconds={"total": 1.0}, command="pytest",
        level="smoke", contracts={}, training=run,
    )  # fmt: skip


FACTS = schema.Facts(
    repeatable=True,
    accepted=("integer tensors",),
    saved_for_backward=(
        schema.SavedForBackward(variant="fused", buffers=1, activation_bytes=2, parameter_bytes=3, vector_bytes=4),
    ),
    training_steps=(schema.TrainingStep(variant="fused", batch=64, peak_bytes=9, forward_bytes=8),),
)
ABSENCE = Absence("acme", "conv_forward", "cpu", "unsupported", "not implemented", 18)


def every_kind() -> list[AnyRecord]:
    waiver = Waiver("conv_forward", "a known (odd) one", "https://acme.example/7", None, ("fp32",), ("special",))
    wrong = Verdict("waived", "y: 3 out", seconds={"total": 0.5}, waiver=waiver)
    return [
        build.record(case(), verify(case())),
        build.record(case("special"), wrong),
        build.behaviour_record(case(), Verdict("pass", facts=FACTS), "results_are_plain"),
        build.absence_record(ABSENCE, "results_are_plain"),
        trained(),
        build.absence_record(ABSENCE),
        build.broken_record("impls/b.py", unusable("SyntaxError")),
    ]


@pytest.mark.parametrize("record", every_kind(), ids=lambda record: type(record).__name__)
def test_what_is_written_is_read(record: AnyRecord):
    assert decode(encode(record)) == record
    assert json.loads(encode(record))["schema"] == schema.SCHEMA


def test_a_waiver_is_no_part_of_the_reason():
    waived = every_kind()[1]
    assert waived.waiver == schema.WaiverRecord(reason="a known (odd) one", url="https://acme.example/7")
    assert waived.reason == "y: 3 out"
    assert waived.headline == "a known (odd) one (https://acme.example/7)"


def test_a_case_has_what_was_measured_and_under_what():
    measured = every_kind()[0]
    assert isinstance(measured, schema.CaseRecord)
    assert measured.checks.keys() == measured.profile.keys() == measured.terms.keys() == {"y"}
    assert (measured.contract or {})["accumulate"] == "auto"
    assert {"python", "numpy"} <= measured.versions.keys()
    assert measured.seconds["total"] > 0


def test_a_check_has_its_name_and_its_facts():
    checked = every_kind()[2]
    assert isinstance(checked, schema.CheckRecord)
    assert (checked.check, checked.facts) == ("results_are_plain", FACTS)
    assert checked.command.endswith("--check results_are_plain")


def test_the_file_has_a_line_for_each_as_it_comes(tmp_path: Path):
    path, records = tmp_path / "runs" / "run.jsonl", every_kind()
    file = Records(path, header())
    assert not path.exists()
    for count, record in enumerate(records, 1):
        file.write(record)
        assert earlier(path.read_bytes()) == Earlier(path.stat().st_size, (header(),), tuple(records[:count]), False)
    file.end(1, interrupted=False)
    assert earlier(path.read_bytes()) == Earlier(path.stat().st_size, (header(),), tuple(records), True)
    footer = json.loads(path.read_text().splitlines()[-1])
    assert footer["cases"] == {"pass": 3, "error": 1, "unsupported": 36, "waived": 1}


@pytest.mark.parametrize("value", [0.5, float("inf"), float("-inf"), float("nan")])
def test_every_number_is_strict_json(value: float):
    record = msgspec.structs.replace(trained(), checks={"y": {"rms": (number(value), 1.0)}})
    found = decode(encode(record)).checks["y"]["rms"][0]
    assert repr(float(found)) == repr(value)


def test_half_a_surrogate_pair_becomes_text_that_can_be_read():
    found = decode(encode(build.broken_record("impls/b.py", unusable("a \ud800 b \U0001f600"))))
    assert found.reason == "a ? b \U0001f600"


def header(**changes: Any) -> schema.Header:
    found = schema.Header(
        schema=schema.SCHEMA, started="2026-05-04T03:02:01+00:00", command=("pytest",), versions={}, level="smoke",
        seed=0, method="auto", golden="",
    )  # fmt: skip
    return msgspec.structs.replace(found, **changes)


GOOD = encode(every_kind()[0])


def changed(**fields: Any) -> bytes:
    """The record of a case, but for what is changed; what is changed to None is left out."""
    record = json.loads(GOOD) | fields
    return json.dumps({name: value for name, value in record.items() if value is not None}).encode()


INFERRED = {"precision": "fp32", "rank": 1, "conservative": False}
WRONG: dict[str, Any] = {
    "implementation": 3, "operator": True, "device": [], "status": "passed", "cases": 0, "reason": 7,
    "versions": {"python": 3}, "problem": 7, "source": "abc", "command": [], "seed": True, "terms": {"y": "many"},
    "checks": {"y": {"rms": [1.0]}}, "contract": "direct", "seconds": {"total": -1}, "work": {"dma_bytes": 3},
    "profile": {"y": {"lambda": 1, "lambda_limit": 0, "rms": 1, "inferred": INFERRED}}, "kind": "verdict",
    "waiver": {"reason": " ", "url": "https://acme.example"},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_form_is_named(name: str):
    with pytest.raises(RecordError, match=rf"field {name}[.:\[]"):
        decode(changed(**{name: WRONG[name]}))


@pytest.mark.parametrize("name", ["device", "status", "versions", "source", "problem", "checks", "generator", "terms"])
def test_what_a_kind_needs_must_be_there(name: str):
    with pytest.raises(RecordError, match=f"missing required field `{name}`"):
        decode(changed(**{name: None}))


DEEP = b"[" * 200_000 + b"]" * 200_000
BROKEN: dict[str, bytes] = {
    "is cut off: was its run interrupted": GOOD[:200],
    "is not JSON": b"nothing",
    "is not UTF-8": GOOD.replace(b'"acme"', b'"\xff"'),
    "is not JSON .*": GOOD.replace(b'"seed":3', b'"seed":NaN'),
    "is not JSON .* in a field that nobody knows": GOOD[:-1] + b',"note":NaN}',
    "is nested too deep": GOOD[:-1] + b',"note":' + DEEP + b"}",
    "field seed: ": GOOD.replace(b'"seed":3', b'"seed":' + b"9" * 5000),
    "field checks.*: ": changed(checks={"y": {"rms": [10**400, 1.0]}}),
    "field checks.*: .*": changed(checks={"y": {"rms": ["big", 1.0]}}),
    "expected `object`, got `array`": b"[1, 2]",
    "missing required field": b"{}",
    "gives the name seed twice": GOOD.replace(b'"seed":3', b'"seed":3,"seed":4'),
    "gives the name total twice": GOOD.replace(b'"total":', b'"total":0,"total":'),
    "where its status is 'waived'": changed(status="waived"),
    "and only there": changed(waiver={"reason": "known", "url": "https://acme.example"}),
    "field check: ": changed(kind="check", check=" "),
    "invalid value '.x1b": changed(kind="\x1b[2J"),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_what_is_no_record_is_refused_for_its_defect(reason: str):
    with pytest.raises(RecordError, match=reason.partition(" in a field")[0]) as refused:
        decode(BROKEN[reason])
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


def test_a_record_of_another_version_says_which_and_what_to_do():
    with pytest.raises(SchemaError, match=r"written in schema 1, this version reads schema 3; use the version .* that"):
        decode('{"schema": 1, "implementation": "acme"}')
    with pytest.raises(SchemaError, match=r"written in schema 2 by kernel-conformance 0\.1\.0, this version"):
        decode('{"schema": 2, "versions": {"kernel-conformance": "0.1.0"}}')
    with pytest.raises(SchemaError, match="written in schema 4"):
        decode(changed(schema=4))


FOOTER = schema.Footer(
    schema=schema.SCHEMA, ended="2026-05-04T04:02:01+00:00", cases={"pass": 1}, exit_status=0, interrupted=False,
    digest="",
)  # fmt: skip
STOPPED = msgspec.structs.replace(FOOTER, interrupted=True)
UNFINISHED, CHANGED = (UnfinishedError, "was cut off or interrupted"), (ChangedError, "belong to no run")
RUNS: dict[str, tuple[tuple[schema.Line, ...], tuple[type[RecordError], str] | None]] = {
    "nothing": ((), None),
    "no header": ((every_kind()[0],), CHANGED),
    "whole": ((header(), every_kind()[0], FOOTER), None),
    "two shards": ((header(), FOOTER, header(), FOOTER), None),
    "cut off": ((header(), every_kind()[0]), UNFINISHED),
    "interrupted": ((header(), STOPPED), UNFINISHED),
    "resumed": ((header(), STOPPED, header(resumed=True), header(resumed=True), FOOTER), None),
    "resumed and interrupted": ((header(), STOPPED, header(resumed=True), STOPPED), UNFINISHED),
    "one of two shards cut off": ((header(), header(), FOOTER), UNFINISHED),
    "a footer by itself": ((every_kind()[0], FOOTER), CHANGED),
    "behind the end": ((header(), FOOTER, every_kind()[0]), (ChangedError, "line 3: stands behind the end of the run")),
}


def content_of(lines: Iterable[schema.Line]) -> bytes:
    return sealed(json.loads(encode(line)) for line in lines)


@pytest.mark.parametrize(("lines", "defect"), RUNS.values(), ids=RUNS)
def test_a_run_without_its_end_is_seen(lines: tuple[schema.Line, ...], defect: tuple[type[RecordError], str] | None):
    found = runs(content_of(lines), "run.jsonl")
    with nullcontext() if defect is None else pytest.raises(defect[0], match=defect[1]):
        for run in found:
            run.require_whole()
    stray = sum(len(run.stray) for run in found)
    records = [line for line in lines if isinstance(line, schema.Record)]
    assert [record for run in found for _, record in run.records()] == records[: len(records) - stray]


CHANGES: dict[str, Callable[[list[bytes]], object]] = {
    "a fail became a pass": lambda ls: ls.__setitem__(2, ls[2].replace(b'"fail"', b'"pass"')),
    "a line is gone": lambda ls: ls.pop(2),
    "a line stands twice": lambda ls: ls.insert(2, ls[1]),
    "two lines changed places": lambda ls: ls.__setitem__(slice(1, 3), [ls[2], ls[1]]),
    "something stands between": lambda ls: ls.insert(2, b"Warning: low battery\n"),
    "the exit status": lambda ls: ls.__setitem__(-1, ls[-1].replace(b'"exit_status":1', b'"exit_status":0')),
    "the counts": lambda ls: ls.__setitem__(-1, ls[-1].replace(b'"fail":1', b'"fail":0')),
    "the header": lambda ls: ls.__setitem__(0, ls[0].replace(b'"seed":0', b'"seed":1')),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_is_changed_in_a_file_is_seen(change: Callable[[list[bytes]], object], tmp_path: Path):
    path = tmp_path / "run.jsonl"
    file = Records(path, header())
    for record in (every_kind()[0], msgspec.structs.replace(trained(), status="fail")):
        file.write(record)
    file.end(1, interrupted=False)
    before = path.read_bytes().splitlines(True)
    change(lines := [*before])
    assert lines != before
    (run,) = runs(b"".join(lines), "run.jsonl")
    with pytest.raises(ChangedError, match=r"run.jsonl, lines 1 to \d: are not what the run of 2026.* wrote"):
        run.require_whole()
    with pytest.raises(RecordError, match=r"it, lines 1 to \d: are not what the run of .*, or begin again"):
        earlier(b"".join(lines))


def test_what_was_changed_before_a_run_went_on_is_seen(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    for resume in (False, True):
        file = Records(path, header(), resume=resume)
        file.write(every_kind()[resume])
        file.end(1, interrupted=not resume)
    (run,) = runs(content := path.read_bytes(), "run.jsonl")
    run.require_whole()
    assert (len(run.headers), len(list(run.lines()))) == (2, 2)
    (run,) = runs(content.replace(b'"seed":3', b'"seed":4', 1), "run.jsonl")
    with pytest.raises(ChangedError, match="lines 1 to 6: are not"):
        run.require_whole()


@pytest.mark.parametrize("record", [trained(), build.absence_record(ABSENCE)])
def test_a_line_that_stands_twice_is_not_gone_on_with(record: schema.Record):
    lines = [encode(line) + b"\n" for line in (header(), record, record)]
    with pytest.raises(RecordError, match="it, line 3 is that of it, line 2 again; take it out, or begin again with"):
        earlier(b"".join(lines))
    lost = encode(msgspec.structs.replace(record, status="error", seconds={})) + b"\n"  # two tests may have the same
    assert len(earlier(lines[0] + lost + lost).records) == 2


def test_a_header_is_no_verdict():
    with pytest.raises(RecordError, match="is no verdict"):
        decode(encode(header()))
    broken = encode(header()).replace(b'"seed":0', b'"seed":"0"')
    ((_, line),) = runs(broken + b"\n", "run.jsonl")[0].lines()
    with pytest.raises(RecordError, match="field seed: expected `int`"):
        decode(line)


def test_the_last_line_of_an_interrupted_run_is_named():
    content = GOOD + b"\n\n" + GOOD[:100]
    (first, _), (last, cut) = runs(content, "run.jsonl")[0].lines()
    assert first == "run.jsonl, line 1"
    assert last == "run.jsonl, line 3 (the last, without a line end)"
    with pytest.raises(RecordError, match="is cut off"):
        decode(cut)
