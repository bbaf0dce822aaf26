"""The implementation, and how its kernels are declared: each file of the folder declares its own."""

from __future__ import annotations

import math
from functools import partial

from conformance import Implementation

numpy_direct = Implementation("numpy-direct")
CHANNELS_FIRST = ("nchw", "ncw", "ncdhw")
direct = partial(numpy_direct.implements, dtypes=("fp32", "bf16", "fp16", "fp64"), layouts=CHANNELS_FIRST)
"""Declares a kernel in every dtype of more than 8 bits, or in other ones that it is given."""
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
