"""Sums in twice the precision of float64, and exact products of matrices: the same bits on every machine.

Only elementwise IEEE operations in a fixed order are used, and matrix products whose every partial sum is exact, so
that neither the BLAS nor the vector unit affects a result.

Dekker, "A floating-point technique for extending the available precision", Numer. Math. 18, 1971; Ogita, Rump and
Oishi, "Accurate sum and dot product", SISC 26(6), 2005; Ozaki, Ogita, Oishi and Rump, "Error-free transformations of
matrix multiplication", Numer. Algorithms 59, 2012.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

Double = tuple[np.ndarray, np.ndarray]
"""A number as the unevaluated sum of a float64 and a much smaller one."""

_SPLITTER = 2.0**27 + 1
SIGNIFICAND = 53
COVERED = 64
"""Bits below the largest element that slices cover: anything lower is less than float64 itself resolves."""
_NARROWEST = 8
"""Smallest number of bits of a slice, used if the data leave no room for more; products are then not exact."""


def two_sum(a: np.ndarray, b: np.ndarray) -> Double:
    """Return a + b and its rounding error."""
    total = a + b
    shifted = total - a
    return total, (a - (total - shifted)) + (b - shifted)


def two_product(a: np.ndarray, b: np.ndarray) -> Double:
    """Return a * b and its rounding error."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(a: np.ndarray) -> Double:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def added(a: Double, b: Double) -> Double:
    """Return a + b, correct to about 2^-104."""
    total, error = two_sum(a[0], b[0])
    error = error + (a[1] + b[1])
    high = total + error
    return high, error - (high - total)


def total(terms: Double) -> Double:
    """Sum along the last axis by halves, in an order that depends only on the length. Zero if the axis is empty."""
    high, low = terms
    if not high.shape[-1]:
        return high.sum(axis=-1), low.sum(axis=-1)
    while (count := high.shape[-1]) > 1:
        if count % 2:
            high, low = (np.concatenate([part, np.zeros_like(part[..., :1])], axis=-1) for part in (high, low))
        half = (count + 1) // 2
        high, low = added((high[..., :half], low[..., :half]), (high[..., half:], low[..., half:]))
    return high[..., 0], low[..., 0]


def summed(terms: np.ndarray) -> Double:
    """Sum float64 numbers along the last axis."""
    return total((terms, np.zeros_like(terms)))


def dot(a: np.ndarray, b: np.ndarray) -> Double:
    """Sum products along the last axis."""
    return total(two_product(a, b))


def divided(a: Double, by: float | np.ndarray) -> Double:
    """Return a / by, correct to about 2^-104."""
    quotient = a[0] / by
    product, error = two_product(quotient, np.broadcast_to(np.float64(by), quotient.shape))
    rest = (((a[0] - product) - error) + a[1]) / by
    high = quotient + rest
    return high, rest - (high - quotient)


def multiplied(a: Double, b: Double) -> Double:
    """Return a * b, correct to about 2^-102."""
    product, error = two_product(a[0], b[0])
    rest = error + (a[0] * b[1] + a[1] * b[0])
    high = product + rest
    return high, rest - (high - product)


def inverse(a: Double) -> Double:
    """Return 1 / a, correct to about 2^-102."""
    quotient = 1 / a[0]
    product, error = two_product(quotient, a[0])
    rest = ((1 - product) - error - quotient * a[1]) * quotient
    high = quotient + rest
    return high, rest - (high - quotient)


LN2 = 0.6931471805599453, 2.3190468138462996e-17
"""The natural logarithm of 2."""
_HALVINGS, _TERMS = 8, 10


