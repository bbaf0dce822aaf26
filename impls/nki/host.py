"""What the kernels offer: NumPy arrays in, NumPy arrays out, layout nchw, in fp32, bf16 or fp16."""

from __future__ import annotations

from . import host_bn, host_conv, host_pool
from .host_bn import Normalised
from .host_minimum import Minimum, minimum
from .host_pool import Pooling

CAPABILITIES = (*host_conv.CAPABILITIES, *host_bn.CAPABILITIES, *host_pool.CAPABILITIES)
"""(operator, method of `Host`, which problems or None for all)."""

__all__ = ["CAPABILITIES", "Host", "Minimum", "minimum"]


class Host(Normalised, Pooling):
    """The operators, computed by the kernels that a tier loads: `load(name)` is the module of that name."""
