"""torch.nn.functional.grouped_mm, which gets the end of each group, and its gradients."""

from __future__ import annotations

from itertools import accumulate, product

import torch
from torch.nn.functional import grouped_mm

from conformance import Contract

from .matmul import turned

ALIGNED = 16
"""Bytes of which the distance of two rows is a multiple, or torch refuses the operand."""
SIZES_OF = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Dtypes that torch takes on the CPU, and the bytes of a number."""


def _lying_well(array):
    """Return an operand whose rows torch takes where they lie, or a copy."""
    step, inner = array.stride()[-2:]
    fits = inner == 1 and step >= array.shape[-1] and step * array.element_size() % ALIGNED == 0
    return array if fits else array.contiguous()


def _ends(sizes, like):
    return torch.tensor([*accumulate(sizes)], dtype=torch.int32, device=like.device)


def matmul_grouped(a, b, *, layout, sizes):
    """Return a b, each row with the b of its group."""
    a, b = turned(_lying_well(a), layout[0]), turned(_lying_well(b), layout[1])
    return grouped_mm(a, b, offs=_ends(sizes, a))


def matmul_grouped_backward_a(dy, b, *, layout, sizes):
    """Return dy b^T, as a lies."""
    b = turned(_lying_well(b), layout[1]).transpose(-1, -2)
    return turned(grouped_mm(_lying_well(dy), b, offs=_ends(sizes, dy)), layout[0]).contiguous()


def matmul_grouped_backward_b(a, dy, *, layout, sizes):
    """Return a^T dy of the rows of each group, as b lies."""
    a = turned(_lying_well(a), layout[0]).transpose(-1, -2)
    return turned(grouped_mm(a, _lying_well(dy), offs=_ends(sizes, a)), layout[1]).contiguous()


def _aligned(dtype, layout, operands):
    """Return a predicate of products whose operands have rows of whole multiples of `ALIGNED` bytes, and some: torch
    refuses the strides of empty ones."""

    def holds(sizes):
        lengths = {"a": sizes.m if layout[0] == "t" else sizes.k, "dy": sizes.n}
        lengths["b"] = sizes.k if layout[1] == "t" else sizes.n
        whole = all(lengths[name] * SIZES_OF[dtype] % ALIGNED == 0 for name in operands)
        return whole and min(sizes.m, sizes.k) > 0

    return holds


OPERANDS = {matmul_grouped: "a b", matmul_grouped_backward_a: "dy b", matmul_grouped_backward_b: "a dy"}


def declare(implementation, layouts):
    """Declare the kernels, each for the problems that torch takes in a dtype and layout."""
    for kernel, dtype, layout in product(OPERANDS, SIZES_OF, layouts):
        # oneDNN's bf16 dot products flush subnormal numbers, as those of a single product
        contract = Contract(subnormals="flushed") if dtype == "bf16" else Contract()
        when = _aligned(dtype, layout, OPERANDS[kernel].split())
        implementation.implements(kernel.__name__, dtypes=(dtype,), layouts=(layout,), when=when, contract=contract)(
            kernel
        )
    implementation.differentiates("matmul_grouped")(matmul_grouped)
