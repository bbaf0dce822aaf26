"""Sizes of a scaled matrix product: those of a product, and how many rows, columns and terms share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from conformance.operators.base import Tensor
from conformance.operators.descriptor import FLAG, Field
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.spatial import GeometryError


class Sizes(NamedTuple):
    """A scaled product as `when=` gets it; of `sm`, `sn` and `sk` 0 stands for all rows, columns and terms;
    `pow` says that all scales are powers of two."""

    m: int
    n: int
    k: int
    bias: bool
    sm: int
    sn: int
    sk: int
    pow: bool


def blocks(extent: int, length: int) -> int:
    """Return the number of blocks of an axis, of which the last may be shorter; length 0 makes one block of it all."""
    return -(-extent // length) if length else 1


class _Scales:
    """Tensors that follow from the sizes, and are not compared."""

    scale_a: Tensor
    scale_b: Tensor


@dataclass(frozen=True)
class ScaledGeometry(MatmulGeometry, _Scales):
    """Sizes of one scaled product. Raises GeometryError for a product without terms, and for batches.

    Scales: scale_a [blocks of rows, blocks of terms], scale_b [blocks of columns, blocks of terms].
    """

    PREFIX: ClassVar[str] = "scaled"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = {
        0: (
            Field("m", "rows", attribute="n"),
            Field("n", "columns", attribute="k"),
            Field("k", "length of the sums", attribute="c"),
            Field("bias", "bias (0 or 1)", FLAG, "bias", False),
            Field("sm", "length of a block of rows (0 for all)", attribute="rows", default=0),
            Field("sn", "length of a block of columns (0 for all)", attribute="columns", default=0),
            Field("sk", "length of a block of terms (0 for all)", attribute="terms", default=0),
            Field("pow", "scales that are powers of two (0 or 1)", FLAG, "powers", False),
        )
    }
    family: ClassVar[str] = "matmul_scaled"

    rows: int = 0
    columns: int = 0
    terms: int = 0
    powers: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups != 1:
            raise GeometryError(f"b is {self.groups}; a scaled product has no batch")
        if self.c < 1:
            raise GeometryError(f"k is {self.c}; it must be at least 1")
        for letter, value in (("sm", self.rows), ("sn", self.columns), ("sk", self.terms)):
            if value < 0:
                raise GeometryError(f"{letter} is {value}; it must be at least 1, or 0 for all")
        parts = blocks(self.c, self.terms)
        vars(self).update(
            scale_a=Tensor("PT", (blocks(self.n, self.rows), parts), wide=True, positive=True),
            scale_b=Tensor("QT", (blocks(self.k, self.columns), parts), wide=True, positive=True),
        )

    @property
    def further_sizes(self) -> dict[str, int]:
        """Return the number of blocks on each axis, by the words in which a condition names them."""
        return {
            "blocks of rows": self.scale_a.shape[0],
            "blocks of columns": self.scale_b.shape[0],
            "blocks of terms": self.scale_a.shape[1],
        }

    @property
    def further_features(self) -> set[str]:
        """Return the axes whose last block is shorter than the others, in words."""
        axes = ("rows", self.n, self.rows), ("columns", self.k, self.columns), ("terms", self.c, self.terms)
        return {f"short last block of {name}" for name, extent, length in axes if length and extent % length}

    @property
    def described(self) -> Sizes:
        """Return the sizes of the product and of its blocks."""
        return Sizes(self.n, self.k, self.c, self.bias, self.rows, self.columns, self.terms, self.powers)
