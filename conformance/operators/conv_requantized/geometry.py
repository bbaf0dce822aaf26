"""Sizes and parameters of a requantized convolution: those of a convolution, and the zero points of x and y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from conformance.operators.conv.geometry import ConvGeometry, convolution_fields
from conformance.operators.descriptor import FLAG, Field, by_rank
from conformance.operators.requantized_geometry import ZeroPoints, zero_point


@dataclass(frozen=True)
class RequantizedGeometry(ZeroPoints, ConvGeometry):
    """A convolution whose result has 8 bits, like its inputs. Raises GeometryError for zero points that 8 bits do
    not hold. In fp8, zero points are 0."""

    PREFIX: ClassVar[str] = "q"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = by_rank(
        lambda rank: (
            *convolution_fields(rank),
            Field("b", "bias (0 or 1)", FLAG, "bias", False),
            zero_point("x"),
            zero_point("y"),
        )
    )
    family: ClassVar[str] = "conv_requantized"

    x_zero_point: int = 0
    y_zero_point: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_zero_points()
