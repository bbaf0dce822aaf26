"""Mistakes of products with an activation: those of the activation and the residual, and those of a product."""

from __future__ import annotations

from conformance.operators.activation_mistakes import ROUNDED, of_activations, of_biases
from conformance.operators.conv.mistakes import neighbour
from conformance.operators.matmul import mistakes as matmul
from conformance.operators.mistakes import Mistake, misread

MISTAKES: tuple[Mistake, ...] = (
    *of_activations(product=True),
    *of_biases("column"),
    Mistake(
        "residual taken for its transpose",
        "index",
        misread(residual=matmul.transposed),
        when=lambda g: g.residual,
    ),
    Mistake(
        "residual of the product before",
        "groups",
        misread(residual=neighbour(1)),
        when=lambda g: g.residual and g.groups > 1,
    ),
    *matmul.ORDERS,
    *matmul.BATCHES,
)

FURTHER: tuple[Mistake, ...] = (ROUNDED,)
