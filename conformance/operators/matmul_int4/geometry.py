"""Sizes of a product with weights of 4 bits: those of a product, the length of a block of terms, and zero points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from conformance.operators.base import Tensor
from conformance.operators.descriptor import FLAG, Field
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.matmul_scaled.geometry import blocks
from conformance.operators.spatial import GeometryError

SHORTEST = 16
"""Length of the shortest block of terms."""


class Sizes(NamedTuple):
    """A product with weights of 4 bits as `when=` gets it; block 0 stands for all terms; `zero_points` says whether
    they are given."""

    m: int
    n: int
    k: int
    bias: bool
    zero_points: bool
    block: int


class _Weights:
    """Tensors that follow from the sizes, and are not compared."""

    numbers: Tensor
    scale: Tensor
    zero_point: Tensor


@dataclass(frozen=True)
class Int4Geometry(MatmulGeometry, _Weights):
    """Sizes of one product with weights of 4 bits. Raises GeometryError for a product without terms, for batches, and
    for a block that is no power of two.

    Tensors beside a, y and the bias: numbers b [n, k], scale [n, blocks] and zero_point [n, blocks].
    """

    PREFIX: ClassVar[str] = "int4"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = {
        0: (
            Field("m", "rows", attribute="n"),
            Field("n", "columns", attribute="k"),
            Field("k", "length of the sums", attribute="c"),
            Field("bias", "bias (0 or 1)", FLAG, "bias", False),
            Field("zp", "zero points (0 or 1)", FLAG, "has_zero_points", False),
            Field("block", "terms that share a scale (0 for all)", attribute="block", default=0),
        )
    }
    family: ClassVar[str] = "matmul_int4"

    has_zero_points: bool = False
    block: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups != 1:
            raise GeometryError(f"b is {self.groups}; a product with weights of 4 bits has no batch")
        if self.c < 1:
            raise GeometryError(f"k is {self.c}; it must be at least 1")
        if self.block and (self.block < SHORTEST or self.block & (self.block - 1)):
            raise GeometryError(f"block is {self.block}; it must be a power of two from {SHORTEST}, or 0 for all")
        of_blocks = self.k, blocks(self.c, self.block)
        vars(self).update(
            # as rows of weights, [n, k] in every layout
            numbers=Tensor("KC", (self.k, self.c), packed=True),
            scale=Tensor("QT", of_blocks, positive=True),
            zero_point=Tensor("QT", of_blocks, packed=True),
        )

    @property
    def further_sizes(self) -> dict[str, int]:
        """Return the number of blocks of terms, by the words in which a condition names it."""
        return {"blocks of terms": self.scale.shape[1]}

    @property
    def further_features(self) -> set[str]:
        """Return features of terms and blocks: an odd number shares a byte with none."""
        features = {"odd number of terms"} if self.c % 2 else set()
        features |= {"odd number of blocks"} if self.scale.shape[1] % 2 else set()
        return features | ({"short last block of terms"} if self.block and self.c % self.block else set())

    @property
    def described(self) -> Sizes:
        """Return the sizes of the product and of its blocks."""
        return Sizes(self.n, self.k, self.c, self.bias, self.has_zero_points, self.block)
