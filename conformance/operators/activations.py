"""Activations of sums of products: their values, how errors of a sum reach the result, and operators that have them.

    y = act(sum of products + bias + residual)

    relu       max(s, 0), NaN for NaN; relu6 is min(max(s, 0), 6)
    gelu       s Phi(s), Phi the standard normal distribution (Hendrycks, Gimpel, "Gaussian error linear units", 2016)
    gelu_tanh  s/2 (1 + tanh(sqrt(2/pi) (s + 0.044715 s^3))), of the same paper: another function, up to 4.7e-4 away
    silu       s / (1 + e^-s), which others call swish

*Values* need no function of a library, whose last bits differ from one to the next: s times a gate from 0 to 1, in
twice the precision of float64 (`conformance.operators.double_double`). As 1 + tanh(t) = 2/(1 + e^-2t), the gate of
gelu_tanh is a logistic function, as that of silu is. Phi is the series 1/2 + phi(s) (s + s^3/3 + s^5/15 + ...), whose
terms have one sign (Marsaglia, "Evaluating the normal distribution", J. Stat. Software 11(4), 2004); in the far tails
phi(s)/|s| (1 - 1/s^2 + 3/s^4 - ...).

*Errors of the sum.* A sum that is off by up to e moves y by up to |f'(s)| e + M e^2/2, M the largest |f''| (Taylor),
and by no more than e times the largest |f'|. relu and relu6 are monotonic: y lies between f(s - e) and f(s + e), so
that nothing is allowed where both are zero. The sum has its terms, the bias and the residual; a kernel that keeps it in
the storage format between parts (declared) rounds it after the products and after each addition.

*Errors of the activation itself.* Kernels multiply s by a gate, and an error of g in the gate is one of |s| g in y. By
the OpenCL specification (OpenCL C 3.0, relative error as ULP values, full profile) erf and erfc may be off by 16 ulp,
tanh by 5, exp by 3 and a division by 2.5; CUDA's guide allows less. An ulp of numbers from 1 to 2 is 2u, one of smaller
numbers at most u, and relative to a number it is 2u or less. In units of u, errors of the gate are

    gelu       erfc(z)/2, z = -s/sqrt(2): 16 ulp of a number up to 2, halved, 16; z has two roundings, which move it by
               2 |z| erfc'(z)/2 <= 0.5. By (1 + erf)/2 16 ulp of a number up to 1 and the addition, halved: 9.
    gelu_tanh  (1 + tanh(t))/2: seven roundings of t, 7 t tanh'(t) <= 3.2, 5 ulp and the addition, halved: 4.6. By the
               logistic function l of v = 2t they are 7 v l'(v) <= 1.6, and those of exp 6 l (1 - l) <= 1.5.
    silu       (1 + tanh(s/2))/2: 5 ulp and the addition, halved, 3, which is no relative accuracy below zero

and relative to y two multiplications; a logistic function's addition, 1, and division, 5, in place of one of them; the
exp of silu, 6; and, in fp64, the rounding of the reference. So y is off by up to u (A |s| + B |y|), with A and B in
`OWN`. Within these limits errors are taken for uniform, of deviation 1/sqrt(3); bounds are LAMBDA deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators import double_double
from conformance.operators.activation_geometry import SMOOTH
from conformance.operators.base import Arithmetic, Arrays, ErrorModel, Given, Homogeneous, Operator, Special, Tensor
from conformance.operators.double_double import Double, added, multiplied

SATURATED = 800.0
"""Beyond it the gates are 0 and 1 in float64."""
FLAT = 40.0
"""Beyond it slopes are 0 and 1, but for 1e-15 of them."""
_erf = np.frompyfunc(math.erf, 1, 1)
TAIL, TAIL_TERMS = 8.5, 12
"""Where Phi is computed from its tail, and the terms of that, which are then correct to 1e-10 of the tail."""
_BELOW = 2.0**-108
INVERSE_ROOT = 0.3989422804014327, -2.49232720227773e-17
"""1 / sqrt(2 pi)"""
TWICE_ROOT = 1.5957691216057308, -9.96930880911092e-17
"""2 sqrt(2 / pi)"""
CUBIC = 0.044715, 2.1960211427085595e-18
"""0.044715"""
STEEPEST = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}
"""Bound of |f'|."""
BENT = {"gelu": 0.798, "gelu_tanh": 0.798, "silu": 0.5}
"""Bound of |f''|."""
OWN = {"gelu": (16.5, 3.0), "gelu_tanh": (4.6, 8.0), "silu": (3.0, 14.0)}
"""The activation's own error in units of u |s| and of u |y|."""


def _constant(value: Double | tuple[float, float], like: np.ndarray) -> Double:
    return np.full_like(like, value[0]), np.full_like(like, value[1])


