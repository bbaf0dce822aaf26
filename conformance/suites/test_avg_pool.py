"""Average pooling, forward and backward."""

from __future__ import annotations

import pytest

from conformance.checks.tutorial import worked_example_is_exact


@pytest.mark.verifies("avg_pool_forward")
def test_avg_pool_forward(judged, case):
    """y, the average of every window."""
    judged(case)


@pytest.mark.verifies("avg_pool_backward")
def test_avg_pool_backward(judged, case):
    """dx, every element's share of the averages that it is part of."""
    judged(case)


@pytest.mark.behaves("avg_pool_forward")
def test_tutorial(kept, case):
    """0, 1, 2, ... over 2x6x6 with a window of 2, as a public tutorial has it: exact, and all that it checks."""
    kept(case, worked_example_is_exact)
