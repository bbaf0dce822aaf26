"""Many questions at once: what is certain enough alone need not be among many. And what an interval must be to tell."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from conformance.reporting.comparison.decide import FASTER, INCONCLUSIVE, SAME, SLOWER, Question, sure
from conformance.reporting.comparison.noise import Error, Estimate
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