def _logistic(v: Double) -> Double:
    """Return 1/(1 + e^-v), for negative v as e^v/(1 + e^v)."""
    negative = v[0] < 0
    power = double_double.exponential((-np.abs(v[0]), np.where(negative, v[1], -v[1])))
    upper = double_double.inverse(added(_constant((1.0, 0.0), v[0]), power))
    lower = multiplied(upper, power)
    return np.where(negative, lower[0], upper[0]), np.where(negative, lower[1], upper[1])


def _gate_of_tanh(s: Double) -> Double:
    """Return the logistic function of 2 sqrt(2/pi) (s + 0.044715 s^3)."""
    inside = added(_constant((1.0, 0.0), s[0]), multiplied(_constant(CUBIC, s[0]), multiplied(s, s)))
    v = multiplied(multiplied(_constant(TWICE_ROOT, s[0]), s), inside)
    within = np.abs(v[0]) < SATURATED
    return _logistic((np.where(within, v[0], np.copysign(SATURATED, v[0])), np.where(within, v[1], 0)))


def _density(s: Double) -> Double:
    """Return the density of the standard normal distribution."""
    square = multiplied(s, s)
    power = double_double.exponential((-square[0] / 2, -square[1] / 2))
    return multiplied(_constant(INVERSE_ROOT, s[0]), power)


def _normal(s: Double) -> Double:
    """Return Phi(s) for numbers up to `SATURATED` in size."""
    high, low = np.empty_like(s[0]), np.zeros_like(s[0])
    near = np.abs(s[0]) < TAIL
    inner = s[0][near], s[1][near]
    square, term, total, step = multiplied(inner, inner), inner, inner, 1
    while (np.abs(term[0]) > _BELOW * np.abs(total[0])).any():
        step += 2
        term = double_double.divided(multiplied(term, square), float(step))
        total = added(total, term)
    half = _constant((0.5, 0.0), inner[0])
    high[near], low[near] = added(half, multiplied(_density(inner), total))
    far = np.clip(s[0][~near], -38.0, 38.0)
    factor = series = np.ones_like(far)
    for odd in range(1, 2 * TAIL_TERMS, 2):
        factor = factor * (-odd / far**2)
        series = series + factor
    tail = _density((far, np.zeros_like(far)))[0] / np.abs(far) * series
    high[~near], low[~near] = np.where(far < 0, tail, 1.0), np.where(far < 0, 0.0, -tail)
    return high, low


_GATES: dict[str, Callable[[Double], Double]] = {"gelu": _normal, "gelu_tanh": _gate_of_tanh, "silu": _logistic}
_CLIPPED: dict[str, tuple[float, float]] = {
    "none": (-math.inf, math.inf),
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
}


def gate(activation: str, s: Double) -> Double:
    """Return the factor of s in a smooth activation: 0 far below zero, 1 far above, and NaN for NaN."""
    flat = s[0].reshape(-1), s[1].reshape(-1)
    within = np.abs(flat[0]) < SATURATED
    high, low = _GATES[activation]((flat[0][within], flat[1][within]))
    result = np.where(np.isnan(flat[0]), np.nan, (flat[0] > 0).astype(np.float64)), np.zeros_like(flat[1])
    result[0][within], result[1][within] = high, low
    return result[0].reshape(s[0].shape), result[1].reshape(s[0].shape)


def value(activation: str, s: Double) -> Double:
    """Return the activation of double-double numbers. Of -inf a smooth one is NaN, the product of infinity and 0."""
    if activation in _CLIPPED:
        high = np.clip(s[0], *_CLIPPED[activation])
        return high, np.where(high == s[0], s[1], 0.0)
    factor = gate(activation, s)
    finite = np.isfinite(s[0])
    high, low = multiplied((np.where(finite, s[0], 0.0), s[1]), factor)
    with np.errstate(invalid="ignore"):
        return np.where(finite, high, s[0] * factor[0]), np.where(finite, low, 0.0)


def activated(activation: str, s: np.ndarray) -> np.ndarray:
    """Return the activation of float64 numbers, rounded to float64."""
    return value(activation, (s, np.zeros_like(s)))[0]


def slope(activation: str, s: np.ndarray) -> np.ndarray:
    """Return |f'| of a smooth activation in float64, by functions of a library: it only scales a bound."""
    near = np.clip(s, -FLAT, FLAT)
    if activation == "gelu":
        share = 0.5 + _erf(near * math.sqrt(0.5)).astype(np.float64) / 2
        change = np.exp(-np.square(near) / 2) * INVERSE_ROOT[0]
    else:
        cubic, scale = (0.0, 1.0) if activation == "silu" else (CUBIC[0], TWICE_ROOT[0])
        with np.errstate(over="ignore"):
            share = 1 / (1 + np.exp(-scale * (near + cubic * near**3)))
        change = share * (1 - share) * scale * (1 + 3 * cubic * np.square(near))
    result: np.ndarray = np.abs(share + near * change)
    return result


