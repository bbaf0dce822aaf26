"""Sizes, parameters and conventions of a max pooling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from conformance.operators.descriptor import Field, by_rank, dilated
from conformance.operators.pooling_geometry import CEIL, Pooled, laid_out, pooling_fields
from conformance.operators.spatial import IMAGE, Extents, GeometryError, Padding, require_windows, unpadded

MAX_STARTS = 1 << 20
"""Largest number of different windows on an axis that begin in the padding and are checked."""


@dataclass(frozen=True)
class MaxPoolGeometry(Pooled):
    """Sizes and parameters of one max pooling in one to three dimensions. Raises GeometryError for values that
    no pooling can have. A padding or dilation of () is the default.

    The conventions are those of torch.nn.MaxPool2d and ONNX MaxPool, and of XLA's SelectAndScatter:

    - Padding is minus infinity and is never chosen, so that every window must hold an element of the image.
    - NaN is larger than everything: a window that holds one has it for its maximum.
    - The gradient of a window goes to its first maximum in row-major order, even if that is minus infinity; where
      windows choose the same element, their gradients add up. (In a window that holds NaN, engines disagree:
      torch chooses the last NaN, XLA another element. No distribution tests this.)

    For the attributes derived from the sizes, see `conformance.operators.pooling_geometry.laid_out`.
    """

    PREFIX = "maxpool"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = by_rank(lambda rank: (*pooling_fields(rank), dilated(rank), CEIL))
    family: ClassVar[str] = "max_pool"

    n: int
    c: int
    size: Extents
    window: Extents
    stride: Extents
    padding: Padding = ()
    dilation: Extents = ()
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        rank = self.rank
        vars(self).update(padding=self.padding or unpadded(rank), dilation=self.dilation or (1,) * rank)
        require_windows(self)
        vars(self).update(laid_out(self))
        axes = zip(IMAGE[rank], self.size, self.window, self.stride, self.padding, self.dilation, strict=True)
        for (name, size, taps, stride, (before, _), dilation), windows in zip(axes, self.output_size, strict=True):
            # computed with numbers, not arrays: sizes may be larger than any machine's memory
            first, last = -before, (windows - 1) * stride - before
            padded = range(first, min(last + 1, 0), stride)  # starts of the windows that begin before the image
            beside = padded[: dilation // math.gcd(stride, dilation)] if dilation > size else ()
            if len(beside) > MAX_STARTS:
                raise GeometryError(f"p is {before} on axis {name}, too large to tell whether windows have a maximum")
            # the first tap that is not before the image: tap -(start // dilation), at start % dilation
            if last >= size or -(first // dilation) >= taps or any(start % dilation >= size for start in beside):
                raise GeometryError(f"a window holds nothing but padding on axis {name}; it has no maximum: reduce p")
