"""Autograd functions for convolution, batch norm, and the two as one that keeps less for its backward."""

from __future__ import annotations

from .conv import convolution
from .conv_norm import conv_batch_norm
from .kernels import conv_bn_backward, conv_bn_forward, conv_bn_inference
from .norm import Convention, batch_norm
from .parameters import Parameters

__all__ = [
    "Convention",
    "Parameters",
    "batch_norm",
    "conv_batch_norm",
    "conv_bn_backward",
    "conv_bn_forward",
    "conv_bn_inference",
    "convolution",
]
