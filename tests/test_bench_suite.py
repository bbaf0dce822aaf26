"""What the benchmark suite reports: figures that can be calculated, impossible times, the file and the table."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import Contract, Implementation
from conformance.plugin import timing
from conformance.plugin.timing import Timing
from conformance.timing import roofline, table
from conformance.timing.measurement import Measurement
from conformance.timing.roofline import Ceilings
from tests import kernels
from tests.conftest import Project
from tests.test_speed import PLUGINS, SUITE
from tests.timing_fakes import TINY, case_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("one_core", "ceilings")  # torch cannot be imported twice

OPERATIONS = 2 * 2 * 4 * 6 * 6 * 4 * 9
READ = 4 * (2 * 4 * 36 + 4 * 4 * 9 + 4)
MOVED = READ + 4 * 2 * 4 * 36
CEILINGS = Ceilings(1e9, 1e9, "given", 0.1)
FLOOR = OPERATIONS / 1e9
"""Seconds: the ceilings' time of the operations."""


def measurement(*rounds: float, contract: Contract | None = None, cold: bool = True, **changed: Any) -> Measurement:
    """Of a right kernel with these seconds."""
    acme = Implementation(changed.pop("name", "acme"), contract=contract or Contract())
    acme.implements("conv_forward")(kernels.conv_forward)
    case = case_of(acme, changed.pop("problem", TINY))
    found = Measurement(case, rounds, 0.5, 0.001, 0.002, CEILINGS, rounds, "wall", 100, 10 if cold else 1000, 1 << 20)
    return replace(found, **changed)


def timed(name: str = "torch-cpu", seconds: float = 1e-3, **changed: Any) -> Measurement:
    return measurement(*(seconds * factor for factor in (0.5, 0.9, 1, 1.1, 9)), name=name, **changed)


def test_figures_follow_from_the_rounds():
    record = timed().record(2.5)
    assert record["flops"] == OPERATIONS / 1e-3
    assert record["roofline_share"] == OPERATIONS / 1e9 / 1e-3
    shown = record["timing"]
    assert shown["iqr_s"] == pytest.approx(0.2e-3)
    assert shown["gflop_per_s"] == pytest.approx(OPERATIONS / 1e6)
    assert shown["gb_per_s"] == pytest.approx(MOVED / 1e6)
    assert shown["flop_per_byte"] == OPERATIONS / MOVED
    assert (shown["status"], shown["cold"], shown["clock"]) == ("recorded", True, "wall")
    assert (shown["first_call_s"], shown["copy_in_s"], shown["copy_out_s"]) == (0.5, 0.001, 0.002)
    assert (shown["host_growth_bytes"], shown["device_growth_bytes"]) == (1 << 20, None)
    assert shown["ceilings"] == {"flop_per_s": 1e9, "byte_per_s": 1e9, "spread": 0.1}
    json.dumps(record, allow_nan=False)


def test_a_finding_has_no_rates():
    record = timed(seconds=FLOOR / 10).record(None)
    assert record["timing"]["status"] == "finding"
    assert "work is left out" in record["timing"]["finding"]
    assert not {"flops", "roofline_share"} & record.keys()


@pytest.mark.parametrize(
    ("seconds", "contract", "is_finding"),
    [
        (FLOOR * 0.8, Contract(), True),
        (FLOOR * 0.95, Contract(), False),  # within the spread of the ceilings
        (FLOOR * 1.1, Contract(), False),
        (FLOOR * 0.4, Contract(algorithm="winograd-f2"), False),
        (FLOOR * 0.4, Contract(algorithm="fft"), False),
        (FLOOR * 0.4, Contract(inputs="tf32"), False),
    ],
)
def test_a_time_below_the_floor_is_a_finding(seconds: float, contract: Contract, is_finding: bool):
    found = measurement(seconds, contract=contract)
    assert (found.finding is not None) is is_finding
    assert replace(found, ceilings=None).finding is None


def test_cached_inputs_need_no_bandwidth():
    narrow = Ceilings(1e15, 1e6, "given")
    cold, cached = (measurement(READ / 1e6 * 0.9, cold=cold, ceilings=narrow) for cold in (True, False))
    assert "less than" in str(cold.finding)
    assert cached.finding is None


@pytest.fixture
def run() -> Timing:
    config: Any = SimpleNamespace(getoption=lambda _: 0)
    return Timing(config)


def add(run: Timing, found: Measurement) -> Measurement:
    benchmark = SimpleNamespace(extra_info={}, pedantic=lambda *_, **__: None)
    run.add("test", found, benchmark, {})  # type: ignore[arg-type]
    return run.timed[-1][1]


