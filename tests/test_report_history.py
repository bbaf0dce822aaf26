"""History in the report: what changed between benchmark files that timed the same, and nothing where none did."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")
pytest.importorskip("vl_convert", reason="no vl-convert-python (extra: report)")

from conformance.__main__ import main
from conformance.reporting.page import charts, markdown, since
from conformance.reporting.page.merge import load
from conformance.reporting.page.model import ReportError
from conformance.reporting.page.render import page
from conformance.reporting.page.tables import Digest
from tests.noisy_runs import MACHINE, OPERATORS, Bench, Factor
from tests.report_samples import sample

SOURCES = {"torch-cpu": "a" * 64, "acme": "b" * 64, "other": "c" * 64}


def document(seed: int, factor: Factor = lambda key: 1.0, **changes: Any) -> dict[str, Any]:
    """A benchmark file with whole records; one seed is one run."""
    found = Bench().drawn(np.random.default_rng(seed), factor)
    for entry in found["benchmarks"]:
        names = {name: entry["extra_info"][name] for name in ("device", "implementation", "operator", "problem")}
        visits = entry["extra_info"]["timing"]
        entry["extra_info"] = sample(**names, source=SOURCES[names["implementation"]], timing=visits)
        entry["stats"]["median"] = statistics.median(entry["stats"]["data"])
    return found | {"datetime": f"2026-11-{seed:02}T18:16:40", "commit_info": {"id": f"{seed:040x}"}} | changes


def written(path: Path, held: dict[str, Any]) -> Path:
    path.write_text(json.dumps(held, indent=1))
    return path


def slow(key: Any) -> float:
    return 1.2 if key.implementation == "acme" else 1.0


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """The same code twice, then `acme` a fifth slower."""
    files = {"a.json": document(1), "b.json": document(2), "c.json": document(3, slow)}
    return [written(tmp_path / name, held) for name, held in files.items()]


def steps(files: list[Path]) -> list[since.Step]:
    return list(since.steps(load(files).runs))


def test_each_run_stands_beside_the_one_before(three: list[Path]):
    first, second = since.changes(steps(three))
    assert first.title == "From 2026-11-01 18:16:40, 0000000000 to 2026-11-02 18:16:40, 0000000000"
    assert {row[2] for row in first.rows[: -since.SINGLE]} == {"unchanged within 5%"}
    outcomes = {(row[0], row[1]): row[2] for row in second.rows}
    for operator in OPERATORS:
        assert outcomes["acme", f"{operator} (10 problems)"] == "slower"
        assert outcomes["other", f"{operator} (10 problems)"] == "unchanged within 5%"
    assert {name for (name, _), outcome in outcomes.items() if outcome == "slower"} == {"acme"}


def test_the_trend_is_relative_to_torch_in_the_same_run(three: list[Path]):
    plot = since.trend(steps(three))
    assert plot is not None
    assert plot.panels == tuple(sorted(OPERATORS, reverse=True))
    found = {(p["implementation"], p["panel"], p["x"]): p["y"] for p in plot.points}
    assert len(found) == 2 * len(OPERATORS) * 3
    for operator in OPERATORS:
        assert found["acme", operator, 3] / found["acme", operator, 1] == pytest.approx(1 / 1.2, rel=0.03)
        assert found["other", operator, 3] / found["other", operator, 1] == pytest.approx(1, rel=0.03)
    svg = charts.svg(plot, 20, ["acme", "other"])
    assert all(point["says"] in svg for point in plot.points)


def test_the_single_benchmarks_that_lie_furthest_apart_come_last(tmp_path: Path):
    def odd(key: Any) -> float:
        return {"p1": 3.0, "p2": 0.3}.get(key.problem, 1.0) if key[1:3] == ("acme", "conv_forward") else 1.0

    files = [written(tmp_path / "a.json", document(1)), written(tmp_path / "b.json", document(2, odd))]
    (table,) = since.changes(steps(files))
    last = table.rows[-since.SINGLE :]
    assert [row[:3] for row in last[:2]] == [
        ("acme", "conv_forward p2", "faster"),
        ("acme", "conv_forward p1", "slower"),
    ]
    assert not any(" problems)" in row[1] for row in last)


def test_the_trend_is_of_what_all_runs_timed(tmp_path: Path):
    def odd(key: Any) -> float:
        return 8.0 if (key.implementation, key.problem) == ("acme", "p0") else 1.0

    less = document(1)
    less["benchmarks"] = [entry for entry in less["benchmarks"] if entry["extra_info"]["problem"] != "p0"]
    files = [written(tmp_path / "a.json", less), written(tmp_path / "b.json", document(2, odd))]
    plot = since.trend(steps(files))
    assert plot is not None
    assert all(point["y"] == pytest.approx(1, rel=0.05) for point in plot.points)


def on(state: str, held: dict[str, Any]) -> dict[str, Any]:
    """The same run, as one of a machine in this state."""
    for entry in held["benchmarks"]:
        entry["extra_info"] |= {"timing": {"machine": {"state": state, "reasons": []}}}
    return held


@pytest.mark.parametrize("state", ["noisy", "unusable"])
def test_a_run_on_a_machine_that_was_not_stable_has_no_mean(state: str, tmp_path: Path):
    held = {"a.json": on("stable", document(1)), "b.json": on(state, document(2)), "c.json": document(3)}
    files = [written(tmp_path / name, one) for name, one in held.items()]
    plot = since.trend(steps(files))
    assert plot is not None
    assert {point["x"] for point in plot.points} == {1, 3}
    assert {row[3] for row in plot.table.rows} == {"-"}
    assert "discrete scale with 3 values: 1, 2, 3" in charts.svg(plot, 20, ["acme", "other"])
    said = (
        "No geometric mean relative to torch of runs on a machine that was not stable: 2026-11-02 18:16:40, 0000000000"
    )
    assert f"{said} ({state})." in page(Digest(load(files)), "t")
    assert since.left_out(steps([files[0], files[2]])) == ""


def test_the_trend_pairs_visits(tmp_path: Path):
    """Both kernels are slow in one visit out of three: the medians of all rounds do not show by how much."""
    held = []
    for seed in (1, 2):
        run = document(seed)
        for entry in run["benchmarks"]:
            first = {"torch-cpu": 1.0, "acme": 0.5}.get(entry["extra_info"]["implementation"], 1.0)
            last = {"torch-cpu": 9.0, "acme": 1.0}.get(entry["extra_info"]["implementation"], 1.0)
            entry["stats"]["data"] = [first, first, first, last, last]
            entry["extra_info"]["timing"] = {"visits": [3, 2]}
        held.append(written(tmp_path / f"{seed}.json", run))
    plot = since.trend(steps(held))
    assert plot is not None
    found = [point["y"] for point in plot.points if point["implementation"] == "acme"]
    assert found == [pytest.approx((2 * 9) ** 0.5)] * 4


def test_the_page_and_the_summary_tell_it(three: list[Path]):
    digest = Digest(load(three))
    text = page(digest, "t")
    assert '<section id="history"' in text
    assert "Speed run by run" in text
    assert "## From 2026-11-02 18:16:40, 0000000000 to 2026-11-03" in markdown.summary(digest, "t")
    assert '<section id="history"' not in page(Digest(load(three[:1])), "t")


def test_the_order_of_files_is_that_of_runs(three: list[Path]):
    assert [(step.before.name, step.after.name) for step in steps(three[::-1])] == [
        ("c.json", "b.json"),
        ("b.json", "a.json"),
    ]


def test_parts_of_a_run_are_no_history(tmp_path: Path):
    whole = document(1)
    halves = [whole | {"benchmarks": whole["benchmarks"][start::2]} for start in (0, 1)]
    files = [written(tmp_path / f"{place}.json", half) for place, half in enumerate(halves)]
    assert load(files).runs == ()
    assert page(Digest(load(files)), "t") == page(Digest(load([written(tmp_path / "whole.json", whole)])), "t")


def test_runs_of_different_machines_are_not_compared(tmp_path: Path):
    other = MACHINE | {"cpu": {"brand_raw": "Other CPU", "count": 2}}
    files = {"a.json": document(1), "b.json": document(2, machine_info=other), "c.json": document(3)}
    found = steps([written(tmp_path / name, held) for name, held in files.items()])
    assert [(step.before.name, step.after.name) for step in found] == [("a.json", "c.json")]


def test_without_rounds_there_is_a_time_and_no_history(tmp_path: Path):
    files = []
    for seed in (1, 2):
        held = document(seed)
        for entry in held["benchmarks"]:
            del entry["stats"]["data"]
        files.append(written(tmp_path / f"{seed}.json", held))
    results = load(files)
    assert (results.runs, results.errors) == ((), ())
    assert len(results.clocked) == len(Bench().keys())


@pytest.mark.parametrize("when", ["<i>", ""])
def test_labels_from_outside_are_no_markup(tmp_path: Path, when: str):
    hostile, commit = "<img src=x onerror=alert(1)>", {"id": when and "<b>|x"}
    files = [written(tmp_path / f"{hostile}{n}.json", document(n, datetime=when, commit_info=commit)) for n in (1, 2)]
    text = page(Digest(load(files)), "t")
    assert "<img" not in text
    assert "<b>|x" not in text
    assert ("&lt;i&gt;, &lt;b&gt;|x" if when else "&lt;img src=x") in text


def test_what_is_only_looked_back_at_is_nothing_else(three: list[Path]):
    """A problem that only an earlier run has is no time of today; a saved copy of the run itself is no other run."""
    old = json.loads(three[0].read_text())
    gone = next(entry for entry in old["benchmarks"] if entry["extra_info"]["problem"] == "p3")
    gone["extra_info"]["problem"] = "gone"
    saved = three[0].parent / "saved" / "machine"
    saved.mkdir(parents=True)
    written(saved / "0001.json", old)
    written(saved / "0002.json", json.loads(three[1].read_text()) | {"more": 1})
    (saved / "0003.json").write_text("of another project")
    results = load(three[1:2], [saved.parent])
    assert [run.name for run in results.runs] == ["0001.json", "b.json"]
    assert "gone" not in {clocked.problem for clocked in results.clocked}
    assert len(results.verdicts) == len(Bench().keys())
    with pytest.raises(ReportError, match=r"0003\.json"):
        load(three[1:2], [saved / "0003.json"])


def test_the_command_takes_a_history(three: list[Path], capsys: pytest.CaptureFixture[str]):
    folder = three[0].parent
    assert main(["report", str(three[2]), "--history", str(three[0]), str(three[1]), "-o", str(folder / "out")]) == 0
    assert '<section id="history"' in (folder / "out" / "index.html").read_text()
    assert main(["report", str(three[2]), "--history", str(folder / "none"), "-o", str(folder / "out")]) == 4
    assert "none: cannot be read" in capsys.readouterr().err
