"""What no convolution on this chip can do with less: its tensors through the DMA once, and whole matrix products."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from .host_plan import BANK, PARTITIONS


class Minimum(NamedTuple):
    """Bytes through the DMA, and instructions of the Tensor Engine if that computed all of it."""

    dma_bytes: int
    matmuls: int


def minimum(operator: str, geometry: Any, itemsize: int) -> Minimum:
    """For a convolution's geometry (n, c, k, r, s, groups, output_size) in elements of `itemsize` bytes.

    The gathers multiply 128 x 128 weights of one tap with 512 pixels, backward-weight 128 pixels of 128 filters with
    512 taps of channels. What is left of a dimension takes an instruction of its own. Raises KeyError for another
    operator.
    """
    pixels = geometry.n * prod(geometry.output_size)
    k, c, taps = geometry.k // geometry.groups, geometry.c // geometry.groups, geometry.r * geometry.s
    gather = taps * _pieces(k, PARTITIONS) * _pieces(c, PARTITIONS) * _pieces(pixels, BANK)
    weight = _pieces(pixels, PARTITIONS) * _pieces(k, PARTITIONS) * _pieces(c * taps, BANK)
    matmuls = {"conv_forward": gather, "conv_backward_data": gather, "conv_backward_weight": weight}[operator]
    bias = geometry.k * (geometry.bias and operator != "conv_backward_data")
    elements = geometry.n * geometry.c * geometry.h * geometry.w + geometry.k * (c * taps) + pixels * geometry.k + bias
    return Minimum(elements * itemsize, geometry.groups * matmuls)


def _pieces(total: int, size: int) -> int:
    return -(-total // size)
