"""Kernels whose every rounding is chosen, emulated on the matrix product that a convolution is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.dtypes import FORMATS, Format, sums_of
from conformance.operators import Arrays, ConvGeometry, Operator
from conformance.operators.conv.mistakes import over_places
from conformance.operators.spatial import per_channel
from tests.calibration.kernels.kernel import Run, stored
from tests.calibration.kernels.lowering import lowered
from tests.calibration.kernels.rounding import Way, overflowing

STEPS = 4096
"""Most steps of an emulated accumulation; a longer sum adds several exact products at a time, as tensor cores do."""

Change = Callable[[np.ndarray, Format], np.ndarray]
"""(float64 values, storage format) -> float64 values."""


def unchanged(values: np.ndarray, storage: Format) -> np.ndarray:
    return values


def to(format: Format, way: Way = np.rint) -> Change:
    return lambda values, storage: overflowing(values, format, way)


def to_storage(values: np.ndarray, storage: Format) -> np.ndarray:
    return overflowing(values, storage)


def scaled_in_fp32(scale: float) -> Change:
    """Multiply and divide again by a power of two, which is exact until it leaves the range of fp32."""
    return lambda values, _: (values.astype(np.float32) * np.float32(scale)).astype(np.float64) / scale


def added(terms: Iterable[np.ndarray], format: Format, way: Way = np.rint) -> np.ndarray:
    """Sum the terms one after the other, rounded at every step."""
    total = np.zeros(())
    for term in terms:
        total = overflowing(total + term, format, way)
    return total


def folded(
    a: np.ndarray, b: np.ndarray, terms: int, step: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Compute a[G, M, KS] @ b[G, KS, T], `terms` products at a time, added to the sum by `step(sum, their sum)`."""
    total = np.zeros((*a.shape[:2], b.shape[2]))
    for start in range(0, a.shape[2], terms):
        here = slice(start, start + terms)
        total = step(total, a[..., here] @ b[:, here])
    return total


def short(geometry: Any) -> bool:
    """Return whether sums are short enough to be added step by step in time."""
    return bool(geometry.filter.size // geometry.k < 5000)


@dataclass(frozen=True, slots=True)
class KernelArithmetic:
    """Arithmetic of a kernel. With the defaults: exact sums and one rounding.

    first, second  change the two factors of the matrix product (weights or dy first, data second)
    accumulate     format and rounding of a sequential accumulator; None sums exactly
    in_storage     whether the accumulator has the format of the tensors instead
    splits         number of partial sums, stored in `partials` and added in fp32
    after          changes the sum before it is stored
    """

    first: Change = unchanged
    second: Change = unchanged
    accumulate: tuple[Format, Way] | None = None
    in_storage: bool = False
    splits: int = 1
    partials: Format = FORMATS["fp32"]
    after: Change = unchanged

    def __call__(self, operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
        """Run the kernel; bias and dbias are exact."""
        storage = FORMATS[dtype]
        product = lowered(operator, geometry, inputs)
        main, *rest = operator.outputs(geometry)
        total = product.restored(self._sum(self.first(product.a, storage), self.second(product.b, storage), storage))
        if "bias" in inputs:
            total = total + per_channel(inputs["bias"].astype(np.float64), geometry.rank)
        outputs = {main: self.after(total, storage)}
        return stored(outputs | {name: over_places(inputs["dy"], np.float64) for name in rest}, sums_of(dtype))

    def _sum(self, a: np.ndarray, b: np.ndarray, storage: Format) -> np.ndarray:
        if self.splits > 1:
            parts = np.array_split(np.arange(a.shape[2]), self.splits)
            stores = (overflowing(a[..., part] @ b[:, part], self.partials) for part in parts if part.size)
            return added(stores, FORMATS["fp32"])
        chosen = (storage, np.rint) if self.in_storage else self.accumulate
        if chosen is None:
            return a @ b
        step = -(-a.shape[2] // STEPS)
        starts = range(0, a.shape[2], step)
        return added((a[..., i : i + step] @ b[:, i : i + step] for i in starts), *chosen)


EXACT: Run = KernelArithmetic()
"""The good kernel of the precision mutants."""
