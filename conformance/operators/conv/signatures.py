"""What is passed to the three directions of a convolution, and what they return: all that a caller needs.

Shapes are those of two dimensions; one dimension has W and S alone, three have D and T before the others.

Apart from their arithmetic, because a kernel's process calls kernels and must not find references.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.dtypes import DECLARABLE, WHOLE
from conformance.operators.base import Operator, Tensor
from conformance.operators.conv.geometry import ConvGeometry

FLOATING = tuple(name for name in DECLARABLE if name not in WHOLE)
_KEYWORDS = ("stride", "padding", "dilation", "groups", "layout")


class Convolution(Operator):
    """What the three directions share."""

    family = "conv"
    keywords: tuple[str, ...] = _KEYWORDS

    def parameters(self, geometry: ConvGeometry) -> dict[str, Any]:
        return {
            "stride": geometry.stride,
            "padding": geometry.padding,
            "dilation": geometry.dilation,
            "groups": geometry.groups,
        }


class Forward(Convolution):
    """x[N,C,H,W], w[K,C/g,R,S], bias[K]? -> y[N,K,P,Q]. bias is always passed, None when absent."""

    name = "conv_forward"
    dtypes = DECLARABLE
    arguments = ("x", "w", "bias")
    capabilities = ("into",)

    def inputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        bias = {"bias": replace(geometry.per_channel, sums=True)} if geometry.bias else {}
        return {"x": geometry.x, "w": geometry.filter, **bias}

    def outputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        return {"y": replace(geometry.y, sums=True)}


class BackwardData(Convolution):
    """dy[N,K,P,Q], w[K,C/g,R,S] -> dx[N,C,H,W]."""

    name = "conv_backward_data"
    dtypes = FLOATING
    arguments = ("dy", "w")
    keywords = (*_KEYWORDS, "input_size")
    capabilities = ("into",)

    def inputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        return {"dy": geometry.y, "w": geometry.filter}

    def outputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        return {"dx": replace(geometry.x, sums=True)}

    def parameters(self, geometry: ConvGeometry) -> dict[str, Any]:
        """The common ones and input_size=(H, W), which dy does not determine when the stride leaves a remainder."""
        return {**super().parameters(geometry), "input_size": geometry.size}


class BackwardWeight(Convolution):
    """x[N,C,H,W], dy[N,K,P,Q] -> dw[K,C/g,R,S], and dbias[K] where the problem has a bias."""

    name = "conv_backward_weight"
    dtypes = FLOATING
    arguments = ("x", "dy")
    keywords = (*_KEYWORDS, "kernel_size", "with_bias")
    capabilities = ("output_mask", "into")

    def inputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        return {"x": geometry.x, "dy": geometry.y}

    def outputs(self, geometry: ConvGeometry) -> dict[str, Tensor]:
        dbias = {"dbias": geometry.per_channel} if geometry.bias else {}
        return {name: replace(tensor, sums=True) for name, tensor in {"dw": geometry.filter, **dbias}.items()}

    def parameters(self, geometry: ConvGeometry) -> dict[str, Any]:
        """The common ones, kernel_size=(R, S), and with_bias: whether (dw, dbias) is asked for."""
        return {**super().parameters(geometry), "kernel_size": geometry.window, "with_bias": geometry.bias}


SIGNATURES: dict[str, Operator] = {one.name: one for one in (Forward(), BackwardData(), BackwardWeight())}
"""Name of a direction -> its signature."""
