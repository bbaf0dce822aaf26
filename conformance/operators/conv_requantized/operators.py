"""Convolution of 8-bit tensors with an 8-bit result; formulas are for two dimensions.

Defined as ONNX QLinearConv and TFLite's CONV_2D with symmetric filters (w has no zero point) and a scale per filter:

    sum[n,k,p,q] = bias[k] + sum_{c,r,s} (x[n, c', p*u + r*d - top, q*v + s*e - left] - zx) * w[k,c,r,s]
    y[n,k,p,q]   = saturate(round(scale[k] * sum[n,k,p,q]) + zy)

Padding is a real zero: it holds zx. ONNX writes scale[k] as x_scale * w_scale[k] / y_scale. Which results are correct:
`conformance.operators.requantized`.
"""

from __future__ import annotations

import numpy as np

from conformance.operators.base import (
    CHANNELS_MISMATCH,
    WINDOW_BEYOND_IMAGE,
    invalid_filters,
    invalid_parameters,
)
from conformance.operators.conv.operators import ConvForward
from conformance.operators.conv_requantized.geometry import RequantizedGeometry
from conformance.operators.family import Family, Storages
from conformance.operators.requantized import Requantized
from conformance.operators.spatial import by_channel, per_channel


class ConvRequantized(Requantized):
    """x[N,C,H,W], w[K,C/g,R,S], bias[K]?, scale[K] -> y[N,K,P,Q]. bias is always passed, None when absent."""

    name = family = "conv_requantized"
    linear = ConvForward()
    arguments = ("x", "w", "bias", "scale")
    keywords = ("stride", "padding", "dilation", "groups", "x_zero_point", "y_zero_point", "layout")
    data, operand = "x", "w"
    invalid = WINDOW_BEYOND_IMAGE | CHANNELS_MISMATCH | invalid_parameters(keywords) | invalid_filters(1)

    def along(self, geometry: RequantizedGeometry, values: np.ndarray) -> np.ndarray:
        return per_channel(values, geometry.rank)

    def by_scale(self, geometry: RequantizedGeometry, sums: np.ndarray) -> np.ndarray:
        return by_channel(sums)


FAMILY = Family(
    geometry=RequantizedGeometry,
    operators=(ConvRequantized(),),
    distributions=("scales", "ties", "cancelled", "natural", "special"),
    place=5,
    storages=Storages(once={2: ("requantized.fp8", "requantized.no-zero-points", "requantized.pointwise")}),
    equal_shapes=("q n3 c4 h4 w5 k4 r2 s2 u2 p1:0x0:1 b1 zx5 zy-9", "q n2 c3 h3 w3 k3 r3 s3 p1"),
    goldens=(
        "conv_requantized requantized.plain int8 ties",
        "conv_requantized requantized.fp8 fp8_e4m3 scales",
        "conv_requantized requantized.rank1 int8 cancelled",
        "conv_requantized requantized.uint8 uint8 scales",
    ),
    lacks=("large", "odd", "partial", "sizes", "sparse"),
)
