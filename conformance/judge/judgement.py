"""The judge: one output against its exact reference, under a contract. Knows nothing of implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE
from conformance.judge import accuracy, residuals
from conformance.judge.contract import Contract
from conformance.judge.limits import NONE, Constants, Limits, limits, propagated_limits
from conformance.judge.locate import locate
from conformance.judge.propagation import Arithmetic
from conformance.judge.residuals import Residuals
from conformance.operators import Arrays, Operator

EQUALITY_DISTRIBUTIONS = frozenset({"integer", "impulse", "special"})
STATISTICS_DISTRIBUTIONS = frozenset({"fixed"})


@dataclass(frozen=True, slots=True)
class Check:
    """One number against its limit."""

    name: str
    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """NaN never passes."""
        return abs(self.value) <= self.limit

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4g} {'within' if self.passed else 'beyond'} {self.limit:.4g}"


@dataclass(frozen=True, slots=True)
class Worst:
    """The element furthest from where it must be."""

    index: tuple[int, ...]
    value: float
    reference: float
    bound: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of one output after comparison."""

    output: str
    compared: int
    out: int
    criterion: str
    checks: tuple[Check, ...]
    worst: Worst | None = None
    where: str = ""
    profile: dict[str, float] = field(default_factory=dict)
    inferred: Contract | None = None
    """On the fixed distribution: the strictest known contract that the errors are consistent with, if there is one."""
    conservative: bool = False
    """Whether that is stricter than the declared one."""

    @property
    def passed(self) -> bool:
        """All checks hold."""
        return all(check.passed for check in self.checks)

    def explain(self) -> str:
        """Lines for a failure: what was compared, how many are out, the worst one, where errors sit."""
        lines = [f"{self.output}: {self.out:,} of {self.compared:,} elements out ({self.criterion})"]
        if self.worst is not None:
            w = self.worst
            index = ", ".join(map(str, w.index))
            lines.append(
                f"worst {self.output}[{index}] is {w.value!r}, exact {w.reference!r}, "
                f"error {abs(w.value - w.reference):.3g}, allowed {w.bound:.3g}"
            )
        lines.append("; ".join(map(str, self.checks)))
        if self.profile and not self.passed:
            lines.append(f"contract inferred: {self.inferred.arithmetic if self.inferred else 'none that is known'}")
        if self.where:
            lines.append(f"errors sit at: {self.where}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Output:
    """One output to be judged: the host array and what it must be. `magnitude` is asked for only when needed.

    exact       whether integers have results that every format holds
    selects     whether every result is an element of the inputs
    constants   rounded constants that the operator allows for
    sharing     most elements that one rounding may reach
    propagated  contract -> bound by element before the output's own rounding, where the output is no plain sum
    """

    name: str
    axes: str
    dtype: str
    terms: int
    actual: np.ndarray
    reference: np.ndarray
    magnitude: Callable[[], np.ndarray]
    exact: bool = True
    selects: bool = False
    constants: Constants = NONE
    sharing: int = 1
    propagated: Callable[[Contract], np.ndarray] | None = None

    def limits(self, contract: Contract) -> tuple[Limits, np.ndarray]:
        """What a contract allows, and the scale s2 of every element that it allows it in."""
        if self.propagated is not None:
            return propagated_limits(contract, self.dtype), self.propagated(contract)
        allowed = limits(contract, self.dtype, self.terms, self.actual.size, self.constants, self.sharing)
        s2 = self.magnitude()
        return allowed, s2 if allowed.local else np.broadcast_to(s2.max(), s2.shape)


def outputs_of(
    operator: Operator,
    geometry: Any,
    dtype: str,
    inputs: Arrays,
    actual: Arrays,
    reference: Arrays,
    magnitude: Callable[[], Arrays],
) -> list[Output]:
    """Everything an operator returned, ready to be judged; arrays in canonical order, by the names of its outputs."""
    errors = operator.errors(geometry)
    bounds = None
    if (propagate := errors.propagate) is not None:
        bounds = cache(lambda contract: propagate(geometry, inputs, magnitude(), Arithmetic(contract, dtype)))
    return [
        Output(
            name=name,
            axes=tensor.axes,
            dtype=tensor.stored_as(dtype),
            terms=errors.terms[name],
            actual=actual[name],
            reference=reference[name],
            magnitude=partial(_named, name, magnitude),
            exact=errors.exact_on_integers,
            selects=errors.selects,
            constants=Constants(errors.constants, errors.shared_constant),
            sharing=errors.error_fan_out,
            propagated=None if bounds is None else partial(_bound, name, bounds),
        )
        for name, tensor in operator.outputs(geometry).items()
        if name in actual
    ]


def _named(name: str, arrays: Callable[[], Arrays]) -> np.ndarray:
    return arrays()[name]


def _bound(name: str, bounds: Callable[[Contract], Arrays], contract: Contract) -> np.ndarray:
    return bounds(contract)[name]


def judge(output: Output, distribution: str, contract: Contract) -> Judgement:
    """Equality where the contract makes the distribution exact or nothing is computed, else the bound, and on the fixed
    distribution the statistics."""
    if output.selects and contract.inputs == "exact" and contract.subnormals == "kept":
        return _by_equality(output, contract)
    if distribution in EQUALITY_DISTRIBUTIONS and output.exact and contract.exact_on_integers(output.dtype):
        return _by_equality(output, contract)
    return _by_bound(output, contract, with_statistics=distribution in STATISTICS_DISTRIBUTIONS)


def _by_equality(output: Output, contract: Contract) -> Judgement:
    """Every bit that matters: NaN equals NaN, and the sign of a zero is free (it depends on the order of the sum).

    An infinite input that the contract splits in two parts becomes Inf - Inf.
    """
    expected = output.reference.astype(np.float32 if output.dtype != "fp64" else np.float64)
    expected = expected.astype(STORAGE[output.dtype])
    may_be_nan = ~np.isfinite(expected) if contract.inputs.endswith("x3") else np.isnan(expected)
    wrong = (output.actual != expected) & ~(np.isnan(output.actual) & may_be_nan)
    out = int(np.count_nonzero(wrong))
    worst = _worst(output, _furthest(output, expected, wrong), 0.0) if out else None
    checks = (Check("elements unequal", out, 0),)
    where = locate(wrong, output.axes) + _nan_note(output) if out else ""
    return Judgement(output.name, wrong.size, out, "must equal the exact result", checks, worst, where)


def _furthest(output: Output, expected: np.ndarray, wrong: np.ndarray) -> int:
    with np.errstate(invalid="ignore"):
        error = np.abs(output.actual.astype(np.float64) - expected.astype(np.float64))
    error = np.where(wrong, np.nan_to_num(error, nan=np.inf, posinf=np.inf), -1.0)
    return int(np.argmax(error))


def _by_bound(output: Output, contract: Contract, with_statistics: bool) -> Judgement:
    allowed, s2 = output.limits(contract)
    found = residuals.measure(output.actual, output.reference, s2, allowed)
    checks = [Check("worst error / bound", found.worst_share, 1.0)]
    if with_statistics:
        checks += _statistics(found, allowed)
    worst, where = None, ""
    if not all(check.passed for check in checks):
        worst = _worst(output, found.worst, allowed, s2)
        if found.out_of_bounds:
            where = locate(residuals.out_of_bounds(output.actual, output.reference, s2, allowed), output.axes)
            where += _nan_note(output)
    criterion = f"bound of the contract: {contract.describe(output.dtype)}"
    judgement = Judgement(output.name, found.count, found.out_of_bounds, criterion, tuple(checks), worst, where)
    return _with_profile(judgement, found, contract, output) if with_statistics else judgement


def _with_profile(judgement: Judgement, found: Residuals, contract: Contract, output: Output) -> Judgement:
    """Add the measured accuracy and the contract it earns."""
    if output.propagated is not None:
        inferred = _inferred_by_propagation(output)
        numbers = accuracy.propagated(found, contract, output.dtype)
    else:
        inferred = accuracy.inferred(found, output.dtype, output.terms, output.constants, output.sharing)
        allowed, _ = output.limits(contract)
        numbers = accuracy.profile(found, contract, output.dtype, output.terms, allowed)
    conservative = inferred is not None and _stricter(inferred, contract, output)
    return replace(judgement, profile=numbers, inferred=inferred, conservative=conservative)


def _inferred_by_propagation(output: Output) -> Contract | None:
    """The strictest known contract whose propagated bound and rms hold."""
    for contract in accuracy.ladder(output.dtype, output.terms):
        allowed, s2 = output.limits(contract)
        found = residuals.measure(output.actual, output.reference, s2, allowed)
        if found.worst_share <= 1 and found.rms(allowed) <= found.rms_limit(allowed):
            return contract
    return None


def _stricter(inferred: Contract, declared: Contract, output: Output) -> bool:
    """Whether a kernel inferred better than it declares."""
    first, second = (accuracy.strictness(c, output.dtype, output.terms) for c in (inferred, declared))
    return first < second


def _statistics(found: residuals.Residuals, allowed: Limits) -> list[Check]:
    """Rms always; gain and offset unless the contract itself declares a one-sided or input-dependent error."""
    checks = [Check("rms", found.rms(allowed), found.rms_limit(allowed))]
    if not allowed.one_sided:
        checks += [Check("gain z", found.gain(allowed), allowed.z), Check("offset z", found.offset(allowed), allowed.z)]
    return checks


def _worst(output: Output, flat: int, allowed: Limits | float, s2: np.ndarray | None = None) -> Worst:
    index = tuple(int(i) for i in np.unravel_index(flat, output.actual.shape))
    reference = float(output.reference[index])
    bound = 0.0
    if isinstance(allowed, Limits) and s2 is not None:
        bound = float(allowed.bound(output.reference[index], s2[index].astype(np.float64)))
    return Worst(index, float(output.actual[index]), reference, bound)


def _nan_note(output: Output) -> str:
    """Name the commonest accident: a buffer that nobody wrote."""
    if np.isnan(output.actual).all():
        return "; all of them are NaN: was the output ever written?"
    unexpected = int(np.count_nonzero(np.isnan(output.actual) & ~np.isnan(output.reference)))
    return f"; {unexpected:,} are NaN where the reference is not" if unexpected else ""
