"""The mathematics: one file per operator family, no framework and no pytest."""

from __future__ import annotations

from conformance.operators.base import Arrays, Geometry, Operator, Tensor
from conformance.operators.conv import ConvBackwardData, ConvBackwardWeight, ConvForward, ConvGeometry
from conformance.operators.spatial import GeometryError

_ALL: tuple[Operator, ...] = (ConvForward(), ConvBackwardData(), ConvBackwardWeight())
OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _ALL}

__all__ = ["OPERATORS", "Arrays", "ConvGeometry", "Geometry", "GeometryError", "Operator", "Tensor"]
