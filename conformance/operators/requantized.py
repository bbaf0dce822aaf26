"""Operators with results of 8 bits: sums of products, scaled and stored, and which results are correct.

    y = saturate(round(scale * sum) + zero point of y)

where `sum` is that of a linear operator of the operands less their zero points, with its bias, and each channel has its
scale. In fp8 zero points are 0, and y is the product rounded to the format of the inputs.

*Correct results.* Sums of whole numbers are exact. The sum is converted to fp32 and multiplied with the scale
there: (1 + d1)(1 + d2) scale*sum with |d| <= u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 2002,
section 2.2), d1 = 0 where fp32 holds the sum (it holds all sums below 2^24), and d2 = 0 where it also holds the
product. A kernel may be more accurate, with an fma or in fp64. y is correct if some number within that distance of
scale*sum is rounded to y. Storing is monotonic, so the correct values reach from the stored lower end to the stored
upper end: one number, or two neighbours where a boundary of rounding lies between the ends. If the scale is a power of
two and sums are below 2^24, the distance is zero, and a result half way between two integers must be rounded as
declared. In fp8 the bound of fp32 accumulation (`conformance.judge.limits`), multiplied with the scale, is added,
unless sums are exact in any order.

A fixed-point multiplier (gemmlowp's and TFLite's: the scale as 31 bits and a shift) rounds the product twice. Its
results are other integers, declared as `ties="gemmlowp"`; each has one correct value (`fixed_point`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from conformance.dtypes import FP32, STORAGE, SUMS, TRAINED, WHOLE, ends, name_of
from conformance.operators.base import Arithmetic, Arrays, ErrorModel, Given, Interval, Operator, Tensor


class Requantized(Operator):
    """Base of the operators whose sums, those of `linear`, are scaled and stored in 8 bits. Their arguments are those
    of `linear` and a scale; a geometry has the `zero_points` of operands and results."""

    linear: Operator
    dtypes = tuple(dtype for dtype in SUMS if dtype not in TRAINED)
    returns = ("y",)
    free_axis = 0
    factors = 2

    def along(self, geometry: Any, values: np.ndarray) -> np.ndarray:
        """Reshape a number for each scale, or for each bias, so that it broadcasts to the sums."""
        raise NotImplementedError

    def by_scale(self, geometry: Any, sums: np.ndarray) -> np.ndarray:
        """Rearrange sums as [scales, sums of each]."""
        raise NotImplementedError

    def defined(self, geometry: Any, dtype: str) -> bool:
        return dtype in self.dtypes and geometry.exists_in(dtype)

    def tensor(self, geometry: Any, name: str) -> Tensor | None:
        if name == "scale":
            return replace(geometry.per_channel, wide=True, positive=True)
        result = super().tensor(geometry, name)
        return replace(result, sums=True) if result and name == "bias" else result

    def flops(self, geometry: Any) -> int:
        """Count the operations of the sums; one multiplication for each result is negligible."""
        return self.linear.flops(geometry)

    def errors(self, geometry: Any) -> ErrorModel:
        return replace(self.linear.errors(geometry), encloses=partial(_enclosed, self))

    def dtype_of(self, inputs: Given) -> str:
        """Return the dtype of operands and results."""
        return name_of(inputs[self.data].dtype)

    def centred(self, geometry: Any, inputs: Given) -> Arrays:
        """Return the operands of the sums in float64, less their zero points, and the bias."""
        points = geometry.zero_points
        return {
            name: inputs[name].astype(np.float64) - points.get(name, 0)
            for name in self.linear.arguments
            if name in inputs
        }

    def sums(self, geometry: Any, inputs: Given) -> np.ndarray:
        """Return the sums with their bias in float64: exact for the data of `conformance.inputs`."""
        return self.linear.reference(geometry, self.centred(geometry, inputs))["y"]

    def reference(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute y as stored by default: ties to even, saturated. Returned in `dtype`, which holds all 8 bits."""
        scale = self.along(geometry, inputs["scale"].astype(np.float64))
        y = stored(self.sums(geometry, inputs) * scale, self.dtype_of(inputs), geometry.y_zero_point)
        return {"y": y.astype(dtype)}

    def magnitude(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return the exact sums and, except for whole numbers, the scale of their rounding errors, in float64."""
        is_whole = self.dtype_of(inputs) in WHOLE
        s2 = {} if is_whole else self.linear.magnitude(geometry, self.centred(geometry, inputs))
        return {"sums": self.sums(geometry, inputs), **s2}


def _enclosed(
    operator: Requantized, geometry: Any, inputs: Arrays, magnitude: Arrays, arithmetic: Arithmetic
) -> dict[str, Interval]:
    """Return the smallest and the largest correct y, see the module's docstring; if results are rounded stochastically,
    the ends of what is rounded."""
    dtype, exact = operator.dtype_of(inputs), magnitude["sums"]
    scale = operator.along(geometry, inputs["scale"].astype(np.float64))
    if dtype in WHOLE and arithmetic.ties == "gemmlowp":
        y = np.clip(fixed_point(exact, scale) + geometry.y_zero_point, *ends(dtype))
        return {"y": (y, y)}
    product, before, u = exact * scale, np.zeros_like(exact), FP32.unit_roundoff
    if dtype not in WHOLE:
        u = arithmetic.u
        if not arithmetic.exact:
            before = arithmetic.product(exact, magnitude["y"], operator.linear.errors(geometry).terms["y"]) * scale
    converted = exact.astype(np.float32) != exact if dtype in WHOLE else before > 0
    rounded = converted | (product.astype(np.float32) != product)
    distance = before + ((1 + u) ** (converted.astype(int) + rounded) - 1) * (np.abs(product) + before)
    # an infinite product has no error bound
    distance = np.where(np.isfinite(product), distance, 0)
    if arithmetic.stochastic and dtype not in WHOLE:
        largest = LARGEST[dtype] if arithmetic.saturates else np.inf
        return {"y": (np.clip(product - distance, -largest, largest), np.clip(product + distance, -largest, largest))}
    how = geometry.y_zero_point, arithmetic.ties, arithmetic.saturates
    return {"y": (stored(product - distance, dtype, *how), stored(product + distance, dtype, *how))}


def _up(values: np.ndarray) -> np.ndarray:
    """Return floor(v + 1/2), without the rounding of that sum."""
    below = np.floor(values)
    return below + (values - below >= 0.5)


TIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "even": np.rint,
    "away": lambda values: np.copysign(_up(np.abs(values)), values),
    "up": _up,
}
"""Rule for numbers half way between two integers -> rounding to the nearest integer (IEEE 754-2019, 4.3.1; `up` is
floor(v + 1/2))."""


def fixed_point(exact: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return whole sums times a scale of fp32, rounded twice as gemmlowp does (Jacob et al., "Quantization and training
    of neural networks for efficient integer-arithmetic-only inference", 2017, section 2.2; gemmlowp's fixedpoint.h).

    scale = multiplier * 2^(exponent - 31), with a multiplier of 31 bits, which hold the significand of fp32. The sum,
    shifted to the left where the exponent is positive, times the multiplier is rounded to a multiple of 2^31, ties up
    (SaturatingRoundingDoublingHighMul), and the quotient is shifted to the right, ties away from zero
    (RoundingDivideByPOT). A shift to the left saturates: gemmlowp leaves its overflow undefined.
    """
    significand, exponent = np.frexp(scale)
    multiplier = np.ldexp(significand, 31).astype(np.int64)
    shifted = np.clip(np.ldexp(exact, np.maximum(exponent, 0)), -(2.0**31), 2.0**31 - 1).astype(np.int64)
    high = (shifted * multiplier + (1 << 30)) >> 31
    return TIES["away"](np.ldexp(high.astype(np.float64), np.minimum(exponent, 0)))


LARGEST = {name: float(ml_dtypes.finfo(STORAGE[name]).max) for name in ("fp8_e4m3", "fp8_e5m2")}  # type: ignore[no-untyped-call]
"""The largest finite number of a format."""


def stored(
    values: np.ndarray, dtype: str, zero_point: int = 0, ties: str = "even", saturates: bool = True
) -> np.ndarray:
    """Store float64 `values` in 8 bits and return them in float64; this is monotonic.

    Whole numbers are rounded, moved by the zero point, and saturate. fp8 is rounded to nearest even; a value that
    overflows becomes the largest finite number or, if not `saturates`, infinity in e5m2 and NaN in e4m3 (no infinity)
    (Micikevicius et al. 2022, table 2; OCP 8-bit floating point specification, 2023, section 5.2). NaN stays NaN.
    """
    if dtype in WHOLE:
        return np.clip(TIES[ties](values) + zero_point, *ends(dtype))
    if saturates:
        values = np.clip(values, -LARGEST[dtype], LARGEST[dtype])
    return values.astype(np.float32).astype(STORAGE[dtype]).astype(np.float64)
