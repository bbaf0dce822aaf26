"""What two runs tell of one kernel, and of few: whole operators at once, a single kernel only with more runs."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.reporting.comparison import decide, runs
from conformance.reporting.comparison.compare import compared
from conformance.reporting.comparison.decide import LEVEL
from conformance.reporting.comparison.runs import Key
from tests.noisy_runs import OPERATORS, Bench, Noise, by_a_fifth, run_of, slower, tried

TRIES = 10


def test_one_slow_kernel_is_found_alone_by_three_runs():
    found = [slower(tried(Bench(), seed, by_a_fifth("acme", "conv_forward p3"), more=2)) for seed in range(TRIES)]
    assert sum(one == {("acme", "conv_forward p3")} for one in found) >= TRIES - 2
    assert set().union(*found) == {("acme", "conv_forward p3")}


def test_a_fifth_is_found_although_one_kernel_became_four_times_as_fast():
    """Of many problems ranks are taken, which one of them does not move."""

    def slow(key: Key) -> float:
        return (0.25 if key.problem == "p0" else 1.2) if key.implementation == "acme" else 1.0

    found = slower(tried(Bench(problems=20), 3, slow))
    assert {what for _, what in found} == {
        "all operators, geometric mean of 40",
        *(f"{operator}, geometric mean of 20" for operator in OPERATORS),
    }


def test_one_run_tells_that_one_kernel_has_not_changed():
    found = tried(Bench(Noise(rounds=0.002, spike=0, benchmark=0.001, drift=0.001, whole=0.001)), 1)
    assert {answer.outcome for answer in found.answers} == {"no change"}


@pytest.mark.parametrize(("more", "error"), [(0, LEVEL), (2, LEVEL / 2)])
def test_the_level_is_shared_where_single_kernels_can_be_told(more: int, error: float, monkeypatch: pytest.MonkeyPatch):
    asked: set[float] = set()

    def settled(questions: list[decide.Question], limit: float, given: float) -> list[str]:
        asked.update({given} if questions else ())
        return ["no change"] * len(questions)

    monkeypatch.setattr(decide, "settled", settled)
    tried(Bench(), 1, more=more)
    assert asked == {error}


def test_one_run_does_not_tell_of_one_kernel():
    found = tried(Bench(), 0, by_a_fifth("acme", "conv_forward p3"))
    assert not found.changed
    assert any("one run on each side does not tell" in note for note in found.notes)


@pytest.mark.parametrize("more", [0, 4])
def test_a_kernel_of_two_speeds_has_not_changed(more: int):
    """As many have: each run is at one of them, which its rounds cannot know."""
    rng = np.random.default_rng(9)
    fast = {"torch-cpu": "p1", "acme": "p2", "other": "p3"}

    def speed(key: Key) -> float:
        return 1.6 if fast[key.implementation] == key.problem and whole[key] else 1.0

    keys, alarms = Bench().keys(), 0
    for seed in range(TRIES):
        documents: list[runs.Run] = []
        for _ in range(2 * (1 + more)):
            whole = {key: rng.random() < 0.4 for key in keys}
            documents.append(run_of(Bench().drawn(np.random.default_rng((seed, len(documents))), speed)))
        before, after = (runs.pooled(documents[side::2]) for side in (0, 1))
        alarms += compared(before, after).changed
    assert alarms <= (1 if more else 0)


@pytest.mark.parametrize("seed", range(TRIES))
@pytest.mark.parametrize("problems", [4, 6])
def test_a_fifth_is_found_in_few_problems(problems: int, seed: int):
    def slow(key: Key) -> float:
        return 1.2 if (key.implementation, key.operator) == ("acme", "conv_forward") else 1.0

    found = slower(tried(Bench(problems=problems), seed, slow))
    assert ("acme", f"conv_forward, geometric mean of {problems}") in found
    assert found <= {
        ("acme", f"{what}, geometric mean of {count}")
        for what, count in (("conv_forward", problems), ("all operators", 2 * problems))
    }
