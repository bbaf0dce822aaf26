"""Average pooling, forward and backward."""

from __future__ import annotations

import pytest


@pytest.mark.verifies("avg_pool_forward")
def test_avg_pool_forward(judged, case):
    """y, the average of every window."""
    judged(case)


@pytest.mark.verifies("avg_pool_backward")
def test_avg_pool_backward(judged, case):
    """dx, every element's share of the averages that it is part of."""
    judged(case)
