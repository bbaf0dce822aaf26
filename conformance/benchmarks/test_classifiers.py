"""Layers of ResNet-50, ResNeXt-50, MobileNetV2, EfficientNet-B0, DeepLab v3: strided, 1x1, grouped, depthwise, dilated.

Target: weight gradients of grouped and depthwise layers, where general kernels waste most of their work, by
numba-cuda-igemm at 1.0 of torch on CUDA or more, as the geometric mean. Printed, not asserted.
"""

from __future__ import annotations

import pytest

from conformance.problems.networks import CLASSIFIERS, CLASSIFIERS_FULL

LAYERS = (*CLASSIFIERS, *CLASSIFIERS_FULL)


@pytest.mark.benchmarks("conv_forward", problems=LAYERS)
def test_classifiers_forward(measure_time, case):
    """Forward."""
    measure_time(case)


@pytest.mark.benchmarks("conv_backward_data", problems=LAYERS)
def test_classifiers_backward_data(measure_time, case):
    """The gradient in the input."""
    measure_time(case)


@pytest.mark.benchmarks("conv_backward_weight", problems=LAYERS)
def test_classifiers_backward_weight(measure_time, case):
    """The gradient in the weight."""
    measure_time(case)
