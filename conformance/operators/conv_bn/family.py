"""Convolution fused with batch normalisation."""

from __future__ import annotations

from conformance.operators.conv.mistakes import CONVOLVING, FURTHER
from conformance.operators.conv_bn.backward import ConvBnBackward
from conformance.operators.conv_bn.backward_mistakes import BACKPROPAGATION
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.conv_bn.mistakes import NORMALISATION
from conformance.operators.conv_bn.operators import ConvBnForward, ConvBnInference
from conformance.operators.family import Family

FAMILY = Family(
    name="conv_bn",
    geometry=ConvBnGeometry,
    operators=(ConvBnForward(), ConvBnBackward(), ConvBnInference()),
    distributions=("fixed", "bits", "scaled", "shifted", "special", "nonfinite", "range"),
    mistakes=(*CONVOLVING, *NORMALISATION, *BACKPROPAGATION),
    further=FURTHER,
)
