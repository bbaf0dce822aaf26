"""Two-dimensional convolution: forward, backward-data and backward-weight.

Cross-correlation (no kernel flip), as in ONNX Conv and torch.nn.functional.conv2d:

    y[n,k,p,q] = bias[k] + sum_{c,r,s} x[n, c', p*u + r*d - top, q*v + s*e - left] * w[k,c,r,s]

with c' = c + (group of k) * C/groups. The references are GEMMs over gathered windows. On the fixed-point data of
`conformance.inputs` every float64 partial sum is exact, so block sizes, BLAS and thread counts cannot show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from conformance.operators import descriptor, spatial
from conformance.operators.base import Arrays, Tensor
from conformance.operators.spatial import GeometryError, Padding, Pair

LETTERS = {
    "n": "batch",
    "c": "input channels",
    "h": "height",
    "w": "width",
    "k": "output channels",
    "r": "window height",
    "s": "window width",
    "u": "stride",
    "p": "padding",
    "d": "dilation",
    "g": "groups",
    "b": "bias (0 or 1)",
}


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Sizes and parameters of one convolution. Raises GeometryError for sizes that no convolution has."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: Pair = (1, 1)
    padding: Padding = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = False

    family: ClassVar[str] = "conv"

    def __post_init__(self) -> None:
        positive = {name: getattr(self, name) for name in ("n", "c", "h", "w", "k", "r", "s", "groups")}
        positive |= {"stride": min(self.stride), "dilation": min(self.dilation)}
        spatial.require_positive(positive)
        spatial.require_padding(self.padding)
        for name, channels in (("c", self.c), ("k", self.k)):
            if channels % self.groups:
                raise GeometryError(f"{name} is {channels}, which {self.groups} groups do not divide")
        spatial.require_window_fits((self.h, self.w), (self.r, self.s), self.padding, self.dilation)

    @classmethod
    def parse(cls, text: str) -> ConvGeometry:
        """Read a descriptor such as `n4 c64 h56 w56 k64 r3 s3 u2 p1 g1 b1`; raises GeometryError."""
        found = descriptor.fields(text, LETTERS)
        sizes = {letter: descriptor.integer(found, letter) for letter in "nchwkrs"}
        return cls(
            **sizes,
            stride=descriptor.pair(found, "u", (1, 1)),
            padding=descriptor.padding(found),
            dilation=descriptor.pair(found, "d", (1, 1)),
            groups=descriptor.integer(found, "g", 1),
            bias=descriptor.flag(found, "b"),
        )

    @property
    def descriptor(self) -> str:
        """Canonical text of the problem; `parse` reads it back."""
        parts = [f"{letter}{getattr(self, letter)}" for letter in "nchwkrs"]
        parts.append(descriptor.show_pair("u", self.stride, (1, 1)))
        parts.append(descriptor.show_padding(self.padding))
        parts.append(descriptor.show_pair("d", self.dilation, (1, 1)))
        parts.append(f"g{self.groups}" if self.groups > 1 else "")
        parts.append("b1" if self.bias else "")
        return " ".join(filter(None, parts))

    @property
    def output_size(self) -> Pair:
        """(P, Q)."""
        p = spatial.output_extent(self.h, self.r, self.stride[0], self.padding[0], self.dilation[0])
        q = spatial.output_extent(self.w, self.s, self.stride[1], self.padding[1], self.dilation[1])
        return p, q

    @property
    def x(self) -> Tensor:
        """Input image."""
        return Tensor("NCHW", (self.n, self.c, self.h, self.w))

    @property
    def filter(self) -> Tensor:
        """Weights, C counted within a group."""
        return Tensor("KCRS", (self.k, self.c // self.groups, self.r, self.s))

    @property
    def y(self) -> Tensor:
        """Output image."""
        return Tensor("NKPQ", (self.n, self.k, *self.output_size))

    @property
    def per_channel(self) -> Tensor:
        """Bias and its gradient."""
        return Tensor("K", (self.k,))


def _gathered(geometry: ConvGeometry, image: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """For one padded image [C, H', W']: row slices of the output and the windows they see, [G, C/g*R*S, rows*Q]."""
    g, (p, q) = geometry.groups, geometry.output_size
    by_group = image.reshape(g, geometry.c // g, *image.shape[1:])
    view = spatial.windows(by_group, (geometry.r, geometry.s), geometry.stride, geometry.dilation, (p, q))
    taps = geometry.c // g * geometry.r * geometry.s
    for rows in spatial.row_blocks(p, g * taps * q):
        yield rows, view[..., rows, :].reshape(g, taps, -1)


def _by_group(geometry: ConvGeometry, w: np.ndarray, dtype: Any) -> np.ndarray:
    """Weights as [G, K/g, C/g*R*S]."""
    return w.astype(dtype).reshape(geometry.groups, geometry.k // geometry.groups, -1)


_KEYWORDS = ("stride", "padding", "dilation", "groups", "layout")


class _Conv:
    """What the three directions share."""

    name: str
    family = "conv"
    infinities = True
    data: str
    operand: str
    factors = 2
    keywords: tuple[str, ...] = _KEYWORDS

    def reference(self, geometry: ConvGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        raise NotImplementedError

    def inputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        raise NotImplementedError

    def outputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        raise NotImplementedError

    def arguments(self, geometry: ConvGeometry) -> tuple[str, ...]:
        """Positional arguments of an implementation."""
        return tuple(self.inputs(geometry))

    def parameters(self, geometry: ConvGeometry) -> dict[str, Any]:
        """Keyword arguments that every direction takes."""
        return {
            "stride": geometry.stride,
            "padding": geometry.padding,
            "dilation": geometry.dilation,
            "groups": geometry.groups,
        }

    def terms(self, geometry: ConvGeometry) -> dict[str, int]:
        raise NotImplementedError

    def span(self, geometry: ConvGeometry) -> int:
        """The longest contraction."""
        return max(self.terms(geometry).values())

    def constants(self, geometry: ConvGeometry) -> int:
        """None."""
        return 0

    def alike(self, geometry: ConvGeometry) -> bool:
        """There is none."""
        return True

    def sharing(self, geometry: ConvGeometry) -> int:
        """Every element has a sum of its own."""
        return 1

    def nan_place(self, geometry: ConvGeometry) -> tuple[int, ...] | None:
        """None: taps on padding exist in some algorithms and not in others."""
        return None

    def exact_on_integers(self, geometry: ConvGeometry) -> bool:
        """Sums of integers are integers."""
        return True

    def magnitude(self, geometry: ConvGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """s2 = sqrt(operator applied to squared inputs), by output."""
        squares = {name: np.square(array.astype(dtype)) for name, array in inputs.items()}
        outputs = self.reference(geometry, squares, dtype)
        return {name: np.sqrt(array, out=array) for name, array in outputs.items()}

    def flops(self, geometry: ConvGeometry) -> int:
        """2 * N*K*P*Q * C/g*R*S in every direction, taps on padding counted as the field does."""
        return 2 * geometry.y.size * (geometry.filter.size // geometry.k)

    def bytes(self, geometry: ConvGeometry, itemsize: int) -> int:
        """Every input read once, every output written once."""
        tensors = [*self.inputs(geometry).values(), *self.outputs(geometry).values()]
        return itemsize * sum(tensor.size for tensor in tensors)


class ConvForward(_Conv):
    """x[N,C,H,W], w[K,C/g,R,S], bias[K]? -> y[N,K,P,Q]."""

    name, data, operand, free_axis = "conv_forward", "x", "w", 0

    def inputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        """x, w and, where the problem has one, bias."""
        bias = {"bias": geometry.per_channel} if geometry.bias else {}
        return {"x": geometry.x, "w": geometry.filter, **bias}

    def arguments(self, geometry: ConvGeometry) -> tuple[str, ...]:
        """bias is always passed, None when absent."""
        return ("x", "w", "bias")

    def outputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        """y."""
        return {"y": geometry.y}

    def terms(self, geometry: ConvGeometry) -> dict[str, int]:
        """C/g*R*S products and the bias."""
        return {"y": geometry.filter.size // geometry.k + geometry.bias}

    def reference(self, geometry: ConvGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """y = w @ windows(x) + bias, by image and block of output rows."""
        y = np.empty(geometry.y.shape, dtype)
        w = _by_group(geometry, inputs["w"], dtype)
        for image, out in zip(inputs["x"], y, strict=True):
            for rows, seen in _gathered(geometry, spatial.padded(image, geometry.padding, dtype)):
                out[:, rows] = (w @ seen).reshape(geometry.k, -1, out.shape[-1])
        if geometry.bias:
            y += inputs["bias"].astype(dtype)[:, None, None]
        return {"y": y}


class ConvBackwardData(_Conv):
    """dy[N,K,P,Q], w[K,C/g,R,S] -> dx[N,C,H,W]."""

    name, data, operand, free_axis = "conv_backward_data", "dy", "w", 1
    keywords: tuple[str, ...] = (*_KEYWORDS, "input_size")

    def inputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        """dy and w."""
        return {"dy": geometry.y, "w": geometry.filter}

    def outputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        """dx."""
        return {"dx": geometry.x}

    def parameters(self, geometry: ConvGeometry) -> dict[str, Any]:
        """The common ones and input_size=(H, W), which dy does not determine when the stride leaves a remainder."""
        return {**super().parameters(geometry), "input_size": (geometry.h, geometry.w)}

    def terms(self, geometry: ConvGeometry) -> dict[str, int]:
        """K/g products for every window position that touches an input element."""
        rows = spatial.taps_per_input(geometry.r, geometry.stride[0], geometry.dilation[0])
        columns = spatial.taps_per_input(geometry.s, geometry.stride[1], geometry.dilation[1])
        return {"dx": geometry.k // geometry.groups * rows * columns}

    def reference(self, geometry: ConvGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """dx = the windows' contributions w^T @ dy, added where they came from."""
        dx = np.empty(geometry.x.shape, dtype)
        w = _by_group(geometry, inputs["w"], dtype).transpose(0, 2, 1)
        for dy, out in zip(inputs["dy"], dx, strict=True):
            image = spatial.padded(np.zeros(out.shape, dtype), geometry.padding, dtype)
            self._scatter(geometry, dy.astype(dtype), w, image)
            out[...] = spatial.cropped(image, geometry.padding, (geometry.h, geometry.w))
        return {"dx": dx}

    def _scatter(self, geometry: ConvGeometry, dy: np.ndarray, w: np.ndarray, image: np.ndarray) -> None:
        g, (p, q), (u, v), (d, e) = geometry.groups, geometry.output_size, geometry.stride, geometry.dilation
        for rows in spatial.row_blocks(p, w.shape[0] * w.shape[1] * q):
            count = rows.stop - rows.start
            cols = w @ dy[:, rows].reshape(g, geometry.k // g, -1)
            cols = cols.reshape(geometry.c, geometry.r, geometry.s, count, q)
            for r in range(geometry.r):
                for s in range(geometry.s):
                    top, left = rows.start * u + r * d, s * e
                    image[:, top : top + (count - 1) * u + 1 : u, left : left + (q - 1) * v + 1 : v] += cols[:, r, s]


class ConvBackwardWeight(_Conv):
    """x[N,C,H,W], dy[N,K,P,Q] -> dw[K,C/g,R,S], and dbias[K] where the problem has a bias."""

    name, data, operand, free_axis = "conv_backward_weight", "x", "dy", 1
    keywords: tuple[str, ...] = (*_KEYWORDS, "kernel_size", "with_bias")

    def inputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        """x and dy."""
        return {"x": geometry.x, "dy": geometry.y}

    def outputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        """dw and, where the problem has a bias, dbias."""
        dbias = {"dbias": geometry.per_channel} if geometry.bias else {}
        return {"dw": geometry.filter, **dbias}

    def parameters(self, geometry: ConvGeometry) -> dict[str, Any]:
        """The common ones, kernel_size=(R, S), and with_bias: whether (dw, dbias) is asked for."""
        return {**super().parameters(geometry), "kernel_size": (geometry.r, geometry.s), "with_bias": geometry.bias}

    def terms(self, geometry: ConvGeometry) -> dict[str, int]:
        """N*P*Q, whatever the output."""
        return dict.fromkeys(self.outputs(geometry), geometry.y.size // geometry.k)

    def nan_place(self, geometry: ConvGeometry) -> tuple[int, ...] | None:
        """In the middle filter of the first image, a pixel whose window lies within the image. Neither the first group,
        which holds the NaN of x, nor the last, which holds its infinity, is lost to it where there are three."""
        pixels = [_inner(geometry, axis) for axis in (0, 1)]
        if geometry.k < 3 or None in pixels:
            return None
        return 0, geometry.k // 2, *(pixel for pixel in pixels if pixel is not None)

    def reference(self, geometry: ConvGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """dw = sum over images of dy @ windows(x)^T; dbias = sum of dy."""
        g, k = geometry.groups, geometry.k
        dw = np.zeros((g, k // g, geometry.filter.size // k), dtype)
        for image, dy in zip(inputs["x"], inputs["dy"], strict=True):
            for rows, seen in _gathered(geometry, spatial.padded(image, geometry.padding, dtype)):
                dw += dy[:, rows].astype(dtype).reshape(g, k // g, -1) @ seen.transpose(0, 2, 1)
        outputs = {"dw": dw.reshape(geometry.filter.shape)}
        if geometry.bias:
            outputs["dbias"] = inputs["dy"].sum(axis=(0, 2, 3), dtype=dtype)
        return outputs


def _inner(geometry: ConvGeometry, axis: int) -> int | None:
    """The first output along an axis whose window does not touch padding."""
    size, taps = ((geometry.h, geometry.r), (geometry.w, geometry.s))[axis]
    before, stride = geometry.padding[axis][0], geometry.stride[axis]
    output = -(-before // stride)
    end = output * stride - before + geometry.dilation[axis] * (taps - 1)
    return output if end < size else None