def test_ceilings_get_another_chance(run: Timing, monkeypatch: pytest.MonkeyPatch):
    shown = chain([Ceilings(1e6, 1e15, "slow")], repeat(Ceilings(1e9, 1e15, "fast")))
    monkeypatch.setattr(roofline, "measure_ceilings", lambda *_: next(shown))
    assert (add(run, measurement(FLOOR * 2, FLOOR * 2)).finding, run.again) == (None, 1)
    impossible = measurement(FLOOR * 1e-9, FLOOR * 1e-9)
    assert "work is left out" in str(add(run, impossible).finding)
    assert run.again == 1 + timing.MAX_AGAIN
    for _ in range(9):
        add(run, impossible)
    assert run.again == timing.MAX_AGAIN_IN_ALL


def test_better_ceilings_pass_in_the_end(run: Timing, ceilings: Any):
    ceilings(CEILINGS)
    run.again = timing.MAX_AGAIN_IN_ALL
    assert add(run, timed("acme", FLOOR * 0.5)).finding is not None
    assert add(run, timed("torch-cpu", FLOOR)).finding is None
    run.ceilings["cpu"] = Ceilings(4e9, 1e15, "late")
    session: Any = SimpleNamespace(exitstatus=0)
    list(run.pytest_sessionfinish(session, 0))
    assert [found.finding for _, found, _ in run.timed] == [None, None]
    acme, base = (extra["timing"] for _, _, extra in run.timed)
    assert acme["roofline_share"] == pytest.approx(FLOOR / 4 / (FLOOR * 0.5))
    assert (acme["ratio_to_torch"], base["ratio_to_torch"]) == (pytest.approx(2), None)


@pytest.mark.parametrize("width", [60, 79, 159])
def test_the_table_fits(width: int):
    other = replace(TINY, name="a-problem-with-a-name-that-is-longer-than-anybody-needs.3x3@512")
    found = [timed("an-implementation-of-many-words"), timed(), timed("acme", FLOOR / 10, problem=other)]
    text = list(table.suite_table(found, width))
    assert max(map(len, text)) <= width
    shown = "\n".join(text)
    assert all(name in shown for name in chain(*table.SUITE_COLUMNS))
    first = next(line for line in text if line.startswith("  torch-cpu"))
    assert first.split()[1:4] == ["1.00", "20%", table.figures(OPERATIONS / 1e6)]
    one_line = width > 150
    assert ("500" in first) is one_line  # first call, in milliseconds
    assert any(line.strip().startswith("500") for line in text) is not one_line


def test_torch_comes_first_and_findings_are_compared_with_nothing():
    names = ["torch-cpu", "acme", "quick!"]
    found = [timed("acme", 2e-3), timed("quick", 1e-9), timed("torch-cpu")]
    text = list(table.suite_table(found, 159))
    assert [line.split()[0] for line in text if line.startswith("  ") and line.split()[0] in names] == names
    assert any(line.endswith("relative to torch: acme 0.50x of 1") for line in text)
    assert text[text.index("findings: 1") + 1].startswith(f"  quick conv_forward {TINY.name}: 1e-09 s is less than")
    assert table.compared([timed("acme"), timed(seconds=1e-9)]) == {}


def benchmarked(project: Project, suite: str) -> Project:
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", suite)
    return project


def test_times_are_in_the_file_with_ratios_known_at_the_end(project: Project, ceilings: Any):
    ceilings(Ceilings(1e15, 1e15, "given"))
    benchmarked(project, SUITE)
    project.kernel("acme")
    project.kernel("torch_cpu", tail="acme.name = 'torch-cpu'")
    assert project.run("--benchmark-only", "--benchmark-json=times.json").exit == 0
    rows = json.loads((project.folder / "times.json").read_text())["benchmarks"]
    info = {row["extra_info"]["implementation"]: (row["extra_info"]["timing"], row["stats"]) for row in rows}
    acme, base = info["acme"], info["torch-cpu"]
    assert base[0]["ratio_to_torch"] is None
    assert acme[0]["ratio_to_torch"] == base[0]["median_s"] / acme[0]["median_s"]
    for shown, stats in info.values():
        assert (stats["median"], len(stats["data"])) == (shown["median_s"], shown["rounds"])
        assert shown["status"] == "recorded"
    assert {"checks", "profile", "contract", "command", "seconds"} <= rows[0]["extra_info"].keys()


