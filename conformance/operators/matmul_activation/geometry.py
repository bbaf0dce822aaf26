"""Sizes of a matrix product with an activation: those of a product, the activation and a residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from conformance.operators.activation_geometry import ACTIVATION, RESIDUAL, require_activation
from conformance.operators.descriptor import Field
from conformance.operators.matmul.geometry import MatmulGeometry


class ActivatedSizes(NamedTuple):
    """A product y[m, n] = act(a[m, k] b[k, n] + bias[n] + residual[m, n]), `batch` times, as `when=` gets it."""

    m: int
    n: int
    k: int
    batch: int
    bias: bool
    activation: str
    residual: bool


@dataclass(frozen=True)
class MatmulActivationGeometry(MatmulGeometry):
    """A matrix product whose result, with a bias and a residual of its own shape, goes through an activation. Raises
    GeometryError for an activation that the suite does not have."""

    PREFIX: ClassVar[str] = "mact"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = {0: (*MatmulGeometry.FIELDS[0], ACTIVATION, RESIDUAL)}
    family: ClassVar[str] = "matmul_activation"

    activation: str = "none"
    residual: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_activation(self.activation)

    @property
    def described(self) -> ActivatedSizes:
        """Return the sizes of one product, the activation, and whether there is a residual."""
        batch = self.groups
        return ActivatedSizes(
            self.n, self.k // batch, self.c // batch, batch, self.bias, self.activation, self.residual
        )
