"""Sizes of a requantized matrix product, and the zero points of a, b and y."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from conformance.dtypes import WHOLE
from conformance.operators.descriptor import Field
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.requantized_geometry import ZeroPoints, zero_point

LARGEST_SUM = 2**31 - 1


class RequantizedSizes(NamedTuple):
    """A product y[m, n] = a[m, k] b[k, n], `batch` times, and its zero points, as `when=` gets it."""

    m: int
    n: int
    k: int
    batch: int
    bias: bool
    a_zero_point: int
    b_zero_point: int
    y_zero_point: int


@dataclass(frozen=True)
class RequantizedMatmulGeometry(ZeroPoints, MatmulGeometry):
    """A matrix product whose result has 8 bits, like its operands. Raises GeometryError for zero points that 8 bits do
    not hold. In fp8, zero points are 0."""

    PREFIX: ClassVar[str] = "qmm"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = {
        0: (*MatmulGeometry.FIELDS[0], zero_point("a"), zero_point("b"), zero_point("y"))
    }
    family: ClassVar[str] = "matmul_requantized"
    weights: ClassVar[str] = "b"

    a_zero_point: int = 0
    b_zero_point: int = 0
    y_zero_point: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_zero_points()

    def exists_in(self, dtype: str) -> bool:
        """Return whether the problem exists in a dtype: zero points are held by their tensors, and 0 in fp8; sums of
        whole numbers have 32 bits. A bias is drawn up to 2^13 sqrt(K)."""
        if not super().exists_in(dtype) or dtype not in WHOLE:
            return super().exists_in(dtype)
        terms, farthest = self.c // self.groups, []
        for tensor, point in (("a", self.a_zero_point), ("b", self.b_zero_point)):
            low, high = self.ends_of(tensor, dtype)
            farthest.append(max(high - point, point - low))
        return terms * math.prod(farthest) + (math.isqrt(terms + 1) << 13) <= LARGEST_SUM

    @property
    def further_sizes(self) -> dict[str, int]:
        """Return the products of a batch and the zero points, by the words in which a condition names them."""
        return super().further_sizes | {f"zero point of {name}": point for name, point in self.zero_points.items()}

    @property
    def described(self) -> RequantizedSizes:
        """Return the sizes of one product, and the zero points."""
        batch, points = self.groups, (self.a_zero_point, self.b_zero_point, self.y_zero_point)
        return RequantizedSizes(self.n, self.k // batch, self.c // batch, batch, self.bias, *points)
