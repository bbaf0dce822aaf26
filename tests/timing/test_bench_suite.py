"""What the benchmark suite reports: figures that can be calculated, impossible times, the file and the table."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from argparse import ArgumentTypeError
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest.mock import Mock

import pytest

from conformance import Contract, Implementation
from conformance.__main__ import main
from conformance.implementations import registry
from conformance.reporting.comparison import runs
from conformance.results.schema import MachineState
from conformance.timing import table
from conformance.timing.clock import CheatError
from conformance.timing.conditions import Conditions
from conformance.timing.measurement import Measurement, Ratio, Visit, compared, ratio
from conformance.timing.roofline import Ceilings
from conformance.timing.rotation import Rotation
from conformance.timing.run import Run, visits
from tests import kernels
from tests.conftest import Outcome, Project
from tests.kit import TINY, trial_of
from tests.test_speed import PLUGINS, SUITE

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("one_core", "ceilings")  # torch cannot be imported twice

OPERATIONS = 2 * 2 * 4 * 6 * 6 * 4 * 9
READ = 4 * (2 * 4 * 36 + 4 * 4 * 9 + 4)
MOVED = READ + 4 * 2 * 4 * 36
CEILINGS = Ceilings(1e9, 1e9, "given", 0.1)
FLOOR = OPERATIONS / 1e9
"""Seconds: the ceilings' time of the operations."""


def measurement(*rounds: float, contract: Contract | None = None, cold: bool = True, **changed: Any) -> Measurement:
    """Make a measurement of a right kernel with these seconds."""
    acme = Implementation(changed.pop("name", "acme"), contract=contract or Contract())
    acme.implements("conv_forward")(kernels.conv_forward)
    case = trial_of(acme, changed.pop("problem", TINY))
    times = (0.5, 0.001, 0.002)
    beside = {"rotated": 100, "cache": 10 if cold else 1000, "host_growth": 1 << 20}
    return replace(Measurement(case, (Visit(rounds, rounds),), *times, CEILINGS, **beside), **changed)  # type: ignore[arg-type]


def timed(name: str = "torch-cpu", seconds: float = 1e-3, **changed: Any) -> Measurement:
    return measurement(*(seconds * factor for factor in (0.5, 0.9, 1, 1.1, 9)), name=name, **changed)


def test_figures_follow_from_the_rounds():
    record = timed().record(Ratio(2.5))
    assert record["flops"] == OPERATIONS / 1e-3
    assert record["roofline_share"] == OPERATIONS / 1e9 / 1e-3
    shown = record["timing"]
    assert (shown["median_s"], shown["minimum_s"], shown["visits"]) == (1e-3, 0.5e-3, (5,))
    assert (shown["low_s"], shown["high_s"]) == (None, None)
    slow_memory = timed(ceilings=Ceilings(1e15, 1e6, "given"))
    assert slow_memory.share == MOVED / 1e6 / 1e-3
    assert shown["gflop_per_s"] == pytest.approx(OPERATIONS / 1e6)
    assert shown["gb_per_s"] == pytest.approx(MOVED / 1e6)
    assert shown["flop_per_byte"] == OPERATIONS / MOVED
    assert (shown["status"], shown["cold"], shown["clock"]) == ("recorded", True, "wall")
    assert (shown["first_call_s"], shown["copy_in_s"], shown["copy_out_s"]) == (0.5, 0.001, 0.002)
    assert (shown["host_growth_bytes"], shown["device_growth_bytes"]) == (1 << 20, None)
    assert shown["ceilings"] == {"flop_per_s": 1e9, "byte_per_s": 1e9, "spread": 0.1}
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(
    ("seconds", "contract", "says"),
    [
        (FLOOR * 0.7, Contract(), "left out"),
        (FLOOR * 0.8, Contract(), "faster than the libraries"),  # the ceilings spread by 10%, and good code has 25%
        (FLOOR * 0.95, Contract(), "faster than the libraries"),
        (FLOOR * 1.1, Contract(), ""),
        (FLOOR * 0.4, Contract(algorithm="winograd-f2"), "fewer operations"),
        (FLOOR * 0.4, Contract(algorithm="fft"), "fewer operations"),
        (FLOOR * 0.4, Contract(inputs="tf32"), "inputs are rounded to tf32"),
    ],
)
def test_no_share_above_all_of_it_without_a_finding(seconds: float, contract: Contract, says: str):
    found = measurement(seconds, contract=contract)
    assert says in (found.finding.text if found.finding else "")
    assert (found.finding is None) is (not says)
    assert found.impossible is (says == "left out")
    assert replace(found, ceilings=None).finding is None


