"""The checks of behaviour on trial: every cheat must be caught by the check that is there for it."""

from __future__ import annotations

import ctypes
import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from conformance import torch_arrays
from conformance.checks import behaviour, check_behaviour
from conformance.checks.behaviour import BEHAVIOUR_CHECKS
from conformance.checks.sample import Check
from conformance.checks.state import calls_in_a_row_are_right, other_parameters_are_told_apart
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.numpy import NumpyArrays
from conformance.problems import Variant
from tests import cheaters
from tests.cheaters import Kernel
from tests.conftest import TINY, Project
from tests.kit import command, trial_of

pytest_plugins = ["pytester"]


@dataclass(frozen=True)
class Cheat:
    """A kernel, what catches it, and whether a single call cannot tell it from an honest one."""

    make: Callable[[], Kernel]
    check: Check
    sly: bool = True


CHEATS = {
    "unwritten": Cheat(cheaters.unwritten, behaviour.output_is_written, sly=False),
    "uncleared": Cheat(cheaters.uncleared, behaviour.output_is_written, sly=False),
    "unwritten-tail": Cheat(cheaters.unwritten_tail, behaviour.output_is_written, sly=False),
    "written-once": Cheat(cheaters.written_once, behaviour.output_is_written),
    "spoils-input": Cheat(cheaters.spoils_input, calls_in_a_row_are_right, sly=False),
    "result-in-input": Cheat(cheaters.result_in_input, calls_in_a_row_are_right, sly=False),
    **{
        f"remembers-by-{name}": Cheat(partial(cheaters.remembers, key), calls_in_a_row_are_right)
        for name, key in cheaters.KEYS.items()
    },
    "remembers-and-shares": Cheat(cheaters.remembers_and_shares, calls_in_a_row_are_right),
    "static-buffer": Cheat(partial(cheaters.static_buffer, 1), calls_in_a_row_are_right),
    "two-static-buffers": Cheat(partial(cheaters.static_buffer, 2), calls_in_a_row_are_right),
    "depends-on-the-call-before": Cheat(
        cheaters.depends_on_the_call_before, behaviour.calls_do_not_depend_on_the_one_before
    ),
    "other-bits-after-another-shape": Cheat(
        cheaters.other_bits_after_another_shape, behaviour.calls_do_not_depend_on_the_one_before
    ),
    "wrong-now-and-then": Cheat(cheaters.wrong_now_and_then, calls_in_a_row_are_right),
    "rounds-upwards": Cheat(cheaters.rounds_upwards, behaviour.floating_point_mode_is_unchanged, sly=False),
    "leaves-work-to-a-thread": Cheat(cheaters.leaves_work_to_a_thread, behaviour.work_is_finished, sly=False),
    "tidies-up-too-late": Cheat(cheaters.tidies_up_too_late, behaviour.work_is_finished, sly=False),
    **{
        f"lazy-{kind}": Cheat(partial(cheaters.lazy, kind), behaviour.results_are_plain, sly=kind == "tuple")
        for kind in cheaters.LAZY
    },
}
"""Cheat -> the check that is there for it. What a thread does to a single call depends on who is faster."""

EVERY_CHECK = pytest.mark.parametrize("check", BEHAVIOUR_CHECKS, ids=[check.__name__ for check in BEHAVIOUR_CHECKS])
TORCH_CHEATS = {
    "unwritten": behaviour.output_is_written,
    "spoils_input": calls_in_a_row_are_right,
    "remembers_by_address": calls_in_a_row_are_right,
    "static_buffer": calls_in_a_row_are_right,
    "result_shares_input": calls_in_a_row_are_right,
    "leaves_work_to_a_thread": behaviour.work_is_finished,
    "lazy_subclass": behaviour.results_are_plain,
}


@pytest.fixture(autouse=True)
def _default_rounding():
    yield
    ctypes.CDLL(None).fesetround(0)


def behaviour_of(kernel: Kernel, arrays: ArrayBridge | None = None) -> Trial:
    return trial_of(kernel, distribution="behaviour", arrays=arrays)


def status_of(check: Check, kernel: Kernel, arrays: ArrayBridge | None = None) -> str:
    return check_behaviour(behaviour_of(kernel, arrays), check).status


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_cheat_is_caught(cheat: Cheat):
    verdict = check_behaviour(behaviour_of(cheat.make()), cheat.check)
    assert verdict.status == "fail"
    assert verdict.reason


