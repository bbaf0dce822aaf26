"""Matrix product of 8 bits with a result of 8 bits: oneDNN's quantised linear layer where it fits, torch._int_mm on the
CPU, and torch.matmul, whose sums of whole numbers are exact in fp64."""

from __future__ import annotations

import os

import torch

from .matmul import turned

ADDS_IN_32_BITS = torch.cpu._is_vnni_supported() and "ONEDNN_MAX_CPU_ISA" not in os.environ
"""Whether oneDNN multiplies int8 by VNNI: by older instructions it adds two products in 16 bits, and these saturate, in
torch._int_mm and in the linear layer alike."""


def suits_linear(p):
    """Return whether oneDNN's linear layer computes a product: torch 2.13 ignores the zero point of weights, and adds a
    bias after the scale, in fp32."""
    return ADDS_IN_32_BITS and p.batch == 1 and not p.bias and p.b_zero_point == 0 and p.m > 0 and p.k > 0


def quantized_linear(a, b, bias, scale, *, layout, a_zero_point, b_zero_point, y_zero_point):
    a, weights = turned(a, layout[0]).contiguous(), turned(b, layout[1]).t().contiguous()
    packed, zeros = torch.ops.onednn.qlinear_prepack(weights, None), torch.zeros(len(weights), dtype=torch.int32)
    points = (a_zero_point, packed, scale.contiguous(), zeros, None, 1.0, y_zero_point, a.dtype)
    return torch.ops.onednn.qlinear_pointwise(a, 1.0, *points, "none", [], "")


def suits_int_mm(p):
    """Return whether torch._int_mm computes a product: one of matrices that torch 2.13 does not take for vectors. A row
    that is the transpose of a column has strides of 1, on which its results differ from call to call."""
    return ADDS_IN_32_BITS and p.batch == 1 and p.m > 1 and p.k > 1


def matmul_by_int_mm(a, b, bias, scale, *, layout, a_zero_point, b_zero_point, y_zero_point):
    """Multiply a and b as they are, and take the zero points off by sums of columns and of rows, in int32."""
    a, b = (_own(turned(operand, turn)) for operand, turn in zip((a, b), layout, strict=True))
    of_columns, of_rows = b.sum(0, dtype=torch.int32) * a_zero_point, a.sum(1, dtype=torch.int32) * b_zero_point
    sums = torch._int_mm(a, b) - of_columns - of_rows[:, None] + len(b) * a_zero_point * b_zero_point
    return _stored(sums if bias is None else sums + bias, scale, y_zero_point, a.dtype)


def _own(operand):
    """Return the operand, or a copy of one with strides of zero, on which results of torch 2.13 change at each call."""
    return operand.contiguous() if 0 in operand.stride() else operand


def matmul_requantized(a, b, bias, scale, *, layout, a_zero_point, b_zero_point, y_zero_point):
    whole = not a.dtype.is_floating_point
    wide = torch.float64 if whole else torch.float32
    sums = (turned(a, layout[0]).to(wide) - a_zero_point) @ (turned(b, layout[1]).to(wide) - b_zero_point)
    sums = sums if bias is None else sums + bias
    if whole:
        return _stored(sums, scale, y_zero_point, a.dtype)
    largest = torch.finfo(a.dtype).max
    return (sums * scale).clamp(-largest, largest).to(a.dtype)


def _stored(sums, scale, zero_point, dtype):
    """Scale sums in fp32 and store them in 8 bits."""
    ends = torch.iinfo(dtype)
    return ((sums.to(torch.float32) * scale).round() + zero_point).clamp(ends.min, ends.max).to(dtype)
