"""Files of results: what is read, what is left out and said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.reporting.page.form import OPTIONAL, fault
from conformance.reporting.page.model import ReportError
from conformance.reporting.page.reading import Source, read
from conformance.reporting.tally import Tally
from conformance.timing.table import COLUMNS
from tests.report_samples import absent, benchmarks, failed, sample, written

GOOD = json.dumps(sample())


def only(path: Path) -> Source:
    (source,) = read([path])
    return source


def of(tmp_path: Path, content: bytes, name: str = "run.jsonl") -> Source:
    path = tmp_path / name
    path.write_bytes(content)
    return only(path)


def test_records_are_read(tmp_path: Path):
    records = [sample(), failed(problem="other"), absent()]
    source = only(written(tmp_path / "run.jsonl", records))
    assert source.records == records
    assert source.troubles == []


BROKEN = {
    "cut": GOOD[:200].encode(),
    "not-json": b"nothing",
    "not-utf8": b'{"schema": 1, "implementation": "\xff"}',
    "not-a-number": GOOD.replace("1.5", "NaN").encode(),
    "not-a-number-in-a-note": json.dumps(sample(note=float("nan"))).encode(),
    "nested": b"[" * 200_000,
    "long-number": b'{"schema": ' + b"9" * 5000 + b"}",
    "list": b"[1, 2]",
    "empty-object": b"{}",
    "no-schema": json.dumps(sample(schema=None)).encode(),
    "no-device": json.dumps(sample(device=None)).encode(),
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_named_and_the_rest_is_used(tmp_path: Path, line: bytes):
    source = of(tmp_path, GOOD.encode() + b"\n" + line + b"\n" + json.dumps(failed()).encode() + b"\n")
    assert [record["status"] for record in source.records] == ["pass", "fail"]
    (trouble,) = source.troubles
    assert trouble.startswith("run.jsonl, line 2: ")
    assert trouble.endswith("left out")


WORK = {"dma_bytes": 3, "instructions": 2, "matmuls": 1}
WRONG: dict[str, Any] = {
    "implementation": 3, "operator": None, "device": [], "status": "passed", "cases": -1, "reason": None,
    "versions": {"python": 3},
    "problem": 7, "source": {}, "command": [], "seed": True, "terms": {"y": "many"}, "checks": {"y": {"rms": [1.0]}},
    "contract": "direct", "profile": {"y": {"lambda": 1.0, "lambda_limit": 0.0, "rms": 1.0}}, "inferred": {"y": "fp32"},
    "seconds": {"total": "long"}, "repeatable": "yes", "not_refused": [3], "kept": [{"form": "plain"}], "trained": [{}],
    "training": {"network": "digits"}, "work": {"dma_bytes": 3}, "least_bytes": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_form_is_no_record(name: str):
    assert f"field {name!r}" in fault({**sample(), name: WRONG[name]})


def test_every_field_that_is_checked_can_be_wrong():
    untested = set(OPTIONAL) - set(WRONG)
    assert all(fault({**sample(), name: 3.5}) for name in untested)


@pytest.mark.parametrize("number", [float("inf"), 10**400, True, "big"])
def test_numbers_are_numbers(number: object):
    assert fault(sample(checks={"y": {"rms": [number, 1.0]}}))
    assert not fault(sample(checks={"y": {"rms": ["inf", 1.0]}}))


@pytest.mark.parametrize("changes", [{"profile": None}, {"inferred": None, "profile": None}, {"seconds": {"total": 1}}])
def test_what_has_the_form_of_a_record_can_be_tallied(changes: dict[str, Any]):
    record = sample(**changes)
    assert fault(record) == ""
    Tally().add(record)


@pytest.mark.parametrize("changes", [{"inferred": {}}, {"seconds": {"kernel": 1.0}}, {"work": WORK}])
def test_fields_that_need_each_other(changes: dict[str, Any]):
    assert fault(sample(**changes))


def test_another_schema_is_refused_with_the_file_and_what_to_do(tmp_path: Path):
    path = written(tmp_path / "old.jsonl", [sample(), sample(schema=2)])
    with pytest.raises(
        ReportError, match=r"old\.jsonl, line 2: written in schema 2, .* reads schema 1; make the report"
    ):
        only(path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ReportError, match=r"nowhere\.jsonl: cannot be read"):
        only(tmp_path / "nowhere.jsonl")


def test_an_empty_file_is_said(tmp_path: Path):
    assert of(tmp_path, b"\n").troubles == ["run.jsonl: holds no verdict"]


def test_the_same_content_counts_once(tmp_path: Path):
    first = written(tmp_path / "a.jsonl", [sample(), absent(), absent()])
    second = written(tmp_path / "b.jsonl", [sample(), absent(), absent()])
    assert [source.name for source in read([first, second, first])] == ["a.jsonl"]


def test_half_a_surrogate_pair_becomes_text_that_can_be_written(tmp_path: Path):
    source = of(tmp_path, json.dumps(sample(reason="a \ud800 b \U0001f600")).encode())
    assert source.records[0]["reason"] == "a ? b \U0001f600"


def test_benchmarks_are_verdicts_with_times(tmp_path: Path):
    timed = [(sample(problem="a", roofline_share=0.25), 0.5), (sample(problem="b"), 0.125), (failed(problem="c"), 0.1)]
    source = only(benchmarks(tmp_path / "bench.json", timed, cpu="Xeon 9"))
    assert [record["problem"] for record in source.records] == ["a", "b", "c"]
    shown = [(t["problem"], t["seconds_median"], t.get("roofline_share")) for t in source.timings]
    assert shown == [("a", 0.5, 0.25), ("b", 0.125, None)]
    assert source.hosts == ["Xeon 9"]
    assert "roofline_share" not in source.records[0]


def test_benchmarks_of_others_are_passed_over(tmp_path: Path):
    path = tmp_path / "bench.json"
    benchmarks(path, [({"note": "mine"}, 0.5), (sample(), 0.25)])
    assert len(only(path).records) == 1


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_benchmarks_that_are_cut_off(tmp_path: Path, share: float):
    path = benchmarks(tmp_path / "bench.json", [(sample(), 0.5)])
    content = path.read_bytes()
    source = of(tmp_path, content[: int(share * len(content))], "bench.json")
    assert source.records == []
    assert source.troubles == ["bench.json: broken or cut off, or not written by --benchmark-json; left out"]


def test_a_time_that_is_not_to_be_believed_says_why(tmp_path: Path):
    doubted = {"timing": {"status": "finding", "finding": "below the roofline"}, "flops": 1e9}
    fine = {"timing": {"status": "recorded", "finding": ""}, "flops": 1e9, "roofline_share": 0.5}
    timed = [(sample(problem="a", **doubted), 0.5), (sample(problem="b", **fine), 0.5)]
    source = only(benchmarks(tmp_path / "bench.json", timed))
    assert [timing["finding"] for timing in source.timings] == ["below the roofline", ""]
    assert source.records == [sample(problem="a"), sample(problem="b")]


def row(**changes: str) -> str:
    cells = {"operator": "conv_forward", "problem": "unet.3x64@512", "implementation": "torch-cpu", "device": "cpu"}
    told = (
        dict.fromkeys(COLUMNS, "") | cells | {"verdict": "pass", "median_s": "0.5", "roofline_share": "0.25"} | changes
    )
    return ",".join(told.values()) + "\n"


def test_the_table_of_layers_has_times(tmp_path: Path):
    lines = [",".join(COLUMNS) + "\n", row(), row(verdict="fail", reason='"two\nlines"', median_s="")]
    source = of(tmp_path, "".join(lines).encode(), "unet.csv")
    (timing,) = source.timings
    assert (timing["problem"], timing["seconds_median"], timing["roofline_share"]) == ("unet.3x64@512", 0.5, 0.25)
    assert source.troubles == []


@pytest.mark.parametrize("line", ["conv_forward,unet", row(median_s="soon"), row(median_s="")])
def test_the_table_of_layers_that_is_broken(tmp_path: Path, line: str):
    source = of(tmp_path, (",".join(COLUMNS) + "\n" + row() + line).encode(), "unet.csv")
    assert len(source.timings) == 1
    assert source.troubles == ["unet.csv, row 2: broken or cut off, left out"]
