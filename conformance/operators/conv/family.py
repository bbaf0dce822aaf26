"""Two-dimensional convolution and its two gradients."""

from __future__ import annotations

from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.conv.mistakes import FURTHER, MISTAKES
from conformance.operators.conv.operators import ConvBackwardData, ConvBackwardWeight, ConvForward
from conformance.operators.family import LINEAR, Family

FAMILY = Family(
    name="conv",
    geometry=ConvGeometry,
    operators=(ConvForward(), ConvBackwardData(), ConvBackwardWeight()),
    distributions=(*LINEAR, "large", "small", "codes"),
    mistakes=MISTAKES,
    further=FURTHER,
)
