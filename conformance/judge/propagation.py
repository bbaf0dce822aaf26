"""A contract in the form that error propagation through a fused operator needs.

How errors propagate is the operator's own mathematics (for example `conformance.operators.conv_bn.propagation`); the
error that a sum or a rounding adds follows from the contract, as for a plain sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import FORMATS, STORAGE
from conformance.judge.limits import LAMBDA, OutputLimits, half_ulp, limits, spread
from conformance.operators import Arrays
from conformance.operators.base import Propagation

_TINY = np.finfo(np.float64).tiny
SHORT = 32
"""Longest sums whose elements are compared for all channels at once."""


@dataclass(frozen=True, slots=True)
class ContractArithmetic:
    """A contract applied to tensors of `dtype`: see `conformance.operators.base.Arithmetic`."""

    contract: Contract
    dtype: str
    deviations: float = LAMBDA
    exact: bool = False
    """Whether sums are exact in every order."""
    alike: bool = True
    """Whether equal terms of a sum are rounded alike, as they may be; if not, as independently as others."""

    @property
    def ties(self) -> str:
        return self.contract.ties

    @property
    def saturates(self) -> bool:
        return self.contract.overflow == "saturates"

    @property
    def stochastic(self) -> bool:
        return self.contract.stored == "stochastic"

    @property
    def rounds_between(self) -> bool:
        return self.contract.between == "storage"

    @property
    def raw_moments(self) -> bool:
        return self.contract.variance == "raw"

    @property
    def u(self) -> float:
        return self.contract.accumulator(self.dtype).unit_roundoff

    def limits(self, terms: int, count: int = 1) -> OutputLimits:
        """Return the limits of a sum of products that stays in the accumulator."""
        wide = "fp64" if self.dtype == "fp64" else "fp32"
        return limits(self.contract, wide, terms, count)

    def holds(self, bits: int) -> bool:
        """Tell whether the accumulator adds sums that need `bits` bits exactly, in every order."""
        return self.contract.holds(bits, self.dtype)

    def product(self, exact: np.ndarray, s2: np.ndarray, terms: int, bits: int | None = None) -> np.ndarray:
        """Bound errors of a convolution's elements; sums that the accumulator adds exactly only underflow."""
        allowed = self.limits(terms, exact.size)
        if bits is not None and self.holds(bits):
            return np.full(exact.shape, allowed.tiny)
        scale = s2 if allowed.local else np.broadcast_to(np.max(s2), s2.shape)
        bound: np.ndarray = allowed.inputs * scale + allowed.sums * spread(exact, scale) + allowed.tiny
        return bound

    def sum(self, elements: np.ndarray) -> np.ndarray:
        """Bound the error of sums of exact elements [K, M] over the last axis: see `conv_bn.propagation`, "Sums"."""
        plain = replace(self.contract, algorithm="direct", inputs="exact")
        sums = ContractArithmetic(plain, self.dtype).limits(elements.shape[-1]).sums
        total = elements.sum(axis=-1)
        spreads = np.hypot(np.linalg.norm(elements, axis=-1), total)
        bound: np.ndarray = sums * spreads
        return bound + _lost_alike(elements, total, 2 * self.u * spreads, self.u) if self.alike else bound

    def between(self, values: np.ndarray) -> np.ndarray | float:
        """Bound the error that rounding to storage adds to values whose own error is already bounded."""
        if not self.rounds_between:
            return 0.0
        format = FORMATS[self.dtype]
        return half_ulp(np.abs(values), format) + format.smallest_subnormal / 2

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Return the values as the next part of a fused operator reads them."""
        if not self.rounds_between:
            return values
        return values.astype(STORAGE[self.dtype]).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Propagated:
    """Bounds of an output's elements before its own rounding; `alike`: see `propagated_limits`."""

    bound: np.ndarray
    alike: float


def propagated(
    propagate: Propagation, geometry: Any, inputs: Arrays, scales: Arrays, arithmetic: ContractArithmetic
) -> dict[str, Propagated]:
    """Return the bounds of all outputs by name."""
    bounds = propagate(geometry, inputs, scales, arithmetic)
    independent = propagate(geometry, inputs, scales, replace(arithmetic, alike=False))
    return {name: Propagated(bound, _share(bound - independent[name], bound)) for name, bound in bounds.items()}


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    """Return the root of the sum of squares of a part in that of the whole; 0 where neither is finite."""
    share = float(np.linalg.norm(part)) / max(float(np.linalg.norm(whole)), _TINY)
    return min(1.0, share) if math.isfinite(share) else 0.0


def _lost_alike(elements: np.ndarray, total: np.ndarray, spacing: np.ndarray, u: float) -> np.ndarray:
    """Return, for each row of [K, M], the most that a sum loses to elements within one spacing of each other."""
    ordered = np.sort(elements, axis=-1)
    sums = np.pad(np.cumsum(ordered, axis=-1), ((0, 0), (1, 0)))
    rows, columns = ordered.shape
    largest = np.zeros(rows)
    if columns <= SHORT:
        for apart in range(1, columns):
            first, last = ordered[:, :-apart], ordered[:, apart:]
            part = sums[:, apart + 1 :] - sums[:, : -apart - 1]
            lost = _lost(first, last, apart + 1, part, total[:, None], u)
            lost[last > first + spacing[:, None]] = 0
            largest = np.maximum(largest, lost.max(axis=1))
        return largest
    places = np.arange(columns)
    for place, (row, reach) in enumerate(zip(ordered, spacing, strict=True)):
        end = np.searchsorted(row, row + reach, "right")
        part = sums[place, end] - sums[place, places]
        lost = _lost(row, row[end - 1], end - places, part, total[place], u)
        largest[place] = np.max(lost, where=end - places > 1, initial=0)
    return largest


def _lost(
    first: np.ndarray, last: np.ndarray, count: np.ndarray | int, part: np.ndarray, total: np.ndarray, u: float
) -> np.ndarray:
    """Return the most that a sum loses to `count` elements from `first` to `last`, whose sum is `part`."""
    partial_sum = (np.abs(total) + np.abs(total - part)) / 2
    lost: np.ndarray = count * np.minimum(u * partial_sum, np.maximum(np.abs(first), np.abs(last)))
    return lost
