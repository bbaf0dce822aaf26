"""What is known of a transposed convolution too large to be computed: that of the convolution it mirrors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.operators.base import Arrays
from conformance.operators.conv import probes as conv
from conformance.operators.conv.probes import Projection
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.mistakes import fitted


def forward(g: TransposedGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype) -> Projection:
    """signs[K]; expected [N, P, Q]."""
    given = {"dy": inputs["x"], "w": inputs["w"]}
    found = conv.backward_data(g.mirror, given, signs, risk, arithmetic)
    expected = fitted(found.expected, (g.n, *g.output_size))
    if g.bias:
        expected += signs @ inputs["bias"].astype(np.float64)
    return replace(found, output="y", expected=expected, square=found.square + (g.k if g.bias else 0))


def backward_data(
    g: TransposedGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype
) -> Projection:
    """signs[C]; expected [N, H, W]."""
    given = {"x": inputs["dy"][g.reached], "w": inputs["w"]}
    return replace(conv.forward(g.mirror, given, signs, risk, arithmetic), output="dx")


def backward_weight(
    g: TransposedGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype
) -> Projection:
    """signs[C]; expected [G, sets, K/g, R, S]."""
    given = {"x": inputs["dy"][g.reached], "dy": inputs["x"]}
    return conv.backward_weight(g.mirror, given, signs, risk, arithmetic)


def sample_forward(g: TransposedGeometry, inputs: Arrays, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, magnitudes = conv.sample_backward_data(g.mirror, {"dy": inputs["x"], "w": inputs["w"]}, index)
    if g.bias:
        bias = inputs["bias"].astype(np.float64)[index[:, 1]]
        return values + bias, np.sqrt(np.square(magnitudes) + np.square(bias))
    return values, magnitudes


def sample_backward_data(g: TransposedGeometry, inputs: Arrays, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return conv.sample_forward(g.mirror, {"x": inputs["dy"][g.reached], "w": inputs["w"]}, index)


def sample_backward_weight(g: TransposedGeometry, inputs: Arrays, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return conv.sample_backward_weight(g.mirror, {"x": inputs["dy"][g.reached], "dy": inputs["x"]}, index)