class Activated(Operator):
    """Base of the operators that add a bias and a residual to the sums of `linear`, and return their activation."""

    linear: Operator
    dtypes = ("fp32", "bf16", "fp16", "fp64")
    returns = ("y",)
    factors = 2
    homogeneous = Homogeneous(powers=False, signs=False)

    def tensor(self, geometry: Any, name: str) -> Tensor | None:
        """Return an argument or the result; a residual has the shape and the format of y."""
        if name == "residual":
            return super().tensor(geometry, "y") if geometry.residual else None
        return super().tensor(geometry, name)

    def flops(self, geometry: Any) -> int:
        """Count the operations of the sums; an activation of each result is negligible."""
        return self.linear.flops(geometry)

    def bounded(self, geometry: Any, specials: list[Special]) -> list[Special]:
        """Return the values for which results are unique: a smooth activation of -inf is 0 in some libraries and NaN in
        others, and sums have infinities of either sign."""
        return [special for special in specials if geometry.activation not in SMOOTH or not math.isinf(special[2])]

    def special(self, geometry: Any) -> tuple[Special, ...]:
        return tuple(self.bounded(geometry, list(super().special(geometry))))

    def errors(self, geometry: Any) -> ErrorModel:
        """Count the terms of the sum, and the residual. Whole numbers stay whole where sums are selected or clipped."""
        plain = self.linear.errors(geometry)
        terms = plain.terms["y"] + geometry.residual
        exact = geometry.activation not in SMOOTH
        return ErrorModel({"y": terms}, span=terms, exact_on_integers=exact, propagate=propagated)

    def sums(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> np.ndarray:
        """Return the sums with bias and residual in `dtype`; those of float64 are exact for most of the data."""
        y = self.linear.reference(geometry, inputs, dtype)["y"]
        return y + inputs["residual"].astype(dtype) if geometry.residual else y

    def reference(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute the sum in `dtype`, and its activation in extended precision, rounded to `dtype`."""
        s = self.sums(geometry, inputs, dtype).astype(np.float64)
        return {"y": activated(geometry.activation, s).astype(dtype)}

    def exact(self, geometry: Any, inputs: Arrays) -> dict[str, Double]:
        """Add the residual, and compute the activation, in double-double arithmetic."""
        s = self.linear.exact(geometry, {name: array for name, array in inputs.items() if name != "residual"})["y"]
        if geometry.residual:
            residual = inputs["residual"].astype(np.float64)
            s = added(s, (residual, np.zeros_like(residual)))
        return {"y": value(geometry.activation, s)}

    def magnitude(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return the exact sums, their s2, y and |f'|; the products alone, and with the larger of bias and residual."""
        s = self.sums(geometry, inputs)
        s2 = self.linear.magnitude(geometry, inputs, dtype)["y"].astype(np.float64)
        if geometry.residual:
            s2 = np.hypot(s2, inputs["residual"].astype(np.float64))
        scales = {"sums": s, "s2": s2, "y": activated(geometry.activation, s)}
        scales["products"] = self.linear.reference(replace(geometry, bias=False), inputs)["y"]
        if geometry.bias and geometry.residual:
            added_first = np.abs(scales["products"] + inputs["residual"].astype(np.float64))
            scales["between"] = np.maximum(added_first, np.abs(s - inputs["residual"].astype(np.float64)))
        return scales | ({"slope": slope(geometry.activation, s)} if geometry.activation in SMOOTH else {})


def propagated(geometry: Any, inputs: Arrays, scales: Arrays, arithmetic: Arithmetic) -> Arrays:
    """Bound y before it is rounded: see the module."""
    activation, s, y = geometry.activation, scales["sums"], np.abs(scales["y"])
    terms = geometry.c // geometry.groups * math.prod(geometry.window) + geometry.bias + geometry.residual
    error = arithmetic.product(s, scales["s2"], terms)
    if arithmetic.rounds_between:
        added_last = ["sums"] if geometry.bias or geometry.residual else []
        for stage in ("products", *(["between"] if "between" in scales else []), *added_last):
            error = error + arithmetic.between(np.abs(scales[stage]) + error)
    if activation not in SMOOTH:
        above, below = (np.clip(s + way * error, *_CLIPPED[activation]) for way in (1, -1))
        return {"y": np.maximum(above - scales["y"], scales["y"] - below)}
    bent = scales["slope"] * error + BENT[activation] / 2 * np.square(error)
    of_gate, of_result = OWN[activation]
    rounded = arithmetic.u * (of_gate * np.abs(s) + of_result * y) * arithmetic.deviations / math.sqrt(3)
    return {"y": np.minimum(bent, STEEPEST[activation] * error) + rounded}
