"""Convolution, its fusion with batch normalisation, and average pooling in Numba on all cores."""

from __future__ import annotations

import numba

from conformance import Implementation
from conformance.layouts import IMAGES, layouts_of

from .conv import conv_backward_data, conv_backward_weight, conv_forward
from .conv_bn import conv_bn_backward, conv_bn_forward, conv_bn_inference
from .pool import avg_pool_backward, avg_pool_forward

numba_cpu = Implementation(
    "numba-cpu", version=numba.__version__, unsafe=("fork",)
)  # with GNU OpenMP it ends the child

CONVOLUTIONS = (
    conv_forward, conv_backward_data, conv_backward_weight, conv_bn_forward, conv_bn_backward, conv_bn_inference,
)  # fmt: skip
POOLINGS = avg_pool_forward, avg_pool_backward

for kernels, layouts in (CONVOLUTIONS, IMAGES), (POOLINGS, layouts_of(2) + layouts_of(1)):
    for kernel in kernels:
        # without channels no product would begin a sum, and results would be old values in memory
        numba_cpu.implements(
            kernel.__name__, dtypes=("fp32", "bf16", "fp16", "fp64"), layouts=layouts, when=lambda p: p.c > 0
        )(kernel)
