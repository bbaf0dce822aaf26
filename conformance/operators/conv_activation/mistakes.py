"""Mistakes of convolutions with an activation: those of the activation and the residual, and those of a convolution."""

from __future__ import annotations

from conformance.operators.activation_mistakes import ROUNDED, of_activations, of_biases
from conformance.operators.conv.mistakes import CONVOLVING
from conformance.operators.mistakes import Mistake, channels_last, misread

MISTAKES: tuple[Mistake, ...] = (
    *of_activations(product=False),
    *of_biases("channel"),
    Mistake(
        "residual read as NHWC instead of NCHW",
        "index",
        misread(residual=lambda residual, g: channels_last(residual, residual.shape)),
        when=lambda g: g.residual,
    ),
    *CONVOLVING,
)

FURTHER: tuple[Mistake, ...] = (ROUNDED,)
