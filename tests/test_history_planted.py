"""Two benchmark runs compared: the same code, and slowdowns that are planted in kernels and machines."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.reporting.comparison.compare import compared
from tests.noisy_runs import BUSY, OPERATORS, Bench, by_a_fifth, run_of, slower, tried

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


@pytest.mark.parametrize("seed", range(TRIES))
def test_a_fifth_is_found_on_a_busy_machine_by_three_runs(seed: int):
    found = slower(tried(Bench(BUSY), seed, by_a_fifth("acme"), more=2))
    assert {name for name, _ in found} == {"acme"}
    assert any(" problems)" in what for _, what in found)


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


def test_what_does_not_matter_is_unchanged():
    found = tried(Bench(), 4, lambda key: 1.02 if key.implementation == "acme" else 1.0)
    assert [a.outcome for a in found.answers if a.overall] == ["unchanged"] * 6


def test_wide_intervals_cannot_tell():
    found = tried(Bench(BUSY, visits=3), 5)
    assert {answer.outcome for answer in found.answers if not answer.overall} == {"inconclusive"}


def test_few_benchmarks_cannot_tell_how_runs_scatter():
    found = tried(Bench(problems=1), 6, by_a_fifth("acme"))
    assert {answer.outcome for answer in found.answers} == {"inconclusive"}
    assert any("how runs scatter" in note for note in found.notes)
