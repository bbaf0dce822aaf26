"""Sizes and parameters of a convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from conformance.operators.base import Tensor
from conformance.operators.descriptor import EXTENTS, FLAG, SIDES, Described, Field, by_rank, dilated, sized
from conformance.operators.spatial import (
    IMAGE,
    RESULT,
    WINDOW,
    Extents,
    Padding,
    Spatial,
    require_groups,
    require_windows,
    spans,
    unpadded,
)


def convolution_fields(rank: int) -> tuple[Field, ...]:
    """Return the descriptor fields that every convolution has."""
    return (
        Field("n", "batch"),
        Field("c", "input channels"),
        *sized("size", IMAGE[rank]),
        Field("k", "output channels"),
        *sized("window", WINDOW[rank]),
        Field("u", "stride", EXTENTS[rank], "stride", (1,) * rank),
        Field("p", "padding", SIDES[rank], "padding", unpadded(rank)),
        dilated(rank),
        Field("g", "groups", attribute="groups", default=1),
    )


class Convolving(Described, Spatial):
    """Geometry of a convolution: beside x and y the weights, and a bias or a statistic of each output channel."""

    filter: Tensor
    per_channel: Tensor

    def _lay_out(self, output_size: Extents, filters: Tensor) -> None:
        """Set the attributes that follow from the parameters."""
        g: Any = self
        vars(self).update(
            output_size=output_size,
            x=Tensor(f"NC{IMAGE[g.rank].upper()}", (g.n, g.c, *g.size)),
            filter=filters,
            y=Tensor(f"NK{RESULT[g.rank].upper()}", (g.n, g.k, *output_size)),
            per_channel=Tensor("K", (g.k,)),
        )


@dataclass(frozen=True)
class ConvGeometry(Convolving):
    """Sizes and parameters of one convolution in one to three dimensions. Raises GeometryError for sizes that no
    convolution can have. A stride, padding or dilation of () is the default on every axis.

    Derived from them: `output_size`, and the tensors x, weights (C counted within a group), y and bias.
    """

    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = by_rank(
        lambda rank: (*convolution_fields(rank), Field("b", "bias (0 or 1)", FLAG, "bias", False))
    )
    family: ClassVar[str] = "conv"

    n: int
    c: int
    size: Extents
    k: int
    window: Extents
    stride: Extents = ()
    padding: Padding = ()
    dilation: Extents = ()
    groups: int = 1
    bias: bool = False

    def __post_init__(self) -> None:
        rank = len(self.size)
        ones = (1,) * rank
        vars(self).update(
            stride=self.stride or ones, padding=self.padding or unpadded(rank), dilation=self.dilation or ones
        )
        require_windows(self, k=self.k, groups=self.groups)
        require_groups(self)
        axes = zip(self.size, spans(self), self.stride, self.padding, strict=True)
        output_size = tuple((size + sum(sides) - span) // u + 1 for size, span, u, sides in axes)
        filters = Tensor(f"KC{WINDOW[rank].upper()}", (self.k, self.c // self.groups, *self.window))
        self._lay_out(output_size, filters)
