"""Sizes of a matrix product, and the two factors with which it is added to a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from conformance.operators.descriptor import DECIMAL, PARTS, Field
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.spatial import GeometryError

LARGEST = 16
"""A factor is a multiple of 1/PARTS from -LARGEST to LARGEST: its 12 bits, and those of the data, fit in float64."""


class GemmSizes(NamedTuple):
    """A product y[m, n] = alpha a[m, k] b[k, n] + beta c[m, n], `batch` times, as `when=` gets it."""

    m: int
    n: int
    k: int
    batch: int
    alpha: float
    beta: float


@dataclass(frozen=True)
class GemmGeometry(MatmulGeometry):
    """Sizes and factors of one product, or of a batch. Raises GeometryError for factors that are not held exactly.

    Tensors in canonical order: a [m, batch * k], b [batch * n, k], c and y [m, batch * n].
    """

    PREFIX: ClassVar[str] = "gemm"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = {
        0: (
            *MatmulGeometry.FIELDS[0][:4],
            Field("alpha", "alpha, factor of the product", DECIMAL, default=1.0),
            Field("beta", "beta, factor of c", DECIMAL, default=1.0),
        )
    }
    family: ClassVar[str] = "gemm"

    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        vars(self).update(alpha=float(self.alpha), beta=float(self.beta))
        for letter, factor in (("alpha", self.alpha), ("beta", self.beta)):
            if abs(factor) > LARGEST or not (factor * PARTS).is_integer():
                raise GeometryError(
                    f"{letter} is {factor:g}; it must be a multiple of 1/{PARTS} from -{LARGEST} to {LARGEST}, so that "
                    "results are known exactly"
                )
        if not self.alpha:
            raise GeometryError("alpha is 0; libraries differ in whether a and b are then read")

    @property
    def described(self) -> GemmSizes:
        """Return the sizes and factors of one product."""
        batch = self.groups
        return GemmSizes(self.n, self.k // batch, self.c // batch, batch, self.alpha, self.beta)