@pytest.mark.parametrize("cheat", [c for c in CHEATS.values() if c.sly], ids=[n for n, c in CHEATS.items() if c.sly])
def test_a_single_call_does_not_catch_it(cheat: Cheat):
    case = behaviour_of(cheat.make())
    assert verify(replace(case, variant=Variant("fp32", "nchw", "integer"))).status == "pass"


@pytest.mark.parametrize(("name", "check"), TORCH_CHEATS.items(), ids=TORCH_CHEATS)
def test_torch_cheat_is_caught(name: str, check: Check):
    torch = pytest.importorskip("tests.cheaters_torch", exc_type=ImportError)
    assert status_of(check, getattr(torch, name)(), torch.ARRAYS) == "fail"


@EVERY_CHECK
def test_honest_kernel_keeps_every_promise(check: Check):
    assert status_of(check, cheaters.honest) == "pass"
    assert status_of(check, cheaters.sums_in_any_order()) == "pass"


@pytest.mark.parametrize("seed", range(8))
def test_bits_that_change_by_chance_do_not_depend_on_the_call_before(seed: int):
    kernel = cheaters.sums_in_either_order(seed)
    assert status_of(behaviour.calls_do_not_depend_on_the_one_before, kernel) == "pass"


@EVERY_CHECK
def test_honest_torch_kernel_keeps_every_promise(check: Check):
    torch = pytest.importorskip("tests.cheaters_torch", exc_type=ImportError)
    assert status_of(check, torch.honest, torch.ARRAYS) == "pass"


def test_every_check_has_a_cheat():
    assert {cheat.check for cheat in CHEATS.values()} == {*BEHAVIOUR_CHECKS, calls_in_a_row_are_right}


@pytest.mark.parametrize(("kernel", "repeats"), [(cheaters.honest, True), (cheaters.sums_in_any_order(), False)])
def test_repeatability_is_reported_and_not_judged(kernel: Kernel, repeats: bool):
    verdict = check_behaviour(behaviour_of(kernel), calls_in_a_row_are_right)
    assert (verdict.status, verdict.facts.repeatable) == ("pass", repeats)


class Simulator(NumpyArrays):
    stands_for = ("trn1",)


@pytest.mark.parametrize("check", [calls_in_a_row_are_right, other_parameters_are_told_apart])
@pytest.mark.parametrize(("arrays", "several"), [(NumpyArrays(), True), (Simulator(), False)])
def test_a_simulator_is_not_called_from_several_threads(check: Check, arrays: ArrayBridge, several: bool):
    threads = set()

    def kernel(*inputs, **parameters):
        threads.add(threading.get_ident())
        return cheaters.honest(*inputs, **parameters)

    assert status_of(check, kernel, arrays) == "pass"
    assert (len(threads) > 1) == several


def test_memory_is_poisoned_before_the_call_that_is_judged():
    returned = []

    def kernel(*inputs, **parameters):
        returned.append(cheaters.honest(*inputs, **parameters))
        return returned[-1]

    assert status_of(behaviour.output_is_written, kernel) == "pass"
    assert [bool(np.isnan(y).all()) for y in returned] == [True, False]


class Stopwatch(NumpyArrays):
    """A device whose caller's stream sees `events` of the `wall` seconds that it works."""

    events, wall = 0.0, 0.0

    def stopwatch(self, call):
        call()
        return self.events, self.wall


@pytest.mark.parametrize(
    ("events", "wall", "status"), [(1e-5, 1e-4, "pass"), (0.01, 0.012, "pass"), (1e-5, 0.01, "fail")]
)
def test_work_on_another_stream_shows_in_time(events: float, wall: float, status: str):
    kind = type("Fixed", (Stopwatch,), {"events": events, "wall": wall})
    assert status_of(behaviour.work_is_finished, cheaters.honest, kind()) == status


def test_result_of_another_device_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="on cpu; expected one on cuda"):
        torch_arrays("cuda").to_host(torch.zeros(1))


