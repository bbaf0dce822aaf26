"""The ten UNet layers at full size, each implementation against torch on the same machine in the same run."""

from __future__ import annotations

import pytest

from conformance.problems.networks import UNET


@pytest.mark.times("conv_forward", problems=UNET)
def test_unet_forward(timed, case):
    """Forward with bias."""
    timed(case)


@pytest.mark.times("conv_backward_data", problems=UNET)
def test_unet_backward_data(timed, case):
    """The gradient in the input."""
    timed(case)


@pytest.mark.times("conv_backward_weight", problems=UNET)
def test_unet_backward_weight(timed, case):
    """The gradients in weight and bias."""
    timed(case)
