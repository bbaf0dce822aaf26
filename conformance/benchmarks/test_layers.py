"""Layers of networks, each implementation against torch on the same device in the same run.

Targets, as geometric means relative to torch over the UNet's layers in each direction: numba-cuda-igemm at least 0.5
(goal 0.8), numba-cuda-tiled at least 0.2; numba-cpu at least 0.5 on the same threads. Over the weight gradients of
grouped and depthwise layers, where general kernels waste most of their work: numba-cuda-igemm at least 1.0. They are
printed, not asserted: a time depends on what else the machine does.
"""

from __future__ import annotations

import pytest

from conformance.problems import of_section

CONVOLUTIONS = of_section("conv", "unet.reduced", "unet", "networks.reduced", "networks")
NORMALISED = of_section("conv_bn", "networks.reduced", "networks")
POOLING = of_section("avg_pool", "networks.reduced", "networks")


@pytest.mark.benchmarks("conv_forward", problems=CONVOLUTIONS)
def test_conv_forward(measure_time, case):
    measure_time(case)


@pytest.mark.benchmarks("conv_backward_data", problems=CONVOLUTIONS)
def test_conv_backward_data(measure_time, case):
    measure_time(case)


@pytest.mark.benchmarks("conv_backward_weight", problems=CONVOLUTIONS)
def test_conv_backward_weight(measure_time, case):
    measure_time(case)


@pytest.mark.benchmarks("conv_bn_forward", problems=NORMALISED)
def test_conv_bn_forward(measure_time, case):
    measure_time(case)


@pytest.mark.benchmarks("conv_bn_backward", problems=NORMALISED)
def test_conv_bn_backward(measure_time, case):
    measure_time(case)


@pytest.mark.benchmarks("conv_bn_inference", problems=NORMALISED)
def test_conv_bn_inference(measure_time, case):
    measure_time(case)


@pytest.mark.benchmarks("avg_pool_forward", problems=POOLING)
def test_avg_pool_forward(measure_time, case):
    measure_time(case)


@pytest.mark.benchmarks("avg_pool_backward", problems=POOLING)
def test_avg_pool_backward(measure_time, case):
    measure_time(case)
