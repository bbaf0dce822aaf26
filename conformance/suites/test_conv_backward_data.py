"""Convolution, backward-data: dense problems."""

from __future__ import annotations

import pytest

from conformance.checks.behaviour_demand import dense


@pytest.mark.verifies("conv_backward_data", when=dense)
def test_conv_backward_data(verify, case):
    """dx, the gradient of conv in its input."""
    verify(case)
