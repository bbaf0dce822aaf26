"""A sum whose terms are chosen: one element of an operator's output, all else in the call being zero."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from conformance.diagnosis.terms import ELEMENTS, Compute, TermPlan, planned, with_one_term, zeros
from conformance.dtypes import FORMATS, FP8_BOTH, WHOLE
from conformance.operators import Arrays, Operator
from conformance.operators.base import Workload
from conformance.operators.requantized import Requantized

HALF = 14
"""Largest exponent of a factor, and least one less its sign: numbers of fp16, which inputs may be rounded to."""


class UnreadableError(ValueError):
    """Raised where something cannot be read; the message says why."""


def adds(operator: Operator) -> bool:
    """Return whether an operator's results are sums of products, or averages."""
    families = ("conv", "conv_transpose", "avg_pool", "matmul", "matmul_scaled", "matmul_grouped")
    return isinstance(operator, Requantized) or operator.family in families


class Sums:
    """The sums of an operator on a problem, as a kernel computes them.

    In operators of two operands, a term is the product of an element of `selected` and one of `coded`; averages have
    one operand and a divisor.
    """

    def __init__(self, workload: Workload, dtype: str, compute: Compute, *, is_simulated: bool = False) -> None:
        self.workload, self.dtype, self._compute = workload, dtype, compute
        # a requantized operator adds as the plain one does, whose results are not of 8 bits
        operator = workload.operator
        self.linear = operator.linear.on(workload.geometry) if isinstance(operator, Requantized) else workload
        plan = planned(self.linear)
        if plan is None or plan.terms == ELEMENTS or (plan.selected == plan.coded and len(plan.axes) == 0):
            raise UnreadableError(f"{workload.operator.name} has no sums of products, or averages")
        self.plan: TermPlan = plan
        self.output = next(iter(workload.outputs))
        self.counts = self._of_ones()
        self.zeros = zeros(workload, dtype)
        self.is_simulated = is_simulated
        """A call takes seconds, in a simulator of a device."""
        self.calls = 0

    @property
    def averages(self) -> bool:
        """Return whether terms are elements of one operand."""
        return self.plan.selected == self.plan.coded

    def _of_ones(self) -> np.ndarray:
        inputs = zeros(self.linear, "fp64")
        for name in {self.plan.selected, self.plan.coded}:
            inputs[name][...] = 1
        return self.linear.reference(inputs)[self.output]

    def compute(self, inputs: Arrays) -> np.ndarray:
        """Call the kernel, and return the output in float64. Raises what the kernel does."""
        self.calls += 1
        return self._compute(inputs)[self.output].astype(np.float64)

    def at(self, place: tuple[int, ...] | None = None) -> Sum:
        """Return the sum of one element of the output; by default of the first that has the most terms."""
        if place is None:
            first = int(np.argmax(self.counts >= self.counts.max() * (1 - 1e-9)))
            place = tuple(map(int, np.unravel_index(first, self.counts.shape)))
        return Sum(self, place)