def test_cached_inputs_need_no_bandwidth():
    narrow = Ceilings(1e15, 1e6, "given")
    cold, cached = (measurement(READ / 1e6 * 0.7, cold=cold, ceilings=narrow) for cold in (True, False))
    assert (cold.impossible, cached.impossible) == (True, False)
    assert "may lie in the cache" in str(cached.finding)


def test_a_single_call_below_the_products_time_is_impossible():
    assert measurement(FLOOR * 0.1, FLOOR * 1.1, FLOOR * 1.1).impossible
    narrow = Ceilings(1e15, 1e6, "given")
    assert not measurement(READ / 1e6 * 0.1, READ / 1e6 * 1.1, READ / 1e6 * 1.1, ceilings=narrow).impossible


def test_the_interval_is_that_of_visits():
    """Computed by hand: logarithms 0, 0, 0, 0 and log 2; Student's t with 4 degrees of freedom reaches 2.776."""
    centres = (1.0, 1.0, 1.0, 1.0, 2.0)
    found = replace(measurement(1.0), visits=tuple(Visit((c * 0.5, c, c * 1.5), (c,)) for c in centres))
    mean, reach = math.log(2) / 5, 2.776 * math.log(2) * math.sqrt(0.2) / math.sqrt(5)
    assert found.interval == pytest.approx((math.exp(mean - reach), math.exp(mean + reach)), rel=1e-3)
    assert (found.median, found.minimum) == (1.0, 0.5)


def test_ratios_are_paired_by_visit():
    """A machine that is twice as slow in one round is so for both."""
    base, own = (2.0, 4.0, 2.0), (1.0, 2.0, 1.0)
    found = ratio(base, own)
    assert found == Ratio(pytest.approx(2.0), pytest.approx((2.0, 2.0)))  # type: ignore[arg-type]
    assert ratio((2.0, 2.0), (1.0, 1.1)).interval is None  # it would be a factor of three either way


def shown(*found: Measurement) -> Run:
    """A run that has timed these."""

    class Shown(Run):
        times = found  # type: ignore[assignment]

    return Shown([])


@pytest.mark.parametrize("width", [60, 79, 159])
def test_the_table_fits(width: int):
    other = replace(TINY, name="a-problem-with-a-name-that-is-longer-than-anybody-needs.3x3@512")
    found = [timed("an-implementation-of-many-words"), timed(), timed("acme", FLOOR / 10, problem=other)]
    text = list(table.suite_table(shown(*found), width))
    assert max(map(len, text)) <= width
    assert all(name in "\n".join(text) for name in chain(*table.COLUMNS))
    first = next(line for line in text if line.startswith("  torch-cpu"))
    assert first.split()[1] == "1.00"
    assert ("500" in first.split()) is (width > 150)  # first call, in milliseconds
    assert any("500" in line.split() for line in text)


def test_torch_comes_first_and_findings_are_compared_with_nothing():
    names = ["torch-cpu", "acme", "quick!"]
    found = [timed("acme", 2e-3), timed("quick", 1e-9), timed("torch-cpu")]
    text = list(table.suite_table(shown(*found), 159))
    assert [line.split()[0] for line in text if line.startswith("  ") and line.split()[0] in names] == names
    assert any(line.endswith("relative to torch: acme 0.50x of 1") for line in text)
    assert text[text.index("findings: 1") + 1].startswith(f"  quick conv_forward {TINY.name}: 1e-09 s is less than")
    assert compared([timed("acme"), timed(seconds=1e-9)]) == {}


def test_what_a_table_says_depends_on_the_machine(monkeypatch: pytest.MonkeyPatch):
    twice = tuple(Visit((seconds,), (seconds,)) for seconds in (1e-3, 1.1e-3, 1e-3))
    found = [timed(visits=twice), timed("acme", visits=twice)]
    mean, bounds = "geometric mean relative to torch: acme 1.00x of 1", "1.00 [1.00, 1.00]"
    for state, has_mean, has_ratio in (("stable", True, True), ("noisy", False, True), ("unusable", False, False)):
        monkeypatch.setattr(Conditions, "state", MachineState(state=state, reasons=("too much of it",)))  # type: ignore[arg-type]
        text = "\n".join(table.suite_table(shown(*found), 300))
        assert (mean in text, bounds in text) == (has_mean, has_ratio), state
        assert f"machine: {state}." in text
        assert "too much of it" in text


