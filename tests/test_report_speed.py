"""Times in the report: intervals, ratios visit by visit, and what a machine that was not stable says no more."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")

from conformance.reporting.page import charts, markdown, speeds
from conformance.reporting.page.merge import load
from conformance.reporting.page.render import page
from conformance.reporting.page.tables import Digest
from conformance.timing.measurement import ratio
from tests.report_samples import sample

TORCH = (1.0, 1.1, 2.0, 2.2, 1.0, 1.2)
OWN = (0.5, 0.7, 1.0, 1.2, 0.4, 0.6)
"""Seconds of three visits of two rounds: both kernels were slow in the second one."""
NOISY = {"state": "noisy", "reasons": ["other processes: they took 0.4 cores (limit 0.15)"]}
UNUSABLE = {"state": "unusable", "reasons": ["the hypervisor: it took 30% of the processors' time (limit 0.2)"]}
STABLE = {"state": "stable", "reasons": []}
MEAN = "geometric mean over how many problems"


def entry(
    name: str, rounds: Sequence[float], problem: str = "p", share: float | None = 0.5, **timing: Any
) -> dict[str, Any]:
    """A benchmark of rounds in visits of two."""
    low, high = min(rounds) * 0.9, max(rounds) * 1.1
    told = {"visits": [2] * (len(rounds) // 2), "minimum_s": min(rounds), "low_s": low, "high_s": high, **timing}
    extra = sample(implementation=name, problem=problem, timing=told)
    extra |= {} if share is None else {"roofline_share": share}
    return {"extra_info": extra, "stats": {"median": statistics.median(rounds), "data": list(rounds)}}


def old(name: str, rounds: Sequence[float]) -> dict[str, Any]:
    """As earlier versions wrote it."""
    return {
        "extra_info": sample(implementation=name, problem="p"),
        "stats": {"median": statistics.median(rounds), "data": list(rounds)},
    }


def written(path: Path, entries: Sequence[dict[str, Any]], when: str) -> Path:
    held = {"machine_info": {"cpu": {"brand_raw": "Xeon"}}, "benchmarks": entries, "datetime": when}
    path.write_text(json.dumps(held, indent=1))
    return path


def both(machine: dict[str, Any] | None, **timing: Any) -> list[dict[str, Any]]:
    return [entry("torch-cpu", TORCH, machine=machine), entry("acme", OWN, machine=machine, **timing)]


def digest(tmp_path: Path, *runs: Sequence[dict[str, Any]]) -> Digest:
    """The times of runs of successive days."""
    days = enumerate(runs, start=1)
    files = [written(tmp_path / f"{day}.json", entries, f"2026-11-0{day}T10:00:00") for day, entries in days]
    return Digest(load(files))


def cells(found: Digest) -> dict[str, str]:
    """The first table's only row, by implementation."""
    table = speeds.speed_tables(found, speeds.speeds(found))[0]
    (row,) = table.rows
    return dict(zip(table.heads[1:], row[1:], strict=True))


def titles(found: Digest) -> list[str]:
    return [table.title for table in speeds.speed_tables(found, speeds.speeds(found))]


def drawn(found: Digest) -> dict[str, tuple[charts.Mark, ...]]:
    """Implementation -> the marks of its row, of one operator."""
    chart = charts.speed(found, speeds.speeds(found))
    return dict(chart.panels[0].rows) if chart else {}


