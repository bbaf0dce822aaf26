"""Convolution in Numba on all cores: packed panels, register tiles, one micro-kernel for the three directions."""

from __future__ import annotations

import numba

from conformance import Implementation

from .conv import conv_backward_data, conv_backward_weight, conv_forward

numba_cpu = Implementation("numba-cpu", version=numba.__version__)

for kernel in (conv_forward, conv_backward_data, conv_backward_weight):
    numba_cpu.implements(kernel.__name__, dtypes=("fp32", "bf16", "fp16", "fp64"), layouts=("nchw", "nhwc"))(kernel)
