"""Average pooling, forward and backward."""

from __future__ import annotations

import pytest


@pytest.mark.verifies("avg_pool_forward")
def test_avg_pool_forward(verify, case):
    """y, the average of every window."""
    verify(case)


@pytest.mark.verifies("avg_pool_backward")
def test_avg_pool_backward(verify, case):
    """dx, every element's share of the averages that it is part of."""
    verify(case)


@pytest.mark.behaves("worked_example_is_exact")
def test_worked_example(check, name, case):
    """0, 1, 2, ... over 2x6x6 with a window of 2, as a public tutorial has it: exact, and all that it checks."""
    check(name, case)
