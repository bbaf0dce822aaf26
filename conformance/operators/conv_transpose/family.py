"""Transposed convolution and its two gradients."""

from __future__ import annotations

from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.conv_transpose.mistakes import FURTHER, MISTAKES
from conformance.operators.conv_transpose.operators import (
    ConvTransposeBackwardData,
    ConvTransposeBackwardWeight,
    ConvTransposeForward,
)
from conformance.operators.family import LINEAR, Family

FAMILY = Family(
    name="conv_transpose",
    geometry=TransposedGeometry,
    operators=(ConvTransposeForward(), ConvTransposeBackwardData(), ConvTransposeBackwardWeight()),
    distributions=(*LINEAR, "large", "small"),
    mistakes=MISTAKES,
    further=FURTHER,
)
