"""One pass over an output: how far every element is from its exact value, in every unit a limit is stated in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conformance.judge.limits import RMS, Limits, half_ulp, spread

_TINY = np.finfo(np.float64).tiny
BLOCK = 1 << 18
"""Elements per step: the pass needs 2 MiB a temporary, whatever the size of the output."""


@dataclass
class Residuals:
    """Sums and extremes over all elements of one output."""

    actual: np.ndarray
    reference: np.ndarray
    count: int = 0
    out_of_bounds: int = 0
    worst: int = 0
    worst_share: float = 0.0
    """Largest |e| / bound; infinite where an element is not finite."""
    most: float = 0.0
    """Largest |e| / s2."""
    excess: float = 0.0
    """Largest (|e| - half_ulp - tiny) / hypot(s2, ref): what the output's own rounding does not explain."""
    excess_share: float = 0.0
    """Largest (|e| - half_ulp - tiny) / s2."""
    square: float = 0.0
    total: float = 0.0
    product: float = 0.0
    product_square: float = 0.0
    reference_total: float = 0.0
    reference_sizes: float = 0.0
    reference_square: float = 0.0
    magnitude_square: float = 0.0

    def add(self, start: int, actual: np.ndarray, reference: np.ndarray, s2: np.ndarray, limits: Limits) -> None:
        """Take in one block of flat arrays, `start` being the index of its first element."""
        error = actual - reference
        share = share_of_bound(actual, reference, s2, limits)
        worst = int(np.argmax(share))
        if share[worst] > self.worst_share:
            self.worst, self.worst_share = start + worst, float(share[worst])
        self.out_of_bounds += int(np.count_nonzero(share > 1))
        self.count += error.size
        self._add_extremes(error, reference, s2, limits)
        self._add_moments(error, reference, s2)

    def _add_extremes(self, error: np.ndarray, reference: np.ndarray, s2: np.ndarray, limits: Limits) -> None:
        size = np.abs(error)
        size[np.isnan(size)] = math.inf
        self.most = max(self.most, float(np.max(size / np.maximum(s2, _TINY))))
        rounded = half_ulp(np.maximum(np.abs(reference + error), np.abs(reference)), limits.format)
        beyond = size - rounded - limits.tiny
        self.excess = max(self.excess, _most(beyond / np.maximum(spread(reference, s2), _TINY)))
        self.excess_share = max(self.excess_share, _most(beyond / np.maximum(s2, _TINY)))

    def _add_moments(self, error: np.ndarray, reference: np.ndarray, s2: np.ndarray) -> None:
        product = error * reference
        self.square += float(error @ error)
        self.total += float(error.sum())
        self.product += float(product.sum())
        self.product_square += float(product @ product)
        self.reference_total += float(reference.sum())
        self.reference_sizes += float(np.abs(reference).sum())
        self.reference_square += float(reference @ reference)
        self.magnitude_square += float(s2 @ s2)

    @cached_property
    def groups(self) -> Groups:
        """Elements with the same exact result taken together; asked for only where they are not seen to be innocent."""
        return grouped(self.actual, self.reference)

    def gain(self, limits: Limits) -> float:
        """z of sum(e * ref) beyond the contract's own gain, normalised by its own root sum of squares."""
        beyond = _beyond(self.product, limits.gain * self.reference_square)
        z = _normalised(beyond, self.product_square)
        return z if abs(z) <= limits.z else _normalised(beyond, self.groups.product_square)

    def offset(self, limits: Limits) -> float:
        """z of sum(e) beyond what the contract's own gain makes of the results."""
        results = abs(self.reference_total) if limits.alike else self.reference_sizes
        beyond = _beyond(self.total, limits.gain * results)
        z = _normalised(beyond, self.square)
        return z if abs(z) <= limits.z else _normalised(beyond, self.groups.square)

    def rms(self, limits: Limits) -> float:
        """Root mean square error, less the contract's own gain, in units of what its roundings add up to."""
        uneven = 0.0 if limits.alike else limits.gain / RMS
        rounded = (limits.format.unit_roundoff + uneven) * math.sqrt(self.reference_square)
        unit = rounded + limits.unit * math.sqrt(self.magnitude_square) + limits.tiny * math.sqrt(self.count)
        return math.sqrt(self._square_beyond(limits.gain)) / unit if unit > 0 else 0.0

    def _square_beyond(self, most: float) -> float:
        """Sum of squared errors without the gain, up to `most`, that makes it least."""
        if not (most > 0 and self.reference_square > 0 and math.isfinite(self.product)):
            return self.square
        gain = min(max(self.product / self.reference_square, -most), most)
        return max(0.0, self.square - 2 * gain * self.product + gain**2 * self.reference_square)

    def rms_limit(self, limits: Limits) -> float:
        """Of as many errors as there are elements, or, if that is too few, as there are different results."""
        limit = limits.rms(self.count)
        return limit if self.rms(limits) <= limit else limits.rms(self.groups.count)

    @property
    def effective_bits(self) -> float:
        """-log2 of the largest |e| / s2: the input precision that would explain the error."""
        return -math.log2(self.most) if self.most > 0 else math.inf


