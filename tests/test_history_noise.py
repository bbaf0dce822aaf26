"""Intervals without a distribution: against counting by hand, and for how often they miss."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from conformance.reporting.comparison import noise


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 2), (2, 5), (4, 4)])
def test_mann_whitney_by_counting(n: int, m: int):
    values = range(n + m)
    sums = [sum(a > b for a in own for b in set(values) - set(own)) for own in combinations(values, n)]
    expected = [sum(u <= bound for u in sums) / len(sums) for bound in range(n * m + 1)]
    for error in (0.001, 0.01, 0.05, 0.1, 0.3):
        assert noise._mann_whitney_rank(n, m, error) == sum(p <= error for p in expected)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_signed_rank_by_counting(n: int):
    sums = [
        sum(rank for rank, sign in zip(range(1, n + 1), signs, strict=True) if sign)
        for signs in product((0, 1), repeat=n)
    ]
    expected = [sum(t <= bound for t in sums) / len(sums) for bound in range(n * (n + 1) // 2 + 1)]
    for error in (0.001, 0.01, 0.05, 0.1, 0.3):
        assert noise._signed_rank_rank(n, error) == sum(p <= error for p in expected)


def test_two_samples_of_three_cannot_be_told_apart_at_five_percent():
    apart = noise.shift([1, 2, 3], [11, 12, 13], 0.05)
    assert (apart.low, apart.middle, apart.high) == (-math.inf, 10, math.inf)
    assert noise.shift([1, 2, 3], [11, 12, 13], 0.1).low == 8


def test_bounds_of_four_and_four():
    """Of 16 differences the smallest and the largest: P(U = 0) is 1/70, P(U <= 1) is 2/70, more than half of 5%."""
    found = noise.shift([0, 1, 2, 3], [10, 20, 30, 40], 0.05)
    assert (found.low, found.high) == (7, 40)
    assert found.middle == np.median([b - a for b in (10, 20, 30, 40) for a in range(4)])


def test_centre_of_six_reaches_from_the_smallest_to_the_largest():
    found = noise.centre([1, 2, 3, 4, 5, 60], 0.05)
    assert (found.low, found.high) == (1, 60)
    assert found.middle == 3.5
    assert math.isinf(noise.centre([1, 2, 3, 4, 5], 0.05).low)


def test_reach_is_the_quantile_of_student():
    """From the tables of Abramowitz and Stegun, 26.10."""
    assert noise.reach(0.5) == pytest.approx(0.765, abs=5e-4)
    assert noise.reach(0.05) == pytest.approx(3.182, abs=5e-4)
    assert noise.reach(0.05, 10) == pytest.approx(2.228, abs=5e-4)
    assert noise.reach(0.001, 1) == pytest.approx(636.619, abs=5e-4)


def noise_of_sevens(u: int) -> float:
    """P(U <= u) in two samples of 7, by counting."""
    sums = [sum(own) - sum(range(7)) for own in combinations(range(14), 7)]
    return sum(one <= u for one in sums) / len(sums)


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "exponential"])
def test_intervals_miss_as_often_as_they_say_and_no_more(draw: str):
    rng, tries, level = np.random.default_rng(3), 2000, 0.1
    misses = 0
    for _ in range(tries):
        one, two = (getattr(rng, draw)(size=7) for _ in range(2))
        found = noise.shift(one, two + 5.0, level)
        misses += not found.low <= 5.0 <= found.high
    exact = 2 * noise_of_sevens(noise._mann_whitney_rank(7, 7, level / 2) - 1)
    assert 0.09 < exact <= level
    assert abs(misses - exact * tries) < 3.5 * math.sqrt(exact * (1 - exact) * tries)


def test_students_intervals_miss_as_often_as_they_say():
    rng, tries, level = np.random.default_rng(5), 2000, 0.1
    missed = [0, 0]
    for _ in range(tries):
        values, others = rng.normal(size=5).tolist(), rng.normal(size=4).tolist()
        found = noise.mean(values, level, 0.0)
        missed[0] += not found.low <= 0 <= found.high
        missed[1] += abs(np.mean(values) - np.mean(others)) > noise.apart(values, others, level, 0.0)
    assert all(abs(count - level * tries) < 3.5 * math.sqrt(level * (1 - level) * tries) for count in missed)


def test_values_that_happen_to_agree_scatter_as_others_do():
    found = noise.mean([0.2, 0.2, 0.2], 0.05, 0.1)
    assert (found.low, found.high) == pytest.approx(
        (0.2 - 4.3027 * 0.1 / 3**0.5, 0.2 + 4.3027 * 0.1 / 3**0.5), rel=1e-4
    )
    assert noise.apart([0.2, 0.2], [0.3, 0.3], 0.05, 0.1) == pytest.approx(4.3027 * 0.1, rel=1e-4)
    assert math.isinf(noise.mean([0.2], 0.05, 0.1).high)
    assert math.isinf(noise.apart([0.2], [0.3], 0.05, 0.1))


def test_scale_is_not_moved_by_the_few_that_changed():
    rng = np.random.default_rng(4)
    same = rng.standard_t(3, size=300) * 0.02
    changed = np.concatenate([same[:270], same[270:] + 5.0])
    assert noise.scale([list(same)]) == pytest.approx(0.02, rel=0.2)
    assert noise.scale([list(changed)]) == pytest.approx(0.02, rel=0.35)


def test_scale_of_small_groups_counts_their_own_median():
    rng = np.random.default_rng(5)
    groups = [list(rng.standard_t(3, size=4) * 0.02 + shift) for shift in range(200)]
    assert noise.scale(groups) == pytest.approx(0.02, rel=0.25)
    assert math.isinf(noise.scale(groups[:1]))


def test_many_rounds_are_thinned_evenly():
    assert len(noise._thinned(range(1000))) == noise.ROUNDS
    assert noise._thinned(range(1000))[[0, -1]].tolist() == [0, 999]
