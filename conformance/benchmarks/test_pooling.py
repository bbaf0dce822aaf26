"""Average pooling in layers of networks: nothing but memory traffic."""

from __future__ import annotations

import pytest

from conformance.problems import pooling

LAYERS = (*pooling.LAYERS, *pooling.FULL)


@pytest.mark.benchmarks("avg_pool_forward", problems=LAYERS)
def test_avg_pool_forward(timed, case):
    """Averages."""
    timed(case)


@pytest.mark.benchmarks("avg_pool_backward", problems=LAYERS)
def test_avg_pool_backward(timed, case):
    """The gradient in the input."""
    timed(case)
