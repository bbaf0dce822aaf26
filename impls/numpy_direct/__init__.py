"""The definitions, written down: for each tap a sum of products in fp32, in a fixed order, no BLAS.

Slow and plain on purpose; the other implementations are compared with the exact reference, not with this one. 16-bit
inputs are widened, accumulated in fp32 and rounded once.
"""

from __future__ import annotations

import math

from conformance import Implementation

from . import grouped
from .conv import conv_backward_data, conv_backward_weight, conv_forward
from .conv_bn import conv_bn_backward, conv_bn_forward, conv_bn_inference
from .conv_requantized import conv_requantized
from .conv_transpose import (
    conv_transpose_backward_data,
    conv_transpose_backward_weight,
    conv_transpose_forward,
)
from .max_pool import max_pool_backward, max_pool_forward
from .pool import avg_pool_backward, avg_pool_forward

numpy_direct = Implementation("numpy-direct")

EVERY_DTYPE = ("fp32", "bf16", "fp16", "fp64")
CHANNELS_FIRST = ("nchw", "ncw", "ncdhw")
LARGEST = 2**28
"""Most products: half a GFLOP. Above, a definition in Python takes minutes and shows no more than on small problems."""


def small_conv(geometry):
    """Return whether there are few enough products in one direction."""
    return geometry.y.size * geometry.filter.size // geometry.k < LARGEST


def small_transposed(geometry):
    """Return whether there are few enough products in one direction."""
    return geometry.x.size * geometry.filter.size // geometry.c < LARGEST


def small_pool(geometry):
    """Return whether there are few enough summands."""
    return geometry.y.size * math.prod(geometry.window) < LARGEST


for kernel in (
    conv_forward,
    conv_backward_data,
    conv_backward_weight,
    conv_bn_forward,
    conv_bn_backward,
    conv_bn_inference,
):
    numpy_direct.implements(kernel.__name__, dtypes=EVERY_DTYPE, layouts=CHANNELS_FIRST, when=small_conv)(kernel)
for kernel in (grouped.conv_forward, grouped.conv_backward_data, grouped.conv_backward_weight):
    numpy_direct.implements(kernel.__name__, dtypes=EVERY_DTYPE, layouts=grouped.LAYOUTS, when=small_conv)(kernel)
for kernel in (conv_transpose_forward, conv_transpose_backward_data, conv_transpose_backward_weight):
    numpy_direct.implements(kernel.__name__, dtypes=EVERY_DTYPE, layouts=CHANNELS_FIRST, when=small_transposed)(kernel)
for kernel in (conv_forward, conv_backward_data, conv_backward_weight):
    numpy_direct.implements(kernel.__name__, dtypes=("fp8_e4m3", "fp8_e5m2"), layouts=CHANNELS_FIRST, when=small_conv)(
        kernel
    )
numpy_direct.implements("conv_forward", dtypes=("int8",), layouts=CHANNELS_FIRST, when=small_conv)(conv_forward)
numpy_direct.implements(
    "conv_requantized", dtypes=("int8", "fp8_e4m3", "fp8_e5m2"), layouts=CHANNELS_FIRST, when=small_conv
)(conv_requantized)
for kernel in (avg_pool_forward, avg_pool_backward, max_pool_forward, max_pool_backward):
    numpy_direct.implements(kernel.__name__, dtypes=EVERY_DTYPE, layouts=CHANNELS_FIRST, when=small_pool)(kernel)
