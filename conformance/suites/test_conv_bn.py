"""Convolution fused with batch normalisation: training forward and backward, inference."""

from __future__ import annotations

import pytest


@pytest.mark.verifies("conv_bn_forward")
def test_conv_bn_forward(verify, case):
    """y, normalised by the batch's own statistics, and the statistics, old and new."""
    verify(case)


@pytest.mark.verifies("conv_bn_backward")
def test_conv_bn_backward(verify, case):
    """dx, dw, dgamma and dbeta, through the statistics."""
    verify(case)


@pytest.mark.verifies("conv_bn_inference")
def test_conv_bn_inference(verify, case):
    """y, normalised by what was learned before."""
    verify(case)
