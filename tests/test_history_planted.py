"""Two benchmark runs compared: the same code, and slowdowns that are planted in kernels and machines. What two runs
tell of one kernel and of few, and what only more visits or more runs tell."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.reporting.comparison import decide
from conformance.reporting.comparison.compare import compared
from conformance.reporting.comparison.runs import BenchmarkKey
from tests.noisy_runs import BUSY, OPERATORS, REAL, Bench, Noise, by_a_fifth, run_of, slower, tried

TRIES = 10


@pytest.mark.parametrize("seed", range(TRIES))
def test_same_code_has_not_changed(seed: int):
    found = tried(Bench(), seed)
    assert not found.changed
    assert [answer.outcome for answer in found.answers if answer.overall] == ["unchanged"] * 6


@pytest.mark.parametrize("seed", range(TRIES))
def test_same_code_has_not_changed_on_a_busy_machine(seed: int):
    assert not tried(Bench(BUSY), seed).changed


@pytest.mark.parametrize("seed", range(TRIES))
def test_a_fifth_is_found(seed: int):
    found = slower(tried(Bench(), seed, by_a_fifth("acme")))
    assert {name for name, _ in found} == {"acme"}
    assert {what for _, what in found} == {
        *(f"{operator} (10 problems)" for operator in OPERATORS),
        "all operators (20 problems)",
    }


def test_faster_is_no_alarm():
    found = tried(Bench(), 1, lambda key: 0.8 if key.implementation == "acme" else 1.0)
    assert {answer.outcome for answer in found.answers if answer.implementation == "acme"} <= {"faster", "inconclusive"}
    assert found.changed
    assert found.status(subset=False) == 0


def test_a_slow_machine_is_not_a_slow_kernel():
    assert not slower(tried(Bench(), 2, lambda key: 1.5))
    alone = tried(Bench(implementations=("acme", "other")), 2, lambda key: 1.5)
    assert slower(alone)
    assert any("drift of the machine" in note for note in alone.notes)


def test_a_kernel_is_not_slower_because_the_baseline_is_faster():
    found = tried(Bench(), 2, lambda key: 0.8 if key.implementation == "torch-cpu" else 1.0)
    assert {answer.outcome for answer in found.answers if answer.overall} == {"inconclusive"}
    assert not found.changed


def test_a_baseline_that_changed_is_none():
    rng, bench = np.random.default_rng(3), Bench()
    before, after = bench.drawn(rng), bench.drawn(rng)
    for entry in after["benchmarks"]:
        if entry["extra_info"]["implementation"] == "torch-cpu":
            entry["extra_info"]["versions"]["torch"] = "2.14"
    found = compared(run_of(before), run_of(after))
    assert found.machine is not None
    assert not found.machine.drifts
    assert "torch differs: 2.13, then 2.14" in found.notes
    assert {answer.implementation for answer in found.answers} == {"torch-cpu", "acme", "other"}


def test_few_benchmarks_cannot_tell_how_runs_scatter():
    found = tried(Bench(problems=1), 6, by_a_fifth("acme"))
    assert {answer.outcome for answer in found.answers} == {"inconclusive"}
    assert any("how runs scatter" in note for note in found.notes)


@pytest.mark.parametrize("moment", [0.0, 0.15])
def test_one_slow_kernel_is_found_alone_by_one_run(moment: float):
    """Also where the machine changes its speed within seconds by 15%, as a virtual one does: torch's visit to the same
    problem was made in the same seconds."""
    bench = Bench(Noise(moment=moment))
    found = [slower(tried(bench, seed, by_a_fifth("acme", "conv_forward p3"))) for seed in range(TRIES)]
    assert sum(one == {("acme", "conv_forward p3")} for one in found) >= TRIES - 2
    assert set().union(*found) == {("acme", "conv_forward p3")}


@pytest.mark.parametrize("visits", [1, 5])
def test_too_few_visits_do_not_tell_of_one_kernel(visits: int):
    found = tried(Bench(visits=visits), 0, by_a_fifth("acme", "conv_forward p3"))
    assert not any(answer.outcome == "slower" for answer in found.answers if not answer.overall)
    assert any(f"fewer than {decide.VISITS} visits" in note for note in found.notes)


def test_runs_of_one_visit_tell_together():
    """Files of earlier versions: seven on each side are seven visits."""
    found = tried(Bench(visits=1), 0, by_a_fifth("acme", "conv_forward p3"), more=6)
    assert slower(found) == {("acme", "conv_forward p3")}


def test_a_kernel_beside_its_siblings_has_the_freedom_of_all_its_visits():
    """Equal code scatters alike on both sides once siblings have taken off what the sides differ in; by Welch it would
    have 4 to 8 degrees of freedom, and one slow kernel in five would be missed."""
    before, after = (run_of(Bench().drawn(np.random.default_rng(seed))) for seed in (1, 2))
    pairs = [decide.Pair(timed, after.benchmarks[key]) for key, timed in before.benchmarks.items()]
    asked = [q for q in decide._questions(pairs, decide.surveyed(pairs)) if not q.overall]
    assert {q.control.errors[0].freedom for q in asked} == {8.0}
    assert len({q.relative.errors[0].freedom for q in asked}) == len(asked)


def test_a_fifth_is_found_although_one_kernel_became_four_times_as_fast():
    """Of many problems ranks are taken, which one of them does not move."""

    def slow(key: BenchmarkKey) -> float:
        return (0.25 if key.problem == "p0" else 1.2) if key.implementation == "acme" else 1.0

    found = slower(tried(Bench(problems=20), 3, slow))
    assert {what for _, what in found} == {
        "all operators (40 problems)",
        *(f"{operator} (20 problems)" for operator in OPERATORS),
    }


def test_one_run_tells_that_one_kernel_has_not_changed():
    found = tried(Bench(Noise(rounds=0.002, spike=0, visit=0.001, benchmark=0.001, drift=0.001, whole=0.001)), 1)
    assert {answer.outcome for answer in found.answers} == {"unchanged"}


def test_the_levels_add_up_to_less_than_what_is_promised():
    assert sum(decide.ALARM.values()) <= decide.LEVEL


def test_kernels_of_two_speeds_have_not_changed():
    """A third of all have: each visit is at one of them, which its rounds cannot know. Of 13 in each of 20 comparisons,
    which happen to show one speed before and the other after with 0.2%, hardly any is called slower or faster."""
    found = [tried(Bench(Noise(speeds=0.33), seed=seed), 1000 + seed) for seed in range(2 * TRIES)]
    assert sum(answer.outcome in (decide.SLOWER, decide.FASTER) for one in found for answer in one.answers) <= 3


@pytest.mark.parametrize("seed", range(TRIES))
def test_what_real_machines_do_raises_no_alarm(seed: int):
    """Drift from run to run, to which implementations react differently; kernels of two speeds, bursts."""
    bench = Bench(REAL, problems=15, seed=seed)
    assert not tried(bench, 2000 + seed).changed


def test_a_fifth_is_found_on_real_machines():
    benches = [(Bench(REAL, problems=15, seed=seed), 2000 + seed) for seed in range(TRIES)]
    whole = [slower(tried(bench, seed, by_a_fifth("acme"))) for bench, seed in benches]
    assert all(("acme", "all operators (30 problems)") in one for one in whole)
    assert all(name == "acme" for one in whole for name, _ in one)
    single = [slower(tried(bench, seed, by_a_fifth("acme", "conv_forward p3"))) for bench, seed in benches]
    assert sum(one == {("acme", "conv_forward p3")} for one in single) >= TRIES - 3


@pytest.mark.parametrize("seed", range(TRIES))
@pytest.mark.parametrize("problems", [4, 6])
def test_a_fifth_is_found_in_few_problems(problems: int, seed: int):
    def slow(key: BenchmarkKey) -> float:
        return 1.2 if (key.implementation, key.operator) == ("acme", "conv_forward") else 1.0

    found = slower(tried(Bench(problems=problems), seed, slow))
    assert ("acme", f"conv_forward ({problems} problems)") in found
    assert found <= {
        ("acme", f"{what} ({count} problems)")
        for what, count in (("conv_forward", problems), ("all operators", 2 * problems))
    }
