"""Convolution of 8 bits with a result of 8 bits."""

from __future__ import annotations

from conformance.operators.conv_requantized.geometry import RequantizedGeometry
from conformance.operators.conv_requantized.mistakes import MISTAKES
from conformance.operators.conv_requantized.operators import ConvRequantized
from conformance.operators.family import Family

FAMILY = Family(
    name="conv_requantized",
    geometry=RequantizedGeometry,
    operators=(ConvRequantized(),),
    distributions=("scales", "ties", "cancelled", "special"),
    mistakes=MISTAKES,
)
