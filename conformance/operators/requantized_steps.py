"""A kernel with results of 8 bits whose every step can be replaced: mistakes, and calibration's correct and wrong
kernels, are made of these steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE, WHOLE, ends
from conformance.operators.base import Arrays, Operator
from conformance.operators.requantized import stored

Change = Callable[[np.ndarray], np.ndarray]
Scaled = Callable[[Any, np.ndarray, np.ndarray], np.ndarray]
Store = Callable[[Any, np.ndarray, str], np.ndarray]


def in_fp32(g: Any, sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Convert the sums to fp32 and multiply them by the scale: two roundings."""
    product: np.ndarray = sums.astype(np.float32) * scale.astype(np.float32)
    return product.astype(np.float64)


def exactly(g: Any, sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return sums * scale


def as_defined(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    return stored(values, dtype, g.y_zero_point)


def saturated(rounding: Change, low: float | None = None, high: float | None = None) -> Store:
    """Return the step that rounds with `rounding`, adds the zero point of y, and saturates at `low` and `high`, by
    default the ends of the results' format."""

    def store(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
        least, most = ends(dtype)
        return np.clip(rounding(values) + g.y_zero_point, least if low is None else low, most if high is None else high)

    return store


def not_saturated(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    return stored(values, dtype, saturates=False)


def added(sums: np.ndarray, bias: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return sums + bias


@dataclass(frozen=True, slots=True)
class Storing:
    """The steps that follow the sums, callable like known kernels; arrays are float64, and bias and scale broadcast to
    the sums.

    with_bias (sums, bias, scale) -> sums with the bias; called only if there is a bias
    scale     (scale [K]) -> scale as it is multiplied
    scaled    (geometry, sums, scale) -> their product
    late      (product, bias) -> values to store
    stored    (geometry, values, dtype) -> results
    """

    with_bias: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = added
    scale: Change = lambda scale: scale
    scaled: Scaled = in_fp32
    late: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda product, bias: product
    stored: Store = as_defined

    def added_up(self, g: Any, wide: Arrays) -> np.ndarray:
        """Return the sums of the inputs, in float64, without the bias."""
        raise NotImplementedError

    def __call__(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        g, along = geometry, operator.along  # type: ignore[attr-defined]  # of a Requantized, which no caller knows
        wide = {name: array.astype(np.float64) for name, array in inputs.items()}
        sums, scale = self.added_up(g, wide), along(g, self.scale(wide["scale"]))
        bias = along(g, wide["bias"]) if g.bias else np.zeros(1)
        if g.bias:
            sums = self.with_bias(sums, bias, scale)
        values = self.stored(g, self.late(self.scaled(g, sums, scale), bias), dtype)
        return {"y": (kept(values, dtype) if dtype in WHOLE else values).astype(STORAGE[dtype])}


def pairs_saturated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a[G, M, KS] b[G, KS, T] where the sum of two successive products saturates at 16 bits, as that of
    vpmaddubsw does: bytes without a sign times bytes with one."""
    total = np.zeros((*a.shape[:2], b.shape[2]))
    for first in range(0, a.shape[2], 2):
        both = slice(first, first + 2)
        total += np.clip(a[..., both] @ b[:, both], -(2.0**15), 2.0**15 - 1)
    return total


def kept(values: np.ndarray, dtype: str) -> np.ndarray:
    """Keep the last bits of whole numbers, as many as a dtype has."""
    low, high = ends(dtype)
    return (values - low) % (high - low + 1) + low


def wrapped(values: np.ndarray, width: int = 8) -> np.ndarray:
    """Wrap whole numbers around at `width` bits, as two's complement does."""
    half = 2.0 ** (width - 1)
    return (values + half) % (2 * half) - half
