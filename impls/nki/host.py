"""The operators that the kernels compute: NumPy arrays in and out, layout nchw or those of matrices, in fp32, bf16
or fp16."""

from __future__ import annotations

from .host_bn import Normalised
from .host_matmul import LAYOUTS, Products
from .host_pool import Pooling

OPERATORS = (
    "conv_forward", "conv_backward_data", "conv_backward_weight", "conv_bn_forward", "conv_bn_backward",
    "conv_bn_inference", "avg_pool_forward", "avg_pool_backward",
)  # fmt: skip
OF_MATRICES = ("matmul", "matmul_backward_a", "matmul_backward_b")
"""Names of operators, each a method of `Host`; those of matrices have the layouts `LAYOUTS`."""
__all__ = ["LAYOUTS", "OF_MATRICES", "OPERATORS", "Host"]


class Host(Normalised, Pooling, Products):
    """The operators, computed by the kernels that a tier loads: `load(name)` is the module of that name."""
