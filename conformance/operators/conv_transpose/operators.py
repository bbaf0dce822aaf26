"""Transposed convolution: forward, backward-data and backward-weight; formulas are for two dimensions.

Defined as in torch.nn.ConvTranspose2d and ONNX ConvTranspose, but with separate padding on each side:

    y[n, k, h*u + r*d - top, w*v + s*e - left] = bias[k] + sum_{h,w,r,s,c} x[n, c', h, w] * w[c', k, r, s]

with c' among the C/groups channels of k's group. It is the data gradient of a convolution of y (`TransposedGeometry.
mirror`); its data gradient is that convolution, and its weight gradient is the convolution's with x and dy exchanged:
references, magnitudes and errors are the convolution's. Output padding adds rows and columns at the end of y: windows
reach those that padding would have cropped; the others contain only the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators import special_values
from conformance.operators.base import (
    CHANNELS_MISMATCH,
    Arrays,
    ErrorModel,
    Given,
    Homogeneous,
    ProbeMethods,
    Request,
    Special,
    invalid_filters,
    invalid_parameters,
)
from conformance.operators.conv import operators as conv
from conformance.operators.conv import probes as large
from conformance.operators.conv.operators import Products
from conformance.operators.conv.probes import Projection
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.family import LINEAR, Family, Storages
from conformance.operators.sparse import Nonzero, Places
from conformance.operators.spatial import fitted, per_channel, spans, unpadded

_FORWARD, _BACKWARD_DATA, _BACKWARD_WEIGHT = conv.ConvForward(), conv.ConvBackwardData(), conv.ConvBackwardWeight()


def mirrored(g: TransposedGeometry, inputs: Given) -> Arrays:
    """Return the mirror's inputs: its dy is x, its x is the part of dy that windows reach. The mirror has no bias."""
    names = {"x": "dy", "dy": "x", "w": "w"}
    return {names[n]: array[g.reached] if n == "dy" else array for n, array in inputs.items() if n in names}


def _no_output(geometry: TransposedGeometry, request: Request) -> Request:
    """Set padding that crops the whole output."""
    axes = zip(geometry.size, geometry.stride, spans(geometry), strict=True)
    whole = tuple(((size - 1) * u + span,) * 2 for size, u, span in axes)
    return Request(request.inputs, dict(request.parameters) | {"padding": whole})


def _output_padding_beyond(geometry: TransposedGeometry, request: Request) -> Request:
    """Set output padding as large as stride and dilation, which torch and ONNX refuse: another row of x would fit."""
    beyond = tuple(map(max, geometry.stride, geometry.dilation))
    return Request(request.inputs, dict(request.parameters) | {"output_padding": beyond})


def _gradient_below_window(geometry: TransposedGeometry, request: Request) -> Request | None:
    """Cut dy to one pixel; None if the window has one element. Larger windows never make an output of one pixel."""
    if math.prod(geometry.window) == 1:
        return None
    dy = request.inputs["dy"][(slice(None), slice(None), *[slice(1)] * geometry.rank)]
    none = {"padding": unpadded(geometry.rank), "output_padding": (0,) * geometry.rank}
    return Request(request.inputs | {"dy": dy}, dict(request.parameters) | none)


BELOW_WINDOW = {"a gradient smaller than the window": _gradient_below_window}


