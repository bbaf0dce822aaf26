"""Transposed convolution: forward, backward-data and backward-weight; formulas are those of two dimensions.

As torch.nn.ConvTranspose2d and ONNX ConvTranspose, with a padding of its own on each side:

    y[n, k, h*u + r*d - top, w*v + s*e - left] = bias[k] + sum_{h,w,r,s,c} x[n, c', h, w] * w[c', k, r, s]

with c' among the C/groups channels of k's group. It is the data gradient of a convolution of y (`TransposedGeometry.
mirror`), its data gradient is that convolution, and its weight gradient the same with x and dy exchanged: references,
magnitudes and errors are the convolution's. Output padding adds rows and columns at the end of y, of which windows
reach those that padding would have cropped; the others have the bias alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators.base import (
    CHANNELS_MISMATCH,
    Arrays,
    ErrorModel,
    Given,
    Homogeneous,
    ProbeMethods,
    Request,
    invalid_filters,
    invalid_parameters,
)
from conformance.operators.conv import operators as conv
from conformance.operators.conv import probes as large
from conformance.operators.conv.operators import Products
from conformance.operators.conv.probes import Projection
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.spatial import fitted, per_channel, spans, unpadded

_FORWARD, _BACKWARD_DATA, _BACKWARD_WEIGHT = conv.ConvForward(), conv.ConvBackwardData(), conv.ConvBackwardWeight()


def mirrored(g: TransposedGeometry, inputs: Given) -> Arrays:
    """What the mirror takes: its dy is x, its x what windows reach of dy. It has no bias."""
    names = {"x": "dy", "dy": "x", "w": "w"}
    return {names[n]: array[g.reached] if n == "dy" else array for n, array in inputs.items() if n in names}


def _no_output(geometry: TransposedGeometry, request: Request) -> Request:
    """Padding that crops all that there is."""
    axes = zip(geometry.size, geometry.stride, spans(geometry), strict=True)
    whole = tuple(((size - 1) * u + span,) * 2 for size, u, span in axes)
    return Request(request.inputs, dict(request.parameters) | {"padding": whole})


def _output_padding_beyond(geometry: TransposedGeometry, request: Request) -> Request:
    """As much as stride and dilation, which torch and ONNX refuse: the next row of x would be there."""
    beyond = tuple(map(max, geometry.stride, geometry.dilation))
    return Request(request.inputs, dict(request.parameters) | {"output_padding": beyond})


def _gradient_below_window(geometry: TransposedGeometry, request: Request) -> Request | None:
    """A gradient of one pixel, of an output that no window of several elements makes."""
    if math.prod(geometry.window) == 1:
        return None
    dy = request.inputs["dy"][(slice(None), slice(None), *[slice(1)] * geometry.rank)]
    none = {"padding": unpadded(geometry.rank), "output_padding": (0,) * geometry.rank}
    return Request(request.inputs | {"dy": dy}, dict(request.parameters) | none)


BELOW_WINDOW = {"a gradient smaller than the window": _gradient_below_window}


class _Transposed(Products):
    """What the three directions share."""

    family = "conv_transpose"
    keywords: tuple[str, ...] = ("stride", "padding", "output_padding", "dilation", "groups", "layout")

    def flops(self, geometry: TransposedGeometry) -> int:
        """2 * N*C*H*W * K/g*R*S in every direction, products that are cropped counted as the field does."""
        return 2 * geometry.x.size * (geometry.filter.size // geometry.c)


def _of_mirror(method: Callable[..., Any]) -> Callable[..., Any]:
    """What is known of the mirror, whose output is ours but for its name."""
    return lambda g, inputs, *rest: method(g.mirror, mirrored(g, inputs), *rest)


def _project_forward(
    g: TransposedGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype
) -> Projection:
    """signs[K]; expected [N, P, Q]."""
    found = large.backward_data(g.mirror, mirrored(g, inputs), signs, risk, arithmetic)
    expected = fitted(found.expected, (g.n, *g.output_size))
    if g.bias:
        expected += signs @ inputs["bias"].astype(np.float64)
    return replace(found, output="y", expected=expected, square=found.square + (g.k if g.bias else 0))


def _project_backward_data(
    g: TransposedGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype
) -> Projection:
    """signs[C]; expected [N, H, W]."""
    return replace(large.forward(g.mirror, mirrored(g, inputs), signs, risk, arithmetic), output="dx")


def _sample_forward(g: TransposedGeometry, inputs: Arrays, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, magnitudes = large.sample_backward_data(g.mirror, mirrored(g, inputs), index)
    if g.bias:
        bias = inputs["bias"].astype(np.float64)[index[:, 1]]
        return values + bias, np.sqrt(np.square(magnitudes) + np.square(bias))
    return values, magnitudes


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

    def errors(self, geometry: TransposedGeometry) -> ErrorModel:
        """C/g products for every window that holds an element, and the bias."""
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

    def errors(self, geometry: TransposedGeometry) -> ErrorModel:
        """K/g*R*S products."""
        terms = geometry.filter.size // geometry.c
        return ErrorModel({"dx": terms}, span=terms)

    def reference(self, geometry: TransposedGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        return {"dx": _FORWARD.reference(geometry.mirror, mirrored(geometry, inputs), dtype)["y"]}


class ConvTransposeBackwardWeight(_Transposed):
    """x[N,C,H,W], dy[N,K,P,Q] -> dw[C,K/g,R,S], and dbias[K] where the problem has a bias.

    dy is the image over which windows lie, so that it is the data here.
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

    def errors(self, geometry: TransposedGeometry) -> ErrorModel:
        """N*H*W products; N*P*Q gradients of the bias."""
        terms = {"dw": geometry.x.size // geometry.c, "dbias": geometry.y.size // geometry.k}
        terms = {name: terms[name] for name in self.outputs(geometry)}
        return ErrorModel(terms, span=max(terms.values()))

    def reference(self, geometry: TransposedGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        outputs = _BACKWARD_WEIGHT.reference(geometry.mirror, mirrored(geometry, inputs), dtype)
        if geometry.bias:
            outputs["dbias"] = inputs["dy"].sum(axis=(0, *range(2, 2 + geometry.rank)), dtype=dtype)
        return outputs


FAMILY = (
    TransposedGeometry,
    (ConvTransposeForward(), ConvTransposeBackwardData(), ConvTransposeBackwardWeight()),
)
