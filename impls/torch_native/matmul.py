"""torch.matmul and torch.addmm, their gradients, and a form for whole numbers."""

from __future__ import annotations

import torch


def turned(array, letter):
    """Return the transpose of a matrix where its letter of the layout says that it lies transposed."""
    return array.transpose(-1, -2) if letter == "t" else array


def matmul(a, b, bias, *, layout):
    """Return a b + bias of matrices, or of batches of them."""
    a, b = turned(a, layout[0]), turned(b, layout[1])
    return torch.matmul(a, b) if bias is None else torch.addmm(bias, a, b)


def matmul_backward_a(dy, b, *, layout):
    """Return dy b^T, as a lies."""
    return turned(torch.matmul(dy, turned(b, layout[1]).transpose(-1, -2)), layout[0]).contiguous()


def matmul_backward_b(a, dy, *, layout, with_bias):
    """Return a^T dy, as b lies, and the sum of dy's rows."""
    db = turned(torch.matmul(turned(a, layout[0]).transpose(-1, -2), dy), layout[1]).contiguous()
    return (db, dy.sum(0)) if with_bias else db


def matmul_of_int8(a, b, bias, *, layout):
    """Multiply in int32, which gives the sums; torch multiplies int8 into int8, which wraps around."""
    return matmul(a.to(torch.int32), b.to(torch.int32), bias, layout=layout)
