"""Max pooling, forward and backward."""

from __future__ import annotations

import pytest


@pytest.mark.verifies("max_pool_forward")
def test_max_pool_forward(verify, case):
    """y, the largest element of every window."""
    verify(case)


@pytest.mark.verifies("max_pool_backward")
def test_max_pool_backward(verify, case):
    """dx, the gradients of all windows whose first maximum an element is."""
    verify(case)