def exponential(a: Double) -> Double:
    """Return e^a for a from -1000 to 0, correct to about 2^-94: the nearest power of two, and the series of the rest,
    divided by 2^8 and squared as often."""
    power = np.rint(a[0] / LN2[0])
    product, error = two_product(power, np.full_like(power, LN2[0]))
    rest = added(a, (-product, -(error + power * LN2[1])))
    step = np.ldexp(rest[0], -_HALVINGS), np.ldexp(rest[1], -_HALVINGS)
    unit = np.ones_like(power), np.zeros_like(power)
    result = unit
    for term in range(_TERMS, 0, -1):
        result = added(unit, divided(multiplied(result, step), float(term)))
    for _ in range(_HALVINGS):
        result = multiplied(result, result)
    exponent = power.astype(int)
    return np.ldexp(result[0], exponent), np.ldexp(result[1], exponent)


def width(array: np.ndarray) -> int:
    """Count the bits from the highest to the lowest bit set in any element: the width of fixed-point data."""
    finite = array[np.isfinite(array) & (array != 0)]
    if not finite.size:
        return 1
    fractions, exponents = np.frexp(finite)
    significands = np.abs(np.ldexp(fractions, SIGNIFICAND)).astype(np.int64)
    lowest = np.frexp((significands & -significands).astype(np.float64))[1] - 1
    return int(exponents.max() - (exponents - SIGNIFICAND + lowest).min())


def room(factor: np.ndarray, terms: int) -> int:
    """Count the bits that the other factor of a product may have so that every sum of `terms` products is exact."""
    return max(_NARROWEST, SIGNIFICAND - width(factor) - math.ceil(math.log2(max(2, terms))))


def levelled(filters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bring filters [K, ...] to one scale, in float64. Returns them and the exponents [K] of two that undo it."""
    wide = filters.astype(np.float64)
    axes = tuple(range(1, wide.ndim))
    scale = np.frexp(np.max(np.abs(wide), axis=axes, where=np.isfinite(wide), initial=0.0))[1]
    return np.ldexp(wide, -scale.reshape(-1, *(1 for _ in axes))), scale


def linear(operate: Callable[..., np.ndarray], factors: Sequence[np.ndarray], span: int) -> Double:
    """Compute operate(*factors), linear in each factor, from slices of the factors for which it is exact in float64.

    `span` is how much larger than a product of elements a result can be. An element that is not finite cannot be cut
    into slices: results that it reaches are computed from the whole factors.
    """
    if not all(np.isfinite(factor).all() for factor in factors):
        whole = operate(*(factor.astype(np.float64) for factor in factors))
        high, low = linear(operate, [np.where(np.isfinite(factor), factor, 0) for factor in factors], span)
        return np.where(np.isfinite(whole), high, whole), np.where(np.isfinite(whole), low, 0)
    bits = (SIGNIFICAND - math.ceil(math.log2(max(2, span)))) // len(factors)
    parts = [
        operate(*slices) for slices in itertools.product(*(cut(factor.astype(np.float64), bits) for factor in factors))
    ]
    total = parts[-1], np.zeros_like(parts[-1])
    for part in reversed(parts[:-1]):
        total = added(total, (part, np.zeros_like(part)))
    return total


def cut(array: np.ndarray, bits: int) -> list[np.ndarray]:
    """Cut an array into slices of `bits` bits that add up to it exactly: as many as it needs, at least one."""
    grid, rest = np.ldexp(1.0, np.frexp(np.abs(array).max(initial=0.0))[1] - bits), array
    parts: list[np.ndarray] = []
    while not parts or rest.any():
        parts.append(np.rint(rest / grid) * grid)
        rest, grid = rest - parts[-1], np.ldexp(grid, -bits)
    return parts


def sliced(array: np.ndarray, bits: int, axes: tuple[int, ...], further: int = 0) -> Iterator[np.ndarray]:
    """Yield slices of `bits` bits that add up to `array`, from the highest; elements along `axes` share a grid.

    The slices reach COVERED + `further` bits below the largest element.
    """
    largest = np.max(np.abs(array), axis=axes, keepdims=True, where=np.isfinite(array), initial=0.0)
    grid = np.ldexp(1.0, np.frexp(largest)[1] - bits)
    rest = array
    for _ in range(math.ceil((COVERED + further) / bits)):
        part = np.rint(rest / grid) * grid
        yield part
        rest = rest - part
        grid = np.ldexp(grid, -bits)
