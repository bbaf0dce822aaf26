"""Max pooling, forward and backward."""

from __future__ import annotations

import pytest

from conformance.checks.tutorial import worked_example_is_exact


@pytest.mark.verifies("max_pool_forward")
def test_max_pool_forward(judged, case):
    """y, the maximum of every window: an element of x, and equal to it."""
    judged(case)


@pytest.mark.verifies("max_pool_backward")
def test_max_pool_backward(judged, case):
    """dx, the gradients of the windows whose first maximum an element is."""
    judged(case)


@pytest.mark.behaves("max_pool_forward")
def test_worked_example(kept, case):
    """The example of the ONNX specification: consecutive numbers, a window of 5, padding of 2."""
    kept(case, worked_example_is_exact)
