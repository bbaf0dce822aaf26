"""torch._scaled_mm: fp8 with a scale for each tensor, or for each row and each column."""

from __future__ import annotations

import torch

from .matmul import turned

DTYPES = ("fp8_e4m3", "fp8_e5m2")


def takes(sizes):
    """Return whether a scale is of a whole tensor, or of a row or column of all terms; none of other blocks."""
    return sizes.sk == 0 and (sizes.sm, sizes.sn) in ((0, 0), (1, 1))


def matmul_scaled(a, b, scale_a, scale_b, bias, *, layout, sm, sn):
    """Return a b + bias with scales; those of b's columns lie in a row."""
    a, b = turned(a, layout[0]), turned(b, layout[1])
    return torch._scaled_mm(a, b, scale_a, scale_b.T.contiguous(), bias=bias, out_dtype=torch.float32)
