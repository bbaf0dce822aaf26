"""Weight gradients of grouped and depthwise layers, where general kernels waste most of their work.

Target: numba-cuda-igemm at least 1.0 of torch on CUDA, as the geometric mean. Printed, not asserted.
"""

from __future__ import annotations

import pytest

from conformance.problems.networks import CLASSIFIERS, CLASSIFIERS_FULL

GROUPED = tuple(problem for problem in (*CLASSIFIERS, *CLASSIFIERS_FULL) if problem.geometry.groups > 1)
"""ResNeXt with 32 groups; MobileNetV2 and EfficientNet, depthwise."""


@pytest.mark.times("conv_backward_weight", problems=GROUPED)
def test_grouped_backward_weight(timed, case):
    """The gradient in the weight."""
    timed(case)
