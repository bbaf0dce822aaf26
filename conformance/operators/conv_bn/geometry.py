"""Sizes and parameters of a convolution and the normalisation of its output."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import numpy as np

from conformance.operators.conv.geometry import ConvGeometry, convolution_fields
from conformance.operators.descriptor import FLAG, Field, by_rank
from conformance.operators.spatial import GeometryError

NORMALISATION = (
    Field("affine", "gamma and beta (0 or 1)", FLAG, "affine", True),
    Field("run", "running statistics (0 or 1)", FLAG, "running", True),
    Field("eps", "epsilon, 10 to minus this", attribute="eps_digits", default=5),
    Field("outside", "epsilon added to the root of the unbiased variance (0 or 1)", FLAG, "eps_outside", False),
    Field("mom", "momentum in percent", attribute="momentum_percent", default=10),
)


@dataclass(frozen=True)
class ConvBnGeometry(ConvGeometry):
    """A convolution without bias, and the normalisation of its output. `eps` is 10**-eps_digits."""

    PREFIX = "bn"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = by_rank(lambda rank: (*convolution_fields(rank), *NORMALISATION))
    family: ClassVar[str] = "conv_bn"

    affine: bool = True
    running: bool = True
    eps_digits: int = 5
    eps_outside: bool = False
    momentum_percent: int = 10

    def __post_init__(self) -> None:
        ConvGeometry.__post_init__(self)
        if self.bias:
            raise GeometryError("a convolution before batch normalisation has no bias: the mean takes it away again")
        if self.n and self.count < 2:
            raise GeometryError("the variance of one element a channel is undefined; enlarge n, h or w")
        if not 1 <= self.eps_digits <= 9:
            raise GeometryError(f"eps{self.eps_digits} stands for 1e-{self.eps_digits}; it must be eps1 to eps9")
        if not 0 <= self.momentum_percent <= 100:
            raise GeometryError(f"mom{self.momentum_percent} is in percent; it must be mom0 to mom100")

    @cached_property
    def conv(self) -> ConvGeometry:
        """The convolution without the normalisation."""
        return ConvGeometry(*(getattr(self, field.name) for field in fields(ConvGeometry) if field.init))

    @cached_property
    def eps(self) -> float:
        """Epsilon, which keeps the denominator of the normalisation away from zero."""
        return float(f"1e-{self.eps_digits}")

    @property
    def momentum(self) -> float:
        """Share of the batch's statistics in the new running statistics."""
        return self.momentum_percent / 100

    @cached_property
    def count(self) -> int:
        """M, the number of elements in a channel."""
        return self.y.size // self.k

    @property
    def freedom(self) -> int:
        """Divisor of the sum of squares in the variance that y is normalised with: M, or M - 1 with `eps_outside`."""
        return self.count - self.eps_outside

    def inverse(self, var: np.ndarray) -> np.ndarray:
        """Return 1 / sqrt(var + eps), or 1 / (sqrt(var) + eps) with `eps_outside`."""
        deviation: np.ndarray = np.sqrt(var) + self.eps if self.eps_outside else np.sqrt(var + self.eps)
        return 1 / deviation
