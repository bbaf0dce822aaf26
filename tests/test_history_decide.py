"""How sure a change is: intervals of ratios against scipy's tests, and many questions at once, where what is certain
enough alone need not be among many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from conformance.reporting.comparison import noise
from conformance.reporting.comparison.decide import FASTER, INCONCLUSIVE, SAME, SLOWER, Question, sure
from conformance.reporting.comparison.noise import Error, Estimate, estimated
from conformance.reporting.comparison.runs import BenchmarkKey

LIMIT = 0.05
KEY = BenchmarkKey("cpu", "acme", "conv_forward", "p0", "fp32", "nchw", "fixed")


def asked(p: float) -> Question:
    """One that has this probability."""
    error = Error(0.1 / float(stats.norm.isf(p / 2)), 1e9)
    found = Estimate(0.1, (error,))
    assert found.p == pytest.approx(p, rel=1e-3)
    return Question(KEY, "a question", False, found, found, found)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.04], [0.04]),
        ([0.06], []),
        ([0.02, 0.5], [0.02]),
        ([0.02, 0.5, 0.5], []),
        ([0.02, 0.001, 0.001], [0.001, 0.001, 0.02]),
        ([0.04, 0.02, 0.01, 0.02], [0.01]),
        ([], []),
    ],
)
def test_holm(probabilities: list[float], expected: list[float]):
    """At 5%: the first of three must do with 1.7%, the last one left may have all of it."""
    assert [round(q.control.p, 4) for q in sure([asked(p) for p in probabilities], 0.05)] == expected


Middles = tuple[float, float, float]
"""Measured, beside the baseline, and beside the control."""


def question(middles: Middles, overall: bool = True, width: float = 0.001) -> Question:
    measured, relative, control = (Estimate(middle, (Error(width, 10),)) for middle in middles)
    return Question(KEY, "a question", overall, measured, relative, control)


@pytest.mark.parametrize(
    ("middles", "outcome"),
    [
        ((0.2, 0.2, 0.2), SLOWER),
        ((-0.2, -0.2, -0.2), FASTER),
        ((0.01, 0.01, 0.01), SAME),
        ((-0.2, 0.01, 0.01), SAME),  # the whole machine is faster
        ((0.01, 0.2, 0.2), INCONCLUSIVE),  # the baseline is
        ((0.3, 0.2, 0.2), SLOWER),  # the baseline is 10% slower
        ((0.3, 0.16, 0.16), INCONCLUSIVE),  # it is 14% slower; what reacts twice as much is slower by 2% only
        ((-0.3, -0.16, -0.16), INCONCLUSIVE),
        ((0.2, 0.2, 0.04), INCONCLUSIVE),  # its siblings are as slow
    ],
)
def test_a_change_counts_as_measured_and_beside_what_a_drift_would_move(middles: Middles, outcome: str):
    assert question(middles).outcome(True, LIMIT) == outcome


def test_one_kernel_has_twice_the_drift_in_its_favour():
    assert question((0.3, 0.16, 0.16), overall=False).outcome(True, LIMIT) == SLOWER
    assert question((0.3, 0.14, 0.14), overall=False).outcome(True, LIMIT) == INCONCLUSIVE


def test_what_is_not_certain_is_inconclusive_or_unchanged():
    assert question((0.2, 0.2, 0.2)).outcome(False, LIMIT) == INCONCLUSIVE
    assert question((0.01, 0.01, 0.01)).outcome(False, LIMIT) == SAME


def test_unchanged_needs_the_whole_interval_inside_the_threshold():
    reach = float(stats.t.isf(0.025, 10)) * 0.01
    for middle, outcome in ((LIMIT - reach - 1e-6, SAME), (LIMIT - reach + 1e-6, INCONCLUSIVE)):
        assert question((middle, middle, middle), width=0.01).outcome(False, LIMIT) == outcome
    assert question((0.0, 0.0, 0.0), width=math.inf).outcome(False, LIMIT) == INCONCLUSIVE


NOTHING = Error(1e-9, 1.0)


@pytest.mark.parametrize("alike", [False, True])
def test_visits_of_one_run_are_compared_as_scipy_does(alike: bool):
    one, two = [0.1, 0.3, 0.2, 0.25, 0.1, 4.0, 0.2], [0.5, 0.9, 0.45, 0.6, 0.7, 0.55, 0.1]
    expected = stats.ttest_ind(two, one, equal_var=alike, trim=noise.TRIM)
    found = estimated([[one], [two]], NOTHING, alike)
    assert found.errors[0].p(found.middle) == pytest.approx(expected.pvalue, rel=1e-6)
    assert found.errors[0].freedom == pytest.approx(expected.df)


def test_the_larger_of_two_errors_counts():
    one, two = [0.1, 0.3, 0.2], [0.5, 0.9, 0.4]
    kind, wide = estimated([[one], [two]], NOTHING), estimated([[one], [two]], Error(1.0, 20.0))
    assert wide.p == pytest.approx(2 * stats.t.sf(wide.middle, 20))
    assert wide.p > kind.p
    assert wide.interval(0.05).high - wide.middle == pytest.approx(stats.t.isf(0.025, 20))


def test_one_visit_tells_nothing():
    found = estimated([[[0.1]], [[0.2, 0.3]]], NOTHING)
    assert not found.is_finite
    assert math.isinf(found.interval(0.05).high)
    assert found.p == 1


def test_visits_of_one_run_are_no_independent_runs():
    before, after = [[0.0, 0.01], [0.1, 0.11]], [[0.2, 0.21], [0.3, 0.31]]
    found, flat = (
        estimated([before, after], NOTHING),
        estimated([[[*before[0], *before[1]]], [[*after[0], *after[1]]]], NOTHING),
    )
    assert found.errors[0].deviation == pytest.approx(math.hypot(stats.sem([0.005, 0.105]), stats.sem([0.205, 0.305])))
    assert found.errors[0].deviation > flat.errors[0].deviation
    assert found.errors[0].freedom == flat.errors[0].freedom


def test_a_visit_that_lasted_seventy_times_as_long_does_not_count():
    quiet = [0.1, 0.11, 0.09, 0.1, 0.12, 0.08, 0.1]
    found = estimated([[[v - 0.2 for v in quiet]], [[*quiet[:6], 4.3]]], NOTHING)
    assert found.middle == pytest.approx(0.2, abs=0.01)
    assert found.p < 1e-4


def test_visits_that_agree_to_the_last_bit_are_no_certainty():
    found = estimated([[[0.1] * 5], [[0.1] * 5]], Error(0.02, 30.0))
    assert found.p == 1
    assert found.interval(0.05).high == pytest.approx(0.02 * stats.t.isf(0.025, 30))


def test_common_is_what_a_burst_and_a_kernel_of_two_speeds_do_not_move():
    kernels = [[[[0.1, 0.2], [0.3]]], [[[0.1, 0.2], [0.3]]], [[[0.1, 9.0], [0.9]]]]
    assert noise.common(kernels) == [[[0.1, 0.2], [0.3]]]
    assert noise.common([*kernels[:2], [[[0.1], [0.3]]]]) == [[[0.1, 0.2], [0.3]]]  # a visit that is missing
    assert noise.beside([[[0.5, 0.25]]], [[[0.25, 0.25]]]) == [[[0.25, 0.0]]]


def test_scatter_is_not_moved_by_the_few_that_changed():
    rng = np.random.default_rng(4)
    same = rng.normal(size=300) * 0.02
    changed = np.concatenate([same[:270], same[270:] + 5.0])
    assert noise.scatter([list(same)]).deviation == pytest.approx(0.02, rel=0.1)
    assert noise.scatter([list(changed)]).deviation == pytest.approx(0.02, rel=0.25)
    assert noise.scatter([list(same)]).freedom == 299


def test_scatter_of_small_groups_counts_their_own_median():
    rng = np.random.default_rng(5)
    groups = [list(rng.normal(size=4) * 0.02 + shift) for shift in range(200)]
    assert noise.scatter(groups).deviation == pytest.approx(0.02, rel=0.15)
    assert math.isinf(noise.scatter(groups[:1]).deviation)
