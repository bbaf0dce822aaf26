"""Sizes and parameters of a requantized convolution: those of a convolution, and the zero points of x and y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from conformance.dtypes import WHOLE
from conformance.operators.conv.geometry import ConvGeometry, convolution_fields
from conformance.operators.descriptor import FLAG, Field, by_rank
from conformance.operators.spatial import GeometryError

LOWEST, HIGHEST = -128, 127
"""Range of int8."""


@dataclass(frozen=True)
class RequantizedGeometry(ConvGeometry):
    """A convolution whose result has 8 bits, like its inputs. Raises GeometryError for zero points that int8 does not
    hold. In fp8, zero points are 0."""

    PREFIX: ClassVar[str] = "q"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = by_rank(
        lambda rank: (
            *convolution_fields(rank),
            Field("b", "bias (0 or 1)", FLAG, "bias", False),
            Field("zx", "zero point of x", attribute="x_zero_point", default=0),
            Field("zy", "zero point of y", attribute="y_zero_point", default=0),
        )
    )
    family: ClassVar[str] = "conv_requantized"

    x_zero_point: int = 0
    y_zero_point: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for letter, value in (("zx", self.x_zero_point), ("zy", self.y_zero_point)):
            if not LOWEST <= value <= HIGHEST:
                raise GeometryError(f"{letter} is {value}; a zero point is from {LOWEST} to {HIGHEST}")

    def exists_in(self, dtype: str) -> bool:
        """Return whether the problem exists in a dtype: only integers may have zero points other than 0."""
        return dtype in WHOLE or not (self.x_zero_point or self.y_zero_point)
