"""Times of kernels in processes of their own: what a process says is not believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.checks import behaviour, check_behaviour
from conformance.execution.workers import Workers
from conformance.inputs import Expectation
from conformance.timing import rotation
from conformance.timing.clock import CheatError
from tests.conftest import Project
from tests.kit import loaded, rotate, source, trial_of
from tests.test_speed import PLUGINS, SUITE

pytest_plugins = ["pytester"]

WORK, LONG = 0.02, 0.1
"""Seconds that a call of an honest kernel takes; and of one whose process lies, so that it shows on a busy machine."""

HEAD = """
import time

from conformance import Implementation
from tests import cheaters

acme = Implementation("acme")

@acme.implements("conv_forward")
def honest(*inputs, **parameters):
    time.sleep(SECONDS)
    return cheaters.honest(*inputs, **parameters)
"""
LIAR = (
    f"{HEAD}\nSECONDS = {LONG}\n"
    + """
from conformance.worker import measuring

timed = measuring.timed

def lying(*given):
    found = timed(*given)
    walls, events = (lambda t: {lie})(found.walls)
    return measuring.Timed(found.result, tuple(walls), events)

measuring.timed = lying
"""
)
LIES = {
    "a-tenth": "([s / 10 for s in t], None)",
    "moved": "([*(s + t[-1] * 0.4 for s in t[:-1]), t[-1] * 0.2] if len(t) > 1 else t, None)",
    "little": "([globals().update(SECONDS=0.002) or max(1e-4, s - 5e-4) for s in t], None)",
    "longer": "([s * 3 for s in t], None)",
    "negative": "([globals().update(SECONDS=0) or -1e-9 for _ in t], None)",  # too little to show otherwise
    "nan": "([float('nan')] * len(t), None)",
    "events-nan": "(t, float('nan'))",
    "events-longer": "(t, 1e9)",
    "fewer": "(t[1:], None)",
}
"""What a process says of the seconds of calls and of a device's events."""


def test_another_clock_in_the_time_module_changes_nothing(workers: Workers, tmp_path: Path):
    stopped = f"{HEAD}\nSECONDS = {WORK}\ntime.perf_counter = lambda: 0.0\n"
    found = rotate(trial_of(loaded(workers, tmp_path, stopped)))
    assert len(found.rounds) >= rotation.DEFAULT_ROUNDS
    assert (found.visits[0].clock, found.rounds) == ("wall", found.visits[0].wall)
    assert min(found.rounds) >= WORK


@pytest.mark.parametrize("lie", LIES)
def test_what_a_process_says_is_checked(workers: Workers, tmp_path: Path, lie: str):
    case = trial_of(loaded(workers, tmp_path, LIAR.format(lie=LIES[lie])))
    with pytest.raises(CheatError, match=r"by the judge's clock|those just before them|many in a row"):
        rotate(case)


STREAMS = source(
    head="""from conformance.implementations.bridges.numpy import NumpyArrays

class Streams(NumpyArrays):
    def stopwatch(self, call):
        call()
        return 1e-5, 0.01
""",
    construct=", arrays=Streams()",
)


def test_events_of_a_device_reach_the_judge(workers: Workers, tmp_path: Path):
    case = trial_of(loaded(workers, tmp_path, STREAMS))
    native = case.invocation().to_device(Expectation(case.recipe).inputs)
    found = case.invocation().timed(native, native)
    assert (found.walls, found.events) == ((0.01, 0.01), 1e-5)
    verdict = check_behaviour(case, behaviour.work_is_finished)
    assert (verdict.status, verdict.reason[:28]) == ("fail", "the device works 0.01 s, of ")


CACHED = """
    global seen
    seen = globals().get("seen", {})
    key = x.tobytes()
    if key not in seen:
        time.sleep(0.02)
        seen[key] = y
    return seen[key].copy()
"""


@pytest.mark.usefixtures("one_core", "ceilings")
@pytest.mark.parametrize("where", [(), ("--in-process",)], ids=["workers", "in-process"])
def test_in_the_benchmark_suite_a_cheater_fails_and_is_in_no_file(project: Project, where: tuple[str, ...]):
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", SUITE)
    project.kernel("honest")
    project.kernel("cheat", head="import time", body=CACHED.strip())
    outcome = project.pytest("--benchmark-only", "--visits=1", "--benchmark-json=times.json", *where)
    assert (outcome.exit, outcome.statuses) == (1, {"pass": 1, "fail": 1})
    assert outcome.of("cheat")["reason"].startswith("no time: answers from memory")
    rows = json.loads((project.folder / "times.json").read_text())["benchmarks"]
    assert [row["extra_info"]["implementation"] for row in rows] == ["honest"]


@pytest.mark.usefixtures("one_core", "ceilings")
def test_a_kernel_that_crashes_when_it_is_timed_is_an_error(project: Project):
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", SUITE)
    body = "seen.append(1)\n    if len(seen) > 9: os.abort()\n    return y"
    project.kernel("crashes", head="import os\nseen = []", body=body)
    project.kernel("right")
    outcome = project.pytest("--benchmark-only", "--visits=1")
    assert (outcome.exit, outcome.statuses) == (1, {"pass": 1, "error": 1})
    assert "was ended by SIGABRT" in outcome.of("crashes")["reason"]
