"""Intervals on a ratio of times that assume no distribution, and how runs of unchanged code scatter.

All values are natural logarithms, in which a ratio is a difference.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

# scipy.stats is imported where it is called: it takes half a second, and every command imports this file

ROUNDS = 60
"""Rounds of a benchmark that are used at most, evenly spaced."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A logarithm of a ratio and what bounds it. Bounds are infinite where there is too little to say."""

    low: float
    middle: float
    high: float

    def shifted(self, by: float) -> Interval:
        """The same, for the ratio times exp(by)."""
        return Interval(self.low + by, self.middle + by, self.high + by)

    def widened(self, by: float) -> Interval:
        return Interval(self.low - by, self.middle, self.high + by)


def shift(before: Sequence[float], after: Sequence[float], level: float) -> Interval:
    """How much `after` lies above `before`: the Hodges-Lehmann estimate and its exact interval.

    Two samples that differ by a shift; the bounds are order statistics of all differences, ranked by the distribution
    of the Mann-Whitney statistic (Hodges and Lehmann 1963; Hollander and Wolfe, section 4.3). `level` is the
    probability that the interval misses.
    """
    one, two = _thinned(before), _thinned(after)
    differences = np.sort(np.subtract.outer(two, one), axis=None)
    return _ranked(differences, _mann_whitney_rank(len(one), len(two), level / 2))


def centre(values: Sequence[float], level: float) -> Interval:
    """The centre of values: the Hodges-Lehmann estimate and its exact interval.

    The values are symmetric about their centre; the bounds are order statistics of the means of all pairs, ranked by
    the distribution of the signed-rank statistic (Hollander and Wolfe, section 3.3).
    """
    found = np.asarray(values, dtype=float)
    rows, columns = np.triu_indices(found.size)
    return _ranked(np.sort((found[rows] + found[columns]) / 2), _signed_rank_rank(found.size, level / 2))


def scale(groups: Sequence[Sequence[float]]) -> float:
    """How ratios of unchanged code scatter about those of their group; infinite where fewer than six tell.

    From the median of the absolute deviations, which a few that did change do not move.
    """
    large = [group for group in groups if len(group) > 2]
    deviations = [abs(value - statistics.median(group)) for group in large for value in group]
    if len(deviations) < 6:
        return math.inf
    # a group's own median takes up one of its deviations
    lost = math.sqrt(len(deviations) / (len(deviations) - len(large)))
    return statistics.median(deviations) / reach(0.5) * lost


def mean(values: Sequence[float], level: float, least: float) -> Interval:
    """The mean of values that scatter by `least` or more, and Student's interval.

    For values too few for ranks to reach a level. One that lies far out makes it wide, so that it raises no alarm.
    """
    middle = statistics.fmean(values)
    if len(values) < 2:
        return Interval(-math.inf, middle, math.inf)
    own = max(statistics.stdev(values), least) / math.sqrt(len(values))
    return Interval(middle, middle, middle).widened(reach(level, len(values) - 1) * own)


def apart(before: Sequence[float], after: Sequence[float], level: float, least: float) -> float:
    """Within what two groups of runs of unchanged code differ, but for `level`, where runs scatter by their own
    deviation about their group or by `least`: Student's t with pooled variance. Infinite without two runs of one."""
    freedom = len(before) + len(after) - 2
    if not freedom:
        return math.inf
    own = sum((value - statistics.fmean(group)) ** 2 for group in (before, after) for value in group)
    deviation = max(math.sqrt(own / freedom), least)
    return reach(level, freedom) * deviation * math.sqrt(1 / len(before) + 1 / len(after))


@cache
def reach(level: float, freedom: int = 3) -> float:
    """How many scales unchanged code stays within, but for `level`: the quantile of Student's t.

    Times have bursts, so that the tails of a normal distribution would promise too much: 3 degrees of freedom where
    nothing tells their number.
    """
    from scipy import stats

    return float(stats.t.isf(level / 2, freedom))


def _thinned(values: Sequence[float]) -> np.ndarray:
    found = np.asarray(values, dtype=float)
    kept: np.ndarray = found[np.linspace(0, found.size - 1, min(found.size, ROUNDS)).astype(int)]
    return kept


def _ranked(ordered: np.ndarray, rank: int) -> Interval:
    """The median of order statistics, and the `rank`-th from either end; none is far enough out for rank 0."""
    middle = float(np.median(ordered))
    if not rank:
        return Interval(-math.inf, middle, math.inf)
    return Interval(float(ordered[rank - 1]), middle, float(ordered[-rank]))


@cache
def _mann_whitney_rank(n: int, m: int, error: float) -> int:
    """How many values of the Mann-Whitney statistic, from 0 on, have P(U <= u) <= `error` in samples of n and m."""
    from scipy import stats

    def probability(u: int) -> float:
        """By scipy's exact test, on samples that have this statistic."""
        above = np.clip(u - m * np.arange(n), 0, m)  # of the second sample, below each of the first
        return float(stats.mannwhitneyu(above - 0.5, np.arange(m), alternative="less", method="exact").pvalue)

    return bisect_right(range(n * m + 1), error, key=probability)


@cache
def _signed_rank_rank(n: int, error: float) -> int:
    """How many values of the signed-rank statistic, from 0 on, have P(T <= t) <= `error` for n values."""
    from scipy import stats

    def probability(t: int) -> float:
        """By scipy's exact test, on values whose positive ones have ranks that add up to t."""
        values = -np.arange(1.0, n + 1)
        for rank in range(n, 0, -1):
            if t >= rank:
                values[rank - 1], t = rank, t - rank
        return float(stats.wilcoxon(values, alternative="less", method="exact").pvalue)

    return bisect_right(range(n * (n + 1) // 2 + 1), error, key=probability)
