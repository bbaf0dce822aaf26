"""Sizes and parameters of a convolution with an activation: those of a convolution, the activation and a residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from conformance.operators.activation_geometry import ACTIVATION, RESIDUAL, require_activation
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.descriptor import Field


@dataclass(frozen=True)
class ConvActivationGeometry(ConvGeometry):
    """A convolution whose result, with a bias and a residual of its own shape, goes through an activation. Raises
    GeometryError for an activation that the suite does not have."""

    PREFIX: ClassVar[str] = "cact"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = {
        rank: (*fields, ACTIVATION, RESIDUAL) for rank, fields in ConvGeometry.FIELDS.items()
    }
    family: ClassVar[str] = "conv_activation"

    activation: str = "none"
    residual: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_activation(self.activation)
