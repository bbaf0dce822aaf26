"""Convolutions and products with a bias, a residual and an activation, by one operator of torch after the other: what
lies between them has the format of the tensors."""

from __future__ import annotations

from functools import partial

from torch.nn import functional

from conformance import Contract

from .contracts import HALVES
from .conv import conv_forward
from .matmul import matmul

ACTIVATIONS = {
    "none": lambda y: y,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def _finished(y, residual, activation):
    return ACTIVATIONS[activation](y if residual is None else y + residual)


def conv_activation(x, w, bias, residual, *, activation, **parameters):
    """Return the activation of a convolution and a residual."""
    return _finished(conv_forward(x, w, bias, **parameters), residual, activation)


def matmul_activation(a, b, bias, residual, *, activation, layout):
    """Return the activation of a product and a residual."""
    return _finished(matmul(a, b, bias, layout=layout), residual, activation)


def declare(implementation, layouts, matrices, fields, takes):
    """Declare both; `fields` are what the convolution and the product declare by dtype, `takes` what 16 bits take."""
    for dtype in ("fp32", "bf16", "fp16", "fp64"):
        between = {"between": "storage"} if dtype in HALVES else {}
        for kernel, name, where in (
            (conv_activation, "conv_forward", layouts),
            (matmul_activation, "matmul", matrices),
        ):
            when = takes if dtype in HALVES and kernel is conv_activation else lambda p: True
            contract = Contract(**fields.get((name, dtype), {}), **between)
            implementation.implements(kernel.__name__, dtypes=(dtype,), layouts=where, when=when, contract=contract)(
                kernel
            )