def test_a_kernel_with_two_speeds_is_named():
    two = tuple(Visit((seconds,), (seconds,)) for seconds in (1e-3, 1e-3, 1.7e-3, 1e-3))
    text = "\n".join(table.suite_table(shown(timed("acme", visits=two), timed()), 159))
    assert "visits that differ by more than 25%: 1 kernels" in text
    assert f"acme conv_forward {TINY.name}: by 70%, 1.00 1.00 1.70 1.00 ms" in text


def benchmarked(project: Project, suite: str) -> None:
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", suite)


def measured(project: Project, *words: str) -> Outcome:
    """Run the suite in this process, with one visit unless the words say otherwise; times are in times.json."""
    usual = ("--benchmark-only", "--in-process", "--visits=1", "--benchmark-json=times.json")
    return project.pytest(*usual, *words)


def rows(project: Project) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((project.folder / "times.json").read_text())["benchmarks"]
    return found


def test_times_are_in_the_file_with_ratios_known_at_the_end(
    project: Project, ceilings: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "OWN_NAMES", {})
    ceilings(Ceilings(1e15, 1e15, "given"))
    benchmarked(project, SUITE)
    project.kernel("acme")
    project.kernel("torch_cpu", tail="acme.name = 'torch-cpu'")
    assert measured(project, "--visits=3").exit == 0
    info = {row["extra_info"]["implementation"]: (row["extra_info"]["timing"], row["stats"]) for row in rows(project)}
    acme, base = info["acme"], info["torch-cpu"]
    assert base[0]["ratio_to_torch"] is None
    assert acme[0]["ratio_to_torch"] == pytest.approx(base[0]["median_s"] / acme[0]["median_s"], rel=9)
    for times, stats in info.values():
        assert (stats["median"], stats["min"]) == (times["median_s"], times["minimum_s"])
        assert len(stats["data"]) == times["rounds"] == sum(times["visits"])
        assert times["low_s"] <= times["median_s"] <= times["high_s"]
        assert (times["status"], times["machine"]) == ("recorded", {"state": "stable", "reasons": []})
    assert {"checks", "profile", "contract", "command", "seconds"} <= rows(project)[0]["extra_info"].keys()


def test_times_that_were_changed_are_not_compared(project: Project, capsys: pytest.CaptureFixture[str]):
    benchmarked(project, SUITE)
    project.kernel("acme")
    project.kernel("wrong", body="return y + 1")
    measured(project)
    file = project.folder / "times.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps(found))  # in another form, but the same
    assert runs.read(file).benchmarks
    found["benchmarks"][0]["stats"]["data"][0] *= 0.5
    file.write_text(json.dumps(found))
    with pytest.raises(runs.RunError, match=r"times.json: is not what its run wrote, by its digest"):
        runs.read(file)
    other = shutil.copy(file, project.folder / "other.json")
    assert main(["compare", str(file), str(other)]) == 4
    assert "is not what its run wrote" in capsys.readouterr().err


def test_an_impossible_time_is_shown_and_not_recorded(project: Project, ceilings: Any):
    ceilings(Ceilings(1.0, 1.0, "given"))
    benchmarked(project, SUITE)
    project.kernel()
    outcome = measured(project)
    assert (outcome.exit, outcome.statuses) == (0, {"pass": 1})
    assert "findings: 1" in outcome.text
    (row,) = rows(project)
    assert (row["extra_info"]["timing"]["status"], row["extra_info"]["timing"]["finding"] != "") == ("finding", True)
    assert not {"flops", "roofline_share"} & row["extra_info"].keys()


TWO = """
from dataclasses import replace
import pytest
from conformance.problems import typed
from conformance.timing.timing_demand import QUICK

TEXTS = ("n1 c2 h4 w4 k2 r3 s3 p1", "n1 c3 h5 w5 k2 r1 s1")
TINY = tuple(replace(typed(text), name=name) for text, name in zip(TEXTS, sorted(QUICK)))

@pytest.mark.benchmarks("conv_forward", problems=TINY)
def test_table(measure_time, case):
    measure_time(case)
"""
"""Two problems that are required at smoke level and quick to time."""

TABLE = """
import pytest
from conformance.problems import of_section

@pytest.mark.benchmarks("conv_forward", problems=of_section("conv", "networks.reduced", "networks"))
def test_table(measure_time, case):
    measure_time(case)
"""


