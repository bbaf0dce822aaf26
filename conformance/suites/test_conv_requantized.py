"""Convolution of 8 bits with a result of 8 bits."""

from __future__ import annotations

import pytest


@pytest.mark.verifies("conv_requantized")
def test_conv_requantized(verify, case):
    verify(case)
