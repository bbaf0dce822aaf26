"""A requantized convolution whose every step can be replaced: its mistakes, and calibration's correct and wrong
kernels, are made of these steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE, WHOLE
from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.conv.operators import ConvForward
from conformance.operators.conv_requantized.geometry import HIGHEST, LOWEST, RequantizedGeometry
from conformance.operators.conv_requantized.operators import stored
from conformance.operators.spatial import padded

FORWARD = ConvForward()

Change = Callable[[np.ndarray], np.ndarray]
Sums = Callable[[ConvGeometry, np.ndarray, np.ndarray], np.ndarray]
Store = Callable[[RequantizedGeometry, np.ndarray, str], np.ndarray]


def centred(g: RequantizedGeometry, x: np.ndarray) -> np.ndarray:
    """Return x minus its zero point, surrounded by zeros."""
    return around(g, x - g.x_zero_point)


def around(g: RequantizedGeometry, x: np.ndarray, fill: float = 0.0) -> np.ndarray:
    return padded(x, g.padding, np.dtype(np.float64), fill)


def exact_sums(g: ConvGeometry, image: np.ndarray, w: np.ndarray) -> np.ndarray:
    return FORWARD.reference(g, {"x": image, "w": w})["y"]


def in_fp32(g: RequantizedGeometry, sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Convert the sums to fp32 and multiply them by the scale: two roundings."""
    product: np.ndarray = sums.astype(np.float32) * scale.astype(np.float32)
    return product.astype(np.float64)


def exactly(g: RequantizedGeometry, sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return sums * scale


def as_defined(g: RequantizedGeometry, values: np.ndarray, dtype: str) -> np.ndarray:
    return stored(values, dtype, g.y_zero_point)


def saturated(rounding: Change, low: float = LOWEST, high: float = HIGHEST) -> Store:
    """Return the step that rounds with `rounding`, adds the zero point of y, and saturates at `low` and `high`."""
    return lambda g, values, dtype: np.clip(rounding(values) + g.y_zero_point, low, high)


def not_saturated(g: RequantizedGeometry, values: np.ndarray, dtype: str) -> np.ndarray:
    return stored(values, dtype, saturates=False)


def added(sums: np.ndarray, bias: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return sums + bias


@dataclass(frozen=True, slots=True)
class Steps:
    """A kernel made of these steps, callable like known kernels; arrays are float64, bias and scale broadcast to sums.

    image     (geometry, x) -> the padded image
    filters   (w) -> filters as they are multiplied
    sums      (convolution of the padded image, image, filters) -> sums without the bias
    with_bias (sums, bias, scale) -> sums with the bias; called only if there is a bias
    scale     (scale [K]) -> scale as it is multiplied
    scaled    (geometry, sums, scale) -> their product
    late      (product, bias) -> values to store
    stored    (geometry, values, dtype) -> results
    """

    image: Callable[[RequantizedGeometry, np.ndarray], np.ndarray] = centred
    filters: Change = lambda w: w
    sums: Sums = exact_sums
    with_bias: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = added
    scale: Change = lambda scale: scale
    scaled: Callable[[RequantizedGeometry, np.ndarray, np.ndarray], np.ndarray] = in_fp32
    late: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda product, bias: product
    stored: Store = as_defined

    def __call__(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        g, along = geometry, (-1, *(1,) * geometry.rank)
        wide = {name: array.astype(np.float64) for name, array in inputs.items()}
        image = self.image(g, wide["x"])
        inner = ConvGeometry(g.n, g.c, image.shape[2:], g.k, g.window, g.stride, (), g.dilation, g.groups)
        scale, bias = self.scale(wide["scale"]).reshape(along), wide.get("bias", np.zeros(g.k)).reshape(along)
        sums = self.sums(inner, image, self.filters(wide["w"]))
        if g.bias:
            sums = self.with_bias(sums, bias, scale)
        values = self.stored(g, self.late(self.scaled(g, sums, scale), bias), dtype)
        return {"y": (wrapped(values) if dtype in WHOLE else values).astype(STORAGE[dtype])}


def wrapped(values: np.ndarray, width: int = 8) -> np.ndarray:
    """Wrap whole numbers around at `width` bits, as two's complement does."""
    half = 2.0 ** (width - 1)
    return (values + half) % (2 * half) - half
