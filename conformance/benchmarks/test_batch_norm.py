"""Convolution fused with batch normalisation, in layers of networks."""

from __future__ import annotations

import pytest

from conformance.problems import normalised

LAYERS = (*normalised.LAYERS, *normalised.FULL)


@pytest.mark.benchmarks("conv_bn_forward", problems=LAYERS)
def test_conv_bn_forward(measure_time, case):
    """Training: results and statistics."""
    measure_time(case)


@pytest.mark.benchmarks("conv_bn_backward", problems=LAYERS)
def test_conv_bn_backward(measure_time, case):
    """Gradients through the statistics."""
    measure_time(case)


@pytest.mark.benchmarks("conv_bn_inference", problems=LAYERS)
def test_conv_bn_inference(measure_time, case):
    """With running statistics."""
    measure_time(case)
