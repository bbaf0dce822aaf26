"""Correct fp32 kernels to plant defects on: the reference operators, computed in float32."""

from __future__ import annotations

import numpy as np

from conformance.operators import OPERATORS, Arrays, ConvGeometry


def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    sizes = (*x.shape, len(w), *w.shape[2:])
    geometry = _geometry(sizes, stride, padding, dilation, groups, bias is not None)
    inputs = {"x": x, "w": w} if bias is None else {"x": x, "w": w, "bias": bias}
    return _computed("conv_forward", geometry, inputs)["y"]


def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
    sizes = (len(dy), w.shape[1] * groups, *input_size, len(w), *w.shape[2:])
    geometry = _geometry(sizes, stride, padding, dilation, groups)
    return _computed("conv_backward_data", geometry, {"dy": dy, "w": w})["dx"]


def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
    geometry = _geometry((*x.shape, dy.shape[1], *kernel_size), stride, padding, dilation, groups, with_bias)
    outputs = _computed("conv_backward_weight", geometry, {"x": x, "dy": dy})
    return (outputs["dw"], outputs["dbias"]) if with_bias else outputs["dw"]


def _geometry(sizes, stride, padding, dilation, groups, bias=False) -> ConvGeometry:
    n, c, h, w, k, r, s = sizes
    return ConvGeometry(n, c, h, w, k, r, s, stride, padding, dilation, groups, bias)


def _computed(operator: str, geometry: ConvGeometry, inputs: Arrays) -> Arrays:
    with np.errstate(invalid="ignore"):
        return OPERATORS[operator].reference(geometry, inputs, np.float32)
