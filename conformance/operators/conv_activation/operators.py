"""Convolution with a bias, a residual and an activation in one kernel.

    y = act(conv(x, w) + bias + residual)

The convolution is that of `conformance.operators.conv`; residual and y have the same shape, as at the end of a block of
a residual network, where libraries fuse all four (cuDNN's ConvBiasActivation, oneDNN's sum and eltwise post-ops). What
the activations are: `conformance.operators.activations`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from conformance.operators import special_values
from conformance.operators.activations import Activated
from conformance.operators.base import (
    CHANNELS_MISMATCH,
    WINDOW_BEYOND_IMAGE,
    Special,
    invalid_filters,
    invalid_parameters,
)
from conformance.operators.conv.operators import ConvForward
from conformance.operators.conv_activation.geometry import ConvActivationGeometry
from conformance.operators.family import Family, Storages


class ConvActivation(Activated):
    """x[N,C,H,W], w[K,C/g,R,S], bias[K]?, residual[N,K,P,Q]? -> y[N,K,P,Q]. bias and residual are always passed, None
    when absent."""

    name = family = "conv_activation"
    linear = ConvForward()
    arguments = ("x", "w", "bias", "residual")
    keywords = ("stride", "padding", "dilation", "groups", "activation", "layout")
    data, operand, free_axis = "x", "w", 0
    invalid = WINDOW_BEYOND_IMAGE | CHANNELS_MISMATCH | invalid_parameters(keywords) | invalid_filters(1)

    def nonfinite(self, geometry: ConvActivationGeometry) -> Iterator[Special]:
        """Yield places in filters, in the bias and in the residual, each in channels of its own."""
        tap = special_values.inner_tap(geometry)
        values = special_values.filters_and_bias((0, *tap) if tap else None, geometry.bias)
        if geometry.residual:
            values += [("residual", (0,) * geometry.rank, value) for value in special_values.NONFINITE]
        values = self.bounded(geometry, values)
        for name, (k, *place), value in special_values.apart(geometry.k, values):
            yield name, (0, k, *place) if name == "residual" else (k, *place), value
        yield from self.bounded(geometry, [("x", (-1, *(0,) * (1 + geometry.rank)), -math.inf)])


FAMILY = Family(
    geometry=ConvActivationGeometry,
    operators=(ConvActivation(),),
    distributions=("fixed", "bent", "integer", "natural", "impulse", "special", "nonfinite", "wide"),
    place=5,
    storages=Storages(once={2: ("activation.relu", "activation.asymmetric", "activation.none")}),
    lacks=("equal_shapes", "large", "odd", "partial", "sizes", "sparse"),
)
