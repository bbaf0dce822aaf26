"""torch.matmul, torch.addmm, and their forms for whole numbers."""

from __future__ import annotations

import torch


def matmul(a, b, bias, *, layout):
    """Return a b + bias of matrices, or of batches of them."""
    a, b = (x.transpose(-1, -2) if letter == "t" else x for x, letter in zip((a, b), layout, strict=True))
    return torch.matmul(a, b) if bias is None else torch.addmm(bias, a, b)


def matmul_of_int8(a, b, bias, *, layout):
    """Multiply in int32, which gives the sums; torch multiplies int8 into int8, which wraps around."""
    return matmul(a.to(torch.int32), b.to(torch.int32), bias, layout=layout)
