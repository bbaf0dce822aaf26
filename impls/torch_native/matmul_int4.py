"""Weights of 4 bits made in eager mode, then torch.matmul; and torch's own packed product on the CPU."""

from __future__ import annotations

from functools import partial

import torch

from conformance import Contract

from .matmul import turned


def unpacked(both, count):
    """Return the numbers [..., count] of bytes of two, the first one in the low half."""
    return torch.stack([both & 15, both >> 4], dim=-1).flatten(-2)[..., :count]


def _weights(b, scale, zero_point, k, block):
    """Return (b - zero) * scale [N, K], in the dtype of the scales."""
    shared, length = scale.shape[1], block or k
    numbers = unpacked(b, k).to(torch.int8)
    if zero_point is None:
        zero = torch.full_like(scale, 8, dtype=torch.int8)
    else:
        zero = unpacked(zero_point, shared).to(torch.int8)
    zero, scale = (part.repeat_interleave(length, dim=1)[:, :k] for part in (zero, scale))
    return (numbers - zero).to(scale.dtype) * scale


def matmul_int4(a, b, scale, zero_point, bias, *, layout, block):
    """Return a w + bias; w is rounded to the dtype of the scales."""
    a = turned(a, layout[0])
    weights = _weights(b, scale, zero_point, a.shape[1], block).T
    return torch.matmul(a, weights) if bias is None else torch.addmm(bias, a, weights)


def suits_packed(p):
    """Return whether torch packs the numbers: whole blocks of at least 32 terms, and columns by 16."""
    return not p.bias and p.block in (32, 64, 128, 256) and p.k % p.block == 0 and p.n % 16 == 0 and p.m > 0


def matmul_packed(a, b, scale, zero_point, bias, *, block):
    """Return the product by `torch._weight_int4pack_mm_for_cpu`, whose zero points are floats: (8 - zero) * scale."""
    packed = torch._convert_weight_to_int4pack_for_cpu(unpacked(b, a.shape[1]).to(torch.int32), 1)
    middle = torch.zeros_like(scale)
    if zero_point is not None:
        middle = (8 - unpacked(zero_point, scale.shape[1]).to(scale.dtype)) * scale
    both = torch.stack([scale.T, middle.T], dim=-1).contiguous()
    return torch._weight_int4pack_mm_for_cpu(a, packed, block, both)


def declare(implementation, *, packs):
    """Declare both products, the packed one where it is asked for. Weights are rounded to the 16 bits of the scales;
    oneDNN's products of bf16 flush subnormal numbers."""
    flushed = "flushed" if implementation.device == "cpu" else "kept"
    contracts = {
        "fp32": Contract(),
        "fp16": Contract(inputs="fp16"),
        "bf16": Contract(inputs="bf16", subnormals=flushed),
    }
    for dtype, contract in contracts.items():
        declared = partial(implementation.implements, "matmul_int4", dtypes=(dtype,), contract=contract)
        if packs:
            declared(layouts=("nn", "nt"), when=suits_packed)(matmul_packed)
        declared(layouts=("nn", "nt", "tn", "tt"))(matmul_int4)
