"""Two-dimensional average pooling, forward and backward.

    y[n,c,p,q] = sum_{r,s} x[n, c, p*u + r - top, q*v + s - left] / divisor[p,q]

Sizes and divisors are those of torch.nn.AvgPool2d, with a padding of its own on each side. The output extent is
floor((H + before + after - R) / u) + 1; in ceil mode it is rounded up, less a last window that would start behind the
image and the padding before it. What a window covers beyond the padded image, which happens in ceil mode only, is
neither added nor counted. The divisor is the number of positions inside the padded image, or inside the image alone
(`count_include_pad=False`), or a constant.

The references round once: sums of fixed-point data are exact, and gradients of different divisors are brought to their
least common multiple before they are added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from conformance.operators import descriptor, spatial
from conformance.operators.base import Arrays, Tensor
from conformance.operators.spatial import GeometryError, Padding, Pair

PREFIX = "pool"
"""First word of a descriptor."""
_LETTERS = {
    "n": "batch",
    "c": "channels",
    "h": "height",
    "w": "width",
    "r": "window height",
    "s": "window width",
    "u": "stride",
    "p": "padding",
    "ceil": "ceil mode (0 or 1)",
    "valid": "divide by the positions inside the image (0 or 1)",
    "div": "divisor",
}
LARGEST_MULTIPLE = 1 << 18
"""Least common multiple of a problem's divisors that leaves room for data in an exact float64 sum."""


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """Sizes and parameters of one average pooling. Raises GeometryError for what no pooling has."""

    n: int
    c: int
    h: int
    w: int
    r: int
    s: int
    stride: Pair
    padding: Padding = ((0, 0), (0, 0))
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None

    family: ClassVar[str] = "pool"

    def __post_init__(self) -> None:
        positive = {name: getattr(self, name) for name in ("n", "c", "h", "w", "r", "s")}
        divisor = 1 if self.divisor_override is None else self.divisor_override
        spatial.require_positive(positive | {"stride": min(self.stride), "divisor": divisor})
        spatial.require_padding(self.padding)
        for name, window, sides in zip("rs", (self.r, self.s), self.padding, strict=True):
            if max(sides) >= window:
                raise GeometryError(f"padding is {max(sides)}; it must be less than the window, {name}{window}")
        spatial.require_window_fits((self.h, self.w), (self.r, self.s), self.padding, (1, 1))
        if self.common_multiple > LARGEST_MULTIPLE:
            raise GeometryError(
                f"the divisors have a common multiple beyond {LARGEST_MULTIPLE}; set div, or drop valid1"
            )

    @classmethod
    def parse(cls, text: str) -> PoolGeometry:
        """Read a descriptor such as `pool n2 c8 h9 w9 r3 s3 u2 p1 ceil1`; raises GeometryError. Stride: the window."""
        found = descriptor.fields(text.removeprefix(PREFIX), _LETTERS)
        sizes = {letter: descriptor.integer(found, letter) for letter in "nchwrs"}
        return cls(
            **sizes,
            stride=descriptor.pair(found, "u", (sizes["r"], sizes["s"])),
            padding=descriptor.padding(found),
            ceil_mode=descriptor.flag(found, "ceil"),
            count_include_pad=not descriptor.flag(found, "valid"),
            divisor_override=descriptor.integer(found, "div") if "div" in found else None,
        )

    @property
    def descriptor(self) -> str:
        """Canonical text of the problem; `parse` reads it back."""
        parts = [PREFIX, *(f"{letter}{getattr(self, letter)}" for letter in "nchwrs")]
        parts.append(descriptor.show_pair("u", self.stride, (self.r, self.s)))
        parts.append(descriptor.show_padding(self.padding))
        parts.append("ceil1" if self.ceil_mode else "")
        parts.append("" if self.count_include_pad else "valid1")
        parts.append("" if self.divisor_override is None else f"div{self.divisor_override}")
        return " ".join(filter(None, parts))

    @property
    def output_size(self) -> Pair:
        """(P, Q)."""
        return self._extent(0), self._extent(1)

    def _extent(self, axis: int) -> int:
        size, window, stride, padding = self._axis(axis)
        room = size + sum(padding) - window
        extent = (-(-room // stride) if self.ceil_mode else room // stride) + 1
        starts_behind = (extent - 1) * stride >= size + padding[0]
        return extent - 1 if self.ceil_mode and starts_behind else extent

    def _axis(self, axis: int) -> tuple[int, int, int, Pair]:
        """Size, window, stride, padding."""
        return (self.h, self.w)[axis], (self.r, self.s)[axis], self.stride[axis], self.padding[axis]

    @property
    def overhang(self) -> Padding:
        """The padding that holds every window: in ceil mode the last ones may reach beyond the problem's own."""
        reach = []
        for axis in (0, 1):
            size, window, stride, (before, after) = self._axis(axis)
            last = (self.output_size[axis] - 1) * stride + window
            reach.append((before, max(after, last - size - before)))
        return reach[0], reach[1]

    @property
    def divisors(self) -> np.ndarray:
        """What each output is divided by, [P, Q], integers."""
        if self.divisor_override is not None:
            return np.full(self.output_size, self.divisor_override)
        counts: np.ndarray = np.multiply.outer(self._counted(0), self._counted(1))
        return counts

    @property
    def rounded_reciprocals(self) -> int:
        """Factors of the divisors, one for each axis, with reciprocals that no binary format holds."""
        given = self.divisor_override
        factors = [self._counted(0), self._counted(1)] if given is None else [np.array(given)]
        return sum(bool(np.any(divisors & (divisors - 1))) for divisors in factors)

    @property
    def common_multiple(self) -> int:
        """The least one of all divisors."""
        return math.lcm(*np.unique(self.divisors).tolist())

    def _counted(self, axis: int) -> np.ndarray:
        """Positions of each window along one axis that count."""
        size, window, stride, (before, after) = self._axis(axis)
        starts = np.arange(self.output_size[axis]) * stride - before
        low, high = (-before, size + after) if self.count_include_pad else (0, size)
        return np.minimum(starts + window, high) - np.maximum(starts, low)

    @property
    def x(self) -> Tensor:
        """Input image."""
        return Tensor("NCHW", (self.n, self.c, self.h, self.w))

    @property
    def y(self) -> Tensor:
        """Output image."""
        return Tensor("NCPQ", (self.n, self.c, *self.output_size))


def taps(geometry: PoolGeometry) -> Iterator[tuple[slice, slice]]:
    """For every position of the window: the rows and columns of the image inside `overhang` that it meets."""
    (p, q), (u, v) = geometry.output_size, geometry.stride
    for r, s in itertools.product(range(geometry.r), range(geometry.s)):
        yield slice(r, r + (p - 1) * u + 1, u), slice(s, s + (q - 1) * v + 1, v)


class _Pool:
    """What both directions share."""

    name: str
    family = "pool"
    infinities = True
    factors = 1
    keywords: tuple[str, ...] = (
        "kernel_size",
        "stride",
        "padding",
        "ceil_mode",
        "count_include_pad",
        "divisor_override",
        "layout",
    )

    def inputs(self, geometry: PoolGeometry) -> dict[str, Tensor]:
        raise NotImplementedError

    def outputs(self, geometry: PoolGeometry) -> dict[str, Tensor]:
        raise NotImplementedError

    def arguments(self, geometry: PoolGeometry) -> tuple[str, ...]:
        """Positional arguments of an implementation."""
        return tuple(self.inputs(geometry))

    def parameters(self, geometry: PoolGeometry) -> dict[str, Any]:
        """Keyword arguments that both directions take."""
        return {
            "kernel_size": (geometry.r, geometry.s),
            "stride": geometry.stride,
            "padding": geometry.padding,
            "ceil_mode": geometry.ceil_mode,
            "count_include_pad": geometry.count_include_pad,
            "divisor_override": geometry.divisor_override,
        }

    def constants(self, geometry: PoolGeometry) -> int:
        """Reciprocals: of a given divisor, or one for each axis in a separable kernel; none of powers of two."""
        return geometry.rounded_reciprocals

    def alike(self, geometry: PoolGeometry) -> bool:
        """Whether there is one divisor."""
        return np.unique(geometry.divisors).size == 1

    def nan_place(self, geometry: PoolGeometry) -> tuple[int, ...] | None:
        """None: there is no operand."""
        return None

    def exact_on_integers(self, geometry: PoolGeometry) -> bool:
        """Quotients by powers of two."""
        return all(divisor & (divisor - 1) == 0 for divisor in np.unique(geometry.divisors).tolist())

    def flops(self, geometry: PoolGeometry) -> int:
        """An addition for every position of every window."""
        return geometry.y.size * geometry.r * geometry.s

    def bytes(self, geometry: PoolGeometry, itemsize: int) -> int:
        """The larger image and the smaller one, once each."""
        return itemsize * (geometry.x.size + geometry.y.size)


class AvgPoolForward(_Pool):
    """x[N,C,H,W] -> y[N,C,P,Q]."""

    name, data, operand, free_axis = "avg_pool_forward", "x", "x", 1

    def inputs(self, geometry: PoolGeometry) -> dict[str, Tensor]:
        """x."""
        return {"x": geometry.x}

    def outputs(self, geometry: PoolGeometry) -> dict[str, Tensor]:
        """y."""
        return {"y": geometry.y}

    def terms(self, geometry: PoolGeometry) -> dict[str, int]:
        """The window, and one more rounding for the division."""
        return {"y": geometry.r * geometry.s + 1}

    def sharing(self, geometry: PoolGeometry) -> int:
        """The windows that hold an element, whose share of the average, or sum with another one, they may share."""
        return _holding(geometry)

    def span(self, geometry: PoolGeometry) -> int:
        """The window."""
        return geometry.r * geometry.s

    def reference(self, geometry: PoolGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """The sum over the window, exact, divided once."""
        return {"y": _window_sums(geometry, inputs["x"].astype(dtype)) / geometry.divisors.astype(dtype)}

    def magnitude(self, geometry: PoolGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """s2 = sqrt(sum of squares) / divisor."""
        squares = _window_sums(geometry, np.square(inputs["x"].astype(dtype)))
        return {"y": np.sqrt(squares) / geometry.divisors.astype(dtype)}


class AvgPoolBackward(_Pool):
    """dy[N,C,P,Q] -> dx[N,C,H,W]."""

    name, data, operand, free_axis = "avg_pool_backward", "dy", "dy", 1
    keywords: tuple[str, ...] = (*_Pool.keywords, "input_size")

    def inputs(self, geometry: PoolGeometry) -> dict[str, Tensor]:
        """dy."""
        return {"dy": geometry.y}

    def outputs(self, geometry: PoolGeometry) -> dict[str, Tensor]:
        """dx."""
        return {"dx": geometry.x}

    def parameters(self, geometry: PoolGeometry) -> dict[str, Any]:
        """The common ones and input_size=(H, W), which dy does not determine."""
        return {**super().parameters(geometry), "input_size": (geometry.h, geometry.w)}

    def terms(self, geometry: PoolGeometry) -> dict[str, int]:
        """The windows that hold an element, and one more rounding for the division."""
        return {"dx": _holding(geometry) + 1}

    def sharing(self, geometry: PoolGeometry) -> int:
        """The elements of a window, which all get the same share."""
        return min(geometry.r, geometry.h) * min(geometry.s, geometry.w)

    def span(self, geometry: PoolGeometry) -> int:
        """Windows that hold an element, in units of the least common multiple of their divisors."""
        return _holding(geometry) * geometry.common_multiple

    def reference(self, geometry: PoolGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """dy in units of the least common multiple of all divisors, added where it came from, divided once."""
        multiple = geometry.common_multiple
        shares = inputs["dy"].astype(dtype) * (multiple // geometry.divisors).astype(dtype)
        return {"dx": _scattered(geometry, shares) / np.dtype(dtype).type(multiple)}

    def magnitude(self, geometry: PoolGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """s2 = sqrt(sum of (dy/divisor)^2)."""
        shares = np.square(inputs["dy"].astype(dtype) / geometry.divisors.astype(dtype))
        return {"dx": np.sqrt(_scattered(geometry, shares))}


def _holding(geometry: PoolGeometry) -> int:
    """Most windows that hold one element."""
    rows = spatial.taps_per_input(geometry.r, geometry.stride[0], 1)
    return rows * spatial.taps_per_input(geometry.s, geometry.stride[1], 1)


def _window_sums(geometry: PoolGeometry, x: np.ndarray) -> np.ndarray:
    image = spatial.padded(x, geometry.overhang, x.dtype)
    y = np.zeros(geometry.y.shape, x.dtype)
    for rows, columns in taps(geometry):
        y += image[..., rows, columns]
    return y


def _scattered(geometry: PoolGeometry, shares: np.ndarray) -> np.ndarray:
    """The adjoint of `_window_sums`."""
    image = spatial.padded(np.zeros(geometry.x.shape, shares.dtype), geometry.overhang, shares.dtype)
    for rows, columns in taps(geometry):
        image[..., rows, columns] += shares
    return np.ascontiguousarray(spatial.cropped(image, geometry.overhang, (geometry.h, geometry.w)))
