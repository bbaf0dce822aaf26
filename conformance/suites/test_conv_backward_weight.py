"""Convolution, backward-weight: dense problems."""

from __future__ import annotations

import pytest

from conformance.checks.behaviour_demand import dense


@pytest.mark.verifies("conv_backward_weight", when=dense)
def test_conv_backward_weight(verify, case):
    """dw and dbias, the gradients of conv in its parameters."""
    verify(case)
