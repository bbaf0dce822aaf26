"""Convolution fused with batch normalisation: training forward and backward, inference."""

from __future__ import annotations

import pytest


@pytest.mark.verifies("conv_bn_forward")
def test_conv_bn_forward(judged, case):
    """y, normalised by the batch's own statistics, and the statistics, old and new."""
    judged(case)


@pytest.mark.verifies("conv_bn_backward")
def test_conv_bn_backward(judged, case):
    """dx, dw, dgamma and dbeta, through the statistics."""
    judged(case)


@pytest.mark.verifies("conv_bn_inference")
def test_conv_bn_inference(judged, case):
    """y, normalised by what was learned before."""
    judged(case)
