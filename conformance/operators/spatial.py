"""Windows on one to three spatial axes, for convolution and pooling.

Parameters with a number for each axis are tuples in the order of the axes; the last axis is the width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from conformance.operators.base import Tensor

RANKS = (1, 2, 3)
EVERY_RANK = (0, *RANKS)
"""Numbers of spatial axes: of images, and of problems of any family."""
IMAGE = {0: "", 1: "w", 2: "hw", 3: "dhw"}
WINDOW = {0: "", 1: "s", 2: "rs", 3: "trs"}
RESULT = {0: "", 1: "q", 2: "pq", 3: "zpq"}
"""Rank -> the axes of an image, a window, and a result; a matrix product has none."""

Extents = tuple[int, ...]
Sides = tuple[int, int]
Padding = tuple[Sides, ...]
"""(before, after) of every axis."""
Index = tuple[Any, ...]
"""Index into an array: an ellipsis, and a slice or number for each spatial axis."""

BLOCK_ELEMENTS = 1 << 21
"""Elements of one block of gathered windows: 16 MiB of float64, so that a block stays near the caches and the
reference of a 67M-element layer needs little beyond its inputs and output."""


class GeometryError(ValueError):
    """A problem that no kernel could compute; the message names the field and the values that it may have."""


class Spatial:
    """Sizes on each axis by letter; a size is 1 on axes that the problem does not have."""

    windows_on_output: ClassVar[bool] = False
    """Whether windows lie on the output, as those of a transposed convolution."""
    size: Extents
    window: Extents
    output_size: Extents
    x: Tensor
    y: Tensor
    """`output_size`, `x` and `y` are derived: each geometry sets them when it is created, and they are not compared."""

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.size)

    @property
    def d(self) -> int:
        return _from_the_end(self.size, 3)

    @property
    def h(self) -> int:
        return _from_the_end(self.size, 2)

    @property
    def w(self) -> int:
        return self.size[-1]

    @property
    def t(self) -> int:
        return _from_the_end(self.window, 3)

    @property
    def r(self) -> int:
        return _from_the_end(self.window, 2)

    @property
    def s(self) -> int:
        return self.window[-1]


def _from_the_end(extents: Extents, place: int) -> int:
    return extents[-place] if place <= len(extents) else 1


def unpadded(rank: int) -> Padding:
    """Return zero padding for `rank` axes."""
    return ((0, 0),) * rank


def is_padded(padding: Padding) -> bool:
    """Tell whether any side has padding."""
    return any(map(any, padding))


def require_sizes(geometry: Any, **sizes: int) -> None:
    """Raise GeometryError for sizes below one (of image, window and `sizes`), negative padding, or parameters with
    another number of axes than the image. A batch may have no images, a dense convolution no channels (sums are 0)."""
    rank = len(geometry.size)
    if rank not in RANKS:
        raise GeometryError(f"size is {geometry.size}; an image has 1 to 3 axes")
    for name in ("window", "stride", "padding", "dilation"):
        if len(getattr(geometry, name)) != rank:
            raise GeometryError(f"{name} is {getattr(geometry, name)}; the image has {rank} axes")
    if geometry.n < 0:
        raise GeometryError(f"n is {geometry.n}; it must not be negative")
    if geometry.c < (least := int(geometry.family != "conv" or geometry.groups > 1)):
        raise GeometryError(f"c is {geometry.c}; it must be at least {least}")
    positive = dict(zip(IMAGE[rank], geometry.size, strict=True))
    positive |= {**dict(zip(WINDOW[rank], geometry.window, strict=True)), **sizes}
    for name, value in (positive | {"stride": min(geometry.stride), "dilation": min(geometry.dilation)}).items():
        if value < 1:
            raise GeometryError(f"{name} is {value}; it must be at least 1")
    if min(map(min, geometry.padding)) < 0:
        raise GeometryError(f"padding is {geometry.padding}; it must not be negative")


def require_groups(geometry: Any) -> None:
    """Raise GeometryError if the number of groups does not divide both c and k."""
    for name, channels in (("c", geometry.c), ("k", geometry.k)):
        if channels % geometry.groups:
            raise GeometryError(f"{name} is {channels}, which {geometry.groups} groups do not divide")


def require_windows(geometry: Any, **sizes: int) -> None:
    """Raise GeometryError as `require_sizes` does, and for a window larger than the padded image."""
    require_sizes(geometry, **sizes)
    rank = len(geometry.size)
    for name, size, extent, sides in zip(IMAGE[rank], geometry.size, spans(geometry), geometry.padding, strict=True):
        if extent > (room := size + sum(sides)):
            raise GeometryError(
                f"the window spans {extent} on axis {name}, more than the padded image's {room}; "
                f"enlarge {name} or p, or shrink the window or its dilation"
            )


def spans(geometry: Any) -> Extents:
    """Return for every axis the number of elements from the first to the last tap of a window."""
    return tuple(d * (taps - 1) + 1 for taps, d in zip(geometry.window, geometry.dilation, strict=True))


def taps_per_input(geometry: Any) -> int:
    """Bound the number of windows that hold the same input element: a gradient sums that many terms.

    On one axis position h meets tap r where h + before - r*dilation is a multiple of the stride: one residue of r in
    every stride / gcd(stride, dilation).
    """
    axes = zip(geometry.window, geometry.stride, geometry.dilation, strict=True)
    return math.prod(math.ceil(window / (stride // math.gcd(stride, d))) for window, stride, d in axes)


def taps_of_padding(geometry: Any) -> bool:
    """Tell whether some tap of the window lies in the padding at every position of the window."""
    for size, window, stride, dilation, (before, _), count in zip(
        geometry.size, geometry.window, geometry.stride, geometry.dilation, geometry.padding, geometry.output_size,
        strict=True,
    ):  # fmt: skip
        start = np.arange(window) * dilation - before
        first = np.maximum(0, -(start // stride))  # first position at which the tap is not before the image
        if ((first >= count) | (start + first * stride >= size)).any():
            return True
    return False


def taps(geometry: Any) -> Iterator[Index]:
    """Yield for every tap, the last axis fastest, the index (..., rows, columns) of the elements of the padded image
    (for a pooling: with `overhang`) that the tap meets over all positions of the window."""
    axes = zip(geometry.window, geometry.output_size, geometry.stride, geometry.dilation, strict=True)
    met = ([slice(t * d, t * d + (count - 1) * u + 1, u) for t in range(window)] for window, count, u, d in axes)
    for places in product(*met):
        yield ..., *places


def padded(image: np.ndarray, padding: Padding, dtype: np.dtype, fill: float = 0.0) -> np.ndarray:
    """Return `image[..., H, W]` (as many axes as have padding) in `dtype` with zeros (or `fill`) around it."""
    lead, size = image.shape[: -len(padding)], image.shape[-len(padding) :]
    out = np.full((*lead, *(b + extent + a for extent, (b, a) in zip(size, padding, strict=True))), fill, dtype)
    cropped(out, padding, size)[...] = image
    return out


def cropped(image: np.ndarray, padding: Padding, size: Extents) -> np.ndarray:
    """Invert `padded`: return the view of `image` without its border."""
    inner: Index = (..., *(slice(b, b + extent) for extent, (b, _) in zip(size, padding, strict=True)))
    return image[inner]


def windows(image: np.ndarray, window: Extents, stride: Extents, dilation: Extents, output: Extents) -> np.ndarray:
    """View a padded `image[..., H, W]` as [..., R, S, P, Q]: element (r, s, p, q) is image[p*u + r*d, q*v + s*e]."""
    lead, steps = image.strides[: -len(window)], image.strides[-len(window) :]
    by_tap = (step * d for step, d in zip(steps, dilation, strict=True))
    by_place = (step * u for step, u in zip(steps, stride, strict=True))
    shape = (*image.shape[: -len(window)], *window, *output)
    return np.lib.stride_tricks.as_strided(image, shape, (*lead, *by_tap, *by_place), writeable=False)


def per_channel(values: np.ndarray, rank: int) -> np.ndarray:
    """Reshape [K] so that it broadcasts to [..., K, *size]."""
    return values.reshape(-1, *(1,) * rank)


def by_channel(image: np.ndarray) -> np.ndarray:
    """Rearrange [N, K, P, Q] as [K, M], M = N*P*Q."""
    return np.ascontiguousarray(image.swapaxes(0, 1)).reshape(image.shape[1], -1)


def as_image(channels: np.ndarray, geometry: Any) -> np.ndarray:
    """Rearrange [K, M] as [N, K, P, Q]."""
    n, k, *size = geometry.y.shape
    return np.ascontiguousarray(channels.reshape(k, n, *size).swapaxes(0, 1))


def places(image: np.ndarray) -> tuple[int, ...]:
    """Return all axes of [N, K, P, Q] except that of the channels."""
    return (0, *range(2, image.ndim))


def column(values: np.ndarray | None) -> np.ndarray | float:
    """Return a parameter [K] as [K, 1] in float64; 1.0 if the parameter is absent."""
    return 1.0 if values is None else values.astype(np.float64)[:, None]


def fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Crop the array, or fill it with zeros, to `shape`, aligned at the first elements."""
    if array.shape == shape:
        return array
    out = np.zeros(shape, array.dtype)
    kept = tuple(slice(min(pair)) for pair in zip(array.shape, shape, strict=True))
    out[kept] = array[kept]
    return out
