"""One pass over an output, which measures the error of every element in every unit in which a limit is stated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conformance.dtypes import FORMATS, neighbours
from conformance.judge.limits import RMS, OutputLimits, half_ulp

_TINY = np.finfo(np.float64).tiny
_ALONE = 2.0**-18
"""Largest relative difference of s2 and a result that is a single product: s2 is computed in float32."""
BLOCK = 1 << 13
"""Elements per step: temporaries of 64 KiB stay in the cache and are reused by malloc, which requests larger ones from
the system each time. Four times faster than steps of 2 MiB."""


NORMAL = 3.0
"""Kurtosis of normally distributed results, for which rms limits are derived; heavier tails count as fewer errors."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one output's errors e, in the units of one contract.

    rms        root mean square error, less the contract's own gain, in units of the sum of its roundings
    rms_limit  limit for as many errors as there are elements or, if rms exceeds that, as there are different results
    gain_z     sum(e * ref) beyond the contract's own gain, normalised by its own root sum of squares
    offset_z   sum(e) beyond the contract's own gain times the results, normalised likewise; both over elements or, if
               that exceeds the limit and the contract leaves roundings few states, over channels; the gain, if
               roundings are of one or two products, then also over the places of all channels
    """

    rms: float
    rms_limit: float
    gain_z: float
    offset_z: float


@dataclass(frozen=True, slots=True)
class Groups:
    """Sums of errors over groups of elements whose exact results are equal, or round to one number, up to the sign.

    count           effective number of independent errors
    total, product  sums of e and of e*ref
    square          sum over groups of (sum of e)^2
    product_square  sum over groups of (sum of e*ref)^2
    """

    count: float
    total: float
    product: float
    square: float
    product_square: float


@dataclass
class Residuals:
    """Sums and extremes of the errors of all elements of one output."""

    actual: np.ndarray
    reference: np.ndarray
    s2: np.ndarray
    rest: np.ndarray | None = None
    storage: np.dtype | None = None
    """Dtype of the output, if results that are equal in it count as one error: in half of an image that is so dark that
    only the bias is left, a channel has one error."""
    coarse: bool = False
    """Whether results, or the sums that they come from, are rounded to 16 bits."""
    mismatched: np.ndarray | None = None
    """Mask of the elements that exceed their bound, in one dimension; None where there are none."""
    worst: int = 0
    worst_share: float = 0.0
    """Largest |e| / bound; infinite where an element is not finite."""
    largest: float = 0.0
    """Largest |e| / s2."""
    excess: float = 0.0
    """Largest (|e| - half_ulp - tiny) / hypot(s2, ref): the error that the output's own rounding does not explain."""
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
    spread_product: float = 0.0
    """Sum of spread * |ref|."""
    hidden: int = 0
    """Number of nonzero results that are no larger than their bound, so that zero would pass."""

    def by_channel(self, channels: np.ndarray) -> tuple[float, float]:
        """Sum (sum of e)^2 and (sum of e*ref)^2 over channels; `channels` gives the channel of every element."""
        exact, channel = self.reference.reshape(-1), np.broadcast_to(channels, self.reference.shape).reshape(-1)
        with np.errstate(invalid="ignore", over="ignore"):
            sums, products = np.bincount(channel, self._errors), np.bincount(channel, self._errors * exact)
        return float(sums @ sums), float(products @ products)

    @cached_property
    def _errors(self) -> np.ndarray:
        """Errors, flattened; if `coarse`, zero for results of one product (`conformance.judge.limits`)."""
        size = np.abs(self.reference.astype(np.float64))
        with np.errstate(invalid="ignore", over="ignore"):
            errors = self.actual.astype(np.float64) - self.reference
            if self.rest is not None:
                errors -= self.rest
            if self.coarse:
                errors[np.abs(self.s2 - size) <= _ALONE * size] = 0
        flat: np.ndarray = errors.reshape(-1)
        return flat

    @cached_property
    def groups(self) -> Groups:
        """Groups of errors, computed only if single elements exceed a limit. Zero results are exact and in no group."""
        exact = self.reference.reshape(-1).astype(np.float64)
        order = np.argsort(np.abs(exact))
        exact = exact[order]
        with np.errstate(invalid="ignore", over="ignore"):
            error = self._errors[order]
            sizes = np.abs(exact if self.storage is None else exact.astype(self.storage).astype(np.float64))
            first = np.flatnonzero(np.append(True, np.diff(sizes) != 0))
            sums, products = np.add.reduceat(error, first), np.add.reduceat(error * exact, first)
        members = np.diff(np.append(first, exact.size))[exact[first] != 0].astype(np.float64)
        count = members.sum() ** 2 / max(1.0, members @ members)
        # roundings grow with results: if few results are far larger than the others, only their errors matter
        sizes = np.square(exact[first][exact[first] != 0] / max(np.abs(exact).max(initial=0), np.finfo(float).tiny))
        weights = members * sizes
        if (total := weights @ weights) > 0:
            count = min(count, NORMAL * weights.sum() ** 2 / total)
        with np.errstate(invalid="ignore"):  # sums may be infinite
            squares = float(sums @ sums), float(products @ products)
            return Groups(max(1.0, float(count)), float(sums.sum()), float(products.sum()), *squares)

    def statistics(self, limits: OutputLimits, channels: np.ndarray | None = None, taps: int = 1) -> Statistics:
        """Compute the statistics under a contract; `channels`: see `by_channel`; `taps`: elements of a window."""
        square = self.square
        if limits.gain > 0 and self.reference_square > 0 and math.isfinite(self.product):
            gain = min(max(self.product / self.reference_square, -limits.gain), limits.gain)
            square = max(0.0, square - 2 * gain * self.product + gain**2 * self.reference_square)
        uneven = 0.0 if limits.shared_constants else limits.gain / RMS
        unit = (
            (math.sqrt(limits.halves) * limits.format.unit_roundoff + uneven) * math.sqrt(self.reference_square)
            + limits.unit * math.sqrt(self.magnitude_square)
            + limits.tiny * math.sqrt(self.actual.size)
        )
        rms = math.sqrt(square) / unit if unit > 0 else 0.0
        rms_limit = limits.rms(self.actual.size)
        if not rms <= rms_limit:
            rms_limit = limits.rms(self.groups.count)

        allowed = limits.gain * self.reference_square + limits.drift * self.spread_product
        gained, lost = (allowed + mean * self.reference_square for mean in (limits.excess, limits.loss))
        gain_z = z_score(self.product, gained, self.product_square, lost)
        if not abs(gain_z) <= limits.z:
            gain_z = z_score(self.groups.product, gained, self.groups.product_square, lost)
        allowed = limits.gain * (abs(self.reference_total) if limits.shared_constants else self.reference_sizes)
        offset_z = z_score(self.total, allowed, self.square)
        if not abs(offset_z) <= limits.z:
            offset_z = z_score(self.groups.total, allowed, self.groups.square)
        if channels is not None and (limits.few_states or limits.odd) and not abs(offset_z) <= limits.z:
            sums, _ = self.by_channel(channels)
            offset_z = min(offset_z, z_score(self.groups.total, allowed, sums), key=abs)
        if channels is not None and limits.few_states and not abs(gain_z) <= limits.z:
            _, products = self.by_channel(channels)
            gain_z = min(gain_z, z_score(self.groups.product, gained, products, lost), key=abs)
            if limits.lone_products and not abs(gain_z) <= limits.z:
                _, products = self.by_channel(_places(channels, self.reference.shape))
                gain_z = min(gain_z, z_score(self.groups.product, gained, taps * products, lost), key=abs)
        return Statistics(rms, rms_limit, gain_z, offset_z)


