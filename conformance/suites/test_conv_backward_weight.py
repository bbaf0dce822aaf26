"""Convolution, backward-weight: dense problems."""

from __future__ import annotations

import pytest

from conformance.suites.shapes import ungrouped


@pytest.mark.verifies("conv_backward_weight", when=ungrouped)
def test_conv_backward_weight(verify, case):
    """dw and dbias, the gradients of conv in its parameters."""
    verify(case)
