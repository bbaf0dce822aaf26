"""Sizes and parameters of a convolution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from conformance.operators.base import Tensor
from conformance.operators.descriptor import FLAG, PAIR, SIDES, Described, Field
from conformance.operators.spatial import UNPADDED, GeometryError, Padding, Pair, require_windows

FIELDS = (
    Field("n", "batch"),
    Field("c", "input channels"),
    Field("h", "height"),
    Field("w", "width"),
    Field("k", "output channels"),
    Field("r", "window height"),
    Field("s", "window width"),
    Field("u", "stride", PAIR, "stride", (1, 1)),
    Field("p", "padding", SIDES, "padding", UNPADDED),
    Field("d", "dilation", PAIR, "dilation", (1, 1)),
    Field("g", "groups", attribute="groups", default=1),
)


@dataclass(frozen=True)
class ConvGeometry(Described):
    """Sizes and parameters of one convolution. Raises GeometryError for sizes that no convolution has.

    What follows from them: (P, Q), and the tensors - x, weights with C counted within a group, y, and bias.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (*FIELDS, Field("b", "bias (0 or 1)", FLAG, "bias", False))
    family: ClassVar[str] = "conv"

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: Pair = (1, 1)
    padding: Padding = UNPADDED
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = False

    output_size: Pair = field(init=False, repr=False, compare=False)
    x: Tensor = field(init=False, repr=False, compare=False)
    filter: Tensor = field(init=False, repr=False, compare=False)
    y: Tensor = field(init=False, repr=False, compare=False)
    per_channel: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_windows(self, k=self.k, groups=self.groups)
        for name, channels in (("c", self.c), ("k", self.k)):
            if channels % self.groups:
                raise GeometryError(f"{name} is {channels}, which {self.groups} groups do not divide")
        axes = zip((self.h, self.w), (self.r, self.s), self.stride, self.padding, self.dilation, strict=True)
        p, q = ((size + sum(sides) - d * (window - 1) - 1) // u + 1 for size, window, u, sides, d in axes)
        vars(self).update(
            output_size=(p, q),
            x=Tensor("NCHW", (self.n, self.c, self.h, self.w)),
            filter=Tensor("KCRS", (self.k, self.c // self.groups, self.r, self.s)),
            y=Tensor("NKPQ", (self.n, self.k, p, q)),
            per_channel=Tensor("K", (self.k,)),
        )