def _places(channels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the place of every element within its channel: elements of one place share the other operand. Samples of a
    probed output are a place each."""
    if len(shape) == 1:
        return np.arange(shape[0])
    extents = (1,) * (len(shape) - channels.ndim) + channels.shape
    rest = [1 if extent > 1 else size for extent, size in zip(extents, shape, strict=True)]
    return np.arange(math.prod(rest)).reshape(rest)


def z_score(total: float, above: float, square: float, below: float | None = None) -> float:
    """Return the part of a sum of errors `above` what is allowed, or `below` it (as far, unless given), with its sign,
    over the root of the sum of their squares."""
    beyond = total - min(max(total, -(above if below is None else below)), above)
    return beyond / math.sqrt(square) if square > 0 else 0.0


def rounding_z(actual: np.ndarray, low: np.ndarray, high: np.ndarray, dtype: str) -> float:
    """Return the sum of the errors of stochastic roundings in units of the deviation that it has at most, the farthest
    of three: as they are, away from zero, and away from the nearer neighbour (`conformance.judge.limits`, "Stochastic
    rounding"). What is rounded lies between `low` and `high`."""
    below, above = neighbours(low, dtype)[0], neighbours(high, dtype)[1]
    with np.errstate(invalid="ignore"):
        middle, spacing = (low + high) / 2, above - below
        error = actual - middle
        rounded = np.isfinite(error) & np.isfinite(spacing) & (spacing > 0)
    middle, below, spacing, error = middle[rounded], below[rounded], spacing[rounded], error[rounded]
    if not error.size:
        return 0.0
    nearer = 1 - 2 * (middle - below) / spacing
    farthest = max(abs(float(error.sum())), abs(float(np.sign(middle) @ error)), float(nearer @ error))
    before = float((high - low)[rounded].sum()) / 2
    return max(0.0, farthest - before) / (float(np.linalg.norm(spacing)) / 2)


def measure(
    actual: np.ndarray,
    reference: np.ndarray,
    s2: np.ndarray,
    limits: OutputLimits,
    rest: np.ndarray | None = None,
    storage: np.dtype | None = None,
) -> Residuals:
    """Measure the residuals of one output; the arrays have one shape and any layout, `actual` any storage dtype. The
    exact value is `reference` + `rest`.

    NaN and infinities must be the same as in the reference, apart from results that round to infinity. If the
    reference of an element is finite and its bound is not, the element fails (otherwise any value would pass).
    """
    coarse = limits.few_states or limits.format.precision < FORMATS["fp32"].precision
    residuals = Residuals(actual, reference, s2, rest, storage, coarse)
    flat = [array.reshape(-1) for array in (actual, reference, s2)]
    overflow = (2 - 2 * limits.format.unit_roundoff) * 2.0**limits.format.emax
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, actual.size, BLOCK):
            values, exact, scale = (array[start : start + BLOCK].astype(np.float64) for array in flat)
            error = values - exact
            if rest is not None:
                error -= rest.reshape(-1)[start : start + BLOCK]
            size, result, spreads = np.abs(error), np.abs(exact), limits.partial(exact, scale)
            bound = limits.bound(exact, scale, result, spreads)
            share, square = size / bound, float(error @ error)
            residuals.hidden += int(np.count_nonzero((result <= bound) & (exact != 0)))
            # no bound is zero: if everything is finite, an element equal to the exact value has a share of 0 already
            is_finite = math.isfinite(square) and math.isfinite(bound.max())
            if not is_finite:
                share[~np.isfinite(values) | ~np.isfinite(exact) | ~np.isfinite(bound)] = math.inf
                overflowed = np.isinf(values) & (np.copysign(1, values) * exact > overflow)
                share[(np.isnan(values) & np.isnan(exact)) | overflowed] = 0
                size[np.isnan(size)] = math.inf
            if not is_finite or rest is not None:
                share[values == exact] = 0
            worst = int(np.argmax(share))
            if share[worst] > residuals.worst_share:
                residuals.worst, residuals.worst_share = start + worst, float(share[worst])
            if share[worst] > 1:
                if residuals.mismatched is None:
                    residuals.mismatched = np.zeros(actual.size, bool)
                residuals.mismatched[start : start + BLOCK] = share > 1

            rounding = limits.halves * half_ulp(np.maximum(np.abs(exact + error), result), limits.format)
            excess = size - rounding - limits.tiny
            if not is_finite:
                excess[~np.isfinite(size)] = math.inf
            scales = np.maximum(scale, _TINY)
            residuals.largest = max(residuals.largest, float(np.max(size / scales)))
            residuals.excess = max(residuals.excess, float(np.max(excess / np.maximum(spreads, _TINY))))
            residuals.excess_share = max(residuals.excess_share, float(np.max(excess / scales)))

            product = error * exact
            residuals.square += square
            residuals.total += float(error.sum())
            residuals.product += float(product.sum())
            residuals.product_square += float(product @ product)
            residuals.reference_total += float(exact.sum())
            residuals.reference_sizes += float(result.sum())
            residuals.reference_square += float(exact @ exact)
            residuals.magnitude_square += float(scale @ scale)
            residuals.spread_product += float(spreads @ result)
    return residuals
