"""Sums of a requantized convolution in an order and a format of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from conformance.calibration.lowering import lowered
from conformance.operators import ConvGeometry
from conformance.operators.conv_requantized.steps import FORWARD, Sums

Total = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def summed(total: Total) -> Sums:
    """An order and a format of the sum."""

    def run(g: ConvGeometry, image: np.ndarray, w: np.ndarray) -> np.ndarray:
        product = lowered(FORWARD, g, {"x": image, "w": w})
        return product.restored(total(product.a, product.b, math.prod(g.window))).astype(np.float64)

    return run
