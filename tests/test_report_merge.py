"""Files of results: what is read, left out and refused; several files are one report, with machines apart, the later
verdict in force, and shards like the whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance.reporting.page.merge import ResultsFile, load, read
from conformance.reporting.page.model import Results
from conformance.reporting.page.tables import Digest
from conformance.reporting.report_command import ReportError
from conformance.reporting.tally import Tally
from tests.report_samples import (
    FOOTER,
    H100,
    HEADER,
    VERSIONS,
    absent,
    as_read,
    benchmarks,
    broken,
    failed,
    sample,
    sealed,
    waived,
    written,
)

Record = dict[str, Any]


CUDA = {"implementation": "torch-cuda", "device": "cuda"}
ON_H100 = CUDA | {"versions": H100}
LOCATED = [failed(reason=""), failed(problem="b", reason="", origin="where")]
"""A failure, and a problem that was run to locate it."""


def merged(tmp_path: Path, *files: list[Record]) -> Results:
    return load([written(tmp_path / f"{place}.jsonl", records) for place, records in enumerate(files)])


def shown(results: Results) -> list[str]:
    """Problem, status, and reason, or where there is none: why the problem was run."""
    records = [verdict.record for verdict in results.verdicts]
    return [f"{record.problem}: {record.status}, {record.reason or record.origin}" for record in records]


MERGED: dict[str, tuple[list[list[Record]], list[str]]] = {
    "later": (
        [[sample(), sample(problem="b")], [sample(seconds={"total": 9.0}, reason="later")]],
        ["b: pass, table", "edge.plain: pass, later"],
    ),
    "later, and wrong": ([[sample()], [failed(reason="later")]], ["edge.plain: fail, later"]),
    "later, of another source": (
        [[sample()], [sample(source="b" * 64, reason="later")]],
        ["edge.plain: pass, later"],
    ),
    "located by another shard": (
        [LOCATED, [sample(problem="c")]],
        ["b: fail, where", "c: pass, table", "edge.plain: fail, table"],
    ),
    "located, and mended since": ([LOCATED, [sample()]], ["edge.plain: pass, table"]),
    "asked for, after a search": (
        [LOCATED, [failed(problem="b", reason="")]],
        ["b: fail, table", "edge.plain: fail, table"],
    ),
    "asked for, before a search": (
        [[failed(problem="b", reason="")], LOCATED],
        ["b: fail, table", "edge.plain: fail, table"],
    ),
}
"""Records of several files -> the verdicts in force."""


@pytest.mark.parametrize(("files", "verdicts"), MERGED.values(), ids=MERGED)
def test_of_two_verdicts_on_a_case_the_later_one_that_was_asked_for_counts(
    tmp_path: Path, files: list[list[Record]], verdicts: list[str]
):
    assert shown(merged(tmp_path, *files)) == verdicts


def test_the_run_that_began_later_has_the_later_verdict_whatever_the_order_of_files(tmp_path: Path):
    now = written(tmp_path / "now.jsonl", [sample()], HEADER | {"started": "2026-11-30T12:00:00+00:00"})
    then = written(tmp_path / "then.jsonl", [failed()], HEADER | {"started": "2026-11-29T12:00:00+00:00"})
    assert [shown(load(files)) for files in ([then, now], [now, then])] == [["edge.plain: pass, table"]] * 2


DIFFERENT = {
    "operator": "conv_backward_data", "problem": "p", "dtype": "bf16", "layout": "nhwc", "distribution": "integer",
    "seed": 3,
    "check": "output_is_written", "generator": "other", "method": "probes", "level": "full", "implementation": "other",
    "device": "cuda", "descriptor": "n1",
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_cases_are_other_verdicts(tmp_path: Path, name: str):
    results = merged(tmp_path, [sample()], [sample(**{name: DIFFERENT[name]})])
    assert len(results.verdicts) == 2


@pytest.mark.parametrize(
    ("known", "other", "rows"),
    [
        (ON_H100, H100 | {"device": "NVIDIA A100"}, ["torch-cuda on NVIDIA A100", "torch-cuda on NVIDIA H100"]),
        (
            {},
            VERSIONS | {"machine": "arm64", "system": "Darwin"},
            ["acme on cpu, arm64 Darwin", "acme on cpu, x86_64 Linux"],
        ),
    ],
)
def test_two_machines_are_two_rows_named_by_device_or_else_by_the_rest(
    tmp_path: Path, known: Record, other: dict[str, str], rows: list[str]
):
    digest = Digest(merged(tmp_path, [sample(**known)], [failed(**known | {"versions": other})]))
    assert [digest.name(row) for row in digest.rows] == rows


OLD, NEW = (VERSIONS | {"processor": name} for name in ("i7", "i9"))
CPU, HOST = {"device": "cpu"}, {"processor": "i9"}
MACHINES: dict[str, tuple[list[list[Record]], list[str]]] = {
    "two processors": (
        [
            [sample(implementation="t", versions=OLD | CPU), absent(implementation="t", versions=OLD)],
            [sample(implementation="t", versions=NEW)],
        ],
        ["1 i9", "2 i7"],
    ),
    "one device, of which a run names the processor": (
        [
            [sample(**CUDA, versions=H100 | HOST), absent(**CUDA, versions=VERSIONS | HOST)],
            [sample(problem="b", **ON_H100)],
        ],
        ["3 NVIDIA H100"],
    ),
    "NumPy and torch on a CPU": ([[sample(), sample(implementation="t", versions=VERSIONS | CPU)]], ["2 "]),
    "cases that were not attempted": ([[sample(**ON_H100), absent(**CUDA)]], ["2 NVIDIA H100"]),
    "a missing device": ([[sample(**ON_H100)], [absent(**CUDA, status="unavailable")]], ["1 ", "1 NVIDIA H100"]),
}
"""Records of several files -> how many verdicts are from each machine."""


@pytest.mark.parametrize(("files", "machines"), MACHINES.values(), ids=MACHINES)
def test_machines_are_kept_apart(tmp_path: Path, files: list[list[Record]], machines: list[str]):
    counted = Counter(verdict.machine for verdict in merged(tmp_path, *files).verdicts)
    assert sorted(f"{count} {machine.name}" for machine, count in counted.items()) == machines


def test_levels_of_runs_are_told(tmp_path: Path):
    results = merged(
        tmp_path, [sample(run_level="full"), sample(problem="b", run_level="smoke")], [sample(problem="c")]
    )
    assert "level smoke, full" in Digest(results).facts


def cases(results: Results) -> Counter[str]:
    found: Counter[str] = Counter()
    for verdict in results.verdicts:
        found[verdict.record.status] += verdict.record.cases
    return found


@pytest.mark.parametrize(("first", "second"), [(18, 5), (5, 18), (18, 18)])
def test_of_two_runs_of_the_same_the_larger_count_stands(tmp_path: Path, first: int, second: int):
    results = merged(tmp_path, [sample(), absent(cases=first)], [sample(reason="again"), absent(cases=second)])
    assert cases(results)["unsupported"] == max(first, second)


def whole() -> list[Record]:
    """A run with two lines alike, as two suites of one operator write them, and every status."""
    cuda = {"implementation": "torch-cuda", "device": "cuda"}
    return [
        *(sample(problem=f"p{place}", terms={"y": 2**place}) for place in range(6)),
        *(sample(**cuda, versions=H100, problem=f"p{place}") for place in range(3)),
        failed(problem="wrong"),
        waived(problem="w"),
        absent(), absent(), absent(**cuda), absent(**cuda, operator="conv_forward", status="unavailable"),
        broken(),
    ]  # fmt: skip


def halves() -> list[tuple[list[Record], list[Record]]]:
    records = whole()
    return [(records[::2], records[1::2]), (records[1::2], records[::2]), (records[7:], records[:7])]


@pytest.mark.parametrize(("first", "second"), halves(), ids=["alternate", "swapped", "halves"])
def test_two_shards_give_the_report_of_the_whole_run_byte_for_byte(tmp_path: Path, first: list, second: list):
    pytest.importorskip("jinja2")
    from conformance.reporting.page.render import texts

    one = Digest(load([written(tmp_path / "whole.jsonl", whole())]))
    two = Digest(merged(tmp_path, first, second))
    assert texts(one, "title") == texts(two, "title")


def test_a_benchmark_and_the_records_of_its_run_are_one_verdict(tmp_path: Path):
    record = sample(implementation="torch-cpu")
    paths = [written(tmp_path / "run.jsonl", [record]), benchmarks(tmp_path / "bench.json", [(record, 0.5)])]
    results = load(paths)
    assert shown(results) == ["edge.plain: pass, table"]
    assert [c.seconds for c in results.clocked] == [0.5]


def test_a_later_time_of_the_same_replaces_the_earlier(tmp_path: Path):
    first = benchmarks(tmp_path / "a.json", [(sample(), 0.5)])
    second = benchmarks(tmp_path / "b.json", [(sample(reason="again"), 0.25)])
    assert [c.seconds for c in load([first, second]).clocked] == [0.25]


GOOD = json.dumps(sample())


def only(path: Path) -> ResultsFile:
    (source,) = read([path])
    return source


def of(tmp_path: Path, content: bytes, name: str = "run.jsonl") -> ResultsFile:
    path = tmp_path / name
    path.write_bytes(content)
    return only(path)


@pytest.mark.parametrize("line", [GOOD[:200].encode(), b'{"kind": "case", "schema": 3, "implementation": "\xff"}'])
def test_a_broken_line_is_named_and_the_rest_is_used(tmp_path: Path, line: bytes):
    source = of(tmp_path, sealed([HEADER, sample(), line, failed(), FOOTER]))
    assert [record.status for record in source.records] == ["pass", "fail"]
    (error,) = source.errors
    assert error.startswith("run.jsonl, line 3: ")
    assert error.endswith("; left out")


@pytest.mark.parametrize("changes", [{"profile": None}, {"seconds": {"total": 1}}, {"seconds": {"kernel": 1}}])
def test_what_is_a_record_can_be_tallied(changes: dict[str, Any]):
    tally = Tally()
    tally.add(as_read(sample(**changes)))
    assert tally.verified == 1


def test_another_schema_is_refused_with_the_file_and_what_to_do(tmp_path: Path):
    path = written(tmp_path / "old.jsonl", [sample(), sample(schema=1)])
    with pytest.raises(
        ReportError, match=r"old\.jsonl, line 3: written in schema 1, .* reads schema 3; use the version"
    ):
        only(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("conformance.reporting.page.merge.MAX_BYTES", 1 << 20)
    hole = tmp_path / "hole.jsonl"
    with hole.open("wb") as file:
        file.truncate((1 << 20) + 1)
    for path, reason in (
        (Path("/dev/zero"), "Not a regular file"),
        (hole, "Larger than 1 MiB"),
        (tmp_path / "nowhere.jsonl", "No such file or directory"),
    ):
        with pytest.raises(ReportError) as refused:
            only(path)
        assert str(refused.value) == f"{path}: cannot be read ({reason}); give files of records"


@pytest.mark.parametrize(("digits", "field"), [(5000, "terms[...]"), (5000, "contract[...]"), (19, "contract[...]")])
def test_a_number_of_thousands_of_digits_is_named_where_it_is_read(tmp_path: Path, digits: int, field: str):
    where = {"terms[...]": '"y": 73', "contract[...]": '"splits": 1'}[field]
    line = GOOD.replace(where, where.partition(":")[0] + ": " + "9" * digits)
    (error,) = of(tmp_path, sealed([HEADER, line.encode(), FOOTER])).errors
    assert error.startswith(f"run.jsonl, line 2: field {field}: ")
    unread = GOOD.replace('"cases": 1', '"cases": 1, "of another version": ' + "9" * digits)
    assert of(tmp_path, sealed([HEADER, unread.encode(), FOOTER])).errors == []


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
