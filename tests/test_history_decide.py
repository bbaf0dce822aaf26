"""Many questions at once: what is certain enough alone need not be among many."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from conformance.reporting.comparison.decide import FASTER, INCONCLUSIVE, SAME, SLOWER, Bounds, settled
from conformance.reporting.comparison.noise import Interval

LIMIT = 0.05


@dataclass(frozen=True)
class Sure:
    """A question whose interval leaves out 0 where `needed` or more may be missed."""

    middle: float
    needed: float
    name: str = "a question"
    decisive: bool = True

    def bounds(self, level: float) -> Bounds:
        room = 0.01 if level >= self.needed else math.inf
        interval = Interval(self.middle - room, self.middle, self.middle + room)
        return Bounds(interval, interval)


UP, DOWN, FLAT = Sure(0.2, 0.02), Sure(-0.2, 0.02), Sure(0.0, 0.02)
VAGUE = [Sure(middle, 0.02, decisive=False) for middle in (0.2, 0.0)]


@pytest.mark.parametrize(
    ("questions", "outcomes"),
    [
        ([UP], [SLOWER]),
        ([DOWN], [FASTER]),
        ([FLAT], [SAME]),
        ([UP, FLAT], [SLOWER, SAME]),
        ([UP, FLAT, FLAT], [INCONCLUSIVE, SAME, SAME]),
        ([UP, Sure(0.2, 0.001), Sure(-0.2, 0.001)], [SLOWER, SLOWER, FASTER]),
        ([UP, DOWN, Sure(0.2, 0.001), FLAT], [INCONCLUSIVE, INCONCLUSIVE, SLOWER, SAME]),
        ([Sure(0.03, 0.001)], [SAME]),
        ([Sure(0.045, 0.001)], [INCONCLUSIVE]),
        ([Sure(0.2, 0.06)], [INCONCLUSIVE]),
        (VAGUE, [INCONCLUSIVE, SAME]),
        ([UP, *VAGUE], [SLOWER, INCONCLUSIVE, SAME]),
    ],
)
def test_holm(questions, outcomes):
    """At 5%: the first of three must do with 1.7%, the last one left may have all of it."""
    assert settled(questions, LIMIT, 0.05) == outcomes