def _beyond(total: float, allowed: float) -> float:
    """What is left of a sum, with its sign. NaN stays NaN."""
    return total if math.isnan(total) else math.copysign(max(0.0, abs(total) - allowed), total)


def _normalised(total: float, square: float) -> float:
    return total / math.sqrt(square) if square > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Groups:
    """Errors of elements with the same exact result, up to its sign, added up.

    count           how many errors of one size are as uncertain, taken together
    square          sum over groups of (sum of e)^2
    product_square  sum over groups of (sum of e*ref)^2
    """

    count: float
    square: float
    product_square: float


def grouped(actual: np.ndarray, reference: np.ndarray) -> Groups:
    """The groups of one output. Results that are zero are exact, and no group."""
    exact = reference.reshape(-1).astype(np.float64)
    order = np.argsort(np.abs(exact))
    exact = exact[order]
    with np.errstate(invalid="ignore", over="ignore"):
        error = actual.reshape(-1)[order].astype(np.float64) - exact
        first = np.flatnonzero(np.append(True, np.diff(np.abs(exact)) != 0))
        sums, products = np.add.reduceat(error, first), np.add.reduceat(error * exact, first)
    members = np.diff(np.append(first, exact.size))[exact[first] != 0].astype(np.float64)
    count = members.sum() ** 2 / max(1.0, members @ members)
    return Groups(max(1.0, float(count)), float(sums @ sums), float(products @ products))


def _most(values: np.ndarray) -> float:
    """The largest; infinite where one is no number."""
    values[np.isnan(values)] = math.inf
    return float(np.max(values))


def measure(actual: np.ndarray, reference: np.ndarray, s2: np.ndarray, limits: Limits) -> Residuals:
    """Residuals of one output; the three arrays have one shape and any layout, `actual` any storage dtype."""
    found = Residuals(actual, reference)
    with np.errstate(invalid="ignore", over="ignore"):
        for start, block in _blocks(actual.size):
            parts = (array.reshape(-1)[block].astype(np.float64) for array in (actual, reference, s2))
            values, exact, scale = parts
            found.add(start, values, exact, scale, limits)
    return found


def _blocks(size: int) -> Iterator[tuple[int, slice]]:
    return ((start, slice(start, start + BLOCK)) for start in range(0, size, BLOCK))


def out_of_bounds(actual: np.ndarray, reference: np.ndarray, s2: np.ndarray, limits: Limits) -> np.ndarray:
    """Mask of the elements beyond their bound (only computed for a failure's report)."""
    mask = np.empty(actual.size, bool)
    with np.errstate(invalid="ignore", over="ignore"):
        for _, block in _blocks(actual.size):
            parts = (array.reshape(-1)[block].astype(np.float64) for array in (actual, reference, s2))
            values, exact, scale = parts
            mask[block] = share_of_bound(values, exact, scale, limits) > 1
    return mask.reshape(actual.shape)


def share_of_bound(actual: np.ndarray, reference: np.ndarray, s2: np.ndarray, limits: Limits) -> np.ndarray:
    """|e| / bound by element. NaN and infinities must be where and what they are in the reference.

    A bound that is not finite where the reference is would let everything pass, and lets nothing.
    """
    bound = limits.bound(reference, s2)
    share: np.ndarray = np.abs(actual - reference) / bound
    share[~np.isfinite(actual) | ~np.isfinite(reference) | ~np.isfinite(bound)] = math.inf
    share[(actual == reference) | (np.isnan(actual) & np.isnan(reference)) | _overflowed(actual, reference, limits)] = 0
    return share


def _overflowed(actual: np.ndarray, reference: np.ndarray, limits: Limits) -> np.ndarray:
    """Infinities where the exact result rounds to one."""
    largest = (2 - 2 * limits.format.unit_roundoff) * 2.0**limits.format.emax
    found: np.ndarray = np.isinf(actual) & (np.copysign(1, actual) * reference > largest)
    return found
