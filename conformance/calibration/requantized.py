"""Sums of a requantized convolution in an order and a format of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.calibration.lowering import lowered
from conformance.operators import Arrays, ConvGeometry, Operator
from conformance.operators.conv_requantized.geometry import RequantizedGeometry
from conformance.operators.conv_requantized.steps import FORWARD, Steps, Sums, around

Total = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def summed(total: Total) -> Sums:
    """An order and a format of the sum."""

    def run(g: ConvGeometry, image: np.ndarray, w: np.ndarray) -> np.ndarray:
        product = lowered(FORWARD, g, {"x": image, "w": w})
        return product.restored(total(product.a, product.b, math.prod(g.window))).astype(np.float64)

    return run


def compensated(sums: Sums) -> Callable[..., Arrays]:
    """Sums of x as it is, with zero points as padding, less the zero point times the sum of the filter."""

    def run(operator: Operator, g: RequantizedGeometry, inputs: Arrays, dtype: str) -> Arrays:
        filters: Any = inputs["w"].astype(np.float64).reshape(g.k, -1).sum(axis=1).reshape(-1, *(1,) * g.rank)
        steps = Steps(
            image=lambda g, x: around(g, x, g.x_zero_point),
            sums=lambda inner, image, w: sums(inner, image, w) - g.x_zero_point * filters,
        )
        return steps(operator, g, inputs, dtype)

    return run