def test_kernel_that_raises_is_an_error_of_its_own():
    verdict = check_behaviour(behaviour_of(lambda *inputs, **parameters: 1 // 0), calls_in_a_row_are_right)
    assert (verdict.status, verdict.reason.split(" at ")[0]) == (
        "error",
        "raised ZeroDivisionError: integer division or modulo by zero",
    )


def test_waiver_excuses_behaviour_only_where_it_says_so():
    case = behaviour_of(cheaters.spoils_input())
    case.implementation.waive("conv_forward", reason="wrong", url="https://example.org/1")
    assert check_behaviour(case, calls_in_a_row_are_right).status == "fail"
    case.implementation.waive(
        "conv_forward", reason="w is scratch", url="https://example.org/2", distributions=("behaviour",)
    )
    verdict = check_behaviour(case, calls_in_a_row_are_right)
    assert (verdict.status, verdict.waiver and verdict.waiver.reason) == ("waived", "w is scratch")
    assert check_behaviour(case, behaviour.results_are_plain).status == "pass"


@pytest.mark.parametrize(("distribution", "excused"), [("integer", True), ("special", False)])
def test_waiver_excuses_results_on_its_distributions_in_checks_of_behaviour(distribution: str, excused: bool):
    wrong, raising = behaviour_of(doubled([])), behaviour_of(lambda *inputs, **parameters: 1 // 0)
    for case in (wrong, raising):
        case.implementation.waive("conv_forward", reason="r", url="u", distributions=(distribution,))
    of_wrong = {
        check_behaviour(wrong, behaviour.results_are_plain, of_right_kernels=one).status for one in (False, True)
    }
    assert of_wrong == {"waived" if excused else "fail"}
    assert check_behaviour(raising, calls_in_a_row_are_right).status == ("waived" if excused else "error")


def test_waiver_that_raises_is_an_error():
    case = behaviour_of(cheaters.spoils_input())
    case.implementation.waive(
        "conv_forward", reason="r", url="u", when=lambda geometry: bool(1 // 0), distributions=("behaviour",)
    )
    verdict = check_behaviour(case, calls_in_a_row_are_right)
    assert (verdict.status, verdict.reason.splitlines()[1:]) == (
        "error",
        ["input w was written to: 355 bytes changed, first at [0]"],
    )


def doubled(calls: list[int]) -> Kernel:
    """Wrong in every call."""

    def kernel(*inputs, **parameters):
        calls.append(1)
        return 2 * cheaters.honest(*inputs, **parameters)

    return kernel


def test_kernel_that_is_wrong_on_plain_inputs_is_called_once_and_reported_once():
    calls: list[int] = []
    case = behaviour_of(doubled(calls))
    checked = [check_behaviour(case, check, of_right_kernels=True) for check in BEHAVIOUR_CHECKS]
    assert [verdict.status for verdict in checked] == ["fail"] + ["unsupported"] * (len(BEHAVIOUR_CHECKS) - 1)
    assert checked[0].reason.startswith("results are wrong on plain inputs: y: ")
    assert {verdict.reason for verdict in checked[1:]} == {"not checked, results are wrong"}
    assert len(calls) == 1
    # made again, as plugins that repeat failures do, the one that reported it does so again
    assert check_behaviour(case, BEHAVIOUR_CHECKS[0], of_right_kernels=True).status == "fail"
    assert check_behaviour(case, BEHAVIOUR_CHECKS[1], of_right_kernels=True).status == "unsupported"


def test_what_a_kernel_raises_on_plain_inputs_is_reported_as_it_was_raised():
    case = behaviour_of(lambda *inputs, **parameters: 1 // 0)
    first, second = (check_behaviour(case, check, of_right_kernels=True) for check in BEHAVIOUR_CHECKS[:2])
    assert (first.status, type(first.exception)) == ("error", ZeroDivisionError)
    assert (second.status, second.reason) == ("unsupported", "not checked, results are wrong")


def test_waived_results_do_not_keep_a_kernel_from_being_checked():
    case = behaviour_of(doubled([]))
    case.implementation.waive("conv_forward", reason="r", url="u", distributions=("integer",))
    statuses = [check_behaviour(case, check, of_right_kernels=True).status for check in BEHAVIOUR_CHECKS]
    assert statuses == [check_behaviour(case, check).status for check in BEHAVIOUR_CHECKS]
    assert "waived" in statuses


SUITE = """
import pytest
from conformance.checks.behaviour import BEHAVIOUR_CHECKS

@pytest.mark.behaves(*(check.__name__ for check in BEHAVIOUR_CHECKS))
def test_behaviour(check, name, case):
    check(name, case)
"""


def test_every_check_is_recorded_and_counted(project: Project):
    project.write("suite/test_behaviour.py", SUITE)
    project.kernel()
    project.kernel("partial", declares=", when=lambda p: False")
    outcome = project.pytest("--operator=conv_forward", "--distribution=behaviour")
    assert (outcome.exit, outcome.statuses) == (
        0,
        {"pass": len(BEHAVIOUR_CHECKS), "unsupported": len(BEHAVIOUR_CHECKS)},
    )
    assert [r["check"] for r in outcome.records if r["implementation"] == "acme"] == [
        c.__name__ for c in BEHAVIOUR_CHECKS
    ]
    assert {r["distribution"] for r in outcome.records} == {"behaviour"}
    outcome = project.run("--operator=conv_forward", "--distribution=behaviour")
    assert {r["facts"]["repeatable"] for r in outcome.records if "repeatable" in r.get("facts", {})} == {True}


def test_command_reproduces_one_check(project: Project):
    project.write("suite/test_behaviour.py", SUITE)
    project.kernel(body="w *= 2; return y")
    outcome = project.run("--operator=conv_forward", "--distribution=behaviour")
    failed = [r for r in outcome.records if r["status"] == "fail"]
    assert failed
    assert failed[0]["command"] in outcome.text
    status, again = command(*shlex.split(failed[0]["command"])[1:])
    assert status == 1
    first, *others = again.splitlines()
    assert first.startswith(f"fail: {failed[0]['check']} of acme, conv_forward on ")
    assert failed[0]["reason"].splitlines() == others[: failed[0]["reason"].count("\n") + 1]


def test_other_distributions_leave_behaviour_out(project: Project):
    """No other test noticed where they did not."""
    project.write("suite/test_behaviour.py", SUITE)
    project.kernel()
    outcome = project.run("--operator=conv_forward", "--distribution=integer")
    assert {record["distribution"] for record in outcome.records} == {"integer"}


@pytest.mark.parametrize("selected", ["results", "results_are_plain"])
def test_wrong_results_are_never_only_unsupported(project: Project, selected: str):
    project.write("suite/test_behaviour.py", SUITE)
    project.kernel(body="return 2 * y")
    outcome = project.run("--operator=conv_forward", "--distribution=behaviour", "-k", selected)
    assert (outcome.exit, outcome.statuses["fail"]) == (1, 1)
    assert outcome.statuses["unsupported"] == sum(outcome.statuses.values()) - 1


MENDS = (
    "import os, pathlib; me = pathlib.Path(__file__); me.write_text(me.read_text().replace('WRONG = 1', 'WRONG = 0'))"
)
"""A kernel leaves another one in its place."""
CHANGES = {
    "a wrong one that dies": ((), f"if WRONG: {MENDS}; os._exit(1)\n    return y"),
    "another wrong one": ((), f"if WRONG: {MENDS}; os._exit(1)\n    return y + 1"),
    "a right one that goes on": ((), f"{MENDS}; return y"),
    "in this process": (("--in-process",), f"{MENDS}; return y"),
}


@pytest.mark.parametrize(("options", "body"), CHANGES.values(), ids=CHANGES)
def test_what_is_not_the_source_that_ran_does_not_pass(project: Project, options: tuple[str, ...], body: str):
    file = project.kernel(body=body, tail="WRONG = 1")
    options += (f"--problem={TINY}", "--problem=n1 c1 h3 w3 k1 r1 s1")
    outcome = project.run(*options, "--distribution=integer", "--distribution=fixed", "--distribution=wide")
    assert file.read_text().endswith("WRONG = 0\n")
    assert (outcome.exit, outcome.statuses) == (1, {"error": 6})
    said = "acme.py was changed during the run: what ran is not the source that the record names; run again"
    assert {record["reason"] for record in outcome.records[1:]} == {said}
    assert said in outcome.text


def test_nor_does_its_behaviour(project: Project):
    project.write("suite/test_behaviour.py", SUITE)
    project.kernel(body=f"{MENDS}; return y", tail="WRONG = 1")
    outcome = project.run("--operator=conv_forward", "--distribution=behaviour")
    assert (outcome.exit, outcome.statuses["pass"], outcome.statuses["error"] > 5) == (1, 0, True)


def test_a_worker_that_takes_the_place_of_another_has_the_same_source(project: Project):
    body = f"CALLS.append(1)\n    if WRONG and len(CALLS) == 3: {MENDS}; os._exit(1)\n    return y"
    project.kernel(head="CALLS = []", body=body, tail="WRONG = 1")
    options = ("-p", "xdist", "-n", "1", "--in-process", "--distribution=integer", "--distribution=fixed")
    problems = (f"--problem=n1 c1 h3 w3 k{k} r1 s1" for k in range(1, 6))
    outcome = project.pytest(*options, *problems, subprocess=True)
    assert (outcome.exit, outcome.statuses["pass"] > 0) == (1, True)
    assert len({r["source"] for r in outcome.records}) == 2
    assert len({r["source"] for r in outcome.records if r["status"] == "pass"}) == 1
    assert "its source was changed during the run: other records of the run are of another one" in outcome.text
