"""How far two sets of visits lie apart, and how sure that is.

A visit is one process that times a kernel; a run has several, far apart. Values are natural logarithms of seconds, in
which a ratio is a difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

# scipy is imported where it is called: it takes half a second, and every command imports this file. A comparison has
# thousands of questions and a test of scipy.stats takes a millisecond: only functions that are called once are used

Series = Sequence[Sequence[float]]
"""A value for each visit of each run."""
Sides = Sequence[Series]
"""The series before and after."""
TRIM = 0.2
"""Share of visits that are left out, at either end."""
LEAST = 1e-6
"""Standard error of a ratio below which no clock is accurate."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A logarithm of a ratio with its bounds, which are infinite if there is too little data."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Error:
    """A standard error and the degrees of freedom behind it, those of Student's t."""

    deviation: float = math.inf
    freedom: float = 1.0

    def reach(self, level: float) -> float:
        """Return the distance, to either side, that is exceeded with a probability of `level`."""
        from scipy import special

        return -float(special.stdtrit(self.freedom, level / 2)) * self.deviation

    def p(self, distance: float) -> float:
        """Return the probability of a value at least as far out, to either side."""
        from scipy import special

        return 2 * float(special.stdtr(self.freedom, -abs(distance) / self.deviation))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A logarithm of a ratio, and its errors, of which the largest counts."""

    middle: float
    errors: tuple[Error, ...] = (Error(),)

    def interval(self, level: float) -> Interval:
        """Return the interval that misses the truth with a probability of `level` at most."""
        reach = max(error.reach(level) for error in self.errors)
        return Interval(self.middle - reach, self.middle, self.middle + reach)

    @property
    def p(self) -> float:
        """Upper bound of the probability that equal code lies as far apart, to either side: by the largest error."""
        return max(error.p(self.middle) for error in self.errors)

    @property
    def is_finite(self) -> bool:
        """True if every error is finite: only then can the ratio be judged."""
        return all(error.deviation < math.inf for error in self.errors)


def estimated(sides: Sides, ratios: Error, alike: bool = False) -> Estimate:
    """Estimate how much the second side lies above the first: by the difference of the means of visits, with Student's
    t by Welch (Biometrika 34, 1947), which lets one side scatter more than the other unless they are `alike`; and by
    how ratios of unchanged code scatter.

    Visits of one run share the machine of that quarter of an hour, so the standard error is no smaller than what the
    means of runs show, if each side has several.
    """
    before, after = (_Centre.of([value for run in side for value in run]) for side in sides)
    middle = after.mean - before.mean
    if min(before.count, after.count) < 2:
        return Estimate(middle)
    variance_before, variance_after = before.error**2 + LEAST**2, after.error**2 + LEAST**2
    freedom = float(before.count + after.count - 2)
    if not alike:
        freedom = (variance_before + variance_after) ** 2 / (
            variance_before**2 / (before.count - 1) + variance_after**2 / (after.count - 1)
        )
    deviation = math.sqrt(variance_before + variance_after)
    if min(map(len, sides)) > 1:
        runs = (_Centre.of([statistics.fmean(run) for run in side]) for side in sides)
        deviation = max(deviation, math.hypot(*(run.error for run in runs)))
    return Estimate(middle, (Error(deviation, freedom), ratios))


@dataclass(frozen=True, slots=True)
class _Centre:
    """Where visits of one side lie: their trimmed mean, its standard error, and the number of visits in the mean."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, visits: Sequence[float]) -> Self:
        """Leave out a fifth at either end: one visit of five may have met a process that took its cores, and lasted 70
        times as long. The standard error is of all visits, with the ends brought in (Yuen, Biometrika 61, 1974)."""
        cut = int(TRIM * len(visits))
        ordered = sorted(visits)
        kept = ordered[cut : len(ordered) - cut]
        if len(kept) < 2:
            return cls(statistics.fmean(kept), math.inf, len(kept))
        brought = [kept[0]] * cut + kept + [kept[-1]] * cut
        spread = statistics.variance(brought) * (len(brought) - 1)
        return cls(statistics.fmean(kept), math.sqrt(spread / (len(kept) * (len(kept) - 1))), len(kept))


def common(kernels: Sequence[Sides]) -> Sides:
    """Return what the visits of several kernels share: their median, visit by visit, which neither a burst nor a kernel
    of two speeds moves. The kernels have been centred, and are of the same runs."""

    def middle(visit: Sequence[float | None]) -> float:
        return statistics.median(value for value in visit if value is not None)

    runs = (zip(*side, strict=True) for side in zip(*kernels, strict=True))
    return [[[middle(visit) for visit in zip_longest(*run)] for run in side] for side in runs]


def beside(sides: Sides, control: Sides) -> Sides:
    """Return the values less the control's, visit by visit: both were taken in the same minutes."""
    runs = (zip(*both, strict=True) for both in zip(sides, control, strict=True))
    return [[[a - b for a, b in zip(*run, strict=False)] for run in side] for side in runs]


def scatter(groups: Sequence[Sequence[float]]) -> Error:
    """Estimate how ratios of unchanged code scatter about the middle of their group; the error is infinite if there are
    fewer than six.

    The estimate is the median of absolute deviations, which a few changed ratios do not move. It is worth fewer degrees
    of freedom than a standard deviation of as many values; this is ignored, as the test of visits holds without it.
    Deviations from the median of n values are too small by about (n - 1) / n (Croux and Rousseeuw, COMPSTAT 1992,
    section 3: by 1.50, 1.36, 1.21 and 1.20 for n from 3 to 6).
    """
    from scipy import stats

    large = [group for group in groups if len(group) > 2]
    deviations = [(v - statistics.median(group)) * len(group) / (len(group) - 1) for group in large for v in group]
    if len(deviations) < 6:
        return Error()
    deviation = float(stats.median_abs_deviation(deviations, scale="normal"))
    return Error(max(deviation, LEAST), len(deviations) - len(large))
