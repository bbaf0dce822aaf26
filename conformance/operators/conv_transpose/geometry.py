"""Sizes and parameters of a transposed convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

from conformance.operators.base import Tensor
from conformance.operators.conv.geometry import ConvGeometry, Convolving, convolution_fields
from conformance.operators.descriptor import EXTENTS, FLAG, Field, by_rank
from conformance.operators.spatial import (
    IMAGE,
    WINDOW,
    Extents,
    GeometryError,
    Index,
    Padding,
    require_groups,
    require_sizes,
    spans,
    unpadded,
)


@dataclass(frozen=True)
class TransposedGeometry(Convolving):
    """Sizes and parameters of one transposed convolution in one to three dimensions. Raises GeometryError for sizes
    that no problem can have. A stride, padding, output padding or dilation of () is the default on every axis.

    Padding crops the output, output padding makes it longer at the end of each axis. Derived from them: `output_size`,
    and the tensors x, weights (K counted within a group), y and bias.
    """

    PREFIX: ClassVar[str] = "convt"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = by_rank(
        lambda rank: (
            *convolution_fields(rank)[:-1],
            Field("o", "output padding", EXTENTS[rank], "output_padding", (0,) * rank),
            convolution_fields(rank)[-1],
            Field("b", "bias (0 or 1)", FLAG, "bias", False),
        )
    )
    family: ClassVar[str] = "conv_transpose"
    windows_on_output: ClassVar[bool] = True

    n: int
    c: int
    size: Extents
    k: int
    window: Extents
    stride: Extents = ()
    padding: Padding = ()
    dilation: Extents = ()
    output_padding: Extents = ()
    groups: int = 1
    bias: bool = False

    def __post_init__(self) -> None:
        rank = len(self.size)
        ones = (1,) * rank
        vars(self).update(
            stride=self.stride or ones, padding=self.padding or unpadded(rank), dilation=self.dilation or ones,
            output_padding=self.output_padding or (0,) * rank,
        )  # fmt: skip
        require_sizes(self, k=self.k, groups=self.groups)
        require_groups(self)
        self._require_output_padding()
        axes = zip(self.reach, self.padding, self.output_padding, strict=True)
        output_size = tuple(extent - after + more for extent, (_, after), more in axes)
        for name, extent, window_end in zip(IMAGE[rank], output_size, self.reach, strict=True):
            if min(extent, window_end) < 1:
                raise GeometryError(
                    f"padding leaves nothing of the output on axis {name}; enlarge {name} or the window, or shrink p"
                )
        filters = Tensor(f"CK{WINDOW[rank].upper()}", (self.c, self.k // self.groups, *self.window))
        self._lay_out(output_size, filters)

    def _require_output_padding(self) -> None:
        """Raise GeometryError for output padding that torch and ONNX do not allow."""
        rank, extra = len(self.size), self.output_padding
        if len(extra) != rank or min(extra) < 0:
            raise GeometryError(f"output padding is {extra}; it must be 0 or more on each of {rank} axes")
        for more, stride, dilation in zip(extra, self.stride, self.dilation, strict=True):
            if more >= max(stride, dilation):
                raise GeometryError(
                    f"output padding is {more}, which must be smaller than the stride, {stride}, or the dilation, "
                    f"{dilation}"
                )

    @property
    def reach(self) -> Extents:
        """End of the last window on each axis, counted from the first element of the output, without cropping."""
        axes = zip(self.size, self.stride, spans(self), self.padding, strict=True)
        return tuple((size - 1) * u + span - before for size, u, span, (before, _) in axes)

    @cached_property
    def mirror(self) -> ConvGeometry:
        """Convolution whose data gradient this problem is. Its x is the part of y that windows reach (output padding
        first restores cropped elements); its y is x."""
        sizes = tuple(map(min, self.output_size, self.reach))
        axes = zip(self.padding, self.reach, sizes, strict=True)
        return ConvGeometry(
            self.n, self.k, sizes, self.c, self.window, self.stride,
            tuple((before, reach - size) for (before, _), reach, size in axes), self.dilation, self.groups,
        )  # fmt: skip

    @property
    def reached(self) -> Index:
        """Index of the part of y that windows reach."""
        return ..., *map(slice, self.mirror.size)

    def reaching(self, size: Extents) -> Self:
        """Return the geometry with an output of another size, by changing the padding and output padding at the end.
        Raises GeometryError if no output padding makes that size."""
        cropped = [reach - extent for reach, extent in zip(self.reach, size, strict=True)]
        sides = zip(self.padding, cropped, strict=True)
        return replace(
            self,
            padding=tuple((before, max(0, after)) for (before, _), after in sides),
            output_padding=tuple(max(0, -after) for after in cropped),
        )
