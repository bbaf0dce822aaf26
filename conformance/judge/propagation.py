"""A contract in the form that error propagation through a fused operator needs.

How errors propagate is the operator's own mathematics (for example `conformance.operators.conv_bn.propagation`); the
error that a sum or a rounding adds follows from the contract, as for a plain sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import FORMATS, STORAGE
from conformance.judge.limits import LAMBDA, OutputLimits, half_ulp, limits, spread


@dataclass(frozen=True, slots=True)
class ContractArithmetic:
    """A contract applied to tensors of `dtype`: see `conformance.operators.base.Arithmetic`."""

    contract: Contract
    dtype: str
    deviations: float = LAMBDA
    exact: bool = False
    """Whether sums are exact in every order."""

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
        """Bound the error of sums of exact elements [K, M] over the last axis."""
        plain = replace(self.contract, algorithm="direct", inputs="exact")
        sums = ContractArithmetic(plain, self.dtype).limits(elements.shape[-1]).sums
        total = np.abs(elements.sum(axis=-1))
        alike = _alike(elements, 2 * self.u * total)
        together = self.u * alike * (1 - alike / (2 * elements.shape[-1])) * total
        bound: np.ndarray = sums * np.hypot(np.linalg.norm(elements, axis=-1), total) + together
        return bound

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


def _alike(elements: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """Return, for each row of [K, M], the largest number of elements within one spacing of each other; 0 for a
    single element."""
    ordered = np.sort(elements, axis=-1)
    rows, columns = ordered.shape
    if rows < columns:
        places = np.arange(1, columns + 1)
        pairs = zip(ordered, spacing, strict=True)
        counts = [int(np.max(np.searchsorted(row, row + reach, "right") - places + 1)) for row, reach in pairs]
        counted = np.array(counts, np.float64)
        return np.where(counted > 1, counted, 0)
    counted = np.zeros(rows)
    for apart in range(1, columns):  # for many short rows, all rows at once
        near = (ordered[:, apart:] <= ordered[:, :-apart] + spacing[:, None]).any(axis=-1)
        counted[near] = apart + 1
    return counted
