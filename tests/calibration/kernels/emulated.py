"""A kernel that computes as a contract says, in the least precise way that it allows: one term after the other, in the
order of the definition, with every rounding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.accumulator import STORED, Accumulator
from conformance.contract import Contract
from conformance.dtypes import FORMATS, STORAGE, Format, sums_of
from conformance.operators import Arrays, Operator
from conformance.operators.conv_requantized.steps import Steps
from conformance.operators.requantized import TIES
from conformance.operators.requantized_steps import as_defined, not_saturated, saturated
from conformance.slices import Slices
from tests.calibration.avg_pool.known_good import Summed
from tests.calibration.conv.transforms import fft_with_steps, winograd
from tests.calibration.conv_bn.normalisation import CENTRED, ConvBnKernel, folded, raw, summed
from tests.calibration.conv_requantized import known_good as requantized
from tests.calibration.kernels.rounding import Way, flushed, rounded, stored
from tests.calibration.kernels.sums import direct

WAYS: dict[str, Way] = {"zero": np.trunc, "nearest": np.rint, "down": np.floor}
"""Rounding of an accumulator -> how it makes a whole number of a number of spacings."""
PARTS = {3: ((0, 1), (1, 0), (0, 0)), 6: ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))}
"""Number of products -> which part of either factor each of them has, the smallest first; part 0 is the largest."""
PARTS[9] = ((2, 2), (2, 1), (1, 2), *PARTS[6])


def accumulator_of(contract: Contract, dtype: str) -> Accumulator:
    """Return the accumulator of a contract for tensors of `dtype`; an ordinary one adds one product with one
    rounding."""
    if contract.unit is not None:
        return contract.unit
    format = contract.accumulator(dtype)
    return Accumulator(bits=format.precision - 1, rounding=contract.rounding, stored=format.name)


def shortened(format: Format, precision: int) -> Format:
    """Return a format of the same range with other significant bits."""
    return Format(f"{precision} bits", precision, format.emin, format.emax)


def added(a: np.ndarray, b: np.ndarray, unit: Accumulator, less: int = 0) -> np.ndarray:
    """Return a[G, M, L] @ b[G, L, T] as a unit adds the products, or one that has `less` bits than it."""
    format, way = STORED[unit.stored], WAYS[unit.rounding]
    aligns = unit.group > 1 or unit.bits + 1 < format.precision
    fraction = shortened(format, unit.bits + 1 - less)
    if not aligns:  # a sum is rounded once
        format = fraction
    total = np.zeros((*a.shape[:2], b.shape[2]))
    whole = np.zeros_like(total)
    first, second = np.moveaxis(a, 2, 0)[..., None], np.moveaxis(b, 1, 0)[:, :, None]
    for start in range(0, len(first), unit.group):
        here = slice(start, start + unit.group)
        if aligns:
            terms = np.concatenate([total[None], first[here] * second[here]])
            total = rounded(terms, fraction, way, at=np.abs(terms).max(axis=0)).sum(axis=0)
        else:
            total = total + first[start] * second[start]
        if way is np.rint and format.precision == FORMATS["fp32"].precision:
            total = total.astype(np.float32).astype(np.float64)  # several times faster
        elif format.precision < FORMATS["fp64"].precision:
            total = rounded(total, format, way)
        if unit.promote and (start + unit.group) % unit.promote == 0:
            whole, total = rounded(whole + total, STORED[unit.into]), np.zeros_like(total)
    return rounded(whole + total, STORED[unit.into]) if unit.promote else total


@dataclass(frozen=True, slots=True)
class EmulatedSum:
    """sum_i a[g, m, i] * b[g, i, t] under a contract.

    dtype    of the tensors
    shorter  bits that the accumulator has less than the contract says
    coarser  bits that rounded inputs, or parts of inputs, have less
    """

    contract: Contract
    dtype: str
    shorter: int = 0
    coarser: int = 0

    def __call__(self, a: np.ndarray, b: np.ndarray, taps: int = 1) -> np.ndarray:
        """Return the sums [G, M, T] as float64."""
        unit = accumulator_of(self.contract, self.dtype)
        if self.contract.slices is not None:
            return self._sliced(a, b, self.contract.slices, unit)
        first, second = (self._parts(factor) for factor in (a, b))
        pairs = PARTS.get(self.contract.products, ((0, 0),))
        stretches = np.array_split(np.arange(a.shape[2]), self.contract.splits)
        partials = (
            added(
                np.stack([first[i][..., stretch] for i, _ in pairs], axis=-1).reshape(*a.shape[:2], -1),
                np.stack([second[j][:, stretch] for _, j in pairs], axis=2).reshape(len(b), -1, b.shape[2]),
                unit,
                self.shorter,
            )
            for stretch in stretches
            if stretch.size
        )
        return self._combined(partials, np.zeros((*a.shape[:2], b.shape[2])))

    def _sliced(self, a: np.ndarray, b: np.ndarray, slices: Slices, unit: Accumulator) -> np.ndarray:
        """Add products of slices, each an exact sum, to an accumulator, the smallest first."""
        first, second = (self._slices(factor, axis, slices) for factor, axis in ((a, 2), (b, 1)))
        total = np.zeros((*a.shape[:2], b.shape[2]))
        for i, j in slices.pairs:
            total = rounded(total + first[i] @ second[j], STORED[unit.stored], WAYS[unit.rounding])
        return total

    def _slices(self, factor: np.ndarray, axis: int, slices: Slices) -> list[np.ndarray]:
        """Cut a factor by the power of two above the largest number along an axis. To nearest, the first slice has a
        bit less: a digit is rounded up."""
        largest = np.abs(factor).max(axis=axis, keepdims=True, initial=0.0)
        lost = slices.bits - (self.contract.rounding == "nearest")
        spacing = np.ldexp(1.0, np.frexp(largest)[1] - lost)
        parts: list[np.ndarray] = []
        for _ in range(slices.count):
            parts.append(WAYS[self.contract.rounding]((factor - sum(parts)) / spacing) * spacing)
            spacing = np.ldexp(spacing, -slices.bits)
        return parts

    def _combined(self, partials: Iterable[np.ndarray], total: np.ndarray) -> np.ndarray:
        """Add partial sums, which are stored, to a sum that is stored likewise, as atomic additions do."""
        format = FORMATS[self.contract.partials]
        for partial_sum in partials:
            if self.contract.splits == 1:
                return partial_sum
            total = rounded(total + rounded(partial_sum, format), format)
        return total

    def _parts(self, factor: np.ndarray) -> list[np.ndarray]:
        """Round a factor, and the loss of that, and so on."""
        if not self.contract.narrow:
            return [factor]
        format = FORMATS[self.contract.narrow]
        shorter = shortened(format, format.precision - self.coarser)
        parts: list[np.ndarray] = []
        for _ in range(self.contract.parts):
            parts.append(rounded(factor - sum(parts), shorter, WAYS[self.contract.rounding]))
        return parts


@dataclass(frozen=True, slots=True)
class Emulated:
    """A kernel of every operator that a contract is declared for, to be run as known kernels are; see `EmulatedSum`."""

    contract: Contract
    shorter: int = 0
    coarser: int = 0

    def __call__(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        """Return the outputs in storage dtype."""
        contract = self.contract.on(geometry, dtype)
        wide = "fp64" if contract.accumulator(sums_of(dtype)).name == "fp64" else "fp32"
        if contract.subnormals == "flushed":
            inputs = {name: _flushed(array, FORMATS[dtype]) for name, array in inputs.items()}
        total = EmulatedSum(contract, sums_of(dtype), self.shorter, self.coarser)
        if contract.algorithm != "direct":
            outputs = _transformed(total, operator, geometry, inputs, dtype)
        elif geometry.family == "avg_pool":
            (output,) = operator.outputs(geometry)
            average = Summed(total, work=STORAGE[wide].type)(operator, geometry, inputs)
            outputs = {output: stored(average, dtype)}
        elif geometry.family == "conv_bn":
            moments = CENTRED if contract.variance == "centred" else raw()
            between = contract.between == "storage"
            kernel = ConvBnKernel(summed(total), moments, scale=folded, between=between, held=wide)
            outputs = kernel(operator, geometry, inputs, dtype)
        elif geometry.family == "conv_requantized":
            ties = saturated(TIES[contract.ties]) if dtype == "int8" else as_defined
            stores = ties if contract.overflow == "saturates" else not_saturated
            outputs = Steps(sums=requantized.summed(total), stored=stores)(operator, geometry, inputs, dtype)
        else:
            outputs = direct(total, operator, geometry, inputs, dtype)
            if contract.slices is not None and "dbias" in outputs:  # a sum of inputs, which nothing multiplies
                plain = EmulatedSum(replace(contract, inputs="exact"), sums_of(dtype))
                outputs["dbias"] = direct(plain, operator, geometry, inputs, dtype)["dbias"]
        if contract.subnormals == "flushed":
            return {name: _flushed(array, FORMATS[sums_of(dtype)]) for name, array in outputs.items()}
        return outputs


def _flushed(array: np.ndarray, format: Format) -> np.ndarray:
    return flushed(array.astype(np.float64), format).astype(array.dtype)


def _transformed(total: EmulatedSum, operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Return the outputs of a known-good algorithm of other products, whose sums are `total`; those of FFT are fp32."""
    algorithm = total.contract.algorithm
    if algorithm == "fft":
        return fft_with_steps(operator, geometry, inputs, dtype)
    return winograd(algorithm, operator, geometry, inputs, dtype, total=total)
