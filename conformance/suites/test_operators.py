"""Every operator, verified on the problems of its family; dense and grouped convolutions separately."""

from __future__ import annotations

import pytest

from conformance.checks.behaviour_demand import dense, grouped


@pytest.mark.verifies("conv_forward", when=dense)
def test_conv_forward(verify, case):
    """Verify y = conv(x, w) + bias."""
    verify(case)


@pytest.mark.verifies("conv_backward_data", when=dense)
def test_conv_backward_data(verify, case):
    """Verify dx, the gradient of conv in its input."""
    verify(case)


@pytest.mark.verifies("conv_backward_weight", when=dense)
def test_conv_backward_weight(verify, case):
    """Verify dw and dbias, the gradients of conv in its parameters."""
    verify(case)


@pytest.mark.verifies("conv_forward", when=grouped)
def test_grouped_conv_forward(verify, case):
    """Verify y, each group of output channels from its own group of input channels."""
    verify(case)


@pytest.mark.verifies("conv_backward_data", when=grouped)
def test_grouped_conv_backward_data(verify, case):
    """Verify dx, each group from its own group of dy."""
    verify(case)


@pytest.mark.verifies("conv_backward_weight", when=grouped)
def test_grouped_conv_backward_weight(verify, case):
    """Verify dw of every group from its own x and dy."""
    verify(case)


@pytest.mark.verifies("conv_requantized")
def test_conv_requantized(verify, case):
    """Verify y of 8 bits, from x and w of 8 bits."""
    verify(case)


@pytest.mark.verifies("conv_transpose_forward")
def test_conv_transpose_forward(verify, case):
    """Verify y[n,k,h*u+r*d-top,w*v+s*e-left] = bias[k] + sum_{c,h,w,r,s} x[n,c,h,w] * w[c,k,r,s]."""
    verify(case)


@pytest.mark.verifies("conv_transpose_backward_data")
def test_conv_transpose_backward_data(verify, case):
    """Verify dx, a convolution of dy."""
    verify(case)


@pytest.mark.verifies("conv_transpose_backward_weight")
def test_conv_transpose_backward_weight(verify, case):
    """Verify dw and dbias."""
    verify(case)


@pytest.mark.verifies("conv_bn_forward")
def test_conv_bn_forward(verify, case):
    """Verify y, normalised by the batch's own statistics, and the old and new statistics."""
    verify(case)


@pytest.mark.verifies("conv_bn_backward")
def test_conv_bn_backward(verify, case):
    """Verify dx, dw, dgamma and dbeta, through the statistics."""
    verify(case)


@pytest.mark.verifies("conv_bn_inference")
def test_conv_bn_inference(verify, case):
    """Verify y, normalised by learned statistics."""
    verify(case)


@pytest.mark.verifies("avg_pool_forward")
def test_avg_pool_forward(verify, case):
    """Verify y, the average of every window."""
    verify(case)


@pytest.mark.verifies("avg_pool_backward")
def test_avg_pool_backward(verify, case):
    """Verify dx, every element's share of the averages that it is part of."""
    verify(case)


@pytest.mark.verifies("max_pool_forward")
def test_max_pool_forward(verify, case):
    """Verify y, the largest element of every window."""
    verify(case)


@pytest.mark.verifies("max_pool_backward")
def test_max_pool_backward(verify, case):
    """Verify dx, the gradients of all windows whose first maximum an element is."""
    verify(case)
