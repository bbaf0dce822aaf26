"""What the benchmark lane reports: figures that can be calculated, impossible times, the file and the table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from conformance import Contract, Implementation
from conformance.plugin import timing
from conformance.timing import lane, measure, roofline
from conformance.timing.facts import Facts, doubt
from conformance.timing.memory import Growth
from conformance.timing.roofline import Ceilings
from conformance.timing.rotation import Rounds
from conformance.timing.table import figures
from tests.conftest import Project
from tests.test_speed import PLUGINS, SUITE
from tests.timing_fakes import TINY, case_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("one_core")

OPERATIONS = 2 * 2 * 4 * 6 * 6 * 4 * 9
READ = 4 * (2 * 4 * 36 + 4 * 4 * 9 + 4)
MOVED = READ + 4 * 2 * 4 * 36
CEILINGS = Ceilings(1e9, 1e9, "given", 0.1)


def rounds(*seconds: float, cold: bool = True) -> Rounds:
    return Rounds(seconds, seconds, "wall", 0.001, 0.002, 100, 10 if cold else 1000, Growth(1 << 20, None))


def facts(name: str = "torch-cpu", seconds: float = 1e-3, problem: Any = TINY, finding: str = "") -> Facts:
    case = case_of(Implementation(name), problem)
    found = rounds(*(seconds * factor for factor in (0.5, 0.9, 1, 1.1, 9)))
    return Facts(case, Contract(), found, 0.5, CEILINGS, finding)


def test_figures_follow_from_the_rounds():
    found = facts()
    record = found.record()
    assert record["flops"] == OPERATIONS / 1e-3
    assert record["roofline_share"] == OPERATIONS / 1e9 / 1e-3
    told = record["timing"]
    assert told["iqr_s"] == pytest.approx(0.2e-3)
    assert told["gflop_per_s"] == pytest.approx(OPERATIONS / 1e6)
    assert told["gb_per_s"] == pytest.approx(MOVED / 1e6)
    assert told["flop_per_byte"] == OPERATIONS / MOVED
    assert (told["status"], told["cold"], told["clock"]) == ("recorded", True, "wall")
    assert (told["first_call_s"], told["copy_in_s"], told["copy_out_s"]) == (0.5, 0.001, 0.002)
    assert (told["host_growth_bytes"], told["device_growth_bytes"]) == (1 << 20, None)
    assert told["ceilings"] == {"flop_per_s": 1e9, "byte_per_s": 1e9, "spread": 0.1}
    json.dumps(record, allow_nan=False)


def test_a_finding_has_no_rates():
    record = facts(finding="too fast").record()
    assert (record["timing"]["status"], record["timing"]["finding"]) == ("finding", "too fast")
    assert not {"flops", "roofline_share"} & record.keys()


FLOOR = OPERATIONS / 1e9


@pytest.mark.parametrize(
    ("seconds", "contract", "doubted"),
    [
        (FLOOR * 0.8, Contract(), True),
        (FLOOR * 0.95, Contract(), False),  # within the spread of the ceilings
        (FLOOR * 1.1, Contract(), False),
        (FLOOR * 0.4, Contract(algorithm="winograd-f2"), False),
        (FLOOR * 0.4, Contract(algorithm="fft"), False),
        (FLOOR * 0.4, Contract(inputs="tf32"), False),
    ],
)
def test_a_time_below_the_floor_is_doubted(seconds: float, contract: Contract, doubted: bool):
    case = case_of(Implementation("acme"))
    assert bool(doubt(case, contract, rounds(seconds), CEILINGS)) is doubted
    assert doubt(case, contract, rounds(seconds), None) == ""


def test_cached_inputs_need_no_bandwidth():
    case, narrow = case_of(Implementation("acme")), Ceilings(1e15, 1e6, "given")
    seconds = READ / 1e6 * 0.9
    assert "less than" in doubt(case, Contract(), rounds(seconds), narrow)
    assert doubt(case, Contract(), rounds(seconds, cold=False), narrow) == ""


def test_ceilings_get_another_chance(monkeypatch: pytest.MonkeyPatch):
    case = case_of(Implementation("acme"))
    case.implementation.implements("conv_forward")(lambda x, w, bias: x)
    monkeypatch.setattr(measure, "ceilings", lambda device: Ceilings(1e6, 1e15, "slow"))
    monkeypatch.setattr(timing, "measured", lambda device: Ceilings(1e9, 1e15, "fast"))
    state = timing._Run(0)
    assert state.facts_of(case, rounds(FLOOR * 2), 1.0).finding == ""
    assert state.again == 1
    assert "work is left out" in state.facts_of(case, rounds(FLOOR * 1e-9), 1.0).finding
    for _ in range(9):
        state.facts_of(case, rounds(FLOOR * 1e-9), 1.0)
    assert state.again == timing.MOST


def test_better_ceilings_pass_in_the_end():
    early, late = facts("acme", FLOOR * 0.5, finding="?"), Ceilings(4e9, 1e15, "late")
    state = timing._Run(0, ceilings={"cpu": late}, facts=[early, facts("torch-cpu", FLOOR)])
    found = state.settled()
    assert [f.finding for f in found] == ["", ""]
    assert found[0].share == pytest.approx(FLOOR / 4 / (FLOOR * 0.5))
    assert [f.ratio for f in found] == [pytest.approx(2), None]


@pytest.mark.parametrize("width", [60, 79, 159])
def test_the_table_fits(width: int):
    other = replace(TINY, name="a-problem-with-a-name-that-is-longer-than-anybody-needs.3x3@512")
    found = [facts("an-implementation-of-many-words"), facts(), facts("acme", 2e-3, other, "too fast")]
    text = list(lane.lines(found, width))
    assert max(map(len, text)) <= width
    shown = "\n".join(text)
    assert all(name in shown for name in (*lane.MAIN, *lane.MORE))
    first = next(line for line in text if line.startswith("  torch-cpu"))
    assert first.split()[1:4] == ["1.00", "20%", figures(OPERATIONS / 1e6)]
    one_line = width > 150
    assert ("500" in first) is one_line  # first call, in milliseconds
    assert any(line.strip().startswith("500") for line in text) is not one_line


def test_torch_comes_first_and_findings_are_compared_with_nothing():
    found = [facts("acme", 2e-3), facts("quick", 1e-9, finding="impossible"), facts("torch-cpu")]
    text = list(lane.lines(found, 159))
    assert [line.split()[0] for line in text if line.startswith("  ") and line.split()[0] in NAMES] == NAMES
    assert any(line.endswith("relative to torch: acme 0.50x of 1") for line in text)
    place = text.index("findings: 1")
    assert text[place + 1] == f"  quick conv_forward {TINY.name}: impossible"
    assert lane.compared([facts("acme"), facts(finding="impossible")]) == {}


NAMES = ["torch-cpu", "acme", "quick!"]


def test_facts_are_in_the_file_with_ratios_known_at_the_end(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "ceilings", lambda device: roofline.Ceilings(1e15, 1e15, "given"))
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", SUITE)
    project.kernel("acme")
    project.kernel("torch_cpu", tail="acme.name = 'torch-cpu'")
    assert project.run("--benchmark-only", "--benchmark-json=times.json").exit == 0
    rows = json.loads((project.folder / "times.json").read_text())["benchmarks"]
    info = {row["extra_info"]["implementation"]: (row["extra_info"]["timing"], row["stats"]) for row in rows}
    acme, base = info["acme"], info["torch-cpu"]
    assert base[0]["ratio_to_torch"] is None
    assert acme[0]["ratio_to_torch"] == base[0]["median_s"] / acme[0]["median_s"]
    for told, stats in info.values():
        assert (stats["median"], len(stats["data"])) == (told["median_s"], told["rounds"])
        assert told["status"] == "recorded"
    assert {"checks", "profile", "contract", "command", "seconds"} <= rows[0]["extra_info"].keys()


def test_an_impossible_time_is_shown_and_not_recorded(project: Project, monkeypatch: pytest.MonkeyPatch):
    for module, name in ((measure, "ceilings"), (timing, "measured")):
        monkeypatch.setattr(module, name, lambda device: Ceilings(1.0, 1.0, "given"))
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", SUITE)
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


def test_a_table_has_the_cases_that_are_due(project: Project):
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", TABLE)
    project.kernel()
    project.kernel("far", construct=", device='trn1'")
    counts = []
    for level in ("smoke", "standard", "full"):
        text = project.run("--collect-only", "-q", f"--level={level}").text
        counts.append(text.count("test_table[acme-"))
        assert text.count("test_table[far-unavailable]") == 1
    assert counts == [2, 24, 32]


def test_cases_that_cannot_run_are_counted_as_often_as_they_are_due(project: Project):
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", TABLE)
    project.kernel("far", construct=", device='trn1'")
    outcome = project.run("--benchmark-only")
    assert (outcome.exit, outcome.statuses) == (5, {"unavailable": 9})


def test_what_is_not_the_kernels_time_is_not_taken(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "ceilings", lambda device: CEILINGS)
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", TWO)
    project.kernel("right")
    tail = "acme.arrays = type('Compiling', (type(acme.arrays),), {'untimed': 'compiles each call'})()"
    project.kernel(tail=tail)
    outcome = project.run("--benchmark-only", "--level=smoke")
    assert (outcome.exit, outcome.statuses) == (0, {"pass": 2, "unsupported": 2})
    told = [record for record in outcome.records if record["implementation"] == "acme"]
    assert [record["reason"] for record in told] == ["no time: compiles each call"]


def collected(project: Project, *arguments: str) -> list[str]:
    text = project.run("--collect-only", "-q", "--level=standard", *arguments).text
    return [line.partition("test_table[")[2].rstrip("]") for line in text.splitlines() if "test_table[" in line]


def test_the_order_is_by_chance_and_can_be_repeated(project: Project):
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", TABLE)
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
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", TWO)
    project.kernel()
    places, orders = [], set()
    for seed in (4, 5):
        orders.add(tuple(collected(project, "--level=smoke", f"--order={seed}")))
        text = project.run("--benchmark-only", "--level=smoke", f"--order={seed}").text
        assert f"order: --order {seed}" in text
        places.append([line.split()[0] for line in text.splitlines() if "flop/byte" in line])
    assert len(orders) == 2
    assert all(place == places[0] for place in places)
    assert len(places[0]) == 2
