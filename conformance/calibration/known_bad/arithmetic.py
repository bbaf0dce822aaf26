"""Kernels whose every rounding is chosen, emulated on the matrix product that a convolution is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from conformance.calibration.known_bad.base import stored
from conformance.calibration.lowering import lowered
from conformance.calibration.subject import Run
from conformance.dtypes import FORMATS, Format
from conformance.operators import Arrays, ConvGeometry, Operator

STEPS = 4096
"""Most steps of an emulated accumulation; a longer sum adds several exact products at a time, as tensor cores do."""


def bits(precision: int) -> Format:
    """fp32 with fewer significant bits."""
    return Format(f"{precision} bits", precision, FORMATS["fp32"].emin, FORMATS["fp32"].emax)


def rounded(values: np.ndarray, format: Format, toward: str = "nearest") -> np.ndarray:
    """float64 values rounded to a format: to nearest even, toward `zero`, `away` from it, or `up` to +infinity."""
    if toward == "up":
        return np.where(values > 0, rounded(values, format, "away"), rounded(values, format, "zero"))
    shift = 53 - format.precision
    mask = (1 << shift) - 1
    words = np.asarray(values, np.float64, order="C").view(np.int64)
    if toward == "nearest":
        words = words + ((words >> shift) & 1) + (mask >> 1)
    elif toward == "away":
        words = words + mask
    normal = (words & ~mask).view(np.float64)
    finite: np.ndarray = np.where(np.isfinite(values), _underflowing(values, normal, format, toward), values)
    largest = (2 - 2.0 ** (1 - format.precision)) * 2.0**format.emax
    return np.where(np.abs(finite) > largest, np.copysign(np.inf, finite), finite)


def _underflowing(values: np.ndarray, normal: np.ndarray, format: Format, toward: str) -> np.ndarray:
    whole: dict[str, Callable[[np.ndarray], np.ndarray]] = {"nearest": np.rint, "zero": np.trunc, "away": _outward}
    least = format.smallest_subnormal
    return np.where(np.abs(values) < format.smallest_normal, whole[toward](values / least) * least, normal)


def _outward(values: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.copysign(np.ceil(np.abs(values)), values)
    return out


def flushed(values: np.ndarray, format: Format) -> np.ndarray:
    """Zeros in place of what is below the normal range."""
    return np.where(np.abs(values) < format.smallest_normal, 0.0, values)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a kernel computes. With the defaults: exact sums and one rounding.

    first, second  formats of the two factors of the matrix product (weights or dy first, data second)
    accumulate     format of a sequential accumulator; `storage` is that of the tensors; None sums exactly
    toward         its rounding
    splits         number of partial sums, stored in `partials` and added in fp32
    through        formats and directions that the sum is rounded to in turn before it is stored
    """

    first: Format | None = None
    second: Format | None = None
    accumulate: Format | None = None
    in_storage: bool = False
    toward: str = "nearest"
    splits: int = 1
    partials: Format = FORMATS["fp32"]
    through: tuple[tuple[Format, str], ...] = ()
    before: Callable[[np.ndarray, Format], np.ndarray] | None = None
    after: Callable[[np.ndarray, Format], np.ndarray] | None = None

    def __call__(self, operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
        """Run the kernel; bias and dbias are exact."""
        format = FORMATS[dtype]
        product = lowered(operator, geometry, inputs)
        a, b = self._given(product.a, self.first, format), self._given(product.b, self.second, format)
        main, *rest = operator.outputs(geometry)
        total = product.restored(self._sum(a, b, format))
        if "bias" in inputs:
            total = total + inputs["bias"].astype(np.float64)[:, None, None]
        for step, toward in self.through:
            total = rounded(total, step, toward)
        outputs = {main: self.after(total, format) if self.after else total}
        return stored(outputs | {name: inputs["dy"].sum((0, 2, 3), np.float64) for name in rest}, dtype)

    def _given(self, factor: np.ndarray, to: Format | None, storage: Format) -> np.ndarray:
        values = factor if to is None else rounded(factor, to)
        return self.before(values, storage) if self.before else values

    def _sum(self, a: np.ndarray, b: np.ndarray, storage: Format) -> np.ndarray:
        format = storage if self.in_storage else self.accumulate
        if self.splits > 1:
            parts = np.array_split(np.arange(a.shape[2]), self.splits)
            stores = (rounded(a[..., part] @ b[:, part], self.partials) for part in parts if part.size)
            return added(stores, FORMATS["fp32"], "nearest")
        if format is None:
            total: np.ndarray = a @ b
            return total
        step = -(-a.shape[2] // STEPS)
        starts = range(0, a.shape[2], step)
        return added((a[..., i : i + step] @ b[:, i : i + step] for i in starts), format, self.toward)


def added(terms: Iterable[np.ndarray], format: Format, toward: str) -> np.ndarray:
    """The terms summed one after the other, rounded at every step."""
    total = np.zeros(())
    for term in terms:
        total = rounded(total + term, format, toward)
    return total


HONEST: Run = Arithmetic()
"""The good kernel of the precision mutants."""