def words(text: str) -> str:
    """What a page says."""
    text = re.sub(r"<(style|script)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_a_cell_has_median_interval_and_minimum(tmp_path: Path):
    shown = cells(digest(tmp_path, both(STABLE)))
    assert shown["torch-cpu"] == "1,150 ms [900, 2,420] · min 1,000 · 50% roof"
    assert shown["acme"].startswith("650 ms [360, 1,320] · min 400 · ")


def test_ratios_pair_visit_by_visit(tmp_path: Path):
    """The machine's slow visit is in both and cancels: the interval is much narrower than that of the times."""
    (acme, torch) = speeds.speeds(digest(tmp_path, both(STABLE)))
    known = ratio((1.05, 2.1, 1.1), (0.6, 1.1, 0.5))
    assert (torch.ratio, acme.ratio) == (None, known)
    assert known.interval is not None
    assert known.interval[1] / known.interval[0] < 2
    assert f" · {known.value:#.3g}x [{known.interval[0]:#.3g}, {known.interval[1]:#.3g}] · " in acme.cell()


UNPAIRED: dict[str, list[list[dict[str, Any]]]] = {
    "two runs": [[entry("torch-cpu", TORCH)], [entry("acme", OWN)]],
    **{
        f"visits {visits}": [[entry("torch-cpu", TORCH, visits=visits), entry("acme", OWN, visits=visits)]]
        for visits in ([], [6], [1, 1], [0, 6])
    },
}


@pytest.mark.parametrize("runs", UNPAIRED.values(), ids=UNPAIRED)
def test_rounds_of_two_runs_or_without_visits_have_nothing_in_common(tmp_path: Path, runs: list[list[dict[str, Any]]]):
    acme, _ = speeds.speeds(digest(tmp_path, *runs))
    assert acme.ratio is not None
    assert acme.ratio.value == pytest.approx(1.15 / 0.65)
    assert acme.ratio.interval is None


def test_files_of_earlier_versions_keep_their_means(tmp_path: Path):
    found = digest(tmp_path, [old("torch-cpu", TORCH), old("acme", OWN)])
    assert cells(found) == {"acme": "650 ms · min 400 · 1.77x", "torch-cpu": "1,150 ms · min 1,000"}
    assert any(MEAN in title for title in titles(found))
    assert "machine: not judged. The files say nothing of it." in words(page(found, "t"))


def test_marks_have_their_interval_where_it_is_known(tmp_path: Path):
    found = digest(tmp_path, both(STABLE))
    (mark,) = drawn(found)["acme"]
    known = ratio((1.05, 2.1, 1.1), (0.6, 1.1, 0.5))
    chart = charts.speed(found, speeds.speeds(found))
    assert chart is not None
    ticks = {text: x for x, text in chart.panels[0].ticks}
    assert ticks["1"] < mark.low < mark.x < mark.high < ticks["4"]
    assert mark.x == pytest.approx(ticks["1"] + math.log2(known.value) * (ticks["4"] - ticks["1"]) / 2, abs=0.1)
    (without,) = drawn(digest(tmp_path, [old("torch-cpu", TORCH), old("acme", OWN)]))["acme"]
    assert without.low == without.x == without.high


def test_a_stable_machine_has_means(tmp_path: Path):
    found = digest(tmp_path, both(STABLE))
    assert titles(found) == ["conv_forward, time of a call", f"Speed relative to torch, {MEAN}"]
    text = page(found, "t")
    assert "machine: stable." in words(text)
    assert 'class="notice machine-' not in text


def test_a_noisy_machine_has_ratios_and_no_mean(tmp_path: Path):
    found = digest(tmp_path, both(NOISY))
    assert titles(found) == ["conv_forward, time of a call"]
    assert "x [" in cells(found)["acme"]
    chart = charts.speed(found, speeds.speeds(found))
    assert chart is not None
    assert chart.text.endswith("Machine: noisy.")
    said = "machine: noisy. Believe intervals, not single figures: there is no geometric mean."
    text = page(found, "t")
    assert f"{said} {NOISY['reasons'][0]}" in words(text)
    assert '<div class="notice machine-noisy">' in text
    assert f"**{said}**\n\n- {NOISY['reasons'][0]}\n" in markdown.summary(found, "t")


def test_an_unusable_machine_has_neither_ratios_nor_means(tmp_path: Path):
    found = digest(tmp_path, both(UNUSABLE))
    assert titles(found) == ["conv_forward, time of a call"]
    assert cells(found)["acme"] == "650 ms [360, 1,320] · min 400 · 50% roof"
    assert drawn(found) == {}
    said = "machine: unusable. Nothing is compared: run again when the machine has less to do."
    assert f"{said} {UNUSABLE['reasons'][0].replace(chr(39), '&#39;')}" in words(page(found, "t"))
    assert f"**{said}**" in markdown.summary(found, "t")


def test_one_noisy_time_leaves_no_mean_of_its_operator(tmp_path: Path):
    """A mean over the others would be one of fewer problems than another implementation's."""
    noisy = [entry(name, rounds, "q", machine=NOISY) for name, rounds in (("torch-cpu", TORCH), ("acme", OWN))]
    noisy += [entry("acme", OWN, "r", machine=UNUSABLE)]
    calm = [*both(STABLE), entry("other", OWN, machine=STABLE)]
    found = digest(tmp_path, calm, noisy)
    means = speeds.geometric_means(speeds.speeds(found))
    assert {(row[0], operator) for row, operator in means} == {("other", "conv_forward")}
    table = speeds.speed_tables(found, speeds.speeds(found))[0]
    assert [cell.rsplit(" · ", 1)[-1] for row in table.rows for cell in row[1:]] == [
        "stable", "stable", "stable", "noisy", "-", "noisy", "unusable", "-", "-",
    ]  # fmt: skip
    said = words(page(found, "t"))
    assert "machine: noisy (cpu, x86_64 Linux, 2 times). Believe intervals" in said
    places = [said.index(text) for text in ("machine: unusable (", "machine: noisy (", "machine: stable (")]
    assert places == sorted(places)
    assert "machine: stable (cpu, x86_64 Linux, 3 times)." in said


@pytest.mark.parametrize(("machine", "compared"), [(NOISY, True), (UNUSABLE, False)])
def test_a_baseline_of_a_machine_that_was_not_stable_leaves_no_mean(
    tmp_path: Path, machine: dict[str, Any], compared: bool
):
    runs = [entry("torch-cpu", TORCH, machine=machine)], [entry("acme", OWN, machine=STABLE)]
    found = speeds.speeds(digest(tmp_path, *runs))
    assert [speed.ratio is not None for speed in found] == [compared, False]
    assert speeds.geometric_means(found) == {}


@pytest.mark.parametrize(
    ("status", "mark", "title"),
    [("recorded", "*", "Findings marked with *"), ("finding", "!", "Times marked with !, compared with nothing")],
)
def test_a_finding_is_marked_and_listed(tmp_path: Path, status: str, mark: str, title: str):
    found = digest(tmp_path, both(STABLE, status=status, finding="131% of the roofline"))
    assert cells(found)["acme"].endswith(f" · {mark}")
    assert not cells(found)["torch-cpu"].endswith(mark)
    tables = {table.title: table for table in speeds.speed_tables(found, speeds.speeds(found))}
    assert tables[title].rows == (("acme", "conv_forward", "p", "131% of the roofline"),)
    assert any(MEAN in name for name in tables) == (status == "recorded")
    assert bool(drawn(found)) == (status == "recorded")


@pytest.mark.parametrize("least", [5e-324, 1e-300, 1e-12])
def test_times_of_any_size_are_drawn(tmp_path: Path, least: float):
    fast, slow = 1.1e-15, 9.9e8
    entries = [entry("torch-cpu", [slow, slow, fast, fast], low_s=least, high_s=9e11)]
    entries += [entry("acme", [fast, fast, slow, slow], low_s=least, high_s=1.0)]
    found = digest(tmp_path, entries)
    (marks,) = drawn(found).values()
    assert all(0 < end < charts.WIDTH for mark in marks for end in (mark.low, mark.x, mark.high))
    assert "Speed relative to torch" in page(found, "t")
