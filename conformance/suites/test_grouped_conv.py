"""Grouped and depthwise convolution, all three directions."""

from __future__ import annotations

import pytest

from conformance.checks.behaviour_demand import grouped


@pytest.mark.verifies("conv_forward", when=grouped)
def test_grouped_conv_forward(verify, case):
    """y, each group of output channels from its own group of input channels."""
    verify(case)


@pytest.mark.verifies("conv_backward_data", when=grouped)
def test_grouped_conv_backward_data(verify, case):
    """dx, each group from its own group of dy."""
    verify(case)


@pytest.mark.verifies("conv_backward_weight", when=grouped)
def test_grouped_conv_backward_weight(verify, case):
    """dw of every group from its own x and dy."""
    verify(case)