@dataclass
class Sum:
    """One element of the output.

    terms   number of terms
    scale   what a term is multiplied with: the reciprocal of a divisor
    """

    sums: Sums
    place: tuple[int, ...]
    terms: int = field(init=False)
    scale: float = field(init=False, default=1.0)
    _positions: dict[int, tuple[int, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        sums = self.sums
        if not sums.averages:
            self.terms = math.prod(sums.plan.axes.values())
            if sums.counts[self.place] != self.terms:
                raise UnreadableError("padding takes terms from every sum")
            return
        weights = self._weights()
        self.scale = float(weights.max(initial=0))
        reached = np.flatnonzero(weights)
        if not reached.size or np.any(weights[reached] != self.scale) or math.frexp(self.scale)[0] != 0.5:
            raise UnreadableError("averages are divided by no power of two")
        self.terms = reached.size
        self._positions = {term: (int(at), int(at)) for term, at in enumerate(reached)}

    def _weights(self) -> np.ndarray:
        """Return what each element of the operand is multiplied with."""
        sums, (name,) = self.sums, {self.sums.plan.selected}
        inputs = zeros(sums.linear, "fp64")
        extent = inputs[name].shape
        weights = np.zeros(extent)
        for index in np.ndindex(*extent[2:]):
            inputs[name][...] = 0
            where = (*self.place[:2], *index)
            inputs[name][where] = 1
            weights[where] = sums.linear.reference(inputs)[sums.output][self.place]
        return weights.ravel()

    def position(self, term: int) -> tuple[int, int]:
        """Return which element of `selected`, and which of `coded`, a term is the product of."""
        if term not in self._positions:
            sums, plan = self.sums, self.sums.plan
            index = tuple(map(int, np.unravel_index(term, tuple(plan.axes.values()))))
            inputs = with_one_term(sums.linear, "fp64", plan, index)
            coded = self._code(inputs)
            inputs = zeros(sums.linear, "fp64")
            inputs[plan.coded].flat[coded] = 1
            selected = inputs[plan.selected]
            selected[...] = 2 * np.arange(selected.size).reshape(selected.shape) + 1
            self._positions[term] = self._code(inputs), coded
        return self._positions[term]

    def _code(self, inputs: Arrays) -> int:
        return (int(self.sums.linear.reference(inputs)[self.sums.output][self.place]) - 1) // 2

    def of_factors(
        self, factors: Mapping[int, tuple[float, float]], bias: float = 0.0, rest: tuple[float, float] = (0.0, 0.0),
        scale: float = 1.0,
    ) -> float:  # fmt: skip
        """Return the kernel's sum of terms with these factors, and a bias. Raises UnreadableError for a factor that is
        no number of the dtype."""
        sums, plan = self.sums, self.sums.plan
        inputs = {name: array.copy() for name, array in sums.zeros.items()}
        taken = dict.fromkeys(range(self.terms), rest) | dict(factors) if any(rest) else factors
        positions = np.array([self.position(term) for term in taken]).reshape(-1, 2)
        values = np.array([*taken.values()], np.float64).reshape(-1, 2)
        chosen = [(plan.selected, positions[:, 0], values[:, 0]), (plan.coded, positions[:, 1], values[:, 1])]
        for name, at, exact in [(plan.selected, positions[:, 0], values.prod(1))] if sums.averages else chosen:
            zero = sums.zeros[name].flat[0]
            with np.errstate(over="ignore", invalid="ignore"):
                stored = exact.astype(zero.dtype)
            if not np.array_equal(stored.astype(np.float64), exact):
                raise UnreadableError(f"a factor is no number of {sums.dtype}")
            inputs[name].reshape(-1)[at] = stored + zero
        if bias:
            inputs["bias"][...] = bias
        if "scale" in inputs:
            inputs["scale"][...] = scale
        return float(sums.compute(inputs)[self.place]) / self.scale

    def of(self, values: Mapping[int, float], rest: float = 0.0, bias: float = 0.0) -> float:
        """Return the kernel's sum of terms with these values, `rest` for all others."""
        return self.of_factors(
            {term: self.split(value) for term, value in values.items()}, bias, self.split(rest) if rest else (0.0, 0.0)
        )

    def in_units(self, values: Mapping[int, float]) -> float:
        """Return the kernel's sum of terms in units of the smallest one of `reach`."""
        _, unit = self.reach
        scale = 1 / unit if isinstance(self.sums.workload.operator, Requantized) else 1.0
        factors = {term: self.split(value * unit) for term, value in values.items()}
        return self.of_factors(factors, scale=scale) / (unit * scale)

    def split(self, value: float) -> tuple[float, float]:
        """Return two factors of a value that are near to each other."""
        if self.sums.averages or value == 0 or self.sums.dtype in WHOLE:
            return value, 1.0
        exponent = math.frexp(value)[1] - 1
        return math.ldexp(value, -(exponent // 2)), math.ldexp(1.0, exponent // 2)

    @property
    def masks(self) -> list[tuple[int, int]]:
        """Exponents of a large and of a small term, so that fp32, or fp64, holds no sum of them; in the order in which
        they are tried: with factors of fp16's range, sums of its range, any."""
        dtype, terms = self.sums.dtype, self.terms.bit_length()
        if dtype == FP8_BOTH.name:
            return [(16, -16), (8, -12)]
        if dtype.startswith("fp8"):
            return [(16, -18), (8, -12)]
        pairs = [(28, -8), (14, -8), (40, -26 - terms)]
        if self.sums.averages:
            pairs = [(15, -17), (12, -8)] if dtype == "fp16" else [(28, -8), (14, -8), (40, -26 - terms)]
        return [pair for pair in pairs if dtype != "fp16" or pair[0] <= 2 * HALF]

    @property
    def reach(self) -> tuple[int, float]:
        """Return the largest exponent of a large term beside a small one, and the small one."""
        if self.sums.dtype.startswith("fp8"):
            return 28, 2.0**-12
        if self.sums.dtype == "fp16":
            return (25, 2.0**-10) if self.sums.averages else (27, 1.0)
        return (60, 2.0**-20) if self.sums.dtype in ("fp32", "fp64", "bf16") else (0, 1.0)

    @property
    def precision(self) -> int:
        """Bits of the dtype that sums are returned in."""
        stored = self.sums.workload.outputs[self.sums.output].stored_as(self.sums.dtype)
        return FORMATS[stored].precision if stored in FORMATS else 0
