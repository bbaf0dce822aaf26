"""Average pooling in layers of networks: nothing but memory traffic."""

from __future__ import annotations

import pytest

from conformance.problems import pooling

LAYERS = (*pooling.LAYERS, *pooling.FULL)


@pytest.mark.benchmarks("avg_pool_forward", problems=LAYERS)
def test_avg_pool_forward(measure_time, case):
    """Averages."""
    measure_time(case)


@pytest.mark.benchmarks("avg_pool_backward", problems=LAYERS)
def test_avg_pool_backward(measure_time, case):
    """The gradient in the input."""
    measure_time(case)
