"""Transposed convolution with output padding, and its gradients."""

from __future__ import annotations

import pytest


@pytest.mark.verifies("conv_transpose_forward")
def test_conv_transpose_forward(verify, case):
    """y[n,k,h*u+r*d-top,w*v+s*e-left] = bias[k] + sum_{c,h,w,r,s} x[n,c,h,w] * w[c,k,r,s]."""
    verify(case)


@pytest.mark.verifies("conv_transpose_backward_data")
def test_conv_transpose_backward_data(verify, case):
    """dx, a convolution of dy."""
    verify(case)


@pytest.mark.verifies("conv_transpose_backward_weight")
def test_conv_transpose_backward_weight(verify, case):
    """dw and dbias."""
    verify(case)
