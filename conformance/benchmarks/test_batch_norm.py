"""Convolution fused with batch normalisation, in layers of networks."""

from __future__ import annotations

import pytest

from conformance.problems import normalised

LAYERS = (*normalised.LAYERS, *normalised.FULL)


@pytest.mark.benchmarks("conv_bn_forward", problems=LAYERS)
def test_conv_bn_forward(timed, case):
    """Training: results and statistics."""
    timed(case)


@pytest.mark.benchmarks("conv_bn_backward", problems=LAYERS)
def test_conv_bn_backward(timed, case):
    """Gradients through the statistics."""
    timed(case)


@pytest.mark.benchmarks("conv_bn_inference", problems=LAYERS)
def test_conv_bn_inference(timed, case):
    """With running statistics."""
    timed(case)
