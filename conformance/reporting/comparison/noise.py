"""Intervals on a ratio of times that assume no distribution, and how runs of unchanged code scatter.

All values are natural logarithms, in which a ratio is a difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np

ROUNDS = 60
"""Rounds of a benchmark that are used at most, evenly spaced."""
FREEDOM_MAD = 0.7649
"""Median of |t| for Student's t of 3 degrees of freedom at scale 1: the root of its distribution at 3/4."""


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
        """The same with room on both sides."""
        return Interval(self.low - by, self.middle, self.high + by)


def shift(before: Sequence[float], after: Sequence[float], level: float) -> Interval:
    """How much `after` lies above `before`: the Hodges-Lehmann estimate and its exact interval.

    Two samples that differ by a shift; the bounds are order statistics of all differences, ranked by the distribution
    of the Mann-Whitney statistic (Hodges and Lehmann 1963; Hollander and Wolfe, section 4.3). `level` is the
    probability that the interval misses.
    """
    one, two = _thinned(before), _thinned(after)
    differences = np.sort(np.subtract.outer(two, one), axis=None)
    return _ranked(differences, _mann_whitney(len(one), len(two)), level)


def centre(values: Sequence[float], level: float) -> Interval:
    """The centre of values: the Hodges-Lehmann estimate and its exact interval.

    The values are symmetric about their centre; the bounds are order statistics of the means of all pairs, ranked by
    the distribution of the signed-rank statistic (Hollander and Wolfe, section 3.3).
    """
    found = np.asarray(values, dtype=float)
    rows, columns = np.triu_indices(found.size)
    return _ranked(np.sort((found[rows] + found[columns]) / 2), _signed_rank(found.size), level)


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
    return statistics.median(deviations) / FREEDOM_MAD * lost


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


def reach(level: float, freedom: int = 3) -> float:
    """How many scales unchanged code stays within, but for `level`: the quantile of Student's t.

    Times have bursts, so that the tails of a normal distribution would promise too much: 3 degrees of freedom where
    nothing tells their number.
    """
    low, high = 0.0, 1e9
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - _within(middle, freedom) > level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(-t < T < t) (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle, odd = math.atan(t / math.sqrt(freedom)), freedom % 2
    term, total = math.cos(angle) ** odd, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    found = math.sin(angle) * total
    return 2 / math.pi * (angle + found) if odd else found


def _thinned(values: Sequence[float]) -> np.ndarray:
    found = np.asarray(values, dtype=float)
    kept: np.ndarray = found[np.linspace(0, found.size - 1, min(found.size, ROUNDS)).astype(int)]
    return kept


def _ranked(ordered: np.ndarray, distribution: tuple[float, ...], level: float) -> Interval:
    """The median of order statistics, and the two of which each is passed with probability `level` / 2 at most."""
    rank = sum(1 for probability in distribution if probability <= level / 2)
    middle = float(np.median(ordered))
    if not rank:
        return Interval(-math.inf, middle, math.inf)
    return Interval(float(ordered[rank - 1]), middle, float(ordered[-rank]))


@cache
def _mann_whitney(n: int, m: int) -> tuple[float, ...]:
    """P(U <= u) for u = 0, 1, ... in samples of n and m.

    The counts are the coefficients of the Gaussian binomial, the product of (1 - q^(n+j)) / (1 - q^j) for j = 1 to m.
    """
    counts = [1] + [0] * (n * m)
    for j in range(1, m + 1):
        for power in range(n * m, n + j - 1, -1):
            counts[power] -= counts[power - n - j]
        for power in range(j, n * m + 1):
            counts[power] += counts[power - j]
    return _cumulated(counts)


@cache
def _signed_rank(n: int) -> tuple[float, ...]:
    """P(T <= t) for t = 0, 1, ... and n values: each rank is added or not."""
    counts = [1]
    for rank in range(1, n + 1):
        shifted, padded = [0] * rank + counts, counts + [0] * rank
        counts = [a + b for a, b in zip(padded, shifted, strict=True)]
    return _cumulated(counts)


def _cumulated(counts: Sequence[int]) -> tuple[float, ...]:
    total = sum(counts)
    return tuple(part / total for part in accumulate(counts))