def test_an_impossible_time_is_shown_and_not_recorded(project: Project, ceilings: Any):
    ceilings(Ceilings(1.0, 1.0, "given"))
    benchmarked(project, SUITE)
    project.kernel()
    outcome = project.run("--benchmark-only", "--benchmark-json=times.json")
    assert (outcome.exit, outcome.statuses) == (0, {"pass": 1})
    assert "findings: 1" in outcome.text
    (row,) = json.loads((project.folder / "times.json").read_text())["benchmarks"]
    assert row["extra_info"]["timing"]["status"] == "finding"
    assert not {"flops", "roofline_share"} & row["extra_info"].keys()


TWO = """
from dataclasses import replace
import pytest
from conformance.problems import typed
from conformance.timing.due import QUICK

TEXTS = ("n1 c2 h4 w4 k2 r3 s3 p1", "n1 c3 h5 w5 k2 r1 s1")
TINY = tuple(replace(typed(text), name=name) for text, name in zip(TEXTS, sorted(QUICK)))

@pytest.mark.benchmarks("conv_forward", problems=TINY)
def test_table(timed, case):
    timed(case)
"""
"""Two problems that are due at smoke level and quick to time."""

TABLE = """
import pytest
from conformance.problems import typed
from conformance.problems.networks import CLASSIFIERS, CLASSIFIERS_FULL

@pytest.mark.benchmarks("conv_forward", problems=(*CLASSIFIERS, *CLASSIFIERS_FULL))
def test_table(measure_time, case):
    measure_time(case)
"""


def test_a_table_has_the_required_cases(project: Project):
    benchmarked(project, TABLE)
    project.kernel()
    project.kernel("far", construct=", device='trn1'")
    counts = []
    for level in ("smoke", "standard", "full"):
        text = project.run("--collect-only", "-q", f"--level={level}").text
        counts.append(text.count("test_table[acme-"))
        assert text.count("test_table[far-unavailable]") == 1
    assert counts == [2, 24, 32]


def test_cases_that_cannot_run_are_counted_as_often_as_they_are_required(project: Project):
    benchmarked(project, TABLE)
    project.kernel("far", construct=", device='trn1'")
    outcome = project.run("--benchmark-only")
    assert (outcome.exit, outcome.statuses) == (5, {"unavailable": 9})


def test_what_is_not_the_kernels_time_is_not_taken(project: Project):
    benchmarked(project, TABLE)
    project.kernel("right")
    tail = "acme.arrays = type('Compiling', (type(acme.arrays),), {'untimed': 'compiles each call'})()"
    project.kernel(tail=tail)
    outcome = project.run("--benchmark-only", "--level=smoke")
    assert (outcome.exit, outcome.statuses) == (0, {"pass": 2, "unsupported": 2})
    rows = [record for record in outcome.records if record["implementation"] == "acme"]
    assert [record["reason"] for record in rows] == ["no time: compiles each call"]


def collected(project: Project, *arguments: str, level: str = "standard") -> list[str]:
    text = project.run("--collect-only", "-q", f"--level={level}", *arguments).text
    return [line.partition("test_table[")[2].rstrip("]") for line in text.splitlines() if "test_table[" in line]


def test_the_order_is_by_chance_and_can_be_repeated(project: Project):
    benchmarked(project, TABLE)
    for name in ("acme", "right", "third"):
        project.kernel(name)
    first, again, other = (collected(project, f"--order={seed}") for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)
    problems, others = ([name.partition("-")[2] for name in found] for found in (first, other))
    assert problems != others
    assert all(len(set(problems[start : start + 3])) == 1 for start in range(0, len(problems), 3))
    assert len({tuple(name.partition("-")[0] for name in first[start : start + 3]) for start in range(0, 72, 3)}) > 1
    assert len({tuple(collected(project)) for _ in range(3)}) > 1


def test_shards_of_benchmarks_are_parts_of_one_run(project: Project):
    pytest.importorskip("pytest_split", reason="no pytest-split (extra: shard)")
    project.pytester.makeconftest(f"pytest_plugins = {(*PLUGINS, 'pytest_split.plugin')}")
    project.write("suite/test_suite.py", TABLE)
    project.kernel()
    shards = [name for group in (1, 2) for name in collected(project, "--splits=2", f"--group={group}")]
    assert len(shards) == 24
    assert sorted(shards) == sorted(collected(project))


def test_the_table_has_an_order_of_its_own(project: Project):
    benchmarked(project, TABLE)
    project.kernel()
    places, orders = [], set()
    for seed in (4, 5):
        orders.add(tuple(collected(project, f"--order={seed}", level="smoke")))
        text = project.run("--benchmark-only", "--level=smoke", f"--order={seed}").text
        assert f"order: --order {seed}" in text
        places.append([line.split()[0] for line in text.splitlines() if "flop/byte" in line])
    assert len(orders) == 2
    assert all(place == places[0] for place in places)
    assert len(places[0]) == 2
