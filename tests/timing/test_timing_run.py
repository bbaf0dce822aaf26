"""A run: kernels are verified first, visited in rounds, and whatever does not pass has no time."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from conformance import Contract, Implementation, Unsupported
from conformance.execution.process import Limits
from conformance.execution.trial import Trial
from conformance.execution.workers import Workers
from conformance.judge.expected import expect_once
from conformance.problems import Problem, typed
from conformance.timing import conditions, roofline, rotation
from conformance.timing.conditions import Conditions
from conformance.timing.run import Run, TimedKernel, time_all
from conformance.worker import measuring
from tests import kernels, kit
from tests.kit import CEILINGS, OTHER, TINY, source

pytestmark = pytest.mark.usefixtures("one_core", "ceilings")

LARGE = replace(typed("n1 c16 h30 w30 k16 r3 s3 p1 b1"), name="unet.16x16@30")
Change = Callable[[np.ndarray, int], np.ndarray]


def trial_of(implementation: Implementation, problem: Problem = TINY, method: str = "exact") -> Trial:
    return kit.trial_of(implementation, problem, method=method)


def timed(*cases: Trial, visits: int = 1, workers: Workers | None = None) -> Run:
    found = Run([TimedKernel(case) for case in cases])
    time_all(found, visits, 0, workers, lambda *_: None)
    return found


def measured(case: Trial, visits: int = 1) -> TimedKernel:
    (found,) = timed(case, visits=visits).subjects
    return found


def status(subject: TimedKernel) -> tuple[str, str]:
    assert subject.verdict is not None
    return subject.verdict.status, subject.verdict.explanation


def fake(change: Change = lambda y, _: y, device: str = "cpu", **declared: Any) -> tuple[Implementation, list[int]]:
    """A right forward kernel whose result is changed, given how often it was called before; and its calls."""
    calls: list[int] = []
    implementation = Implementation("acme", device=device, contract=Contract())

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        y = kernels.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
        calls.append(1)
        return change(y, len(calls) - 1)

    implementation.implements("conv_forward", **declared)(conv_forward)
    return implementation, calls


def raising(problem: BaseException) -> Change:
    def change(y: np.ndarray, _: int) -> np.ndarray:
        raise problem

    return change


def with_element(difference: float, index: tuple[int, ...] = (0, 1, 2, 3)) -> Change:
    """One element is off."""

    def change(y: np.ndarray, _: int) -> np.ndarray:
        y[index] += np.float32(difference)
        return y

    return change


def test_a_right_kernel_is_visited_as_often_as_asked():
    found = measured(trial_of(named("acme")), visits=3)
    assert (status(found), found.time is not None) == (("pass", ""), True)
    assert found.time is not None
    assert [len(visit.seconds) for visit in found.time.visits] == [rotation.MAX_ROUNDS] * 3
    assert min(*found.time.rounds, found.time.first) > 0
    assert len(found.time.centres) == 3
    assert found.time.interval is not None


def test_visits_lie_a_round_apart_in_an_order_of_chance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TimedKernel, "visit", lambda *_: None)
    monkeypatch.setattr("conformance.timing.run.measure_ceilings", lambda *_: None)
    seen: list[tuple[int, str]] = []
    found = Run([TimedKernel(trial_of(named(name), OTHER if name == "d" else TINY)) for name in "abcd"])
    time_all(found, 8, 0, None, lambda number, subject: seen.append((number, subject.trial.implementation.name)))
    rounds = [[name for number, name in seen if number == one] for one in range(1, 9)]
    assert all(Counter(names) == Counter("abcd") for names in rounds)
    assert {names.index("d") for names in rounds} == {0, 3}  # those on one problem stay beside each other
    assert len(set(map(tuple, rounds))) > 3


def in_its_process(folder: Path) -> Path:
    """A file whose kernel notes the process of every call beside it."""
    body = "with Path(__file__).with_name('seen').open('a') as seen: print(os.getpid(), file=seen)\n    return y"
    file = folder / "one.py"
    file.write_text(source("one", body, head="import os\nfrom pathlib import Path"))
    return file


def test_every_visit_has_a_process_of_its_own(tmp_path: Path):
    with Workers(Limits(), 9) as workers:
        one = workers.load([in_its_process(tmp_path)]).implementations["one"]
        found = timed(trial_of(one), visits=2, workers=workers)
    assert [len(m.visits) for m in found.times] == [2]
    assert len(set((tmp_path / "seen").read_text().split())) == 2


def test_the_judge_leaves_the_cores_to_the_kernel(tmp_path: Path):
    """OpenBLAS's threads spin after a product of the judge's: beside them a kernel took 30 ms instead of 0.1."""
    threads = list[int]()

    def report(*_: object) -> None:
        threads.extend(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")

    with threadpool_limits(2, "blas"), Workers(Limits(), 9) as workers:
        one = workers.load([in_its_process(tmp_path)]).implementations["one"]
        time_all(Run([TimedKernel(trial_of(one))]), 1, 0, workers, report)
        after = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    assert threads == [1] * len(after)


def test_what_was_timed_before_an_interrupt_is_there():
    def change(y: np.ndarray, _: int) -> np.ndarray:
        if found.rounds == 2:
            raise KeyboardInterrupt
        return y

    found = Run([TimedKernel(trial_of(fake(change)[0]))])
    with pytest.raises(KeyboardInterrupt):
        time_all(found, 99, 0, None, lambda *_: None)
    assert [len(time.visits) for time in found.times] == [1]


def named(name: str) -> Implementation:
    implementation = Implementation(name)
    implementation.implements("conv_forward")(kernels.conv_forward)
    return implementation


def test_tensors_of_a_problem_are_freed_before_the_next(monkeypatch: pytest.MonkeyPatch):
    held: list[int] = []
    visit = TimedKernel.visit

    def visited(subject: TimedKernel, conditions: Conditions) -> None:
        held.append(expect_once.cache_info().currsize)
        visit(subject, conditions)

    monkeypatch.setattr(TimedKernel, "visit", visited)
    expect_once.cache_clear()
    timed(trial_of(named("acme")), trial_of(named("acme"), OTHER), visits=2)
    assert [*held, expect_once.cache_info().currsize] == [0] * 5


def test_ceilings_are_measured_in_every_round_and_the_best_counts(monkeypatch: pytest.MonkeyPatch):
    rates = iter([(2.0, 8.0), (3.0, 4.0), (1.0, 1.0)])
    monkeypatch.setattr(
        roofline, "measure_ceilings", lambda *_: replace(CEILINGS, flops=(r := next(rates))[0], bandwidth=r[1])
    )
    found = timed(trial_of(named("acme")), visits=3)
    assert (found.ceilings["cpu"].flops, found.ceilings["cpu"].bandwidth) == (3.0, 8.0)
    assert found.times[0].ceilings == found.ceilings["cpu"]
    assert found.conditions.values()["ceilings"] == 1.0


WRONG: dict[str, tuple[Change, str, str]] = {
    "element": (with_element(0.5), "fail", "y: 1 of 288 elements mismatched"),
    "later": (
        lambda y, calls: y + np.float32(calls > 6),
        "fail",
        "no time: right when first called, wrong in a timed call: y:",
    ),
    "refuses": (raising(Unsupported("needs k % 32 == 0")), "unsupported", "needs k % 32 == 0"),
}


@pytest.mark.parametrize(("change", "expected", "reason"), WRONG.values(), ids=WRONG)
def test_what_does_not_pass_has_no_time(change: Change, expected: str, reason: str):
    implementation, _ = fake(change=change)
    found = measured(trial_of(implementation))
    assert found.verdict is not None
    assert (found.verdict.status, found.time) == (expected, None)
    assert found.verdict.reason.startswith(reason)


def test_a_kernel_that_is_wrong_at_once_is_not_called_again():
    implementation, calls = fake(change=with_element(0.5))
    measured(trial_of(implementation))
    assert len(calls) == 1


def test_a_declared_limit_is_unsupported_and_a_waiver_waived():
    narrow, calls = fake(when=lambda p: p.k == 1)
    assert status(measured(trial_of(narrow)))[0] == "unsupported"
    assert not calls
    waived, _ = fake(change=with_element(0.5))
    waived.waive("conv_forward", reason="one off", url="https://example.org/1")
    found = measured(trial_of(waived))
    assert found.time is None
    assert (status(found)[0], status(found)[1][:38]) == ("waived", "waived: one off (https://example.org/1")


def test_a_broken_context_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    def fails() -> None:
        raise RuntimeError("the context is lost")

    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=fails, is_available=lambda: False))
    torch.set_num_threads, torch.get_num_threads = (lambda _: None), (lambda: 1)
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = measured(trial_of(fake(device="cuda")[0]))
    assert status(found)[0] == "pass"


def test_a_kernel_that_is_judged_by_probes_has_a_time_unless_it_is_wrong():
    right, wrong = (fake(change=change)[0] for change in (lambda y, _: y, with_element(7.0)))
    assert measured(trial_of(right, LARGE, "probes")).time is not None
    assert measured(trial_of(wrong, LARGE, "probes")).time is None


def test_frameworks_have_as_many_threads_as_the_process_has_cores(monkeypatch: pytest.MonkeyPatch):
    given: list[int] = []
    monkeypatch.setattr(conditions, "cores", lambda: 3)
    fakes = SimpleNamespace(set_num_threads=given.append, get_num_threads=lambda: given[-1])
    monkeypatch.setattr(measuring, "sys", SimpleNamespace(modules={"torch": fakes, "numba": fakes, "jax": None}))
    assert conditions.share_threads(Implementation("acme")) == {"torch": 3, "numba": 3, "jax": 3}
    assert given == [3, 3]
    fakes.get_num_threads = lambda: 2
    with pytest.raises(conditions.ThreadsError, match=r"torch has 2 threads, and others 3.*NUMBA_NUM_THREADS"):
        conditions.share_threads(Implementation("acme"))