class _Transposed(Products):
    """Base of the three directions."""

    family = "conv_transpose"
    keywords: tuple[str, ...] = ("stride", "padding", "output_padding", "dilation", "groups", "layout")

    def flops(self, geometry: TransposedGeometry) -> int:
        """Return 2 * N*C*H*W * K/g*R*S for every direction; as is usual, products that are cropped are counted."""
        return 2 * geometry.x.size * (geometry.filter.size // geometry.c)


def _of_mirror(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a probe method of the mirror for this operator: their outputs are the same, except for the name."""
    return lambda g, inputs, *rest: method(g.mirror, mirrored(g, inputs), *rest)


def _project_forward(
    g: TransposedGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype
) -> Projection:
    """Project y: signs [K], expected [N, P, Q]."""
    projection = large.backward_data(g.mirror, mirrored(g, inputs), signs, risk, arithmetic)
    expected = fitted(projection.expected, (g.n, *g.output_size))
    if g.bias:
        expected += signs @ inputs["bias"].astype(np.float64)
    return replace(projection, output="y", expected=expected, square=projection.square + (g.k if g.bias else 0))


def _project_backward_data(
    g: TransposedGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype
) -> Projection:
    """Project dx: signs [C], expected [N, H, W]."""
    return replace(large.forward(g.mirror, mirrored(g, inputs), signs, risk, arithmetic), output="dx")


def _sample_forward(g: TransposedGeometry, inputs: Arrays, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, magnitudes = large.sample_backward_data(g.mirror, mirrored(g, inputs), index)
    if g.bias:
        bias = inputs["bias"].astype(np.float64)[index[:, 1]]
        return values + bias, np.sqrt(np.square(magnitudes) + np.square(bias))
    return values, magnitudes


def _sparse_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    flat, values = large.sparse_backward_data(g.mirror, mirrored(g, inputs), {"dy": places["x"]})
    index = np.unravel_index(flat, g.mirror.x.shape)
    return np.ravel_multi_index(index, g.y.shape), values


def _reached(g: Any, places: Places) -> Places:
    """Convert places in dy to places in x of the mirrored convolution, without those that no window reaches."""
    index = np.unravel_index(places["dy"], g.y.shape)
    inside = np.logical_and.reduce([at < size for at, size in zip(index[2:], g.mirror.size, strict=True)])
    read = np.ravel_multi_index(tuple(at[inside] for at in index), g.mirror.x.shape)
    return {"x": read}


def _sparse_backward_data(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    return large.sparse_forward(g.mirror, mirrored(g, inputs), _reached(g, places))


def _sparse_backward_weight(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    return large.sparse_backward_weight(g.mirror, mirrored(g, inputs), _reached(g, places))


class ConvTransposeForward(_Transposed):
    """x[N,C,H,W], w[C,K/g,R,S], bias[K]? -> y[N,K,P,Q]. bias is always passed, None when absent."""

    name, data, operand, free_axis = "conv_transpose_forward", "x", "w", 1
    arguments, returns = ("x", "w", "bias"), ("y",)
    capabilities = ("into",)
    homogeneous = Homogeneous(("x", "bias"), ("y",))
    invalid = CHANNELS_MISMATCH | {
        "padding that leaves no output": _no_output,
        "output padding that neither stride nor dilation exceeds": _output_padding_beyond,
        **invalid_parameters(_Transposed.keywords),
        **invalid_filters(0),
    }
    gradients = ("conv_transpose_backward_data", "conv_transpose_backward_weight")
    cofactor = "dy"
    probes = ProbeMethods(lambda geometry: geometry.k, _project_forward, _sample_forward)
    sparse = (("y", _sparse_forward),)

    def nonfinite(self, geometry: TransposedGeometry) -> Iterator[Special]:
        """Yield also places in the middle of filters, and in the bias of other channels."""
        yield from super().nonfinite(geometry)
        g, tap = geometry, special_values.centred_tap(geometry.mirror)
        values = special_values.filters_and_bias(tap, g.bias)
        for name, (k, *place), value in special_values.apart(g.k // g.groups, values):
            yield name, ((0, k, *place) if name == "w" else (k,)), value

    def errors(self, geometry: TransposedGeometry) -> ErrorModel:
        """Count C/g products for every window that holds an element, and the bias."""
        terms = _BACKWARD_DATA.errors(geometry.mirror).terms["dx"] + geometry.bias
        return ErrorModel({"y": terms}, span=terms)

    def reference(self, geometry: TransposedGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        y = _BACKWARD_DATA.reference(geometry.mirror, mirrored(geometry, inputs), dtype)["dx"]
        y = fitted(y, geometry.y.shape)
        if geometry.bias:
            y += per_channel(inputs["bias"].astype(dtype), geometry.rank)
        return {"y": y}


class ConvTransposeBackwardData(_Transposed):
    """dy[N,K,P,Q], w[C,K/g,R,S] -> dx[N,C,H,W]."""

    name, data, operand, free_axis = "conv_transpose_backward_data", "dy", "w", 0
    arguments, returns = ("dy", "w"), ("dx",)
    capabilities = ("into",)
    homogeneous = Homogeneous(("dy",), ("dx",))
    invalid = CHANNELS_MISMATCH | BELOW_WINDOW | invalid_parameters(_Transposed.keywords) | invalid_filters(1)
    cofactor = "x"
    probes = ProbeMethods(lambda geometry: geometry.c, _project_backward_data, _of_mirror(large.sample_forward))
    sparse = (("dx", _sparse_backward_data),)

    def nonfinite(self, geometry: TransposedGeometry) -> Iterator[Special]:
        yield from super().nonfinite(geometry)
        yield from special_values.in_filters(geometry.mirror)

    def errors(self, geometry: TransposedGeometry) -> ErrorModel:
        """Count K/g*R*S products."""
        terms = geometry.filter.size // geometry.c
        return ErrorModel({"dx": terms}, span=terms)

    def reference(self, geometry: TransposedGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        return {"dx": _FORWARD.reference(geometry.mirror, mirrored(geometry, inputs), dtype)["y"]}


class ConvTransposeBackwardWeight(_Transposed):
    """x[N,C,H,W], dy[N,K,P,Q] -> dw[C,K/g,R,S], and dbias[K] where the problem has a bias.

    Windows lie over dy, so dy is the `data` of this operator.
    """

    name, data, operand, free_axis = "conv_transpose_backward_weight", "dy", "x", 1
    arguments, returns = ("x", "dy"), ("dw", "dbias")
    keywords = (*_Transposed.keywords, "kernel_size", "with_bias")
    capabilities = ("output_mask", "into")
    homogeneous = Homogeneous(("dy",), ("dw", "dbias"))
    invalid = BELOW_WINDOW | invalid_parameters(_Transposed.keywords)
    cofactor = "w"
    probes = ProbeMethods(
        lambda geometry: geometry.c, _of_mirror(large.backward_weight), _of_mirror(large.sample_backward_weight)
    )
    sparse = (("dw", _sparse_backward_weight),)
    scattered = ()

    def special(self, geometry: TransposedGeometry) -> tuple[Special, ...]:
        return super().special(geometry) + special_values.leak("x", geometry.mirror)

    def nonfinite(self, geometry: TransposedGeometry) -> Iterator[Special]:
        """Yield also places in x whose window lies within the output."""
        yield from super().nonfinite(geometry)
        yield from (("x", index, value) for _, index, value in special_values.in_gradient(geometry.mirror))

    def errors(self, geometry: TransposedGeometry) -> ErrorModel:
        """Count N*H*W products in dw and N*P*Q elements in dbias."""
        terms = {"dw": geometry.x.size // geometry.c, "dbias": geometry.y.size // geometry.k}
        terms = {name: terms[name] for name in self.outputs(geometry)}
        return ErrorModel(terms, span=max(terms.values()))

    def reference(self, geometry: TransposedGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        outputs = _BACKWARD_WEIGHT.reference(geometry.mirror, mirrored(geometry, inputs), dtype)
        if geometry.bias:
            outputs["dbias"] = inputs["dy"].sum(axis=(0, *range(2, 2 + geometry.rank)), dtype=dtype)
        return outputs


FAMILY = Family(
    geometry=TransposedGeometry,
    operators=(ConvTransposeForward(), ConvTransposeBackwardData(), ConvTransposeBackwardWeight()),
    distributions=(*LINEAR, "large", "small", "absorbed"),
    place=4,
    storages=Storages(
        large=("dcgan.128x64", "unet.up.128x64"),
        odd=("convt.one-product",),
        once={2: ("convt.plain", "convt.2x2", "convt.depthwise", "convt.asymmetric-all")},
    ),
    equal_shapes=(
        "convt n3 c4 h4 w5 k4 r2 s2 u2 p1:0x0:1",
        "convt n2 c3 h3 w3 k3 r3 s3 p1",
        "convt n2 c4 h4 w5 k4 r3 s3 u2 p1 o1 g2 b1",
    ),
    partial=("convt n2 c5 h5 w6 k7 r3 s3 u2 p1 o1 b1", "convt n3 c4 h4 w5 k6 r2 s3 u1x2 p0:1x1:0 d2x1 g2 b1"),
    unreached=("convt n2 c3 h3 w4 k4 r2 s2 u3 b1",),
    goldens=(
        "conv_transpose_forward convt.plain fp32 fixed",
        "conv_transpose_backward_data convt.asymmetric-all fp32 integer",
        "conv_transpose_backward_weight convt.rank1 bf16 fixed",
    ),
)
