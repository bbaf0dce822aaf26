"""Convolution, forward: dense problems."""

from __future__ import annotations

import pytest

from conformance.suites.shapes import ungrouped


@pytest.mark.verifies("conv_forward", when=ungrouped)
def test_conv_forward(verify, case):
    """y = conv(x, w) + bias."""
    verify(case)
