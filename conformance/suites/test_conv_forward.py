"""Convolution, forward: dense problems."""

from __future__ import annotations

import pytest

from conformance.checks.behaviour_demand import dense


@pytest.mark.verifies("conv_forward", when=dense)
def test_conv_forward(verify, case):
    """y = conv(x, w) + bias."""
    verify(case)
