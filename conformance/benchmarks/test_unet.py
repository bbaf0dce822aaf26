"""The UNet's layers and their small twins, each implementation against torch on the same device in the same run.

Targets, as geometric means over the layers in each direction: numba-cuda-igemm at least 0.5 of cuDNN (goal 0.8),
numba-cuda-tiled at least 0.2; numba-cpu at least 0.5 of torch on the same threads. They are printed, not asserted: a
time depends on what else the machine does.
"""

from __future__ import annotations

import pytest

from conformance.problems.networks import UNET, UNET_TWINS

LAYERS = (*UNET_TWINS, *UNET)


@pytest.mark.benchmarks("conv_forward", problems=LAYERS)
def test_unet_forward(measure_time, case):
    """Forward with bias."""
    measure_time(case)


@pytest.mark.benchmarks("conv_backward_data", problems=LAYERS)
def test_unet_backward_data(measure_time, case):
    """The gradient in the input."""
    measure_time(case)


@pytest.mark.benchmarks("conv_backward_weight", problems=LAYERS)
def test_unet_backward_weight(measure_time, case):
    """The gradients in weight and bias."""
    measure_time(case)