def test_a_problem_that_is_named_is_timed_instead_of_the_table(project: Project):
    benchmarked(project, TABLE)
    project.kernel()
    named = ("--problem=resnet50.conv1", "--problem=n1 c8 h9 w9 k4 r3 s3", "--problem=pool n2 c2 h6 w4 r2 s2")
    text = project.pytest("--collect-only", "-q", *named).text
    assert re.findall(r"test_table\[acme-(\S+)-fp32", text) == ["n1_c3_h64_w64_k64_r7_s7_u2_p3", "n1_c8_h9_w9_k4_r3_s3"]


def test_cases_that_cannot_run_are_counted_as_often_as_they_are_required(project: Project):
    benchmarked(project, TABLE)
    project.kernel("far", construct=", device='trn1'")
    outcome = project.pytest("--benchmark-only")
    assert (outcome.exit, outcome.statuses) == (5, {"unavailable": 9})


def test_what_is_not_the_kernels_time_is_not_taken(project: Project):
    benchmarked(project, TABLE)
    project.kernel("right")
    tail = "acme.arrays = type('Compiling', (type(acme.arrays),), {'untimed': 'compiles each call'})()"
    project.kernel(tail=tail)
    outcome = measured(project, "--level=smoke")
    assert (outcome.exit, outcome.statuses) == (0, {"pass": 2, "unsupported": 2})
    assert outcome.of("acme")["reason"] == "no time: compiles each call"


def test_the_table_has_an_order_of_its_own(project: Project, monkeypatch: pytest.MonkeyPatch):
    benchmarked(project, TABLE)
    project.kernel()
    places = []
    for seed in (4, 5):
        monkeypatch.setattr(random, "SystemRandom", lambda seed=seed: random.Random(seed))
        text = measured(project, "--level=smoke").text
        places.append([line.split()[0] for line in text.splitlines() if "flop/byte" in line])
    assert places[0] == places[1]
    assert len(places[0]) == 2


def test_a_run_on_an_unusable_machine_exits_3(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "OWN_NAMES", {})
    benchmarked(project, SUITE)
    project.kernel()
    project.kernel("torch_cpu", tail="acme.name = 'torch-cpu'")
    monkeypatch.setattr(Conditions, "values", lambda _: {"others": 1.4})
    outcome = measured(project)
    assert (outcome.exit, outcome.statuses) == (3, {"pass": 2})
    assert "machine: unusable. Nothing is compared" in outcome.text
    assert "other processes: they took 1.4 cores (limit 0.8)" in outcome.text
    for row in rows(project):
        times = row["extra_info"]["timing"]
        assert (times["machine"]["state"], times["ratio_to_torch"]) == ("unusable", None)
    project.kernel("wrong", body="return y + 1")
    assert measured(project).exit == 1


def test_a_clock_that_disagrees_proves_nothing_on_an_unusable_machine(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    """Beside four busy processes torch-cpu failed: its process and the judge's waited for one another."""
    benchmarked(project, SUITE)
    project.kernel()
    doubt = CheatError("its process says that calls take 0.009 s; by the judge's clock it was 0.017 s", "says less")
    monkeypatch.setattr(Rotation, "visit", Mock(side_effect=doubt))
    for values, status, code in (({"others": 1.4}, "unavailable", 5), ({"others": 0.4}, "fail", 1)):
        monkeypatch.setattr(Conditions, "values", lambda _, values=values: values)
        outcome = measured(project)
        assert (outcome.exit, {*outcome.statuses}) == (code, {status})
        assert str(doubt) in " ".join(outcome.text.split()) or status == "unavailable"


@pytest.mark.parametrize("text", ["0", "100", "-1", "x", "1.5"])
def test_visits_have_bounds(text: str):
    with pytest.raises(ArgumentTypeError, match="is not a whole number from 1 to 99"):
        visits(text)


def test_after_an_interrupt_what_was_timed_counts(project: Project, monkeypatch: pytest.MonkeyPatch):
    benchmarked(project, TWO)
    body = "calls.append(1)\n    if x.shape[1] == 3 and len(calls) > 1: raise KeyboardInterrupt\n    return y"
    project.kernel(head="calls = []", body=body)
    outcomes = []
    for order in range(4):
        monkeypatch.setattr(random, "SystemRandom", lambda order=order: random.Random(order))
        outcomes.append(measured(project, "--level=smoke", "--visits=3"))
    assert {outcome.exit for outcome in outcomes} == {2}
    assert (("pass", 1),) in [tuple(outcome.statuses.items()) for outcome in outcomes]
    assert any("speed of what was verified" in outcome.text for outcome in outcomes)
