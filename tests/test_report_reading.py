"""Files of results: what is read, what is left out and said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.reporting.page.merge import ResultsFile, read
from conformance.reporting.page.model import ReportError
from conformance.reporting.tally import Tally
from tests.report_samples import absent, as_read, benchmarks, failed, sample, written

GOOD = json.dumps(sample())


def only(path: Path) -> ResultsFile:
    (source,) = read([path])
    return source


def of(tmp_path: Path, content: bytes, name: str = "run.jsonl") -> ResultsFile:
    path = tmp_path / name
    path.write_bytes(content)
    return only(path)


def test_records_are_read(tmp_path: Path):
    records = [sample(), failed(problem="other"), absent()]
    source = only(written(tmp_path / "run.jsonl", records))
    assert source.records == list(map(as_read, records))
    assert source.errors == []


@pytest.mark.parametrize("line", [GOOD[:200].encode(), b'{"kind": "case", "schema": 2, "implementation": "\xff"}'])
def test_a_broken_line_is_named_and_the_rest_is_used(tmp_path: Path, line: bytes):
    source = of(tmp_path, GOOD.encode() + b"\n" + line + b"\n" + json.dumps(failed()).encode() + b"\n")
    assert [record.status for record in source.records] == ["pass", "fail"]
    (error,) = source.errors
    assert error.startswith("run.jsonl, line 2: ")
    assert error.endswith("; left out")


@pytest.mark.parametrize("changes", [{"profile": None}, {"seconds": {"total": 1}}, {"seconds": {"kernel": 1}}])
def test_what_is_a_record_can_be_tallied(changes: dict[str, Any]):
    tally = Tally()
    tally.add(as_read(sample(**changes)))
    assert tally.verified == 1


def test_another_schema_is_refused_with_the_file_and_what_to_do(tmp_path: Path):
    path = written(tmp_path / "old.jsonl", [sample(), sample(schema=1)])
    with pytest.raises(
        ReportError, match=r"old\.jsonl, line 2: written in schema 1, .* reads schema 2; use the version"
    ):
        only(path)


def test_a_file_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("conformance.reporting.page.merge.MAX_BYTES", 1 << 20)
    with pytest.raises(ReportError, match=r"/dev/zero: is larger than 1 MiB; give the records in several files"):
        only(Path("/dev/zero"))


@pytest.mark.parametrize(("digits", "field"), [(5000, "terms[...]"), (5000, "contract[...]"), (19, "contract[...]")])
def test_a_number_of_thousands_of_digits_is_named_where_it_is_read(tmp_path: Path, digits: int, field: str):
    where = {"terms[...]": '"y": 73', "contract[...]": '"splits": 1'}[field]
    line = GOOD.replace(where, where.partition(":")[0] + ": " + "9" * digits)
    (error,) = of(tmp_path, line.encode() + b"\n").errors
    assert error.startswith(f"run.jsonl, line 1: field {field}: ")
    unread = GOOD.replace('"cases": 1', '"cases": 1, "of another version": ' + "9" * digits)
    assert of(tmp_path, unread.encode() + b"\n").errors == []


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ReportError, match=r"nowhere\.jsonl: cannot be read"):
        only(tmp_path / "nowhere.jsonl")


def test_an_empty_file_is_said(tmp_path: Path):
    assert of(tmp_path, b"\n").errors == ["run.jsonl: holds no verdict"]


def test_the_same_content_counts_once(tmp_path: Path):
    first = written(tmp_path / "a.jsonl", [sample(), absent(), absent()])
    second = written(tmp_path / "b.jsonl", [sample(), absent(), absent()])
    assert [source.name for source in read([first, second, first])] == ["a.jsonl"]


def test_benchmarks_are_verdicts_with_times(tmp_path: Path):
    timed = [(sample(problem="a", roofline_share=0.25), 0.5), (sample(problem="b"), 0.125), (failed(problem="c"), 0.1)]
    source = only(benchmarks(tmp_path / "bench.json", timed))
    assert [record.problem for record in source.records] == ["a", "b", "c"]
    shown = [(clocked.problem, clocked.seconds, clocked.share) for clocked in source.times]
    assert shown == [("a", 0.5, 0.25), ("b", 0.125, None)]


def test_benchmarks_on_one_line_are_no_records(tmp_path: Path):
    path = benchmarks(tmp_path / "bench.json", [(sample(), 0.5)])
    spread = only(path)
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert only(path) == spread
    assert spread.times


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
    (error,) = source.errors
    assert error == (
        "bench.json: is cut off: was its run interrupted?; write it with pytest --benchmark-json=FILE; left out"
    )


def test_a_time_that_is_not_to_be_believed_says_why(tmp_path: Path):
    doubted = {"timing": {"status": "finding", "finding": "below the roofline"}, "flops": 1e9}
    fine = {"timing": {"status": "recorded", "finding": ""}, "flops": 1e9, "roofline_share": 0.5}
    timed = [(sample(problem="a", **doubted), 0.5), (sample(problem="b", **fine), 0.5)]
    source = only(benchmarks(tmp_path / "bench.json", timed))
    assert [clocked.finding for clocked in source.times] == ["below the roofline", ""]
    assert source.records == [as_read(sample(problem="a")), as_read(sample(problem="b"))]


@pytest.mark.parametrize(("low", "high"), [(0.6, 0.4), (None, 0.6), (0.0, 1.0)])
def test_an_interval_that_is_none_is_left_out(tmp_path: Path, low: float | None, high: float):
    timed = [(sample(timing={"low_s": low, "high_s": high}), 0.5)]
    (clocked,) = only(benchmarks(tmp_path / "bench.json", timed)).times
    assert clocked.interval is None
