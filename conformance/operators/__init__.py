"""The mathematics: one file per operator family, no framework and no pytest."""

from __future__ import annotations

from collections.abc import Callable

from conformance.operators import conv_bn, pool
from conformance.operators.base import Arrays, Geometry, Operator, Tensor
from conformance.operators.conv import ConvBackwardData, ConvBackwardWeight, ConvForward, ConvGeometry
from conformance.operators.conv_bn import ConvBnForward, ConvBnGeometry, ConvBnInference
from conformance.operators.conv_bn_backward import ConvBnBackward
from conformance.operators.pool import AvgPoolBackward, AvgPoolForward, PoolGeometry
from conformance.operators.spatial import GeometryError

_ALL: tuple[Operator, ...] = (
    *(ConvForward(), ConvBackwardData(), ConvBackwardWeight()),
    *(ConvBnForward(), ConvBnBackward(), ConvBnInference()),
    *(AvgPoolForward(), AvgPoolBackward()),
)
OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _ALL}
CONVOLUTIONS, NORMALISED, POOLINGS = (
    tuple(operator.name for operator in _ALL if operator.family == family) for family in ("conv", "conv_bn", "pool")
)
"""Names of the operators, by family."""

_PARSERS: dict[str, Callable[[str], Geometry]] = {pool.PREFIX: PoolGeometry.parse, conv_bn.PREFIX: ConvBnGeometry.parse}


def takes(operator: str, geometry: Geometry) -> bool:
    """Whether an operator is defined on a geometry: they are of one family."""
    return OPERATORS[operator].family == geometry.family


def parse(text: str) -> Geometry:
    """The geometry of a descriptor; its first word tells pooling and batch normalisation. Raises GeometryError."""
    words = text.split(maxsplit=1)
    return _PARSERS.get(words[0] if words else "", ConvGeometry.parse)(text)


__all__ = [
    "CONVOLUTIONS",
    "NORMALISED",
    "OPERATORS",
    "POOLINGS",
    "Arrays",
    "ConvBnGeometry",
    "ConvGeometry",
    "Geometry",
    "GeometryError",
    "Operator",
    "PoolGeometry",
    "Tensor",
    "parse",
    "takes",
]
