"""Sizes of a matrix product, and how it appears to the suite: as a convolution without axes of space.

A row of `a` is an image of the batch, the numbers that are multiplied and added up are its channels, a column of `b` is
a filter, and the products of a batch are groups. So attributes have the letters of a convolution (n, c, k), whereas a
descriptor and the `when=` of a kernel have those of a product (m, n, k): see `Sizes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from conformance.layouts import A, B, Y
from conformance.operators.base import Tensor
from conformance.operators.descriptor import FLAG, Described, Field
from conformance.operators.spatial import GeometryError, Spatial


class Sizes(NamedTuple):
    """A product y[m, n] = a[m, k] b[k, n], `batch` times, as `when=` gets it."""

    m: int
    n: int
    k: int
    batch: int
    bias: bool

    @property
    def geometry(self) -> MatmulGeometry:
        """Return the problem of these sizes, as the suite has it."""
        return MatmulGeometry(self.m, self.k * self.batch, self.n * self.batch, self.batch, self.bias)


class _Laid(Described, Spatial):
    """Tensors that follow from the sizes, and are not compared."""

    filter: Tensor
    per_channel: Tensor


@dataclass(frozen=True)
class MatmulGeometry(_Laid):
    """Sizes of one matrix product, or of a batch of products. Raises GeometryError for sizes that none can have.

    Tensors in canonical order: a [m, batch * k], b [batch * n, k], y [m, batch * n] and the bias [n].
    """

    PREFIX: ClassVar[str] = "mm"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = {
        0: (
            Field("b", "products of a batch", attribute="groups", default=1),
            Field("m", "rows", attribute="n"),
            Field("n", "columns", attribute="k", per_group=True),
            Field("k", "length of the sums", attribute="c", per_group=True),
            Field("bias", "bias (0 or 1)", FLAG, "bias", False),
        )
    }
    family: ClassVar[str] = "matmul"
    size = window = stride = dilation = padding = output_size = ()

    n: int
    c: int
    k: int
    groups: int = 1
    bias: bool = False

    def __post_init__(self) -> None:
        batch = self.groups
        if batch < 1:
            raise GeometryError(f"b is {batch}; it must be at least 1")
        sizes = (("m", self.n, 0), ("n", self.k // batch, 1), ("k", self.c // batch, 0))
        for letter, value, least in sizes:
            if value < least:
                raise GeometryError(f"{letter} is {value}; it must be at least {least}")
        if self.c % batch or self.k % batch:
            raise GeometryError(f"a batch of {batch} products has {self.c} and {self.k} channels; each needs as many")
        if self.bias and batch > 1:
            raise GeometryError("a batch of products has no bias; leave out b or bias1")
        vars(self).update(
            x=Tensor(A, (self.n, self.c)),
            filter=Tensor(B, (self.k, self.c // batch)),
            y=Tensor(Y, (self.n, self.k)),
            per_channel=Tensor("K", (self.k,)),
        )

    @property
    def described(self) -> Any:
        """Return the sizes of one product."""
        return Sizes(self.n, self.k // self.groups, self.c // self.groups, self.groups, self.bias)

    @property
    def further_sizes(self) -> dict[str, int]:
        """Return sizes beside m, n and k, by the words in which a condition names them."""
        return {"products of a batch": self.groups}

    @property
    def further_features(self) -> set[str]:
        """Return features that follow from these sizes, for conditions."""
        return {"one product" if self.groups == 1 else "a batch of products"}
